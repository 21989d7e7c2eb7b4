#include "daemon/memory/pool.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "daemon/base/clock.h"
#include "daemon/base/units.h"
#include "daemon/memory/host_memory.h"

namespace amem {
namespace {

// Of a segment that could not be made anew: the first retry, and how long it comes to wait.
constexpr Duration kFirstRetry = std::chrono::seconds(1);
constexpr Duration kLongestRetry = std::chrono::seconds(60);

Status has_space(std::uint64_t bytes) {
  const HostMemory left = available_host_memory();
  if (bytes <= left.bytes) return {};
  return {Code::kResourceExhausted, "there is no space for another " + format_size(bytes) + ": " +
                                        left.limited_by + " leaves " + format_size(left.bytes)};
}

}  // namespace

HostPool::HostPool(const Devices& devices, std::optional<Place> place)
    : devices_(devices), sources_(make_sources(devices)) {
  for (const PlaceRule& each : kPlaces)
    if (place ? each.place == *place : each.automatic) places_.push_back(each.place);
  // Host memory of the driver's belongs to one device. A process that may not use that device
  // cannot map it, and one that only does not see it cannot be checkpointed afterwards.
  if (devices.all().size() > 1)
    std::stable_partition(places_.begin(), places_.end(),
                          [](Place each) { return each != Place::kHostNuma; });
}

void HostPool::start(std::uint64_t size, std::uint64_t segment, Callbacks callbacks) {
  thread_ = std::thread(
      [this, size, segment, callbacks = std::move(callbacks)] { run(size, segment, callbacks); });
}

void HostPool::renew(PoolSegment segment) {
  {
    const std::lock_guard lock(mutex_);
    renewals_.push_back(std::move(segment));
  }
  asked_.notify_one();
}

void HostPool::more(std::uint64_t size) {
  {
    const std::lock_guard lock(mutex_);
    more_.push_back(size);
  }
  asked_.notify_one();
}

void HostPool::release(PoolSegment segment) {
  {
    const std::lock_guard lock(mutex_);
    releases_.push_back(std::move(segment));
  }
  asked_.notify_one();
}

void HostPool::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  asked_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void HostPool::run(std::uint64_t size, std::uint64_t segment, const Callbacks& callbacks) {
  const Time began = Clock::now();
  std::vector<int> order = nodes();
  std::uint64_t ready = 0;
  std::string error;
  int tenths = 0;
  for (std::size_t i = 0; ready < size && !stop_; ++i) {
    const std::uint64_t want = std::min(segment, size - ready);
    if (const Status space = has_space(want); !space.ok()) {
      error = space.text();
      break;
    }
    const std::size_t turn = i % order.size();
    Result<PoolSegment> made = create(want, order[turn]);
    if (!made.ok() && made.status().code() == Code::kResourceExhausted && order.size() > 1) {
      spdlog::info("pool: NUMA node {} has no more: {}", order[turn], made.status().text());
      order.erase(order.begin() + static_cast<std::ptrdiff_t>(turn));
      continue;
    }
    if (!made.ok()) {
      if (!stop_) error = made.status().text();
      break;
    }
    callbacks.ready(std::move(made).value());
    ready += want;
    if (const int now = static_cast<int>(10 * ready / size); now != tenths) {
      tenths = now;
      const auto took = std::chrono::duration<double>(Clock::now() - began).count();
      spdlog::info("pool: {} of {} ready after {:.1f} s", format_size(ready), format_size(size),
                   took);
    }
  }
  if (!error.empty())
    spdlog::error("pool: only {} of {}: {}. amemd refuses a pause that needs more",
                  format_size(ready), format_size(size), error);
  if (!stop_) callbacks.finished(std::move(error));
  serve_until_stopped(callbacks);
}

/// Nobody can take from a process the memory that it has mapped. So what another owner gets is not
/// cleared, it is other memory, which the system clears.
void HostPool::serve_until_stopped(const Callbacks& callbacks) {
  std::deque<PoolSegment> missing;  // given back, and not made anew yet
  bool failed = false;              // to make the first of them
  Duration delay = kFirstRetry;
  Time next{};  // attempt, when it has failed
  for (;;) {
    std::deque<PoolSegment> released;
    std::deque<std::uint64_t> more;
    {
      std::unique_lock lock(mutex_);
      const auto asked = [this] {
        return stop_ || !renewals_.empty() || !releases_.empty() || !more_.empty();
      };
      if (failed)
        asked_.wait_until(lock, next, asked);
      else
        asked_.wait(lock, asked);
      if (stop_) return;
      std::move(renewals_.begin(), renewals_.end(), std::back_inserter(missing));
      renewals_.clear();
      released.swap(releases_);
      more.swap(more_);
    }
    for (PoolSegment& segment : released)
      if (segment.fd != nullptr) give_back(segment);
    for (PoolSegment& old : missing)
      if (old.fd != nullptr) give_back(old);
    for (const std::uint64_t size : more) {
      Result<PoolSegment> made = create_more(size);
      if (stop_) return;
      if (made.ok())
        callbacks.ready(std::move(made).value());
      else
        callbacks.refused(size, made.status());
    }
    while (!missing.empty() && (!failed || Clock::now() >= next)) {
      Result<PoolSegment> made = create_again(missing.front());
      if (stop_) return;
      failed = !made.ok();
      if (failed) {
        next = Clock::now() + delay;
        delay = std::min(2 * delay, kLongestRetry);
        callbacks.troubled("amemd could not make a segment of " +
                           format_size(missing.front().size) +
                           " again for another user: " + made.status().text() + ". It tries again");
        break;
      }
      missing.pop_front();
      callbacks.ready(std::move(made).value());
      if (delay != kFirstRetry && missing.empty()) callbacks.troubled("");
      if (missing.empty()) delay = kFirstRetry;
    }
  }
}

Result<PoolSegment> HostPool::create_again(const PoolSegment& old) {
  if (Status space = has_space(old.size); !space.ok()) return space;
  Result<PoolSegment> made = create(old.size, std::max(old.numa_node, 0));
  if (!made.ok()) return made.status();
  PoolSegment segment = std::move(made).value();
  segment.made = PoolSegment::Made::kAnew;
  return segment;
}

Result<PoolSegment> HostPool::create_more(std::uint64_t size) {
  if (Status space = has_space(size); !space.ok()) return space;
  const std::vector<int> all = nodes();
  for (std::size_t tries = 1;; ++tries) {
    Result<PoolSegment> made = create(size, all[turn_++ % all.size()]);
    if (made.ok()) {
      PoolSegment segment = std::move(made).value();
      segment.made = PoolSegment::Made::kMore;
      return segment;
    }
    if (made.status().code() != Code::kResourceExhausted || tries >= all.size()) return made;
  }
}

std::vector<int> HostPool::nodes() const {
  const std::set<int> nodes = devices_.numa_nodes();
  return nodes.empty() ? std::vector<int>{0} : std::vector<int>(nodes.begin(), nodes.end());
}

void HostPool::give_back(PoolSegment& segment) {
  sources_.at(segment.place)->give_back(segment);
  segment.fd.reset();
}

Result<PoolSegment> HostPool::create(std::uint64_t size, int numa_node) {
  for (;;) {
    SegmentSource& source = *sources_.at(places_.front());
    Status why = source.supported();
    const bool supported = why.ok();
    if (supported) {
      Result<PoolSegment> made = source.make(size, numa_node, stop_);
      if (made.ok() || places_.size() == 1 || made.status().code() == Code::kResourceExhausted)
        return made;
      why = made.status();
    }
    if (places_.size() == 1) return why;
    places_.pop_front();
    spdlog::log(supported ? spdlog::level::warn : spdlog::level::info, "pool: {}. amemd uses {}",
                why.text(), to_string(places_.front()));
  }
}

}  // namespace amem
