#include "tests/puppet/launcher.h"

#include "tests/puppet/check.h"
#include "tests/sim/sim.h"
#include "tests/workload/base/failure.h"

extern "C" {
// cuda.h declares it only to those who want all default streams per thread.
CUresult cuLaunchKernel_ptsz(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                             unsigned, CUstream, void**, void**);
}

namespace amem::puppet {
namespace {

// Adds what it is given, so that an argument that was lost on the way shows.
void CountingKernel(void** parameters) {
  auto* const count = *static_cast<std::atomic<std::uint64_t>**>(parameters[0]);
  count->fetch_add(*static_cast<std::uint64_t*>(parameters[1]));
}

}  // namespace

Launcher::Launcher(CUcontext context) : context_(context) {
  const std::size_t sizes[] = {sizeof(void*), sizeof(std::uint64_t)};
  Check(amemSimFunctionCreate(&function_, &CountingKernel, 2, sizes), "amemSimFunctionCreate");
}

void Launcher::Start(const std::string& way) {
  Stop();
  Launch launch = nullptr;
  if (way == "linked") {
    launch = &cuLaunchKernel;
  } else if (way == "ptsz") {
    launch = &cuLaunchKernel_ptsz;
  } else if (way == "looked-up") {
    void* found = nullptr;
    Check(cuGetProcAddress("cuLaunchKernel", &found, 12000, CU_GET_PROC_ADDRESS_DEFAULT, nullptr),
          "cuGetProcAddress");
    launch = reinterpret_cast<Launch>(found);
  } else {
    throw workload::Failure("no such way to launch: " + way);
  }
  stop_ = false;
  error_.clear();
  thread_ = std::thread([this, launch] { Run(launch); });
}

void Launcher::Stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

std::uint64_t Launcher::Count() {
  const std::lock_guard lock(mutex_);
  if (!error_.empty()) throw workload::Failure("the loop ended: " + error_);
  return count_;
}

void Launcher::Run(Launch launch) {
  try {
    Check(cuCtxSetCurrent(context_), "cuCtxSetCurrent");
    while (!stop_) {
      std::atomic<std::uint64_t>* count = &count_;
      std::uint64_t one = 1;
      void* parameters[] = {static_cast<void*>(&count), &one};
      Check(launch(function_, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr), "launch");
      Check(cuCtxSynchronize(), "cuCtxSynchronize");
    }
  } catch (const workload::Failure& failure) {
    const std::lock_guard lock(mutex_);
    error_ = failure.what();
  }
}

}  // namespace amem::puppet
