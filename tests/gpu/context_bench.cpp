// amem_context_bench: what the things that a pause does in a program's context leave behind: the
// time of an empty kernel in a graph of 2000, one after the other, on a stream that has no part in
// them.
//
// Each thing is done once in a process of its own. One line of JSON on standard output:
//   {"program": "amem_context_bench", "steps": [{"what": "...", "before_us": 0, "after_us": 0},
//   ...]}
// Exit status: 0, 1 on an error, 77 without a GPU.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <thread>
#include <vector>

#include "tests/gpu/control.h"
#include "tests/gpu/libraries.h"

namespace gpu_test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kKernels = R"(.version 6.0
.target sm_50
.address_size 64
.visible .entry empty() { ret; }
.visible .entry store(.param .u64 to) {
  .reg .u64 %address;
  .reg .u32 %value;
  ld.param.u64 %address, [to];
  mov.u32 %value, 1;
  st.global.u32 [%address], %value;
  ret;
}
.visible .entry large(.param .align 8 .b8 parameters[4000]) { ret; }
.visible .entry stack() {
  .local .align 8 .b8 depot[4096];
  .reg .u32 %value;
  .reg .u64 %at, %depot;
  .reg .pred %never;
  mov.u32 %value, %clock;
  and.b32 %value, %value, 4092;
  cvt.u64.u32 %at, %value;
  mov.u64 %depot, depot;
  add.u64 %at, %at, %depot;
  st.local.u32 [%at], %value;
  ld.local.u32 %value, [depot+2048];
  setp.eq.u32 %never, %value, 0xffffffff;
  @%never trap;
  ret;
}
)";
constexpr int kLength = 2000;
constexpr std::size_t kBytes = 32U << 20;
constexpr int kSkipped = 77;

class Trial {
 public:
  explicit Trial(const Cuda& cuda) : cuda_(cuda) {
    CUcontext context = nullptr;
    check(cuda.cuInit_(0), "cuInit");
    check(cuda.cuDevicePrimaryCtxRetain_(&context, 0), "cuDevicePrimaryCtxRetain");
    context_ = context;
    check(cuda.cuCtxSetCurrent_(context), "cuCtxSetCurrent");
    check(cuda.cuModuleLoadData_(&module_, kKernels), "cuModuleLoadData");
    own_ = stream();
    void* host = nullptr;
    check(cuda.cuMemHostAlloc_(&host, kBytes, 0), "cuMemHostAlloc");
    host_ = host;
    memory_ = create(CU_MEM_LOCATION_TYPE_DEVICE);
    check(cuda.cuMemAddressReserve_(&mapped_, kBytes, 0, 0, 0), "cuMemAddressReserve");
    map(mapped_, memory_);
    launch("empty", own_);  // loads it
    settle(own_);
  }

  /// Microseconds of an empty kernel.
  double chain() {
    check(cuda_.cuStreamBeginCapture_(own_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
          "cuStreamBeginCapture");
    for (int i = 0; i < kLength; ++i) launch("empty", own_);
    CUgraph graph = nullptr;
    CUgraphExec runnable = nullptr;
    check(cuda_.cuStreamEndCapture_(own_, &graph), "cuStreamEndCapture");
    check(cuda_.cuGraphInstantiateWithFlags_(&runnable, graph, 0), "cuGraphInstantiateWithFlags");
    std::vector<double> us;
    for (int run = 0; run < 20; ++run) {
      const auto begin = Clock::now();
      check(cuda_.cuGraphLaunch_(runnable, own_), "cuGraphLaunch");
      settle(own_);
      const std::chrono::duration<double, std::micro> took = Clock::now() - begin;
      if (run >= 5) us.push_back(took.count() / kLength);
    }
    check(cuda_.cuGraphExecDestroy_(runnable), "cuGraphExecDestroy");
    check(cuda_.cuGraphDestroy_(graph), "cuGraphDestroy");
    std::sort(us.begin(), us.end());
    return us[us.size() / 2];
  }

  void second_stream() { other(); }
  void copy_out() {
    check(cuda_.cuMemcpyDtoHAsync_(host_, mapped_, kBytes, other()), "cuMemcpyDtoHAsync");
    settle(other());
  }
  void copy_in() {
    check(cuda_.cuMemcpyHtoDAsync_(mapped_, host_, kBytes, other()), "cuMemcpyHtoDAsync");
    settle(other());
  }
  void memset() {
    check(cuda_.cuMemsetD8Async_(mapped_, 0, kBytes, other()), "cuMemsetD8Async");
    settle(other());
  }
  void kernel() {
    launch("empty", other());
    settle(other());
  }
  void large_kernel() {
    launch("empty", other(), nullptr, 20000);
    settle(other());
  }
  void kernel_then_no_stream() {
    kernel();
    check(cuda_.cuStreamDestroy_(other_), "cuStreamDestroy");
  }
  void kernel_to_host() { store(reinterpret_cast<CUdeviceptr>(host_), own_); }
  void other_kernel_to_host() { store(reinterpret_cast<CUdeviceptr>(host_), other()); }
  void kernel_to_device() { store(mapped_, own_); }
  void pool() {
    const CUmemGenericAllocationHandle memory = imported(create(CU_MEM_LOCATION_TYPE_HOST_NUMA));
    check(cuda_.cuMemAddressReserve_(&pool_, kBytes, 0, 0, 0), "cuMemAddressReserve");
    map(pool_, memory);
  }
  void copy_to_pool() {
    pool();
    check(cuda_.cuMemcpyDtoHAsync_(reinterpret_cast<void*>(pool_), mapped_, kBytes, other()),
          "cuMemcpyDtoHAsync");
    settle(other());
  }
  void kernel_to_pool() {
    pool();
    store(pool_, own_);
  }
  void large_parameters() {
    std::array<char, 4000> parameters{};
    void* arguments[] = {parameters.data()};
    launch("large", own_, arguments);
    settle(own_);
  }
  void local_memory() {
    launch("stack", own_);
    settle(own_);
  }
  void memory_anew() {
    check(cuda_.cuMemUnmap_(mapped_, kBytes), "cuMemUnmap");
    check(cuda_.cuMemRelease_(memory_), "cuMemRelease");
    memory_ = create(CU_MEM_LOCATION_TYPE_DEVICE);
    map(mapped_, memory_);
  }
  void memory_imported() {
    check(cuda_.cuMemUnmap_(mapped_, kBytes), "cuMemUnmap");
    memory_ = imported(memory_);
    map(mapped_, memory_);
  }
  void synchronize_elsewhere() {
    std::thread([this] {
      check(cuda_.cuCtxSetCurrent_(context_), "cuCtxSetCurrent");
      check(cuda_.cuCtxSynchronize_(), "cuCtxSynchronize");
    }).join();
  }

 private:
  void check(CUresult result, const char* call) const { cuda_.must(result, call); }

  CUstream stream() {
    CUstream made = nullptr;
    check(cuda_.cuStreamCreate_(&made, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    return made;
  }
  CUstream other() {
    if (other_ == nullptr) other_ = stream();
    return other_;
  }
  void settle(CUstream stream) const {
    check(cuda_.cuStreamSynchronize_(stream), "cuStreamSynchronize");
  }
  void launch(const char* name, CUstream stream, void** arguments = nullptr,
              unsigned blocks = 1) const {
    CUfunction function = nullptr;
    check(cuda_.cuModuleGetFunction_(&function, module_, name), "cuModuleGetFunction");
    check(cuda_.cuLaunchKernel_(function, blocks, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr),
          "cuLaunchKernel");
  }
  void store(CUdeviceptr to, CUstream stream) {
    void* arguments[] = {&to};
    launch("store", stream, arguments);
    settle(stream);
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

  const Cuda& cuda_;
  CUcontext context_ = nullptr;
  CUmodule module_ = nullptr;
  CUstream own_ = nullptr;
  CUstream other_ = nullptr;
  void* host_ = nullptr;
  CUdeviceptr mapped_ = 0;
  CUdeviceptr pool_ = 0;  // host memory by handle, as the broker's
  CUmemGenericAllocationHandle memory_ = 0;
};

struct Step {
  const char* what;
  void (Trial::*run)();  // null: nothing
};

constexpr Step kSteps[] = {
    {"nothing", nullptr},
    {"a second stream is made", &Trial::second_stream},
    {"a copy to the host on a second stream", &Trial::copy_out},
    {"a copy from the host on a second stream", &Trial::copy_in},
    {"a memset on a second stream", &Trial::memset},
    {"a kernel on a second stream", &Trial::kernel},
    {"a kernel of 20000 blocks on a second stream", &Trial::large_kernel},
    {"a kernel on a second stream, which is destroyed", &Trial::kernel_then_no_stream},
    {"a kernel writes to the host on a second stream", &Trial::other_kernel_to_host},
    {"a kernel writes to the host", &Trial::kernel_to_host},
    {"a kernel writes to the device", &Trial::kernel_to_device},
    {"host memory by handle is mapped", &Trial::pool},
    {"a copy to host memory by handle on a second stream", &Trial::copy_to_pool},
    {"a kernel writes to host memory by handle", &Trial::kernel_to_pool},
    {"a kernel with 4000 bytes of parameters", &Trial::large_parameters},
    {"a kernel with local memory", &Trial::local_memory},
    {"memory is freed, made and mapped anew", &Trial::memory_anew},
    {"memory is exported, imported and mapped", &Trial::memory_imported},
    {"cuCtxSynchronize in another thread", &Trial::synchronize_elsewhere},
};

/// In a process that has not used the driver.
int measure(const Step& step) {
  Cuda cuda;
  if (!cuda.load_all().ok()) return 1;
  Trial trial(cuda);
  const double before = trial.chain();
  if (step.run != nullptr) (trial.*step.run)();
  const double after = trial.chain();
  std::printf(R"({"what": "%s", "before_us": %.4f, "after_us": %.4f})", step.what, before, after);
  return std::fflush(stdout) == 0 ? 0 : 1;
}

/// The exit status of a child that runs this.
template <class Work>
int in_child(Work work) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(work());
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 1;
  return WEXITSTATUS(status);
}

bool has_gpu() {
  return in_child([] {
           Cuda cuda;
           int count = 0;
           return cuda.load_all().ok() && cuda.cuInit_(0) == CUDA_SUCCESS &&
                          cuda.cuDeviceGetCount_(&count) == CUDA_SUCCESS && count > 0
                      ? 0
                      : kSkipped;
         }) == 0;
}

int run() {
  if (!has_gpu()) {
    std::fprintf(stderr, "skipped: no GPU\n");
    return kSkipped;
  }
  std::printf(R"({"program": "amem_context_bench", "steps": [)");
  for (const Step& step : kSteps) {
    if (&step != std::begin(kSteps)) std::printf(", ");
    std::fflush(stdout);
    if (const int status = in_child([&] { return measure(step); }); status != 0) return status;
  }
  std::printf("]}\n");
  return 0;
}

}  // namespace
}  // namespace gpu_test

int main() { return gpu_test::run(); }
