// amem_memory_bench: device memory of one process per GPU, with the driver API alone.
//
//   amem_memory_bench copy --bytes N [--gpus G] [--runs R]
//       the ceiling: a plain copy of N bytes between each of G devices and page-locked memory, all
//       devices at once: out, in, and both ways at once. One line of JSON.
//   amem_memory_bench hold --bytes N [--gpu D] [--pieces P]
//       allocates N bytes on device D, 0 by default, fills them with data that has no zeros, says
//       "ready", and then obeys lines on stdin: "check" compares every byte and answers "ok",
//       "change" writes other data, "change PERCENT" writes to so many of the blocks of 64 KiB,
//       taken at random, "flip SEED" changes one byte, taken at random, and says on stderr which,
//       "end" ends. What `amemctl pause` pauses meanwhile is this.
//   amem_memory_bench crowd --bytes N [--gpu D]
//       takes all memory of device D but N bytes, says "ready", and ends with its stdin.
//
// Exit status: 0, 1 on an error, 2 wrong options, 77 without enough GPUs.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/gpu/driver/control.h"
#include "tests/gpu/driver/libraries.h"

namespace gpu_test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kStep = 64U << 20;   // bytes that are filled and compared at a time
constexpr std::size_t kBlock = 64U << 10;  // what amem compares at a time
constexpr std::size_t kPart = 16U << 20;   // of a copy: several in a row, as a pool's extents are

struct Options {
  std::size_t bytes = std::size_t{1} << 30;
  int gpus = 1;
  int gpu = 0;
  int runs = 5;
  int pieces = 16;
};

class Device {
 public:
  explicit Device(int ordinal) {
    if (const auto status = cuda_.load_all(); !status.ok()) skip(status.text());
    if (cuda_.cuInit_(0) != CUDA_SUCCESS) skip("no GPU");
    CUdevice device = 0;
    if (cuda_.cuDeviceGet_(&device, ordinal) != CUDA_SUCCESS)
      skip("no GPU " + std::to_string(ordinal));
    must(cuda_.cuDevicePrimaryCtxRetain_(&context_, device), "cuDevicePrimaryCtxRetain");
    must(cuda_.cuCtxSetCurrent_(context_), "cuCtxSetCurrent");
    for (CUstream* stream : {&out_, &in_})
      must(cuda_.cuStreamCreate_(stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  }

  CUdeviceptr allocate(std::size_t bytes) {
    CUdeviceptr address = 0;
    must(cuda_.cuMemAlloc_(&address, bytes), "cuMemAlloc");
    return address;
  }
  std::size_t free_memory() {
    std::size_t free = 0;
    std::size_t total = 0;
    must(cuda_.cuMemGetInfo_(&free, &total), "cuMemGetInfo");
    return free;
  }
  char* allocate_host(std::size_t bytes) {
    void* address = nullptr;
    must(cuda_.cuMemHostAlloc_(&address, bytes, 0), "cuMemHostAlloc");
    return static_cast<char*>(address);
  }
  void queue_out(char* to, CUdeviceptr from, std::size_t bytes) {
    for (std::size_t at = 0; at < bytes; at += kPart)
      must(cuda_.cuMemcpyDtoHAsync_(to + at, from + at, std::min(kPart, bytes - at), out_),
           "cuMemcpyDtoHAsync");
  }
  void queue_in(CUdeviceptr to, const char* from, std::size_t bytes) {
    for (std::size_t at = 0; at < bytes; at += kPart)
      must(cuda_.cuMemcpyHtoDAsync_(to + at, from + at, std::min(kPart, bytes - at), in_),
           "cuMemcpyHtoDAsync");
  }
  void wait() {
    must(cuda_.cuStreamSynchronize_(out_), "cuStreamSynchronize");
    must(cuda_.cuStreamSynchronize_(in_), "cuStreamSynchronize");
  }

 private:
  [[noreturn]] static void skip(const std::string& why) {
    std::fprintf(stderr, "skipped: %s\n", why.c_str());
    ::_exit(kSkipped);
  }
  void must(CUresult result, const char* call) const { cuda_.must(result, call); }

  Cuda cuda_;
  CUcontext context_ = nullptr;
  CUstream out_ = nullptr;
  CUstream in_ = nullptr;
};

// ---- copy ---------------------------------------------------------------------------------------

struct Times {  // milliseconds
  double out = 0;
  double in = 0;
  double both = 0;
};

template <class Work>
double milliseconds(Work work) {
  const auto begin = Clock::now();
  work();
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

/// The body of one process: writes its times of each run to the pipe. The first run warms up.
void copy_on(int ordinal, const Options& options, Control& control, int pipe) {
  Device device(ordinal);
  const CUdeviceptr there = device.allocate(options.bytes);
  const CUdeviceptr other = device.allocate(options.bytes);
  char* const host = device.allocate_host(options.bytes);
  char* const host_other = device.allocate_host(options.bytes);
  std::memset(host, 0x5a, options.bytes);
  std::memset(host_other, 0xa5, options.bytes);
  for (int run = 0; run <= options.runs; ++run) {
    Times times;
    control.barrier(options.gpus);
    times.out = milliseconds([&] {
      device.queue_out(host, there, options.bytes);
      device.wait();
    });
    control.barrier(options.gpus);
    times.in = milliseconds([&] {
      device.queue_in(there, host, options.bytes);
      device.wait();
    });
    control.barrier(options.gpus);
    times.both = milliseconds([&] {
      device.queue_out(host, there, options.bytes);
      device.queue_in(other, host_other, options.bytes);
      device.wait();
    });
    if (run > 0 && ::write(pipe, &times, sizeof times) != sizeof times)
      fail("the times cannot be written");
  }
}

void print(const char* what, std::vector<double> values) {
  std::sort(values.begin(), values.end());
  std::printf(R"(, "%s_ms": {"n": %zu, "median": %.3f, "min": %.3f, "max": %.3f})", what,
              values.size(), values[values.size() / 2], values.front(), values.back());
}

int copy(const Options& options) {
  Control* control = Control::create();
  if (control == nullptr) fail("no memory");
  std::vector<pid_t> children;
  std::vector<int> pipes;
  for (int g = 0; g < options.gpus; ++g) {
    int ends[2];
    if (::pipe(ends) != 0) fail("pipe");
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(ends[0]);
      copy_on(g, options, *control, ends[1]);
      std::exit(0);
    }
    ::close(ends[1]);
    children.push_back(child);
    pipes.push_back(ends[0]);
  }
  int worst = 0;
  while (!children.empty()) {
    int status = 0;
    const pid_t ended = ::wait(&status);
    if (std::erase(children, ended) == 0) break;
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    if (code == 0) continue;
    if (worst == 0) worst = code;
    for (pid_t child : children) ::kill(child, SIGKILL);  // the others wait for it
  }
  if (worst != 0) return worst;
  // A run takes as long as its slowest device.
  std::vector<double> out(static_cast<std::size_t>(options.runs));
  std::vector<double> in = out;
  std::vector<double> both = out;
  for (int pipe : pipes)
    for (std::size_t run = 0; run < out.size(); ++run) {
      Times times;
      if (::read(pipe, &times, sizeof times) != sizeof times) fail("a process gave no times");
      out[run] = std::max(out[run], times.out);
      in[run] = std::max(in[run], times.in);
      both[run] = std::max(both[run], times.both);
    }
  std::printf(R"({"program": "amem_memory_bench", "gpus": %d, "bytes": %zu)", options.gpus,
              options.bytes);
  print("out", out);
  print("in", in);
  print("both", both);
  std::printf("}\n");
  return 0;
}

// ---- hold ---------------------------------------------------------------------------------------

/// Data without zeros: what does not compress to nothing.
void fill(std::vector<std::uint64_t>& words, std::uint64_t seed) {
  std::uint64_t x = seed * 0x9e3779b97f4a7c15ULL + 1;
  for (std::uint64_t& word : words) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    word = x | 0x0101010101010101ULL;
  }
}

class Holder {
 public:
  explicit Holder(const Options& options)
      : device_(options.gpu),
        step_(std::min(kStep, options.bytes / static_cast<unsigned>(options.pieces))) {
    const std::size_t piece = options.bytes / static_cast<unsigned>(options.pieces);
    for (int i = 0; i < options.pieces; ++i) pieces_.push_back(device_.allocate(piece));
    piece_ = piece;
    host_ = device_.allocate_host(step_);
    words_.resize((step_ + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t));
    blocks_.resize(options.bytes / kBlock + pieces_.size());
    change();
  }

  void change() {
    fill(words_, ++seed_);
    std::fill(blocks_.begin(), blocks_.end(), 0);
    flips_.clear();
    std::memcpy(host_, words_.data(), step_);
    each([&](CUdeviceptr at, std::size_t bytes, std::uint64_t number) {
      std::memcpy(host_, &number, sizeof number);
      device_.queue_in(at, host_, bytes);
      device_.wait();
    });
  }

  /// The second word of so many blocks becomes another.
  void change(int percent) {
    std::size_t block = 0;
    each([&](CUdeviceptr at, std::size_t bytes, std::uint64_t) {
      for (std::size_t offset = 0; offset + kBlock <= bytes; offset += kBlock, ++block) {
        if (random_() % 100 >= static_cast<std::uint64_t>(percent)) continue;
        blocks_[block] = random_() | 1;
        std::memcpy(host_, &blocks_[block], sizeof(std::uint64_t));
        const CUdeviceptr word = at + offset + sizeof(std::uint64_t);
        device_.queue_in(word, host_, sizeof(std::uint64_t));
        device_.wait();
        flips_.erase(flips_.lower_bound(word), flips_.lower_bound(word + sizeof(std::uint64_t)));
      }
    });
  }

  /// One byte becomes another.
  void flip(std::uint64_t seed) {
    std::mt19937_64 random{seed};
    const std::size_t piece = random() % pieces_.size();
    const std::size_t offset = random() % piece_;
    const auto bits = static_cast<unsigned char>(1 + random() % 255);
    const CUdeviceptr at = pieces_[piece] + offset;
    device_.queue_out(host_, at, 1);
    device_.wait();
    *host_ = static_cast<char>(static_cast<unsigned char>(*host_) ^ bits);
    device_.queue_in(at, host_, 1);
    device_.wait();
    flips_[at] ^= bits;
    std::fprintf(stderr, "flip %llu: byte %zu of allocation %zu, bits %02x\n",
                 static_cast<unsigned long long>(seed), offset, piece, bits);
  }

  bool check() {
    bool right = true;
    std::size_t block = 0;
    each([&](CUdeviceptr at, std::size_t bytes, std::uint64_t number) {
      std::memset(host_, 0, bytes);
      device_.queue_out(host_, at, bytes);
      device_.wait();
      std::vector<std::uint64_t> expected = words_;
      expected.front() = number;
      for (std::size_t offset = 0; offset + kBlock <= bytes; offset += kBlock, ++block)
        if (blocks_[block] != 0) expected[offset / sizeof(std::uint64_t) + 1] = blocks_[block];
      auto* const expected_bytes = reinterpret_cast<unsigned char*>(expected.data());
      for (auto it = flips_.lower_bound(at); it != flips_.end() && it->first < at + bytes; ++it)
        expected_bytes[it->first - at] ^= it->second;
      right = right && std::memcmp(host_, expected.data(), bytes) == 0;
    });
    return right;
  }

 private:
  /// In steps, whose data is the same but for the first word: their number.
  template <class Work>
  void each(Work work) {
    std::uint64_t number = 0;
    for (CUdeviceptr piece : pieces_)
      for (std::size_t at = 0; at < piece_; at += step_)
        work(piece + at, std::min(step_, piece_ - at), ++number);
  }

  Device device_;
  std::size_t step_;
  std::size_t piece_ = 0;
  char* host_ = nullptr;
  std::uint64_t seed_ = 0;
  std::vector<std::uint64_t> words_;
  std::vector<std::uint64_t> blocks_;  // what change(percent) has written to each; 0: nothing
  std::map<CUdeviceptr, unsigned char> flips_;  // bits that differ since, by address
  std::mt19937_64 random_{49};
  std::vector<CUdeviceptr> pieces_;
};

int hold(const Options& options) {
  Holder holder(options);
  std::cout << "ready" << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line == "end") break;
    if (line == "change") {
      holder.change();
      std::cout << "ok" << std::endl;
    } else if (line.starts_with("change ")) {
      holder.change(std::atoi(line.c_str() + std::strlen("change ")));
      std::cout << "ok" << std::endl;
    } else if (line.starts_with("flip ")) {
      holder.flip(std::strtoull(line.c_str() + std::strlen("flip "), nullptr, 10));
      std::cout << "ok" << std::endl;
    } else if (line == "check") {
      std::cout << (holder.check() ? "ok" : "wrong") << std::endl;
    } else {
      std::cout << "what?" << std::endl;
    }
  }
  return 0;
}

int crowd(const Options& options) {
  Device device(options.gpu);
  const std::size_t free = device.free_memory();
  for (std::size_t left = free > options.bytes ? free - options.bytes : 0; left >= kStep;) {
    const std::size_t piece = std::min(left, std::size_t{1} << 30) / kStep * kStep;
    device.allocate(piece);
    left -= piece;
  }
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line) && line != "end";) {
  }
  return 0;
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app{"Device memory that is copied, or held"};
  app.require_subcommand(1);
  app.add_option("--bytes", options.bytes, "bytes on each device")
      ->check(CLI::Range(std::size_t{1} << 20, std::size_t{1} << 40));
  app.add_option("--gpus", options.gpus, "devices to copy on")->check(CLI::Range(1, kMaxRanks));
  app.add_option("--gpu", options.gpu, "device to hold memory on")
      ->check(CLI::Range(0, kMaxRanks - 1));
  app.add_option("--runs", options.runs, "after the first")->check(CLI::Range(1, 1000));
  app.add_option("--pieces", options.pieces, "allocations to hold")->check(CLI::Range(1, 1024));
  app.fallthrough();
  CLI::App* copies = app.add_subcommand("copy", "times of plain copies");
  app.add_subcommand("hold", "memory to pause");
  CLI::App* crowds = app.add_subcommand("crowd", "memory that others lack");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (crowds->parsed()) return crowd(options);
  return copies->parsed() ? copy(options) : hold(options);
}

}  // namespace
}  // namespace gpu_test

int main(int argc, char** argv) { return gpu_test::run(argc, argv); }
