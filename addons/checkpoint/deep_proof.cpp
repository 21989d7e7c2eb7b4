#include "addons/checkpoint/deep_proof.h"

#include <spdlog/spdlog.h>
#include <sys/stat.h>

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

std::string ms(Duration duration) {
  return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(duration).count()) +
         " ms";
}

/// "device GPU-a", "devices GPU-b, GPU-a".
std::string describe(const VisibleDevices& devices) {
  std::string text = devices.size() == 1 ? "device " : "devices ";
  for (const DeviceUuid& device : devices)
    text += (&device == &devices.front() ? "" : ", ") + to_string(device);
  return text;
}

/// Which file it is: another one of that name has another mark.
std::string mark(const std::string& file) {
  struct stat info {};
  if (::stat(file.c_str(), &info) != 0) return {};
  return std::to_string(info.st_dev) + ' ' + std::to_string(info.st_ino) + ' ' +
         std::to_string(info.st_size) + ' ' + std::to_string(info.st_mtim.tv_sec) + '.' +
         std::to_string(info.st_mtim.tv_nsec);
}

std::vector<std::string> marks(const std::vector<std::string>& files) {
  std::vector<std::string> marks;
  for (const std::string& file : files) marks.push_back(mark(file));
  return marks;
}

std::string terms_of(const ProofBasis& basis) {
  if (!basis.nccl.empty()) return "with NCCL " + basis.nccl;
  return "without NCCL" + (basis.no_nccl.empty() ? "" : ", because " + basis.no_nccl);
}

Status refusal(const VisibleDevices& devices, const Status& why) {
  const std::string text = describe(devices) + ": " + why.text();
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

/// For one set. Lives until it calls ended().
class DeepProof::Run : public std::enable_shared_from_this<Run> {
 public:
  Run(DeepProof& proof, VisibleDevices devices)
      : proof_(proof), devices_(std::move(devices)), deadline_(began_ + proof.limit_) {}
  ~Run() { proof_.loop_.cancel(timer_); }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  void begin() {
    proof_.make_pool_(devices_, proof_.limit_, [weak = weak_from_this()](Result<ProofPool> pool) {
      if (const auto self = weak.lock()) self->start(std::move(pool));
    });
  }

 private:
  void start(Result<ProofPool> pool) {
    if (!pool.ok()) return end(pool.status());
    Result<std::unique_ptr<ProofTarget>> target =
        proof_.targets_.start(devices_, std::move(pool).value());
    if (!target.ok()) return end(target.status());
    target_ = std::move(target).value();
    check();
  }

  void check() {
    timer_ = proof_.loop_.at(deadline_, [this] {
      const std::string& step = target_->basis().step;
      end({Code::kDeadlineExceeded, "the process for it has not ended this step within " +
                                        ms(proof_.limit_) + ": " +
                                        (step.empty() ? "its start" : step)});
    });
    target_->check([weak = weak_from_this()](const Status& status) {
      const auto self = weak.lock();
      if (self == nullptr) return;
      self->proof_.loop_.cancel(self->timer_);
      if (!status.ok()) return self->end(status);
      if (self->done()) return self->end({});
      self->cycle_began_ = Clock::now();
      self->take(0);
    });
  }

  /// Returns whether all cycles are done, or another one of the last one's length would end too
  /// late.
  bool done() const {
    const Time now = Clock::now();
    return cycles_ == kCycles || (cycles_ > 0 && now - cycle_began_ > deadline_ - now);
  }

  void take(std::size_t index) {
    if (index == kCycle.size()) {
      ++cycles_;
      return check();
    }
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
    const ProofBasis basis = target_ != nullptr ? target_->basis() : ProofBasis();
    target_.reset();
    proof_.ended(devices_, status, basis,
                 std::to_string(cycles_) + (cycles_ == 1 ? " cycle in " : " cycles in ") +
                     ms(Clock::now() - began_));
  }

  DeepProof& proof_;
  const VisibleDevices devices_;
  const Time began_ = Clock::now();
  const Time deadline_;
  std::unique_ptr<ProofTarget> target_;
  EventLoop::TimerId timer_{};
  int cycles_ = 0;  // done
  Time cycle_began_{};
};

DeepProof::DeepProof(EventLoop& loop, ProcessCalls& calls, ProofTargets& targets, Duration limit,
                     MakeProofPool make_pool)
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

const DeepProof::Verdict* DeepProof::find(const VisibleDevices& devices) const {
  const auto known = verdicts_.find(devices);
  if (known == verdicts_.end() || marks(known->second.basis.files) != known->second.marks)
    return nullptr;
  return &known->second;
}

std::optional<Status> DeepProof::verdict(const Sets& sets) const {
  std::optional<Status> verdict = Status();
  for (const VisibleDevices& devices : sets) {
    const Verdict* const known = find(devices);
    if (known == nullptr)
      verdict.reset();
    else if (!known->status.ok())
      return known->status;
  }
  return verdict;
}

std::string DeepProof::terms(const Sets& sets) const {
  std::set<std::string> terms;
  for (const VisibleDevices& devices : sets)
    if (const auto known = verdicts_.find(devices); known != verdicts_.end())
      terms.insert(terms_of(known->second.basis));
  std::string text;
  for (const std::string& each : terms) text += (text.empty() ? "" : "; ") + each;
  return text;
}

void DeepProof::prove(const Sets& sets, Done done) {
  if (const auto known = verdict(sets))
    return loop_.post([known = *known, done = std::move(done)] { done(known); });
  Waiter waiter{{}, {}, std::move(done)};
  std::vector<std::shared_ptr<Run>> begin;
  for (const VisibleDevices& devices : sets) {
    if (find(devices) != nullptr) continue;
    waiter.missing.insert(devices);
    std::shared_ptr<Run>& run = runs_[devices];
    if (run != nullptr) continue;
    run = std::make_shared<Run>(*this, devices);
    begin.push_back(run);
  }
  waiters_.push_back(std::move(waiter));
  // In a turn of its own, so that it cannot end before this returns.
  for (const auto& run : begin)
    loop_.post([weak = std::weak_ptr<Run>(run)] {
      if (const auto self = weak.lock()) self->begin();
    });
}

void DeepProof::ended(const VisibleDevices& devices, const Status& status, const ProofBasis& basis,
                      const std::string& took) {
  const Status said = status.ok() ? Status() : refusal(devices, status);
  if (status.ok())
    spdlog::info("{}: deep pauses are proven, {}: {}", describe(devices), terms_of(basis), took);
  else
    spdlog::warn("{}", said.text());
  if (status.ok() || !is_busy(status.code()))
    verdicts_[devices] = {said, basis, marks(basis.files)};
  runs_.erase(devices);
  std::vector<Waiter> ready;
  std::erase_if(waiters_, [&](Waiter& waiter) {
    if (waiter.missing.erase(devices) == 0) return false;
    if (waiter.status.ok()) waiter.status = said;
    if (!waiter.missing.empty()) return false;
    ready.push_back(std::move(waiter));
    return true;
  });
  for (const Waiter& waiter : ready) waiter.done(waiter.status);
}

}  // namespace amem
