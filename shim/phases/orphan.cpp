#include "shim/phases/orphan.h"

#include <unistd.h>

#include <algorithm>

#include "shim/base/log.h"

namespace amem::shim {
namespace {

/// EX_TEMPFAIL: whoever has started the program may start it again.
constexpr int kExitStatus = 75;

/// Memory that others may have, too.
bool is_shared(const BrokeredAllocation& a) { return a.imported || a.guest || a.shared; }

}  // namespace

std::string Orphan::who() const {
  return "rank " + std::to_string(session_.rank_id()) + " of group " + options_.group;
}

bool Orphan::shares_memory() {
  std::lock_guard lock(memory_.brokered.mutex);
  const auto& all = memory_.brokered.table.allocations();
  return std::any_of(all.begin(), all.end(), [](const auto& a) { return is_shared(a.second); });
}

bool Orphan::waits_for_broker(RankState state, const Status& why, bool hope) {
  const std::uint64_t paused = memory_.brokered.bytes_paused();
  if (paused == 0 && !(state != RankState::kRuns && shares_memory())) return false;
  const std::string lost =
      who() + " has lost its broker (" + why.text() + ") while " +
      (paused > 0 ? std::to_string(paused) + " bytes of its memory are paused"
                  : std::string("its gate is shut and other processes share its memory"));
  if (options_.orphan == OrphanRule::kExit) {
    log_error(lost + ". The process ends with status " + std::to_string(kExitStatus) +
              " (AMEM_ORPHAN=exit)");
    ::_exit(kExitStatus);
  }
  if (options_.orphan == OrphanRule::kRestore) {
    const Status restored = restore(state, paused);
    if (restored.ok()) {
      log_warn(lost + ". It has restored " + std::to_string(paused) +
               " bytes from the host pool to its own memory, and runs without amem "
               "(AMEM_ORPHAN=restore)");
      return false;
    }
    log_error(who() +
              " cannot restore its memory itself (AMEM_ORPHAN=restore): " + restored.text());
  }
  if (!hope) return false;
  log_error(lost + ". It waits for a broker. Start amemd again" +
            (options_.orphan == OrphanRule::kWait ? ", or start the job with AMEM_ORPHAN=restore"
                                                  : ", or end this process"));
  remind(++waits_);
  return true;
}

/// Logs a line from time to time while it waits.
void Orphan::remind(std::uint64_t wait) {
  session_.run_at(Session::Clock::now() + reminder_, [this, wait] {
    if (wait != waits_) return;
    log_error(who() + " still waits for a broker, with " +
              std::to_string(memory_.brokered.bytes_paused()) +
              " bytes paused. Start amemd again, or end this process. AMEM_ORPHAN=restore restores "
              "memory that no other process shares");
    remind(wait);
  });
}

Result<std::vector<Orphan::Paused>> Orphan::restorable() {
  std::vector<Paused> paused;
  std::lock_guard lock(memory_.brokered.mutex);
  for (const auto& [id, a] : memory_.brokered.table.allocations()) {
    if (!a.saved()) continue;
    const char* obstacle = nullptr;
    if (is_shared(a))
      obstacle = "other processes may share it";
    else if (a.bindings > 0)
      obstacle = "it is bound to a multicast object";
    else if (a.arriving())
      obstacle = "a resume was restoring it, and may not have loaded its bytes";
    else if (mover_.backups().any(id) && mover_.backups().find(id, 0, a.size).empty())
      obstacle = "not all of its bytes were saved here";
    if (obstacle != nullptr)
      return Status(Code::kFailedPrecondition,
                    describe(a) + ", tag '" + a.tag + "', stays paused: " + obstacle);
    paused.push_back({id, a.size});
  }
  return paused;
}

/// All of it or nothing. What has no saved bytes was dropped by its pause: only this rank had it,
/// so nobody else has saved it.
Status Orphan::restore(RankState state, std::uint64_t bytes_paused) {
  if (bytes_paused == 0)
    return {Code::kFailedPrecondition, "the paused memory is not in this process"};
  if (state == RankState::kDetached)
    return {Code::kFailedPrecondition,
            "the driver may have checkpointed this process, and only amemd can have it restored"};
  const Result<std::vector<Paused>> paused = restorable();
  if (!paused.ok()) return paused.status();
  Status status;
  std::uint64_t bytes = 0;
  for (const Paused& a : paused.value())
    if (status.ok()) status = memory_.residency.make_again(a.id);
  if (Status s = memory_.residency.finish_return(bytes); status.ok()) status = s;
  for (const Paused& a : paused.value())
    // A program that runs during the resume of its memory may have freed this meanwhile.
    if (status.ok() && memory_.brokered.has(a.id)) status = mover_.restore(a.id, a.size);
  if (Status s = mover_.finish_load(bytes); status.ok()) status = s;
  if (status.ok()) {
    memory_.residency.arrived();
  } else if (Status s = memory_.residency.undo(bytes); !s.ok()) {
    log_error(s.text());
  }
  memory_.residency.take_timings();
  return status;
}

}  // namespace amem::shim
