#include "daemon/checkpoint/deep_proof.h"

#include <spdlog/spdlog.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <string>
#include <utility>

namespace amem {
namespace {

constexpr int kCycles = 2;

struct ProofStep {
  CheckpointAction action;
  ProcessState leads_to;
};
constexpr std::array kCycle = {
    ProofStep{CheckpointAction::kLock, ProcessState::kLocked},
    ProofStep{CheckpointAction::kCheckpoint, ProcessState::kCheckpointed},
    ProofStep{CheckpointAction::kRestore, ProcessState::kLocked},
    ProofStep{CheckpointAction::kUnlock, ProcessState::kRunning}};

Status judge(const CheckpointResult& result, const ProofStep& step) {
  if (result.error == "CUDA_ERROR_OUT_OF_MEMORY")
    return {Code::kResourceExhausted, result.status.text()};
  if (result.error == "CUDA_ERROR_NOT_READY")  // a lock gave up
    return {Code::kDeadlineExceeded, result.status.text()};
  if (!result.status.ok() || result.state == step.leads_to) return result.status;
  return {Code::kFailedPrecondition, std::string(word_of(step.action)) +
                                         ": the driver reports success, but the process is " +
                                         word_of(result.state)};
}

/// It says nothing of the driver.
bool is_busy(Code code) {
  return code == Code::kResourceExhausted || code == Code::kDeadlineExceeded ||
         code == Code::kNotFound || code == Code::kCancelled || code == Code::kInternal;
}

Status refusal(const DeviceUuid& device, const Status& why) {
  const std::string text = "device " + to_string(device) + ": " + why.text();
  if (!is_busy(why.code()))
    return {Code::kFailedPrecondition, "deep pauses do not work on this node: " + text +
                                           ". Pause without --deep, and set deep.enabled = false"};
  const std::string failed = "amemd could not prove that deep pauses work on this node: " + text;
  if (why.code() == Code::kResourceExhausted)
    return {why.code(), failed +
                            ". Pause the group without --deep first, which frees memory, and then "
                            "again with --deep"};
  return {why.code() == Code::kDeadlineExceeded ? why.code() : Code::kAborted,
          failed + ". Try again, or pause without --deep"};
}

}  // namespace

/// On one device. Lives until it calls ended().
class DeepProof::Run : public std::enable_shared_from_this<Run> {
 public:
  Run(DeepProof& proof, const DeviceUuid& device)
      : proof_(proof), device_(device), deadline_(began_ + proof.limit_) {}
  ~Run() { proof_.loop_.cancel(timer_); }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  void begin() {
    proof_.make_pool_(device_, proof_.limit_, [weak = weak_from_this()](Result<ProofPool> pool) {
      if (const auto self = weak.lock()) self->start(std::move(pool));
    });
  }

 private:
  void start(Result<ProofPool> pool) {
    if (!pool.ok()) return end(pool.status());
    Result<std::unique_ptr<ProofTarget>> target =
        proof_.targets_.start(device_, std::move(pool).value());
    if (!target.ok()) return end(target.status());
    target_ = std::move(target).value();
    check();
  }

  void check() {
    timer_ = proof_.loop_.at(deadline_, [this] {
      end({Code::kDeadlineExceeded, "the process for it did not answer in time"});
    });
    target_->check([weak = weak_from_this()](const Status& status) {
      const auto self = weak.lock();
      if (self == nullptr) return;
      self->proof_.loop_.cancel(self->timer_);
      if (!status.ok()) return self->end(status);
      if (self->cycle_++ == kCycles) return self->end({});
      self->take(0);
    });
  }

  void take(std::size_t index) {
    if (index == kCycle.size()) return check();
    // No timer: while a call is under way the process must not end, for the call's sake.
    proof_.calls_.call(target_->pid(), kCycle[index].action, deadline_,
                       [weak = weak_from_this(), index](const CheckpointResult& result) {
                         const auto self = weak.lock();
                         if (self == nullptr) return;
                         const Status status = judge(result, kCycle[index]);
                         if (status.ok()) return self->take(index + 1);
                         const Status ended = self->target_->end();
                         self->end(ended.code() == Code::kCancelled ? ended : status);
                       });
  }

  void end(const Status& status) {
    const auto self = shared_from_this();
    target_.reset();
    proof_.ended(device_, status, Clock::now() - began_);
  }

  DeepProof& proof_;
  const DeviceUuid device_;
  const Time began_ = Clock::now();
  const Time deadline_;
  std::unique_ptr<ProofTarget> target_;
  EventLoop::TimerId timer_{};
  int cycle_ = 0;
};

DeepProof::DeepProof(EventLoop& loop, ProcessCalls& calls, ProofTargets& targets, Duration limit,
                     MakePool make_pool)
    : loop_(loop),
      calls_(calls),
      targets_(targets),
      limit_(limit),
      make_pool_(std::move(make_pool)) {}

DeepProof::~DeepProof() { shut(); }

void DeepProof::shut() {
  waiters_.clear();
  runs_.clear();
}

std::optional<Status> DeepProof::verdict(const std::set<DeviceUuid>& devices) const {
  std::optional<Status> verdict = Status();
  for (const DeviceUuid& device : devices) {
    const auto known = verdicts_.find(device);
    if (known == verdicts_.end())
      verdict.reset();
    else if (!known->second.ok())
      return known->second;
  }
  return verdict;
}

void DeepProof::prove(const std::set<DeviceUuid>& devices, Done done) {
  if (const auto known = verdict(devices))
    return loop_.post([known = *known, done = std::move(done)] { done(known); });
  Waiter waiter{{}, {}, std::move(done)};
  std::vector<std::shared_ptr<Run>> begin;
  for (const DeviceUuid& device : devices) {
    if (verdicts_.contains(device)) continue;
    waiter.missing.insert(device);
    std::shared_ptr<Run>& run = runs_[device];
    if (run != nullptr) continue;
    run = std::make_shared<Run>(*this, device);
    begin.push_back(run);
  }
  waiters_.push_back(std::move(waiter));
  // In a turn of its own, so that it cannot end before this returns.
  for (const auto& run : begin)
    loop_.post([weak = std::weak_ptr<Run>(run)] {
      if (const auto self = weak.lock()) self->begin();
    });
}

void DeepProof::ended(const DeviceUuid& device, const Status& status, Duration took) {
  const Status said = status.ok() ? Status() : refusal(device, status);
  if (status.ok())
    spdlog::info("device {}: deep pauses are proven, in {} ms", to_string(device),
                 std::chrono::duration_cast<std::chrono::milliseconds>(took).count());
  else
    spdlog::warn("{}", said.text());
  if (status.ok() || !is_busy(status.code())) verdicts_[device] = said;
  runs_.erase(device);
  std::vector<Waiter> ready;
  std::erase_if(waiters_, [&](Waiter& waiter) {
    if (waiter.missing.erase(device) == 0) return false;
    if (waiter.status.ok()) waiter.status = said;
    if (!waiter.missing.empty()) return false;
    ready.push_back(std::move(waiter));
    return true;
  });
  for (const Waiter& waiter : ready) waiter.done(waiter.status);
}

}  // namespace amem
