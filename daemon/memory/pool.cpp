#include "daemon/memory/pool.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <utility>

#include "daemon/base/clock.h"
#include "daemon/base/units.h"
#include "daemon/memory/host_memory.h"

namespace amem {
namespace {

constexpr std::uint64_t kMemfdStep = 64ULL << 20;  // reserved at once, so that stop() is prompt
// Of a segment that could not be made anew: the first retry, and how long it comes to wait.
constexpr Duration kFirstRetry = std::chrono::seconds(1);
constexpr Duration kLongestRetry = std::chrono::seconds(60);

/// To the system. Of a memfd that somebody keeps, the pages.
void give_back(PoolSegment& segment) {
  if (segment.memfd)
    ::fallocate(segment.fd->get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                static_cast<off_t>(segment.size));
  segment.fd.reset();
}

Status has_space(std::uint64_t bytes) {
  const HostMemory left = available_host_memory();
  if (bytes <= left.bytes) return {};
  return {Code::kResourceExhausted, "another " + format_size(bytes) + " do not fit: " +
                                        left.limited_by + " leaves " + format_size(left.bytes)};
}

}  // namespace

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
  const std::set<int> nodes = devices_.numa_nodes();
  std::vector<int> order(nodes.begin(), nodes.end());
  if (order.empty()) order.push_back(0);
  use_memfd_ = !devices_.host_memory_supported();
  if (use_memfd_ && size > 0)
    spdlog::info("pool: the driver has no cuMem host memory here; using memfd");

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
    spdlog::error("pool: only {} of {}: {}. A pause that needs more is refused", format_size(ready),
                  format_size(size), error);
  if (!stop_) callbacks.finished(std::move(error));
  renew_until_stopped(callbacks);
}

/// Nobody can take from a process the memory that it has mapped. So what another owner gets is not
/// cleared, it is other memory, which the system clears. Of a memfd the pages go back to the system
/// even where somebody has kept a descriptor or a mapping; those of the driver's go with the last
/// process that has them.
void HostPool::renew_until_stopped(const Callbacks& callbacks) {
  std::deque<PoolSegment> missing;  // given back, and not made anew yet
  bool failed = false;              // to make the first of them
  Duration delay = kFirstRetry;
  Time next{};  // attempt, when it has failed
  for (;;) {
    std::deque<PoolSegment> released;
    {
      std::unique_lock lock(mutex_);
      const auto asked = [this] { return stop_ || !renewals_.empty() || !releases_.empty(); };
      if (failed)
        asked_.wait_until(lock, next, asked);
      else
        asked_.wait(lock, asked);
      if (stop_) return;
      std::move(renewals_.begin(), renewals_.end(), std::back_inserter(missing));
      renewals_.clear();
      released.swap(releases_);
    }
    for (PoolSegment& segment : released)
      if (segment.fd != nullptr) give_back(segment);
    for (PoolSegment& old : missing)
      if (old.fd != nullptr) give_back(old);
    while (!missing.empty() && (!failed || Clock::now() >= next)) {
      Result<PoolSegment> made = create_again(missing.front());
      if (stop_) return;
      failed = !made.ok();
      if (failed) {
        next = Clock::now() + delay;
        delay = std::min(2 * delay, kLongestRetry);
        callbacks.troubled("a segment of " + format_size(missing.front().size) +
                           " could not be made anew for another user: " + made.status().text() +
                           "; it is tried again");
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
  segment.anew = true;
  return segment;
}

Result<PoolSegment> HostPool::create(std::uint64_t size, int numa_node) {
  if (!use_memfd_) {
    Result<Fd> fd = devices_.create_host(numa_node, size);
    if (fd.ok())
      return PoolSegment{std::make_shared<const Fd>(std::move(fd).value()), size, false, numa_node};
    if (fd.status().code() == Code::kResourceExhausted) return fd.status();
    spdlog::warn("pool: {}; using memfd", fd.status().text());
    use_memfd_ = true;
  }
  return create_memfd(size);
}

Result<PoolSegment> HostPool::create_memfd(std::uint64_t size) const {
  Fd fd(::memfd_create("amem-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return errno_status(Code::kResourceExhausted, "memfd_create", errno);
  // Taken now, not when a pause writes to it.
  for (std::uint64_t at = 0; at < size; at += kMemfdStep) {
    if (stop_) return Status(Code::kCancelled, "amemd is ending");
    const std::uint64_t part = std::min(kMemfdStep, size - at);
    if (::fallocate(fd.get(), 0, static_cast<off_t>(at), static_cast<off_t>(part)) != 0)
      return errno_status(Code::kResourceExhausted, "reserving " + format_size(size) + " of memfd",
                          errno);
  }
  // Every rank gets a descriptor; one that made the file shorter would take the others' bytes, and
  // have them killed by SIGBUS.
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return errno_status(Code::kInternal, "sealing " + format_size(size) + " of memfd", errno);
  return PoolSegment{std::make_shared<const Fd>(std::move(fd)), size, true, -1};
}

}  // namespace amem
