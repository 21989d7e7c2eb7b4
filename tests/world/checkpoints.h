// Checkpoints: stands for the driver's checkpoints of processes, and for the programs that ask for
// them (addons/checkpoint): in this thread, and whenever it is told to go on. What a process is in
// stays when a broker dies; its programs are killed then.
#pragma once

#if !__has_include("addons/checkpoint/process_calls.h")
#include "tests/world/no_checkpoints.h"
#else

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "addons/checkpoint/process_calls.h"
#include "addons/checkpoint/proof_target.h"
#include "daemon/base/event_loop.h"
#include "daemon/operations/evictor.h"

namespace amem::world {

/// kHangs: no answer before the deadline; the step is taken later, or never. kLost: each call of
/// the process fails from now on.
enum class Fate : std::uint8_t { kWell, kRefused, kHangs, kLost };

class Checkpoints final : public ProcessCalls, public ProofTargets {
 public:
  explicit Checkpoints(std::minstd_rand& random) : random_(random) {}

  /// Has `asked` called when there is a step to take.
  void tell(std::function<void()> asked) { asked_ = std::move(asked); }
  /// A broker begins.
  void begin(EventLoop& loop) { loop_ = &loop; }
  /// It has died, and its programs with it: some before the driver had begun, some after its end,
  /// and some in between.
  void lose_client();
  /// A process has ended.
  void ends(pid_t pid);

  ProcessState state(pid_t pid) const;
  /// Its calls of the driver return, with an error if it is lost.
  bool is_free(pid_t pid) const {
    return state(pid) == ProcessState::kRunning || state(pid) == ProcessState::kFailed;
  }
  bool is_lost(pid_t pid) const { return state(pid) == ProcessState::kFailed; }

  // ---- programs that wait for the driver, and steps whose programs were killed ----
  struct Step {
    pid_t pid = 0;
    CheckpointAction action = CheckpointAction::kState;
  };
  /// Those that can be taken now.
  std::vector<Step> steps() const;
  bool busy() const { return !calls_.empty() || !begun_.empty(); }
  /// One that chance takes; null: it waits for another.
  std::optional<Step> next();
  /// Takes that step.
  std::string take(const Step& step, Fate fate);

  /// Of ranks' processes.
  std::uint64_t taken() const { return taken_; }
  std::uint64_t lost() const { return lost_; }

  // ---- for the broker ----
  void call(pid_t pid, CheckpointAction action, Time deadline, Done done) override;
  /// Throwaway processes, of which nothing goes wrong.
  Result<std::unique_ptr<ProofTarget> > start(const VisibleDevices& devices,
                                              ProofPool pool) override;

 private:
  struct Call {
    Step step;
    Done done;
    EventLoop::TimerId timer{};
    bool hangs = false;
  };
  class Throwaway;

  CheckpointResult carry_out(const Step& step, Fate fate);
  CheckpointResult answer_at_once(const Step& step);
  /// What becomes of a step whose program is killed.
  void kill(const Step& step);
  void late(std::uint64_t id);

  std::minstd_rand& random_;
  std::function<void()> asked_;
  EventLoop* loop_ = nullptr;
  std::uint64_t last_ = 0;
  std::uint64_t taken_ = 0;
  std::uint64_t lost_ = 0;
  std::map<std::uint64_t, Call> calls_;
  std::map<pid_t, CheckpointAction> begun_;  // whose programs were killed
  std::map<pid_t, ProcessState> states_;     // those that are not running
};

/// What a broker evicts by. `checkpoints` outlives it.
MakeEvictor evictor_by(Checkpoints& checkpoints);

}  // namespace amem::world

#endif
