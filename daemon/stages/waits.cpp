#include "daemon/stages/waits.h"

#include <sys/epoll.h>

#include <memory>

namespace amem {

StageWaits::~StageWaits() {
  for (const auto& [number, wait] : waits_) {
    if (wait.watch != 0) loop_.unwatch(wait.watch);
    if (wait.timer) loop_.cancel(*wait.timer);
  }
}

StageWaits::Number StageWaits::add(Wait wait, Duration timeout, const std::string& late) {
  const Number number = next_++;
  Wait& added = waits_.emplace(number, std::move(wait)).first->second;
  if (added.process) {
    added.process =
        std::make_shared<const Fd>(added.process->duplicate());  // others watch that one
    added.watch = loop_.watch(added.process->get(), EPOLLIN, [this, number](std::uint32_t) {
      end(number, {Code::kCancelled, "the caller has ended"});
    });
  }
  if (timeout > Duration{})
    added.timer = loop_.at(Clock::now() + timeout, [this, number, late] {
      waits_.at(number).timer.reset();
      end(number, {Code::kDeadlineExceeded, late});
    });
  return number;
}

void StageWaits::forget(Number number) {
  if (waits(number)) end(number, {Code::kCancelled, "the caller has disconnected"});
}

void StageWaits::end(Number number, const Status& status) {
  auto ended = waits_.extract(number);
  if (ended.empty()) return;
  Wait& wait = ended.mapped();
  if (wait.watch != 0) loop_.unwatch(wait.watch);
  if (wait.timer) loop_.cancel(*wait.timer);
  if (wait.done != nullptr) wait.done(status);
  if (wait.what == For::kStart) ended_(wait.group);
}

void StageWaits::answer_start(Number number, Duration unseen) {
  Wait& wait = waits_.at(number);
  if (wait.timer) loop_.cancel(*wait.timer);
  wait.timer.reset();
  if (wait.watch == 0)
    wait.timer = loop_.at(Clock::now() + unseen, [this, number] {
      waits_.at(number).timer.reset();
      end(number, {});
    });
  if (const Done done = std::exchange(wait.done, nullptr); done != nullptr) done({});
}

std::vector<StageWaits::Number> StageWaits::of(GroupId group, For what) const {
  std::vector<Number> numbers;
  for (const auto& [number, wait] : waits_)
    if (wait.group == group && wait.what == what) numbers.push_back(number);
  return numbers;
}

bool StageWaits::waits(Number number) const {
  const auto it = waits_.find(number);
  return it != waits_.end() && it->second.done != nullptr;
}

std::vector<pid_t> StageWaits::pids(GroupId group) const {
  std::vector<pid_t> pids;
  for (const auto& [number, wait] : waits_)
    if (wait.group == group && wait.what == For::kStart && wait.pid > 0) pids.push_back(wait.pid);
  return pids;
}

void StageWaits::close(const Status& why) {
  for (auto& [number, wait] : waits_)
    if (const Done done = std::exchange(wait.done, nullptr); done != nullptr) done(why);
}

}  // namespace amem
