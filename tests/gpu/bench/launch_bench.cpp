// amem_launch_bench: what a launch of an empty kernel costs the host on this machine, in
// nanoseconds: through the entry point that programs are given, and through the driver's own.
// With the shim preloaded the difference is the gate; without it there is none. Both are measured
// in one process, batch by batch in turn: from one process to the next the same launch varies by
// more than the gate costs.
//
// Exit status: 0, 1 on an error, 77 without a GPU.
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "tests/gpu/driver/control.h"
#include "tests/gpu/driver/empty_kernel.h"
#include "tests/gpu/driver/libraries.h"

namespace gpu_test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kBatches = 200;
constexpr int kLaunches =
    500;  // fewer than the driver's queue takes: the host never waits for the device

/// cuLaunchKernel as libcuda exports it, found by the C library's own dlsym, past any shim's.
PFN_cuLaunchKernel_v4000 driver_launch() {
  using Dlsym = void* (*)(void*, const char*);
  void* libc = ::dlopen("libc.so.6", RTLD_NOW);
  void* libcuda = ::dlopen("libcuda.so.1", RTLD_NOW);
  if (libc == nullptr || libcuda == nullptr) return nullptr;
  void* lookup = ::dlvsym(libc, "dlsym", "GLIBC_2.34");
  if (lookup == nullptr) lookup = ::dlvsym(libc, "dlsym", "GLIBC_2.2.5");
  if (lookup == nullptr) return nullptr;
  return reinterpret_cast<PFN_cuLaunchKernel_v4000>(
      reinterpret_cast<Dlsym>(lookup)(libcuda, "cuLaunchKernel"));
}

/// The fastest tenth: what the code costs, without what else the machine was doing.
double fast(std::vector<double>& ns) {
  std::sort(ns.begin(), ns.end());
  return ns[ns.size() / 10];
}

int run() {
  Cuda cuda;
  int count = 0;
  if (!cuda.load_all().ok() || cuda.cuInit_(0) != CUDA_SUCCESS ||
      cuda.cuDeviceGetCount_(&count) != CUDA_SUCCESS || count == 0) {
    std::fprintf(stderr, "skipped: no GPU\n");
    return kSkipped;
  }
  const auto load =
      reinterpret_cast<PFN_cuModuleLoadData_v2000>(cuda.entry("cuModuleLoadData", 2000));
  const auto get =
      reinterpret_cast<PFN_cuModuleGetFunction_v2000>(cuda.entry("cuModuleGetFunction", 2000));
  const auto launch =
      reinterpret_cast<PFN_cuLaunchKernel_v4000>(cuda.entry("cuLaunchKernel", 4000));
  const PFN_cuLaunchKernel_v4000 direct = driver_launch();
  if (load == nullptr || get == nullptr || launch == nullptr || direct == nullptr)
    fail("the driver launches no kernels");

  CUcontext context = nullptr;
  cuda.must(cuda.cuDevicePrimaryCtxRetain_(&context, 0), "cuDevicePrimaryCtxRetain");
  cuda.must(cuda.cuCtxSetCurrent_(context), "cuCtxSetCurrent");
  CUstream stream = nullptr;
  cuda.must(cuda.cuStreamCreate_(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  cuda.must(load(&module, kEmptyKernel), "cuModuleLoadData");
  cuda.must(get(&function, module, kEmptyKernelName), "cuModuleGetFunction");

  std::vector<double> given_ns;
  std::vector<double> direct_ns;
  for (int batch = 0; batch < 2 * kBatches; ++batch) {
    const bool given = batch % 2 == 0;
    const auto call = given ? launch : direct;
    const auto begin = Clock::now();
    for (int i = 0; i < kLaunches; ++i)
      cuda.must(call(function, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr), "cuLaunchKernel");
    const std::chrono::duration<double, std::nano> took = Clock::now() - begin;
    (given ? given_ns : direct_ns).push_back(took.count() / kLaunches);
    cuda.must(cuda.cuStreamSynchronize_(stream), "cuStreamSynchronize");
  }
  std::printf(
      R"({"program": "amem_launch_bench", "wrapped": %s, "launch_ns": %.1f, "direct_ns": %.1f})"
      "\n",
      launch != direct ? "true" : "false", fast(given_ns), fast(direct_ns));
  return 0;
}

}  // namespace
}  // namespace gpu_test

int main() { return gpu_test::run(); }
