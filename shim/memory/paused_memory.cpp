#include "shim/memory/paused_memory.h"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <mutex>
#include <utility>

#include "shim/process/python.h"

namespace amem::shim {
namespace {

/// How often a caller looks whether an interpreter ends or others wait for it: nobody tells.
constexpr std::chrono::milliseconds kLookAgain{100};

std::atomic<bool> ending{false};
std::atomic<bool> broker_lost{false};
// With the lock of the brokered memory. Never destroyed: somebody may wait when the process exits.
std::condition_variable& changed = *new std::condition_variable;

/// REQUIRES: the lock is held.
const Mapping* first_paused(BrokeredMemory& brokered, const Operand& operand) {
  if (operand.bytes == 0) return nullptr;
  for (const Mapping* m : brokered.table.overlapping(operand.address, operand.bytes))
    if (!brokered.table.find(m->id)->usable()) return m;
  return nullptr;
}

}  // namespace

std::atomic<bool> PausedMemory::any_{false};

std::optional<PausedMemory::Missing> PausedMemory::of(BrokeredMemory& brokered,
                                                      std::span<const Operand> operands) {
  if (operands.empty()) return std::nullopt;
  const std::lock_guard lock(brokered.mutex);
  for (const Operand& operand : operands) {
    const Mapping* m = first_paused(brokered, operand);
    if (m == nullptr) continue;
    const BrokeredAllocation& a = *brokered.table.find(m->id);
    char address[2 + 16 + 1];
    std::snprintf(address, sizeof address, "0x%llx",
                  std::max<CUdeviceptr>(operand.address, m->address));
    return Missing{
        std::string(address) + " in " + describe(a) + " is paused with its tag '" + a.tag + "'",
        a.tag, a.by_itself && a.where() == Where::kAway};
  }
  return std::nullopt;
}

std::string PausedMemory::tags(BrokeredMemory& brokered) {
  std::map<std::string, std::uint64_t> bytes;
  {
    const std::lock_guard lock(brokered.mutex);
    for (const auto& [id, a] : brokered.table.allocations())
      if (!a.usable()) bytes[a.tag] += a.size;
  }
  std::string text;
  for (const auto& [tag, size] : bytes)
    text += (text.empty() ? "tag '" : ", '") + tag + "' (" + std::to_string(size) + " bytes)";
  return text;
}

PausedMemory::Waited PausedMemory::wait(BrokeredMemory& brokered, std::span<const Operand> operands,
                                        std::chrono::milliseconds patience,
                                        const std::function<bool()>& in_the_way, WaitLog& waits,
                                        const std::string& what) {
  using Clock = std::chrono::steady_clock;
  const EndOfCaller end;
  std::unique_lock lock(brokered.mutex);
  std::uint64_t seen = brokered.table.returns();
  Clock::time_point began = Clock::now();
  while (std::any_of(operands.begin(), operands.end(), [&](const Operand& operand) {
    return first_paused(brokered, operand) != nullptr;
  })) {
    if (end.is_here(ending.load())) return Waited::kEnding;
    if (lost()) return Waited::kLost;
    if (in_the_way()) return Waited::kInTheWay;
    const auto now = Clock::now();
    // It may have been here meanwhile, for too short a time: this is another wait.
    if (std::exchange(seen, brokered.table.returns()) != brokered.table.returns()) began = now;
    if (patience.count() > 0 && now >= began + patience) return Waited::kTooLong;
    if (waits.due(began, now)) {
      lock.unlock();
      waits.still_waits(what + ". The call waits", began, now);
      lock.lock();
      continue;
    }
    changed.wait_until(lock, now + kLookAgain);
  }
  return Waited::kIsHere;
}

void PausedMemory::update(BrokeredMemory& brokered) {
  any_.store(brokered.table.paused() > 0, std::memory_order_release);
  changed.notify_all();
}

void PausedMemory::fail() {
  broker_lost.store(true);
  changed.notify_all();
}

bool PausedMemory::lost() { return broker_lost.load(); }

void PausedMemory::reset_after_fork() { any_.store(false); }

void PausedMemory::end() {
  ending.store(true);
  changed.notify_all();
}

}  // namespace amem::shim
