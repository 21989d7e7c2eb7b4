// A stand-in for NCCL, for amem-checkpoint target: the calls that it makes, on the simulated
// driver, whose memory the host reaches. In $AMEM_SIM_DIR it notes which programs have loaded it.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

struct Comm {
  int device = 0;
};

struct Part {
  const std::uint8_t* from = nullptr;
  std::uint8_t* to = nullptr;
  std::size_t count = 0;
};

std::vector<Part>& parts() {
  static std::vector<Part> all;
  return all;
}

[[gnu::constructor]] void note() {
  const char* const dir = std::getenv("AMEM_SIM_DIR");
  if (dir == nullptr) return;
  std::ifstream file("/proc/self/cmdline");
  const std::string words((std::istreambuf_iterator<char>(file)), {});
  std::ofstream(std::string(dir) + "/nccl_loaded_by", std::ios::app) << words << '\n';
}

}  // namespace

extern "C" {

[[gnu::visibility("default")]] int ncclGetVersion(int* version) {
  *version = 22703;
  return 0;
}

[[gnu::visibility("default")]] int ncclCommInitAll(void** comms, int count, const int* devices) {
  if (const char* const fails = std::getenv("STAND_IN_NCCL_FAILS"); fails != nullptr) return 2;
  for (int i = 0; i < count; ++i) comms[i] = new Comm{devices[i]};
  return 0;
}

[[gnu::visibility("default")]] int ncclGroupStart() {
  parts().clear();
  return 0;
}

/// Of bytes, and a sum.
[[gnu::visibility("default")]] int ncclAllReduce(const void* from, void* to, std::size_t count,
                                                 int type, int op, void*, void*) {
  if (type != 1 || op != 0) return 4;
  parts().push_back(
      {static_cast<const std::uint8_t*>(from), static_cast<std::uint8_t*>(to), count});
  return 0;
}

[[gnu::visibility("default")]] int ncclGroupEnd() {
  for (std::size_t i = 0; i < parts().front().count; ++i) {
    std::uint8_t sum = 0;
    for (const Part& part : parts()) sum = static_cast<std::uint8_t>(sum + part.from[i]);
    for (const Part& part : parts()) part.to[i] = sum;
  }
  std::puts("stand-in NCCL: all-reduce");
  std::fflush(stdout);
  return 0;
}

[[gnu::visibility("default")]] const char* ncclGetErrorString(int) { return "unhandled error"; }

}  // extern "C"
