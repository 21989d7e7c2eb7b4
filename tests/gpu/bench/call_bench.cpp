// amem_call_bench: what single driver calls take a program, and what is done when they return:
// allocations and frees, small copies both ways, memsets, events, launches and first launches.
//
//   amem_call_bench [--memory alloc|vmm|shared] [--processes P] [--runs R] [--only TEXT]
//
// The memory that is copied and allocated is cuMemAlloc's (which in scope heap amem brokers), or,
// to show what the driver itself makes of such memory, cuMemCreate's, or cuMemCreate's imported by
// its descriptor, as brokered memory is. P processes on device 0 measure the same case at the same
// time. One line of JSON a case, over the samples of all processes, in microseconds; `there` is the
// share of samples in which the result was there when the call returned:
//   {"case": "copy out, 4 B, pinned, side stream", "work": "returns", "median_us": 0, "min_us": 0,
//    "p90_us": 0, "max_us": 0, "there": 0.0}
// Exit status: 0, 1 on an error, 2 wrong options, 77 without a GPU.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/gpu/bench/memory_maker.h"
#include "tests/gpu/driver/control.h"
#include "tests/gpu/driver/libraries.h"

namespace gpu_test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr int kMaxProcesses = 16;
constexpr int kMaxCases = 64;
constexpr int kMostRuns = 1000;
constexpr std::size_t kSmallest = 2 * kMiB;  // granularity of cuMemCreate
constexpr std::size_t kLargestCopy = 64U << 10U;

struct Options {
  std::string memory = "alloc";
  int processes = 1;
  int runs = 200;
  std::string only;
};

/// Two times of one run, each from its own beginning, and whether the result was there at once.
struct Sample {
  float first_us = 0;
  float second_us = 0;
  bool there = false;
};
using Samples = Sample[kMaxProcesses][kMaxCases][kMostRuns];

float since(Clock::time_point begin) {
  return std::chrono::duration<float, std::micro>(Clock::now() - begin).count();
}

/// Calls that nobody else here needs.
struct Calls {
  PFN_cuMemcpyHtoD_v3020 copy_in;
  PFN_cuMemcpyDtoH_v3020 copy_out;
  PFN_cuMemsetD8_v3020 set;
  PFN_cuEventCreate_v2000 event_create;
  PFN_cuEventRecord_v2000 event_record;
  PFN_cuEventQuery_v2000 event_query;
  PFN_cuEventSynchronize_v2000 event_wait;
  PFN_cuLibraryLoadData_v12000 library_load;
  PFN_cuLibraryGetKernel_v12000 library_kernel;
  PFN_cuLinkCreate_v6050 link_create;
  PFN_cuLinkAddData_v6050 link_add;
  PFN_cuLinkComplete_v5050 link_complete;

  explicit Calls(const Cuda& cuda) {
    fetch(cuda, copy_in, "cuMemcpyHtoD", 3020);
    fetch(cuda, copy_out, "cuMemcpyDtoH", 3020);
    fetch(cuda, set, "cuMemsetD8", 3020);
    fetch(cuda, event_create, "cuEventCreate", 2000);
    fetch(cuda, event_record, "cuEventRecord", 2000);
    fetch(cuda, event_query, "cuEventQuery", 2000);
    fetch(cuda, event_wait, "cuEventSynchronize", 2000);
    fetch(cuda, library_load, "cuLibraryLoadData", 12000);
    fetch(cuda, library_kernel, "cuLibraryGetKernel", 12000);
    fetch(cuda, link_create, "cuLinkCreate", 6050);
    fetch(cuda, link_add, "cuLinkAddData", 6050);
    fetch(cuda, link_complete, "cuLinkComplete", 5050);
  }

 private:
  template <class Function>
  static void fetch(const Cuda& cuda, Function& function, const char* name, int version) {
    function = reinterpret_cast<Function>(cuda.entry(name, version));
    if (function == nullptr) fail(std::string("the driver lacks ") + name);
  }
};

/// A kernel that writes its second parameter where the first points, and has some 50 KB of code: as
/// much as a kernel of a library, so that loading it is as much work.
std::string large_kernel() {
  std::string ptx =
      ".version 6.0\n.target sm_50\n.address_size 64\n"
      ".visible .entry large(.param .u64 to, .param .u32 value) {\n"
      ".reg .u64 %p; .reg .u32 %v; .reg .f32 %a, %b; .reg .pred %never;\n"
      "ld.param.u64 %p, [to]; cvta.to.global.u64 %p, %p; ld.param.u32 %v, [value];\n"
      "st.global.u32 [%p], %v; setp.ne.u32 %never, %v, -1; @%never ret;\n"
      "ld.global.f32 %a, [%p]; ld.global.f32 %b, [%p+4];\n";
  for (int i = 0; i < 3000; ++i) ptx += "fma.rn.f32 %a, %a, %b, %a;\n";
  return ptx + "st.global.f32 [%p], %a; ret; }\n";
}

class Worker {
 public:
  explicit Worker(const Options& options)
      : memory_(options.memory),
        maker_(memory_ == "shared" ? std::make_optional<Maker>() : std::nullopt),
        calls_(load(cuda_)) {
    must(cuda_.cuInit_(0), "cuInit");
    must(cuda_.cuDevicePrimaryCtxRetain_(&context_, 0), "cuDevicePrimaryCtxRetain");
    must(cuda_.cuCtxSetCurrent_(context_), "cuCtxSetCurrent");
    must(cuda_.cuStreamCreate_(&side_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    void* host = nullptr;
    must(cuda_.cuMemHostAlloc_(&host, kLargestCopy, 0), "cuMemHostAlloc");
    pinned_ = static_cast<unsigned char*>(host);
    pageable_.resize(kLargestCopy);
    must(calls_.event_create(&event_, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    for (int i = 0; i < 2; ++i) {
      device_[i] = allocate(kSmallest);
      must(calls_.set(device_[i], static_cast<unsigned char>(i + 1), kSmallest), "cuMemsetD8");
    }
    link_kernel();
  }

  struct Case {
    std::string name;
    const char* first;   // what the first time is of
    const char* second;  // likewise; null: there is none
    std::function<void(Sample&)> run;
  };

  std::vector<Case> cases() {
    std::vector<Case> all;
    for (const std::size_t mib : {2U, 20U, 1024U})
      all.push_back({"memory, " + std::to_string(mib) + " MiB", "allocate", "free",
                     [this, mib](Sample& s) { allocate_and_free(s, mib * kMiB); }});
    for (const std::size_t bytes : {std::size_t{4}, std::size_t{4096}, kLargestCopy})
      for (const bool pinned : {true, false})
        for (const bool side : {false, true}) {
          const std::string what = ", " + std::to_string(bytes) + " B, " +
                                   (pinned ? "pinned" : "pageable") + ", " +
                                   (side ? "side" : "default") + " stream";
          unsigned char* host = pinned ? pinned_ : pageable_.data();
          const CUstream stream = side ? side_ : nullptr;
          all.push_back({"copy out" + what, "returns", "is there",
                         [=, this](Sample& s) { copy_out(s, host, bytes, stream); }});
          all.push_back({"copy in" + what, "returns", "is done",
                         [=, this](Sample& s) { copy_in(s, host, bytes, stream); }});
        }
    for (const bool pinned : {true, false}) {
      unsigned char* host = pinned ? pinned_ : pageable_.data();
      const std::string what =
          std::string(", 4 B, ") + (pinned ? "pinned" : "pageable") + ", waits";
      all.push_back(
          {"copy out" + what, "returns", nullptr, [=, this](Sample& s) { wait_out(s, host); }});
      all.push_back(
          {"copy in" + what, "returns", nullptr, [=, this](Sample& s) { wait_in(s, host); }});
    }
    all.push_back({"memset, 1 MiB", "returns", "is done", [this](Sample& s) { memset(s); }});
    all.push_back({"event", "record", "wait", [this](Sample& s) { event(s); }});
    all.push_back({"launch, then 4 B out", "launch returns", "is there",
                   [this](Sample& s) { launch(s, false); }});
    all.push_back({"first launch, then 4 B out", "launch returns", "is there",
                   [this](Sample& s) { launch(s, true); }});
    return all;
  }

 private:
  static const Cuda& load(Cuda& cuda) {
    if (const auto status = cuda.load_all(); !status.ok()) fail(status.text());
    return cuda;
  }
  void must(CUresult result, const char* call) const { cuda_.must(result, call); }
  void settle(CUstream stream) const {
    must(cuda_.cuStreamSynchronize_(stream), "cuStreamSynchronize");
  }

  // ---- memory ----
  CUdeviceptr allocate(std::size_t bytes) {
    CUdeviceptr at = 0;
    if (memory_ == "alloc") {
      must(cuda_.cuMemAlloc_(&at, bytes), "cuMemAlloc");
      return at;
    }
    const CUmemAllocationProp properties = device_memory();
    CUmemGenericAllocationHandle made = 0;
    if (memory_ == "vmm") {
      must(cuda_.cuMemCreate_(&made, bytes, &properties, 0), "cuMemCreate");
    } else {
      const int fd = maker_->create(bytes);
      must(cuda_.cuMemImportFromShareableHandle_(
               &made, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
           "cuMemImportFromShareableHandle");
      ::close(fd);
    }
    must(cuda_.cuMemAddressReserve_(&at, bytes, 0, 0, 0), "cuMemAddressReserve");
    must(cuda_.cuMemMap_(at, bytes, 0, made, 0), "cuMemMap");
    must(cuda_.cuMemRelease_(made), "cuMemRelease");
    CUmemAccessDesc access{};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    must(cuda_.cuMemSetAccess_(at, bytes, &access, 1), "cuMemSetAccess");
    return at;
  }
  void release(CUdeviceptr at, std::size_t bytes) {
    if (memory_ == "alloc") return must(cuda_.cuMemFree_(at), "cuMemFree");
    must(cuda_.cuCtxSynchronize_(), "cuCtxSynchronize");
    must(cuda_.cuMemUnmap_(at, bytes), "cuMemUnmap");
    must(cuda_.cuMemAddressFree_(at, bytes), "cuMemAddressFree");
    if (maker_) maker_->drop();
  }
  void allocate_and_free(Sample& sample, std::size_t bytes) {
    const auto begin = Clock::now();
    const CUdeviceptr at = allocate(bytes);
    sample.first_us = since(begin);
    const auto freed = Clock::now();
    release(at, bytes);
    sample.second_us = since(freed);
  }

  // ---- copies ----
  /// The value that the next copy brings; another one than last time.
  unsigned char next() {
    turn_ = 1 - turn_;
    return static_cast<unsigned char>(turn_ + 1);
  }
  static bool shows(const unsigned char* host, unsigned char value) {
    return *static_cast<const volatile unsigned char*>(host) == value;
  }
  void wait_for(const unsigned char* host, unsigned char value) {
    const auto begin = Clock::now();
    while (!shows(host, value))
      if (Clock::now() - begin > std::chrono::seconds(10)) fail("a copy has not arrived in 10 s");
  }

  void copy_out(Sample& sample, unsigned char* host, std::size_t bytes, CUstream stream) {
    const unsigned char value = next();
    unsigned char* const last = host + bytes - 1;
    *static_cast<volatile unsigned char*>(last) = 0;
    const auto begin = Clock::now();
    must(cuda_.cuMemcpyDtoHAsync_(host, device_[turn_], bytes, stream), "cuMemcpyDtoHAsync");
    sample.first_us = since(begin);
    sample.there = shows(last, value);
    wait_for(last, value);
    sample.second_us = since(begin);
    settle(stream);
  }
  void copy_in(Sample& sample, unsigned char* host, std::size_t bytes, CUstream stream) {
    const auto begin = Clock::now();
    must(cuda_.cuMemcpyHtoDAsync_(device_[0] + kMiB, host, bytes, stream), "cuMemcpyHtoDAsync");
    sample.first_us = since(begin);
    sample.there = cuda_.cuStreamQuery_(stream) == CUDA_SUCCESS;
    settle(stream);
    sample.second_us = since(begin);
  }
  void wait_out(Sample& sample, unsigned char* host) {
    const unsigned char value = next();
    const auto begin = Clock::now();
    must(calls_.copy_out(host, device_[turn_], 4), "cuMemcpyDtoH");
    sample.first_us = since(begin);
    sample.there = shows(host, value);
    if (!sample.there) fail("cuMemcpyDtoH has returned without its bytes");
  }
  void wait_in(Sample& sample, unsigned char* host) {
    const auto begin = Clock::now();
    must(calls_.copy_in(device_[0] + kMiB, host, 4), "cuMemcpyHtoD");
    sample.first_us = since(begin);
    sample.there = cuda_.cuStreamQuery_(nullptr) == CUDA_SUCCESS;
    settle(nullptr);
  }
  void memset(Sample& sample) {
    const auto begin = Clock::now();
    must(calls_.set(device_[0] + kMiB, 7, kMiB), "cuMemsetD8");
    sample.first_us = since(begin);
    sample.there = cuda_.cuStreamQuery_(nullptr) == CUDA_SUCCESS;
    settle(nullptr);
    sample.second_us = since(begin);
  }
  void event(Sample& sample) {
    must(cuda_.cuMemsetD8Async_(device_[0] + kMiB, 7, kMiB, side_), "cuMemsetD8Async");
    const auto begin = Clock::now();
    must(calls_.event_record(event_, side_), "cuEventRecord");
    sample.first_us = since(begin);
    sample.there = calls_.event_query(event_) == CUDA_SUCCESS;
    must(calls_.event_wait(event_), "cuEventSynchronize");
    sample.second_us = since(begin);
  }

  // ---- kernels ----
  void link_kernel() {
    const std::string ptx = large_kernel();
    CUlinkState link = nullptr;
    void* code = nullptr;
    std::size_t size = 0;
    must(calls_.link_create(0, nullptr, nullptr, &link), "cuLinkCreate");
    must(calls_.link_add(link, CU_JIT_INPUT_PTX, const_cast<char*>(ptx.c_str()), ptx.size() + 1,
                         "large", 0, nullptr, nullptr),
         "cuLinkAddData");
    must(calls_.link_complete(link, &code, &size), "cuLinkComplete");
    code_.assign(static_cast<char*>(code), static_cast<char*>(code) + size);
    kernel_ = load_kernel();
  }
  /// Anew, so that its code comes to the device when it is launched.
  CUfunction load_kernel() {
    CUlibrary library = nullptr;
    CUkernel kernel = nullptr;
    must(calls_.library_load(&library, code_.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
         "cuLibraryLoadData");
    must(calls_.library_kernel(&kernel, library, "large"), "cuLibraryGetKernel");
    return reinterpret_cast<CUfunction>(kernel);
  }
  /// What a program does that reads too early: it launches, copies a word out without a wait,
  /// reads.
  void launch(Sample& sample, bool first) {
    const CUfunction function = first ? load_kernel() : kernel_;
    unsigned value = ++launches_;
    CUdeviceptr to = device_[0] + kMiB;
    void* parameters[] = {&to, &value};
    auto* const word = reinterpret_cast<volatile unsigned*>(pinned_);
    *word = 0;
    const auto begin = Clock::now();
    must(cuda_.cuLaunchKernel_(function, 1, 1, 1, 1, 1, 1, 0, side_, parameters, nullptr),
         "cuLaunchKernel");
    sample.first_us = since(begin);
    must(cuda_.cuMemcpyDtoHAsync_(pinned_, to, 4, side_), "cuMemcpyDtoHAsync");
    sample.there = *word == value;
    while (*word != value)
      if (Clock::now() - begin > std::chrono::seconds(10)) fail("a copy has not arrived in 10 s");
    sample.second_us = since(begin);
    settle(side_);
  }

  const std::string memory_;
  const std::optional<Maker> maker_;  // begun before this process uses the driver
  Cuda cuda_;
  CUcontext context_ = nullptr;
  const Calls calls_;
  CUstream side_ = nullptr;
  CUevent event_ = nullptr;
  unsigned char* pinned_ = nullptr;
  std::vector<unsigned char> pageable_;
  CUdeviceptr device_[2] = {};  // the first MiB of each holds one value
  int turn_ = 0;
  std::vector<char> code_;
  CUfunction kernel_ = nullptr;
  unsigned launches_ = 0;
};

constexpr int kWarmUp = 5;

int work(int process, const Options& options, Control& control, Samples& samples) {
  Worker worker(options);
  const std::vector<Worker::Case> cases = worker.cases();
  for (std::size_t c = 0; c < cases.size(); ++c) {
    if (cases[c].name.find(options.only) == std::string::npos) continue;
    Sample ignored;
    for (int run = 0; run < kWarmUp; ++run) cases[c].run(ignored);
    control.barrier(options.processes);
    for (int run = 0; run < options.runs; ++run) cases[c].run(samples[process][c][run]);
    control.barrier(options.processes);
    if (process != 0) continue;
    for (const char* what : {cases[c].first, cases[c].second}) {
      if (what == nullptr) continue;
      std::vector<float> us;
      int there = 0;
      for (int p = 0; p < options.processes; ++p)
        for (int run = 0; run < options.runs; ++run) {
          const Sample& s = samples[p][c][run];
          us.push_back(what == cases[c].first ? s.first_us : s.second_us);
          there += s.there ? 1 : 0;
        }
      std::sort(us.begin(), us.end());
      std::printf(
          R"({"case": "%s", "work": "%s", "median_us": %.2f, "min_us": %.2f, "p90_us": %.2f, )"
          R"("max_us": %.2f, "there": %.3f})"
          "\n",
          cases[c].name.c_str(), what, us[us.size() / 2], us.front(), us[us.size() * 9 / 10],
          us.back(), static_cast<double>(there) / static_cast<double>(us.size()));
    }
    std::fflush(stdout);
  }
  return 0;
}

int run(const Options& options) {
  if (count_gpus() == 0) {
    std::fprintf(stderr, "skipped: no GPU\n");
    return kSkipped;
  }
  Control* control = Control::create();
  void* shared =
      ::mmap(nullptr, sizeof(Samples), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (control == nullptr || shared == MAP_FAILED) fail("no memory to share");
  auto& samples = *static_cast<Samples*>(shared);
  std::vector<pid_t> children;
  for (int process = 0; process < options.processes; ++process) {
    const pid_t child = ::fork();
    if (child < 0) fail("no more processes");
    if (child == 0) ::_exit(work(process, options, *control, samples));
    children.push_back(child);
  }
  int ended = 0;
  while (!children.empty()) {
    if (std::erase(children, ::wait(&ended)) == 0) continue;
    if (WIFEXITED(ended) && WEXITSTATUS(ended) == 0) continue;
    for (pid_t child : children) ::kill(child, SIGKILL);  // they wait for it at a barrier
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace gpu_test

int main(int argc, char** argv) {
  gpu_test::Options options;
  CLI::App app("What single driver calls take, and what is done when they return");
  app.add_option("--memory", options.memory,
                 "whose memory: cuMemAlloc's, cuMemCreate's, or that imported")
      ->check(CLI::IsMember({"alloc", "vmm", "shared"}));
  app.add_option("--processes", options.processes, "at the same time on device 0")
      ->check(CLI::Range(1, gpu_test::kMaxProcesses));
  app.add_option("--runs", options.runs, "samples of each case in each process")
      ->check(CLI::Range(1, gpu_test::kMostRuns));
  app.add_option("--only", options.only, "cases whose names contain this");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return gpu_test::run(options);
}
