#include "tests/workload/nccl/communicator.h"

#include <utility>

#include "tests/sim/sim.h"
#include "tests/workload/base/driver.h"
#include "tests/workload/base/failure.h"

namespace amem::workload {

Communicator::Communicator() : report_(std::make_unique<CollectiveReport>()) {
  Check(Cuda().cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  const auto make =
      reinterpret_cast<decltype(&amemSimFunctionCreate)>(Cuda().symbol("amemSimFunctionCreate"));
  if (make == nullptr) throw Failure("collectives need the simulated driver (tests/sim)");
  const std::size_t sizes[] = {sizeof(void*), sizeof(std::uint64_t)};
  Check(make(&function_, &CollectiveKernel, 2, sizes), "amemSimFunctionCreate");
}

void Communicator::SetPlan(CollectivePlan plan) {
  plan.report = report_.get();
  plans_.push_back(std::make_unique<const CollectivePlan>(std::move(plan)));
}

void Communicator::Launch(std::uint64_t loop) {
  const CollectivePlan* plan = plans_.back().get();
  void* parameters[] = {static_cast<void*>(&plan), &loop};
  extended_ = !extended_;
  if (extended_) {
    CUlaunchConfig config{};
    config.gridDimX = config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = config.blockDimY = config.blockDimZ = 1;
    config.hStream = stream_;
    Check(Cuda().cuLaunchKernelEx(&config, function_, parameters, nullptr), "cuLaunchKernelEx");
  } else {
    Check(Cuda().cuLaunchKernel(function_, 1, 1, 1, 1, 1, 1, 0, stream_, parameters, nullptr),
          "cuLaunchKernel");
  }
}

void Communicator::Synchronize() const {
  Check(Cuda().cuStreamSynchronize(stream_), "cuStreamSynchronize");
}

}  // namespace amem::workload
