// What a Group is told: by its ranks, of the cut and of the phases they have done, and by the
// broker of its own share; and what ranks ask of it.
#include <utility>

#include "daemon/phases/group.h"

namespace amem {

// ---- answers ------------------------------------------------------------------------------------

void Group::cut_status(RankId rank, Epoch epoch, CutReport report, Time now) {
  if (phase_ != Phase::kQuiesce || epoch != epoch_) return;
  const std::size_t quiet = cut_->quiet_ranks();
  cut_->report(rank, std::move(report), now);
  if (cut_->quiet_ranks() != quiet) report_progress(now);
  look_at_cut(now);
}

void Group::look_at_cut(Time now) {
  if (cut_->taken()) {
    waiting_.clear();
    advance(now);
    return;
  }
  for (const Cut::Step& step : cut_->decide(now)) actions_.push_back(action::Step{epoch_, step});
}

void Group::phase_done(RankId rank, Epoch epoch, Work work, const Status& status,
                       std::uint64_t bytes, Time now, const RankWork& spent) {
  if (epoch != epoch_ || !waiting_.contains(rank)) return;
  const bool last_answer = [&] {
    switch (phase_) {
      case Phase::kSave:
        return work == Work::kSave;
      case Phase::kRelease:
      case Phase::kRollback:
        return work == Work::kRelease;
      case Phase::kLoad:
        return work == Work::kLoad && mapped_.contains(rank);
      case Phase::kOpen:
        return work == Work::kOpen;
      default:
        return false;
    }
  }();
  const bool expected = last_answer || (phase_ == Phase::kLoad && work == Work::kMap);
  if (!expected) return;

  bytes_ += bytes;
  note_work(rank, work, bytes, spent, now);
  if (last_answer)
    waiting_.erase(rank);
  else
    mapped_.insert(rank);
  if (!status.ok()) {
    waiting_.erase(rank);
    const Phase failed_in = phase_;
    const Code code = status.code() == Code::kDataLoss ? Code::kDataLoss : Code::kAborted;
    fail({code, label(rank) + " failed: " + status.text()}, now);
    if (phase_ != failed_in || epoch_ != epoch) return;  // the operation has gone another way
  }
  report_progress(now);
  if (last_answer || !status.ok()) advance_if_done(now);
}

void Group::save_sent(const Status& status, const std::vector<RankId>& ranks, Time now, bool more) {
  if (phase_ != Phase::kSave) return;
  if (!status.ok()) return fail(status, now);
  more_ = more;
  waiting_ = {ranks.begin(), ranks.end()};
  asked_ = static_cast<std::uint32_t>(ranks.size());
  report_progress(now);
  advance_if_done(now);
}

void Group::dropped(const std::string& note, Time now) {
  if (phase_ != Phase::kDrop) return;
  if (!note.empty()) note_ = note;
  advance(now);
}

void Group::admitted(const Status& status, Time now) {
  if (phase_ != Phase::kAdmit) return;
  if (!status.ok()) return fail(status, now);
  advance(now);
}

void Group::created(const Status& status, Time now) {
  if (phase_ != Phase::kCreate) return;
  if (!status.ok()) return fail(status, now);
  advance(now);
}

// ---- requests from inside -----------------------------------------------------------------------

void Group::request(RankId rank, std::uint64_t seq, const Task& task, Duration timeout, Time now) {
  if (!operating() && satisfied(task)) {
    actions_.push_back(action::Answer{rank, seq, {}});
    return;
  }
  if (timeout == Duration::zero()) timeout = deadlines_.request;
  if (Status status = requests_.add({rank, seq, task, now + timeout}); !status.ok()) {
    actions_.push_back(action::Answer{rank, seq, std::move(status)});
    return;
  }
  look_at_requests(now);
}

void Group::look_at_requests(Time now) {
  if (operating()) return;
  for (const Task& task : requests_.tasks())
    if (satisfied(task)) answer(task, {});
  for (const Task& task : requests_.tasks())
    if (requests_.complete(task, members()) && can_start(task).ok())
      return begin(task, Duration::zero(), true, false, now);
}

void Group::answer(const Task& task, const Status& status) {
  for (const Requests::Request& r : requests_.take(task))
    actions_.push_back(action::Answer{r.rank, r.seq, status});
}

// Requests for what is under way, or will be as soon as the group can, wait for that and not for
// other ranks.
Time Group::request_deadline(const Task& task) const {
  if (operating() && (task == task_ || requests_.complete(task, members()))) return kNever;
  return requests_.deadline(task);
}

void Group::expire_requests(const Task& task, Time now) {
  if (request_deadline(task) > now) return;
  answer(task,
         {Code::kDeadlineExceeded,
          describe(task, name_) + " from inside: not every rank asked for it in time; missing: " +
              names(requests_.missing(task, members())) + "; the group is " +
              std::string(to_string(state_))});
}

}  // namespace amem
