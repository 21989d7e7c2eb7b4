// A rank of `amemctl bench`.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <iostream>
#include <string>

#include "addons/tools/bench/bench.h"
#include "client/ctl/exit_code.h"
#include "common/driver.h"

namespace amem::ctl {
namespace {

using Clock = std::chrono::steady_clock;

/// Of the host: so much is copied at a time.
constexpr std::uint64_t kChunk = 256ULL << 20;
/// What amem compares at a time.
constexpr std::uint64_t kBlock = 64ULL << 10;

/// Throws nothing: the first call that fails is remembered, and those after it do nothing.
class BenchMemory {
 public:
  BenchMemory(int gpu, std::uint64_t bytes) : bytes_(bytes), chunk_(std::min(bytes, kChunk)) {
    status_ = driver_.load();
    if (!status_.ok()) return;
    if (driver_.cuMemAlloc_ == nullptr) {
      status_ = {Code::kUnavailable, "the CUDA driver lacks cuMemAlloc"};
      return;
    }
    CUdevice device = 0;
    CUcontext context = nullptr;
    call(driver_.cuInit_, "cuInit", 0U);
    call(driver_.cuDeviceGet_, "cuDeviceGet", &device, gpu);
    call(driver_.cuDevicePrimaryCtxRetain_, "cuDevicePrimaryCtxRetain", &context, device);
    call(driver_.cuCtxSetCurrent_, "cuCtxSetCurrent", context);
    call(driver_.cuStreamCreate_, "cuStreamCreate", &stream_,
         static_cast<unsigned>(CU_STREAM_NON_BLOCKING));
    call(driver_.cuMemAlloc_, "cuMemAlloc", &memory_, bytes_);
    call(driver_.cuMemHostAlloc_, "cuMemHostAlloc", &pattern_, chunk_, 0U);
    call(driver_.cuMemHostAlloc_, "cuMemHostAlloc", &copy_, chunk_, 0U);
    if (!status_.ok()) return;
    // No zeros, which a pause would leave out.
    std::uint64_t word = 0x9e3779b97f4a7c15 ^ static_cast<std::uint64_t>(gpu);
    for (std::uint64_t at = 0; at + sizeof word <= chunk_; at += sizeof word) {
      word ^= word << 13U;
      word ^= word >> 7U;
      word ^= word << 17U;
      std::memcpy(static_cast<char*>(pattern_) + at, &word, sizeof word);
    }
    copy_in();
  }

  const Status& status() const { return status_; }

  /// From the same host memory each time, and to it: as a program would that has nothing else. Each
  /// block of 64 KiB gets other bytes, so that the next pause has to copy all of them.
  std::uint64_t copy_in() {
    for (std::uint64_t at = 0; status_.ok() && at < chunk_; at += kBlock)
      ++*(static_cast<unsigned char*>(pattern_) + at);
    return timed([&](CUdeviceptr at, std::uint64_t length) {
      call(driver_.cuMemcpyHtoDAsync_, "cuMemcpyHtoDAsync", at, pattern_, length, stream_);
    });
  }
  std::uint64_t copy_out() {
    return timed([&](CUdeviceptr at, std::uint64_t length) {
      call(driver_.cuMemcpyDtoHAsync_, "cuMemcpyDtoHAsync", copy_, at, length, stream_);
    });
  }
  /// Bytes of chunks that are not as they were.
  std::uint64_t wrong() {
    std::uint64_t wrong = 0;
    for (std::uint64_t at = 0; at < bytes_; at += chunk_) {
      const std::uint64_t length = std::min(chunk_, bytes_ - at);
      call(driver_.cuMemcpyDtoHAsync_, "cuMemcpyDtoHAsync", copy_, memory_ + at, length, stream_);
      call(driver_.cuStreamSynchronize_, "cuStreamSynchronize", stream_);
      if (status_.ok() && std::memcmp(copy_, pattern_, length) != 0) wrong += length;
    }
    return wrong;
  }

 private:
  template <class Function, class... Arguments>
  void call(Function function, const char* name, Arguments... arguments) {
    if (!status_.ok()) return;
    if (const CUresult r = function(arguments...); r != CUDA_SUCCESS)
      status_ = driver_.error(r, name);
  }
  template <class Copy>
  std::uint64_t timed(Copy copy) {
    const auto began = Clock::now();
    for (std::uint64_t at = 0; at < bytes_; at += chunk_)
      copy(memory_ + at, std::min(chunk_, bytes_ - at));
    call(driver_.cuStreamSynchronize_, "cuStreamSynchronize", stream_);
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - began).count());
  }

  Driver driver_;
  std::uint64_t bytes_;
  std::uint64_t chunk_;
  Status status_;
  CUstream stream_ = nullptr;
  CUdeviceptr memory_ = 0;
  void* pattern_ = nullptr;
  void* copy_ = nullptr;
};

}  // namespace

int bench_rank(int gpu, std::uint64_t bytes) {
  BenchMemory memory(gpu, bytes);
  const auto answer = [&](const std::string& text) {
    std::cout << (memory.status().ok() ? text : "error " + memory.status().text()) << std::endl;
  };
  answer("ready");
  for (std::string line; memory.status().ok() && std::getline(std::cin, line);) {
    if (line == "copy") {
      const std::uint64_t out = memory.copy_out();
      const std::uint64_t in = memory.copy_in();
      answer("copied " + std::to_string(out) + " " + std::to_string(in));
    } else if (line == "check") {
      const std::uint64_t wrong = memory.wrong();
      answer(wrong == 0 ? "same" : "wrong " + std::to_string(wrong));
    } else {
      answer("error this command is unknown");
    }
  }
  return memory.status().ok() ? kExitOk : kExitFailed;
}

}  // namespace amem::ctl
