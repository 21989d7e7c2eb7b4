#include "shim/memory/pins.h"

#include <algorithm>
#include <optional>

namespace amem::shim {
namespace {

/// How soon after the gate has opened the broker hears of what was unpinned meanwhile.
constexpr std::chrono::milliseconds kAgain{100};

bool pinned_for(const BrokeredAllocation& a, amem_v1_PinReason reason) {
  return std::any_of(a.pins.begin(), a.pins.end(),
                     [reason](const PinnedBy& by) { return by.reason == reason; });
}

/// What is left of the address space behind an address may be less.
std::size_t length(CUdeviceptr address, std::size_t size) {
  return static_cast<std::size_t>(std::min<CUdeviceptr>(size, ~CUdeviceptr{0} - address));
}

}  // namespace

Result<Pins::Pinned> Pins::pin(CUdeviceptr address, std::size_t size, amem_v1_PinReason reason) {
  std::unique_lock lock(brokered_.mutex);
  const std::optional<std::vector<Mapping*>> touched =
      brokered_.await_arrivals(lock, address, length(address, size));
  if (!touched)
    return Status(Code::kFailedPrecondition,
                  "a resume restores memory there, but it has not arrived in time");
  Pinned pinned{{reason, next_.fetch_add(1)}, {}};
  for (const Mapping* m : *touched) {
    const BrokeredAllocation& a = *brokered_.table.find(m->id);
    if (!a.mapped())
      return Status(Code::kFailedPrecondition,
                    describe(a) + " is paused with its tag '" + a.tag + "'. Resume this tag first");
    pinned.ids.push_back(a.id);
  }
  for (const std::uint64_t id : pinned.ids) {
    BrokeredAllocation& a = *brokered_.table.find(id);
    const bool known = pinned_for(a, reason);
    a.pins.insert(pinned.by);
    if (known) continue;
    const auto message = new_message(amem_v1_SessionMessage_pin_tag);
    message->body.pin = {id, reason};
    session_.post(*message);
  }
  return pinned;
}

void Pins::unpin(Pinned pinned) {
  if (pinned.ids.empty()) return;
  if (gate_.try_enter()) {
    unpin_now(pinned);
    gate_.leave_quietly();
    return;
  }
  std::lock_guard lock(mutex_);
  late_.push_back(std::move(pinned));
  if (late_.size() == 1) session_.run_at(Session::Clock::now() + kAgain, [this] { unpin_late(); });
}

/// Inside the gate: the broker hears of it before any pause that begins later.
void Pins::unpin_now(const Pinned& pinned) {
  std::lock_guard lock(brokered_.mutex);
  for (const std::uint64_t id : pinned.ids) {
    BrokeredAllocation* a = brokered_.table.find(id);
    // Freed meanwhile; or redeemed again, which this registration has nothing to do with.
    if (a == nullptr || a->pins.erase(pinned.by) == 0) continue;
    if (pinned_for(*a, pinned.by.reason)) continue;
    const auto message = new_message(amem_v1_SessionMessage_unpin_tag);
    message->body.unpin = {id, pinned.by.reason};
    session_.post(*message);
  }
}

/// Service thread.
void Pins::unpin_late() {
  if (!gate_.try_enter()) {
    session_.run_at(Session::Clock::now() + kAgain, [this] { unpin_late(); });
    return;
  }
  std::vector<Pinned> late;
  {
    std::lock_guard lock(mutex_);
    late.swap(late_);
  }
  for (const Pinned& pinned : late) unpin_now(pinned);
  gate_.leave_quietly();
}

}  // namespace amem::shim
