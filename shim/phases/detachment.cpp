#include "shim/phases/detachment.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "shim/base/log.h"
#include "shim/gate/deep_calls.h"

namespace amem::shim {
namespace {

using Clock = std::chrono::steady_clock;

/// The group is paused, so what still runs began after the cut: a host function, say. The broker
/// waits for much longer.
constexpr std::chrono::seconds kLimit{2};
constexpr std::chrono::milliseconds kAskAgain{5};

Status cannot(const std::string& why) {
  return {Code::kFailedPrecondition, why + ", so it cannot be checkpointed"};
}

}  // namespace

Status Detachment::obstacle() {
  if (const Status s = memory_.residency.drop_leftovers(); !s.ok())
    return {Code::kFailedPrecondition,
            "the driver still has memory of the pause (" + s.text() + "). Try again, or resume"};
  if (const std::uint64_t stays = memory_.brokered.bytes_here(); stays > 0)
    return {Code::kFailedPrecondition,
            std::to_string(stays) +
                " bytes of this process's memory stay on their devices, because a NIC or another "
                "group has them. A deep pause requires that all memory leaves"};
  if (const std::size_t foreign = memory_.unbrokered.foreign(); foreign > 0)
    return {Code::kFailedPrecondition,
            "this process has " + std::to_string(foreign) +
                " pieces of other processes' memory open past amem, and the driver cannot restore "
                "such a process. If they are NCCL's buffers in host memory, start the job with "
                "NCCL_CUMEM_HOST_ENABLE=0; if they are tensors, use scope heap"};
  if (const auto unseen = devices_.unseen(); unseen) {
    const bool named = unseen->uuid != DeviceUuid{};
    return {Code::kFailedPrecondition,
            "this process has mapped memory of " +
                (named ? to_string(unseen->uuid) + ", which it does not see"
                       : std::string("a GPU that this older amemd does not name")) +
                ", so the driver could not restore it. " + unseen->remedy};
  }
  return pool_.can_detach();
}

Status Detachment::detach() {
  const Clock::time_point until = Clock::now() + kLimit;
  Status status = obstacle();
  if (!status.ok()) return status;
  status = idle(until);
  if (status.ok()) status = go_away(until);
  if (status.ok()) status = pool_.detach();
  if (!status.ok()) attach();
  return status;
}

Status Detachment::idle(Clock::time_point until) {
  if (!DeepCalls::get().delay_calls(until))
    return cannot("a driver call of this process does not end");
  for (const int device : devices_.active()) {
    // Asked, not waited for: a host function may wait for a thread at the gate, and so for a
    // command that this thread is to carry out.
    while (devices_.work_left(device).value_or(true)) {
      if (Clock::now() >= until)
        return cannot("work of this process on device " + std::to_string(device) +
                      " does not end (a host function, perhaps, that waits for another thread)");
      std::this_thread::sleep_for(kAskAgain);
    }
    if (const CUresult r = devices_.drain(device); r != CUDA_SUCCESS)
      return cannot(
          driver_.error(r, "the work of this process on device " + std::to_string(device)).text());
  }
  return {};
}

Status Detachment::go_away(Clock::time_point until) {
  // In this order: what is not noted waits at the gate, not in the driver.
  DeepCalls::get().goes_away();
  gate_.set(Gate::Mode::kAway);
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
  if (!gate_.await_empty(std::max(left, kAskAgain)))
    return cannot("a driver call of this process does not end");
  if (!gate_.await_watches(std::max(until, Clock::now() + kAskAgain)))
    return cannot("a thread of this process waits in the driver for an event of another process");
  return {};
}

void Detachment::attach() {
  if (!DeepCalls::on()) return;
  gate_.set(Gate::Mode::kFreesPass);
  // Inside the gate: nobody can wait here for the broker, which has the frees before the answer to
  // what it asks.
  const Pass pass(gate_, gate_.enter_to_free());
  const std::vector<int> active = devices_.active();
  DeepCalls::get().end([&](const DeepCalls::Call& call) {
    // The context in which the program would have made it is not known.
    CUresult r = CUDA_ERROR_INVALID_CONTEXT;
    for (const int device : active) {
      const LocalDevices::Use use(devices_, device);
      r = call.make(call.arguments);
      if (r == CUDA_SUCCESS) return;
    }
    if (active.empty()) r = call.make(call.arguments);
    if (r != CUDA_SUCCESS)
      log_warn(driver_.error(r, std::string(call.name) + ", made after a deep pause,").text());
  });
  for (auto& [segment, fd] : std::exchange(segments_, {})) add_now(segment, std::move(fd));
}

void Detachment::add(const amem_v1_PoolSegment& segment, Fd fd) {
  if (DeepCalls::on())
    segments_.emplace_back(segment, std::move(fd));
  else
    add_now(segment, std::move(fd));
}

Status Detachment::unmap(std::uint32_t segment) {
  if (!DeepCalls::on()) return pool_.unmap(segment);
  return {Code::kUnavailable, "the process is checkpointed, or about to be"};
}

/// Without it the copies that need it fail, and say so to the broker.
void Detachment::add_now(const amem_v1_PoolSegment& segment, Fd fd) {
  if (const Status s = pool_.add(segment, std::move(fd)); !s.ok()) log_error(s.text());
}

}  // namespace amem::shim
