#include "tests/gpu/driver/libraries.h"

#include <dlfcn.h>

#include <algorithm>

#include "tests/gpu/driver/control.h"

namespace gpu_test {

using amem::Code;
using amem::Status;

void* Cuda::entry(const char* name, int version) const {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  const auto get =
      reinterpret_cast<PFN_cuGetProcAddress_v12000>(::dlsym(library, "cuGetProcAddress_v2"));
  void* found = nullptr;
  CUdriverProcAddressQueryResult how{};
  if (get == nullptr ||
      get(name, &found, version, CU_GET_PROC_ADDRESS_DEFAULT, &how) != CUDA_SUCCESS)
    return nullptr;
  return found;
}

void Cuda::must(CUresult result, const char* call) const {
  if (result != CUDA_SUCCESS) fail(std::string(call) + ": " + name(result));
}

CUgraphExec Cuda::end_capture(CUstream stream) const {
  CUgraph graph = nullptr;
  CUgraphExec runnable = nullptr;
  must(cuStreamEndCapture_(stream, &graph), "cuStreamEndCapture");
  must(cuGraphInstantiateWithFlags_(&runnable, graph, 0), "cuGraphInstantiateWithFlags");
  must(cuGraphDestroy_(graph), "cuGraphDestroy");
  return runnable;
}

int count_gpus() {
  const int counted = in_child([] {
    Cuda cuda;
    int count = 0;
    if (!cuda.load_all().ok() || cuda.cuInit_(0) != CUDA_SUCCESS ||
        cuda.cuDeviceGetCount_(&count) != CUDA_SUCCESS)
      count = 0;
    return std::min(count, kMaxRanks);
  });
  return std::max(counted, 0);
}

Status Cuda::load_all() {
  if (Status status = load(); !status.ok()) return status;
#define GPU_TEST_FETCH(call, version)                                   \
  call##_ = reinterpret_cast<decltype(call##_)>(entry(#call, version)); \
  if (call##_ == nullptr) return {Code::kUnavailable, "the CUDA driver lacks " #call};
  GPU_TEST_CUDA_CALLS(GPU_TEST_FETCH)
#undef GPU_TEST_FETCH
  return {};
}

Status Nccl::load(const std::string& path) {
  library = ::dlopen(path.empty() ? "libnccl.so.2" : path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {Code::kUnavailable, std::string("no NCCL: ") + ::dlerror()};
#define GPU_TEST_FETCH(call)                                        \
  call = reinterpret_cast<decltype(call)>(::dlsym(library, #call)); \
  if (call == nullptr) return {Code::kUnavailable, "this NCCL lacks " #call};
  GPU_TEST_NCCL_CALLS(GPU_TEST_FETCH)
#undef GPU_TEST_FETCH
  return {};
}

SuspendCalls SuspendCalls::find(void* nccl_library) {
  SuspendCalls calls;
  calls.suspend =
      reinterpret_cast<decltype(calls.suspend)>(::dlsym(nccl_library, "ncclCommSuspend"));
  calls.resume = reinterpret_cast<decltype(calls.resume)>(::dlsym(nccl_library, "ncclCommResume"));
  return calls;
}

PauseCalls PauseCalls::find(void* nccl_library) {
  const auto look_up = [](void* where, const char* name) {
    return reinterpret_cast<Call>(::dlsym(where, name));
  };
  return {.pause = look_up(RTLD_DEFAULT, "ncclPause"),
          .resume = look_up(RTLD_DEFAULT, "ncclResume"),
          .pause_by_handle = look_up(nccl_library, "ncclPause"),
          .resume_by_handle = look_up(nccl_library, "ncclResume")};
}

}  // namespace gpu_test
