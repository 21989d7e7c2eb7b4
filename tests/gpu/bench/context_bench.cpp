// amem_context_bench: how long an empty kernel takes in a graph of 2000, one after the other,
// before and after things that a pause does in a program's context, on other streams than the
// graph's.
//
// Some sixteen kernels outside graphs, on other streams than the graph's, and every kernel of the
// context takes longer for good. So each thing is done once in a process of its own, both in a new
// context and in one where 14 kernels ran on other streams, where one more would show. One line of
// JSON on standard output; `kernels_before`: on other streams:
//   {"program": "amem_context_bench", "steps": [{"what": "...", "kernels_before": 0,
//   "before_us": 0, "after_us": 0}, ...]}
// Exit status: 0, 1 on an error, 77 without a GPU.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "tests/gpu/driver/control.h"
#include "tests/gpu/driver/empty_kernel.h"
#include "tests/gpu/driver/libraries.h"

namespace gpu_test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLength = 2000;
constexpr int kInARow = 10;
constexpr std::size_t kBytes = 32U << 20;

class Trial {
 public:
  explicit Trial(const Cuda& cuda) : cuda_(cuda) {
    check(cuda.cuInit_(0), "cuInit");
    check(cuda.cuDevicePrimaryCtxRetain_(&context_, 0), "cuDevicePrimaryCtxRetain");
    check(cuda.cuCtxSetCurrent_(context_), "cuCtxSetCurrent");
    CUmodule module = nullptr;
    check(cuda.cuModuleLoadData_(&module, kEmptyKernel), "cuModuleLoadData");
    check(cuda.cuModuleGetFunction_(&empty_, module, kEmptyKernelName), "cuModuleGetFunction");
    own_ = stream();
    memory_ = create(CU_MEM_LOCATION_TYPE_DEVICE);
    device_ = mapped(memory_);
    host_ = mapped(imported(create(CU_MEM_LOCATION_TYPE_HOST_NUMA)));
    kernels(1);
  }

  /// Microseconds of a kernel of a graph that is launched ten times, so that what the host does is
  /// not in it: median of 15.
  double graph_us() {
    check(cuda_.cuStreamBeginCapture_(own_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
          "cuStreamBeginCapture");
    for (int i = 0; i < kLength; ++i) launch(own_);
    const CUgraphExec runnable = cuda_.end_capture(own_);
    std::vector<double> us;
    for (int run = 0; run < 20; ++run) {
      const auto begin = Clock::now();
      for (int i = 0; i < kInARow; ++i)
        check(cuda_.cuGraphLaunch_(runnable, own_), "cuGraphLaunch");
      settle(own_);
      const std::chrono::duration<double, std::micro> took = Clock::now() - begin;
      if (run >= 5) us.push_back(took.count() / (kLength * kInARow));
    }
    check(cuda_.cuGraphExecDestroy_(runnable), "cuGraphExecDestroy");
    std::sort(us.begin(), us.end());
    return us[us.size() / 2];
  }

  /// On the graph's own stream.
  void kernels(int count) { many(own_, count); }
  /// On one other stream.
  void other_kernels(int count) { many(stream(), count); }
  /// From here on each on a stream of its own.
  void kernel_each(int count) {
    for (int i = 0; i < count; ++i) many(stream(), 1);
  }
  void memset_each(int count) {
    for (int i = 0; i < count; ++i) {
      const CUstream other = stream();
      check(cuda_.cuMemsetD8Async_(device_, 0, kBytes, other), "cuMemsetD8Async");
      settle(other);
    }
  }
  void copy_each(int count) {
    for (int i = 0; i < count; ++i) {
      const CUstream other = stream();
      void* host = reinterpret_cast<void*>(host_);
      check(cuda_.cuMemcpyDtoHAsync_(host, device_, kBytes, other), "cuMemcpyDtoHAsync");
      check(cuda_.cuMemcpyHtoDAsync_(device_, host, kBytes, other), "cuMemcpyHtoDAsync");
      settle(other);
    }
  }
  void memory_anew(int) {
    check(cuda_.cuMemUnmap_(device_, kBytes), "cuMemUnmap");
    check(cuda_.cuMemRelease_(memory_), "cuMemRelease");
    memory_ = imported(create(CU_MEM_LOCATION_TYPE_DEVICE));
    map(device_, memory_);
  }
  void synchronize_elsewhere(int) {
    std::thread([this] {
      check(cuda_.cuCtxSetCurrent_(context_), "cuCtxSetCurrent");
      check(cuda_.cuCtxSynchronize_(), "cuCtxSynchronize");
    }).join();
  }

 private:
  void check(CUresult result, const char* call) const { cuda_.must(result, call); }

  CUstream stream() const {
    CUstream made = nullptr;
    check(cuda_.cuStreamCreate_(&made, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    return made;
  }
  void settle(CUstream stream) const {
    check(cuda_.cuStreamSynchronize_(stream), "cuStreamSynchronize");
  }
  void launch(CUstream stream) const {
    check(cuda_.cuLaunchKernel_(empty_, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr),
          "cuLaunchKernel");
  }
  void many(CUstream stream, int count) const {
    for (int i = 0; i < count; ++i) {
      launch(stream);
      settle(stream);
    }
  }
  CUmemGenericAllocationHandle create(CUmemLocationType where) const {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location = {where, {0}};
    CUmemGenericAllocationHandle made = 0;
    check(cuda_.cuMemCreate_(&made, kBytes, &properties, 0), "cuMemCreate");
    return made;
  }
  /// Takes the handle; what comes back is the same memory by its descriptor.
  CUmemGenericAllocationHandle imported(CUmemGenericAllocationHandle memory) const {
    int fd = -1;
    check(cuda_.cuMemExportToShareableHandle_(&fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                              0),
          "cuMemExportToShareableHandle");
    check(cuda_.cuMemRelease_(memory), "cuMemRelease");
    CUmemGenericAllocationHandle again = 0;
    check(cuda_.cuMemImportFromShareableHandle_(
              &again, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
          "cuMemImportFromShareableHandle");
    ::close(fd);
    return again;
  }
  void map(CUdeviceptr at, CUmemGenericAllocationHandle memory) const {
    check(cuda_.cuMemMap_(at, kBytes, 0, memory, 0), "cuMemMap");
    CUmemAccessDesc access{};
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    check(cuda_.cuMemSetAccess_(at, kBytes, &access, 1), "cuMemSetAccess");
  }
  CUdeviceptr mapped(CUmemGenericAllocationHandle memory) const {
    CUdeviceptr at = 0;
    check(cuda_.cuMemAddressReserve_(&at, kBytes, 0, 0, 0), "cuMemAddressReserve");
    map(at, memory);
    return at;
  }

  const Cuda& cuda_;
  CUcontext context_ = nullptr;
  CUfunction empty_ = nullptr;
  CUstream own_ = nullptr;                   // the graph's
  CUmemGenericAllocationHandle memory_ = 0;  // at device_
  CUdeviceptr device_ = 0;
  CUdeviceptr host_ = 0;  // by handle, as the broker's pool
};

struct Step {
  const char* what;
  void (Trial::*run)(int count);  // null: nothing
  int count = 0;
};

constexpr int kBefore = 14;

constexpr Step kFresh[] = {
    {"nothing", nullptr},
    {"100 kernels on the graph's stream", &Trial::kernels, 100},
    {"100 kernels on one other stream", &Trial::other_kernels, 100},
    {"a kernel on each of 14 other streams", &Trial::kernel_each, 14},
    {"a kernel on each of 15 other streams", &Trial::kernel_each, 15},
    {"a memset on each of 15 other streams", &Trial::memset_each, 15},
    {"copies to the host and back on each of 15 other streams", &Trial::copy_each, 15},
};
constexpr Step kAfterKernels[] = {
    {"nothing", nullptr},
    {"a kernel on another stream", &Trial::kernel_each, 1},
    {"a memset on another stream", &Trial::memset_each, 1},
    {"copies to the host and back on another stream", &Trial::copy_each, 1},
    {"memory is freed, made, imported and mapped anew", &Trial::memory_anew},
    {"cuCtxSynchronize in another thread", &Trial::synchronize_elsewhere},
};

/// In a process that has not used the driver.
int measure(const Step& step, int kernels_before) {
  Cuda cuda;
  if (!cuda.load_all().ok()) return 1;
  Trial trial(cuda);
  trial.kernel_each(kernels_before);
  const double before = trial.graph_us();
  if (step.run != nullptr) (trial.*step.run)(step.count);
  const double after = trial.graph_us();
  std::printf(R"({"what": "%s", "kernels_before": %d, "before_us": %.4f, "after_us": %.4f})",
              step.what, kernels_before, before, after);
  return std::fflush(stdout) == 0 ? 0 : 1;
}

int run() {
  if (count_gpus() == 0) {
    std::fprintf(stderr, "skipped: no GPU\n");
    return kSkipped;
  }
  std::printf(R"({"program": "amem_context_bench", "steps": [)");
  const char* comma = "";
  for (const int before : {0, kBefore})
    for (const Step& step : before == 0 ? std::span<const Step>(kFresh) : kAfterKernels) {
      std::fputs(std::exchange(comma, ", "), stdout);
      std::fflush(stdout);
      if (in_child([&] { return measure(step, before); }) != 0) return 1;
    }
  std::printf("]}\n");
  return 0;
}

}  // namespace
}  // namespace gpu_test

int main() { return gpu_test::run(); }
