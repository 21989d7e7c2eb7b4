#include "daemon/stages/starts.h"

#include <sys/epoll.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "daemon/base/units.h"

namespace amem {
namespace {

/// So long a group may take to its first rank if nobody can tell whether its program lives.
constexpr Duration kUnseen = std::chrono::minutes(10);

}  // namespace

Starts::~Starts() {
  for (const auto& [number, waiter] : waiters_) {
    if (waiter.watch != 0) loop_.unwatch(waiter.watch);
    if (waiter.timer) loop_.cancel(*waiter.timer);
  }
}

Starts::Start* Starts::find(const Account& account, const std::string& name) {
  const auto it = std::find_if(starts_.begin(), starts_.end(), [&](const auto& each) {
    return each.second.account.get() == &account && each.second.name == name;
  });
  return it != starts_.end() ? &it->second : nullptr;
}

Starts::Start* Starts::find(GroupId id) {
  const auto it = starts_.find(id);
  return it != starts_.end() ? &it->second : nullptr;
}

Starts::Start& Starts::add(Start start) {
  const GroupId id = start.id;
  return starts_.emplace(id, std::move(start)).first->second;
}

Starts::Number Starts::wait(Start& start, const SharedFd& process, Duration timeout, Done done) {
  Amounts amounts;
  amounts[Resource::kDescriptors] = 1;
  Result<Charge> charge = start.account->take(amounts);
  if (!charge.ok()) {
    done(charge.status());
    drop_if_unused(start.id);
    return 0;
  }
  const Number number = next_++;
  Waiter& waiter = waiters_[number];
  waiter.group = start.id;
  waiter.done = std::move(done);
  waiter.charge = std::move(charge).value();
  if (process) {
    waiter.process = std::make_shared<const Fd>(process->duplicate());  // others watch that one
    waiter.watch = loop_.watch(waiter.process->get(), EPOLLIN, [this, number](std::uint32_t) {
      end(number, {Code::kCancelled, "the caller has ended"});
    });
  }
  if (timeout > Duration{})
    waiter.timer = loop_.at(Clock::now() + timeout, [this, number, timeout] {
      const auto late = waiters_.find(number);
      if (late == waiters_.end()) return;
      late->second.timer.reset();
      const Start& its = starts_.at(late->second.group);
      end(number,
          {Code::kDeadlineExceeded,
           "group '" + its.name + "' has not got its first turn in stage '" + its.stage->name() +
               "' within " + format_duration(timeout) + ". `amemctl turns` shows who runs"});
    });
  return number;
}

void Starts::forget(Number number) {
  const auto it = waiters_.find(number);
  if (it == waiters_.end() || it->second.done == nullptr) return;
  end(number, {Code::kCancelled, "the caller has disconnected"});
}

void Starts::answer(GroupId id, const Status& status) {
  std::vector<Number> numbers;
  for (const auto& [number, waiter] : waiters_)
    if (waiter.group == id && waiter.done != nullptr) numbers.push_back(number);
  const auto start = starts_.find(id);
  for (const Number number : numbers) {
    if (!status.ok() || start->second.has_ranks) {
      end(number, status);
      continue;
    }
    Waiter& waiter = waiters_.at(number);
    if (waiter.timer) loop_.cancel(*waiter.timer);
    waiter.timer.reset();
    if (waiter.watch == 0)
      waiter.timer = loop_.at(Clock::now() + kUnseen, [this, number] {
        if (const auto it = waiters_.find(number); it != waiters_.end()) it->second.timer.reset();
        end(number, {});
      });
    std::exchange(waiter.done, nullptr)({});
  }
}

void Starts::arrived(GroupId id, const std::string& name) {
  const auto it = starts_.find(id);
  if (it == starts_.end()) return;
  it->second.name = name;
  it->second.has_ranks = true;
  std::vector<Number> answered;
  for (const auto& [number, waiter] : waiters_)
    if (waiter.group == id && waiter.done == nullptr) answered.push_back(number);
  for (const Number number : answered) drop(number);
  drop_if_unused(id);
}

void Starts::close(const Status& why) {
  for (auto& [number, waiter] : waiters_)
    if (const Done done = std::exchange(waiter.done, nullptr); done != nullptr) done(why);
}

void Starts::end(Number number, const Status& status) {
  const auto it = waiters_.find(number);
  if (it == waiters_.end()) return;
  const GroupId id = it->second.group;
  const Done done = std::exchange(it->second.done, nullptr);
  drop(number);
  if (done != nullptr) done(status);
  drop_if_unused(id);
}

void Starts::drop(Number number) {
  const auto dropped = waiters_.extract(number);
  if (dropped.mapped().watch != 0) loop_.unwatch(dropped.mapped().watch);
  if (dropped.mapped().timer) loop_.cancel(*dropped.mapped().timer);
}

void Starts::drop_if_unused(GroupId id) {
  const bool used = std::any_of(waiters_.begin(), waiters_.end(),
                                [&](const auto& each) { return each.second.group == id; });
  if (used) return;
  const auto dropped = starts_.extract(id);
  if (!dropped.empty() && !dropped.mapped().has_ranks) gone_(dropped.mapped());
}

}  // namespace amem
