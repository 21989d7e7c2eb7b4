#include "daemon/base/event_loop.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace amem {
namespace {

/// Whoever asks again and again is waited for without sleep: to sleep and be woken takes several
/// times as long as to answer. So after two events within this time; after a single one nobody
/// comes, and on a machine that is short of cores waiting takes them from whoever would.
constexpr Duration kLinger = std::chrono::microseconds(100);

}  // namespace

EventLoop::~EventLoop() {
  const auto watches = std::move(watches_);
  const auto timers = std::move(timers_);
  const std::lock_guard lock(mutex_);
  const auto jobs = std::move(jobs_);
}

Status EventLoop::open() {
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) return errno_status(Code::kInternal, "epoll_create1", errno);
  wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_) return errno_status(Code::kInternal, "eventfd", errno);
  const int wake = wake_.get();
  const WatchId id = watch(wake, EPOLLIN, [this, wake](std::uint32_t) {
    std::uint64_t count = 0;
    if (::read(wake, &count, sizeof count) > 0) run_jobs();
  });
  if (id == 0) return errno_status(Code::kInternal, "epoll_ctl", errno);
  return {};
}

void EventLoop::run() {
  std::array<epoll_event, 64> events;
  Time served{};  // the last event
  bool again = false;
  while (!stopped_) {
    const int patience = again && Clock::now() < served + kLinger ? 0 : wait_ms();
    const int n =
        ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), patience);
    if (n > 0) again = Clock::now() < served + kLinger;
    for (int i = 0; i < n && !stopped_; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      // By id and not by descriptor: a handler before this one may have closed it.
      const auto it = watches_.find(event.data.u64);
      if (it == watches_.end()) continue;
      const std::shared_ptr<Handler> handler = it->second.handler;  // may unwatch itself
      (*handler)(event.events);
    }
    if (n > 0) served = Clock::now();
    run_timers();
  }
  stopped_ = false;
}

void EventLoop::stop() {
  post([this] { stopped_ = true; });
}

void EventLoop::post(Job job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  const std::uint64_t one = 1;
  // Fails only when the counter is about to overflow, and then the loop is awake anyway.
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
}

void EventLoop::run_jobs() {
  std::vector<Job> jobs;
  {
    const std::lock_guard lock(mutex_);
    jobs.swap(jobs_);
  }
  for (Job& job : jobs) {
    job();
    job = nullptr;  // what it holds goes now, not with the last of the batch
  }
}

EventLoop::WatchId EventLoop::watch(int fd, std::uint32_t events, Handler handler) {
  const WatchId id = next_id_++;
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return 0;
  watches_.emplace(id, Watch{fd, std::make_shared<Handler>(std::move(handler))});
  return id;
}

void EventLoop::change(WatchId id, std::uint32_t events) {
  const auto it = watches_.find(id);
  if (it == watches_.end()) return;
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, it->second.fd, &event);
}

void EventLoop::unwatch(WatchId id) {
  const auto it = watches_.find(id);
  if (it == watches_.end()) return;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, it->second.fd, nullptr);
  watches_.erase(it);
}

EventLoop::TimerId EventLoop::at(Time time, Job job) {
  const TimerId id{time, next_id_++};
  timers_.emplace(id, std::move(job));
  return id;
}

int EventLoop::wait_ms() const {
  if (timers_.empty()) return -1;
  const Duration left = timers_.begin()->first.first - Clock::now();
  if (left <= Duration::zero()) return 0;
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::min<std::int64_t>(ms, 3'600'000));
}

void EventLoop::run_timers() {
  const Time now = Clock::now();
  const std::uint64_t first_new = next_id_;
  for (auto it = timers_.begin(); !stopped_ && it != timers_.end() && it->first.first <= now;) {
    if (it->first.second >= first_new) {
      ++it;
      continue;
    }
    const TimerId id = it->first;
    const Job job = std::move(it->second);
    timers_.erase(it);
    job();
    it = timers_.upper_bound(id);
  }
}

}  // namespace amem
