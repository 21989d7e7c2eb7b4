#include "tests/world/checkpoints.h"

#if __has_include("addons/checkpoint/process_calls.h")

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "addons/checkpoint/checkpoint_evictor.h"
#include "tests/world/death.h"

namespace amem::world {
namespace {

using enum ProcessState;

constexpr pid_t kFirstThrowaway = 100;
constexpr pid_t kLastThrowaway = 999;

struct Way {
  CheckpointAction action;
  ProcessState from;
  ProcessState to;
};
constexpr std::array kWays = {Way{CheckpointAction::kLock, kRunning, kLocked},
                              Way{CheckpointAction::kCheckpoint, kLocked, kCheckpointed},
                              Way{CheckpointAction::kRestore, kCheckpointed, kLocked},
                              Way{CheckpointAction::kUnlock, kLocked, kRunning}};

const Way& way_of(CheckpointAction action) {
  return *std::find_if(kWays.begin(), kWays.end(),
                       [action](const Way& way) { return way.action == action; });
}

CheckpointResult refused(const Checkpoints::Step& step, const std::string& error,
                         ProcessState state) {
  return {{Code::kFailedPrecondition, std::string(word_of(step.action)) + ": " + error},
          error,
          0,
          state};
}

}  // namespace

/// A process that a broker checkpoints to see that it can.
class Checkpoints::Throwaway final : public ProofTarget {
 public:
  Throwaway(Checkpoints& driver, pid_t pid) : driver_(driver), pid_(pid) {}
  ~Throwaway() override { driver_.ends(pid_); }
  Throwaway(const Throwaway&) = delete;
  pid_t pid() const override { return pid_; }
  void check(Done done) override {
    driver_.loop_->at(Clock::now(), [done = std::move(done), lives = std::weak_ptr(lives_)] {
      if (!lives.expired() && !death::came()) done({});
    });
  }
  Status end() const override { return {}; }
  const ProofBasis& basis() const override { return basis_; }

 private:
  Checkpoints& driver_;
  const pid_t pid_;
  const ProofBasis basis_;
  const std::shared_ptr<bool> lives_ = std::make_shared<bool>(true);
};

Result<std::unique_ptr<ProofTarget>> Checkpoints::start(const VisibleDevices&, ProofPool) {
  pid_t pid = kFirstThrowaway;
  while (pid < kLastThrowaway && states_.contains(pid)) ++pid;
  states_[pid] = kRunning;
  return std::unique_ptr<ProofTarget>(std::make_unique<Throwaway>(*this, pid));
}

ProcessState Checkpoints::state(pid_t pid) const {
  const auto found = states_.find(pid);
  return found != states_.end() ? found->second : kRunning;
}

void Checkpoints::ends(pid_t pid) {
  states_.erase(pid);
  begun_.erase(pid);
  if (pid > kLastThrowaway) states_[pid] = kUnknown;
}

// ---- the broker asks ----------------------------------------------------------------------------

void Checkpoints::call(pid_t pid, CheckpointAction action, Time deadline, Done done) {
  if (!death::takes_effect()) return;
  const std::uint64_t id = ++last_;
  Call& call = calls_[id] = {{pid, action}, std::move(done), {}};
  // Nothing of these waits for the driver.
  const bool at_once = action == CheckpointAction::kState || pid <= kLastThrowaway;
  call.timer = loop_->at(at_once ? Clock::now() : deadline, [this, id, at_once] {
    if (death::came()) return;
    if (!at_once) return late(id);
    const Call asked = std::move(calls_.extract(id).mapped());
    asked.done(answer_at_once(asked.step));
  });
  if (asked_ && !at_once) asked_();
}

CheckpointResult Checkpoints::answer_at_once(const Step& step) {
  if (step.action != CheckpointAction::kState) return carry_out(step, Fate::kWell);
  if (state(step.pid) == kUnknown) return refused(step, "CUDA_ERROR_INVALID_VALUE", kUnknown);
  return {{}, "", 0, state(step.pid)};
}

void Checkpoints::late(std::uint64_t id) {
  const Call call = std::move(calls_.extract(id).mapped());
  kill(call.step);
  call.done({{Code::kDeadlineExceeded,
              std::string(word_of(call.step.action)) + ": no answer in time, killed"}});
}

void Checkpoints::lose_client() {
  for (const auto& [id, call] : std::exchange(calls_, {}))
    if (call.step.action != CheckpointAction::kState) kill(call.step);
}

/// A lock gives up before its program is killed.
void Checkpoints::kill(const Step& step) {
  if (begun_.contains(step.pid)) return;  // it has waited for that one
  const std::uint64_t became = random_() % 3;
  if (became == 0) (void)carry_out(step, Fate::kWell);
  if (became == 1 && step.action != CheckpointAction::kLock && state(step.pid) != kUnknown)
    begun_[step.pid] = step.action;
}

// ---- the driver acts ----------------------------------------------------------------------------

std::vector<Checkpoints::Step> Checkpoints::steps() const {
  std::vector<Step> steps;
  for (const auto& [pid, action] : begun_) steps.push_back({pid, action});
  for (const auto& [id, call] : calls_)
    if (!call.hangs && call.step.action != CheckpointAction::kState &&
        call.step.pid > kLastThrowaway && !begun_.contains(call.step.pid))
      steps.push_back(call.step);
  return steps;
}

std::optional<Checkpoints::Step> Checkpoints::next() {
  const std::vector<Step> steps = this->steps();
  if (steps.empty()) return std::nullopt;
  return steps[random_() % steps.size()];
}

std::string Checkpoints::take(const Step& step, Fate fate) {
  std::string what = std::string(word_of(step.action)) + " of process " + std::to_string(step.pid);
  if (begun_.erase(step.pid) > 0) {
    (void)carry_out(step, fate == Fate::kHangs ? Fate::kWell : fate);
    return what + ", whose program was killed";
  }
  const auto found = std::find_if(calls_.begin(), calls_.end(), [&](const auto& each) {
    return each.second.step.pid == step.pid && each.second.step.action == step.action;
  });
  if (found == calls_.end()) return what + ", which nobody waits for";
  if (fate == Fate::kHangs) {
    found->second.hangs = true;
    return what + " hangs";
  }
  const CheckpointResult result = carry_out(step, fate);
  const Call call = std::move(found->second);
  calls_.erase(found);
  loop_->cancel(call.timer);
  what += result.status.ok() ? "" : ", " + result.error;
  call.done(result);
  return what;
}

CheckpointResult Checkpoints::carry_out(const Step& step, Fate fate) {
  const ProcessState is = state(step.pid);
  const Way& way = way_of(step.action);
  if (is == kUnknown) return refused(step, "CUDA_ERROR_INVALID_VALUE", is);
  if (is != way.from) return refused(step, "CUDA_ERROR_ILLEGAL_STATE", is);
  if (fate == Fate::kRefused) return refused(step, "CUDA_ERROR_UNKNOWN", is);
  // Only these lose processes.
  const bool loses = fate == Fate::kLost && (step.action == CheckpointAction::kCheckpoint ||
                                             step.action == CheckpointAction::kRestore);
  states_[step.pid] = loses ? kFailed : way.to;
  if (step.pid > kLastThrowaway) {
    if (way.to == kCheckpointed) ++taken_;
    if (loses) ++lost_;
  }
  if (loses) return refused(step, "CUDA_ERROR_NOT_SUPPORTED", kFailed);
  return {{}, "", 0, way.to};
}

MakeEvictor evictor_by(Checkpoints& checkpoints) {
  return [&checkpoints](EventLoop& loop, Duration limit, MakeProofPool make_pool) {
    return std::make_unique<CheckpointEvictor>(loop, checkpoints, checkpoints, limit,
                                               std::move(make_pool));
  };
}

}  // namespace amem::world

#endif
