#include "addons/checkpoint/group_checkpoint.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

namespace amem {
namespace {

/// The calls that one after the other may take their limit: a checkpoint that fails at its last,
/// and is undone.
constexpr int kCallsInTurn = 6;
/// Of these, a restore's: the state, the restore, the unlock.
constexpr int kCallsOfRestore = 3;

class Run : public std::enable_shared_from_this<Run> {
 public:
  Run(ProcessCalls& calls, std::vector<EvictedProcess> targets, Duration limit,
      Evictor::EvictDone done)
      : calls_(calls), limit_(limit / kCallsInTurn), done_(std::move(done)) {
    for (EvictedProcess& target : targets) each_.push_back({std::move(target), {}});
  }

  void checkpoint() {
    look([this] {
      ask(ProcessState::kRunning, CheckpointAction::kLock, [this] {
        if (!error_.ok()) return restore();
        ask(ProcessState::kLocked, CheckpointAction::kCheckpoint, [this] {
          if (!error_.ok()) return restore();
          done_({}, false);
        });
      });
    });
  }

  void restore() {
    look([this] { bring_back(); });
  }

  void restore_with(const Evictor::MakeSpace& make_space) {
    look([this, make_space] {
      const auto checkpointed = [](const Each& each) {
        return each.state == ProcessState::kCheckpointed && each.target.lives();
      };
      if (std::none_of(each_.begin(), each_.end(), checkpointed)) return bring_back();
      make_space([self = shared_from_this()](const Result<RestoreClaim>& space) {
        if (!space.ok()) return self->done_(space.status(), false);
        self->space_ = space.value();
        self->bring_back();
      });
    });
  }

 private:
  struct Each {
    EvictedProcess target;
    ProcessState state = ProcessState::kUnknown;
  };
  using Then = std::function<void()>;

  void bring_back() {
    ask(ProcessState::kCheckpointed, CheckpointAction::kRestore, [this] {
      ask(ProcessState::kLocked, CheckpointAction::kUnlock, [this] {
        space_.reset();
        done_(error_, std::all_of(each_.begin(), each_.end(), [](const Each& each) {
                return each.state == ProcessState::kRunning || !each.target.lives();
              }));
      });
    });
  }

  void look(const Then& then) {
    for (Each& each : each_) each.state = ProcessState::kUnknown;
    ask(ProcessState::kUnknown, CheckpointAction::kState, [this, then] {
      for (const Each& each : each_) note_if_lost(each);
      then();
    });
  }

  /// Of all in this state, at once; then goes on.
  void ask(ProcessState in, CheckpointAction action, const Then& then) {
    std::vector<std::size_t> chosen;
    for (std::size_t i = 0; i < each_.size(); ++i)
      if (each_[i].state == in && each_[i].target.lives()) chosen.push_back(i);
    if (chosen.empty()) return then();
    const auto missing = std::make_shared<std::size_t>(chosen.size());
    for (const std::size_t i : chosen)
      calls_.call(each_[i].target.pid, action, Clock::now() + limit_,
                  [self = shared_from_this(), i, missing, then](const CheckpointResult& answer) {
                    self->each_[i].state = answer.state;
                    if (!answer.status.ok())
                      self->note({answer.status.code(),
                                  self->each_[i].target.label + ": " + answer.status.text()});
                    self->note_if_lost(self->each_[i]);
                    if (--*missing == 0) then();
                  });
  }

  void note_if_lost(const Each& each) {
    if (each.state == ProcessState::kFailed)
      note({Code::kAborted, each.target.label +
                                ": the driver has lost this process, and each of its calls fails. "
                                "End it, and restart the job"});
  }

  void note(const Status& error) {
    if (error_.ok())
      error_ = error;
    else if (error_.text().find(error.text()) == std::string::npos)
      error_ = {error_.code(), error_.text() + "; " + error.text()};
  }

  ProcessCalls& calls_;
  const Duration limit_;
  const Evictor::EvictDone done_;
  std::vector<Each> each_;
  RestoreClaim space_;
  Status error_;
};

}  // namespace

Evictor::Calls checkpoint_all(ProcessCalls& calls, std::vector<EvictedProcess> targets,
                              Duration limit, Evictor::EvictDone done) {
  const auto run = std::make_shared<Run>(calls, std::move(targets), limit, std::move(done));
  run->checkpoint();
  return run;
}

Evictor::Calls restore_all(ProcessCalls& calls, std::vector<EvictedProcess> targets, Duration limit,
                           const Evictor::MakeSpace& space, Evictor::Done done) {
  const auto run =
      std::make_shared<Run>(calls, std::move(targets), limit,
                            [done = std::move(done)](const Status& status, bool) { done(status); });
  run->restore_with(space);
  return run;
}

Duration restore_time(Duration limit) { return limit / kCallsInTurn * kCallsOfRestore; }

}  // namespace amem
