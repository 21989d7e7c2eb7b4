#include "daemon/memory/pool.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "daemon/base/clock.h"
#include "daemon/base/units.h"
#include "daemon/memory/host_memory.h"

namespace amem {
namespace {

constexpr std::uint64_t kMemfdStep = 64ULL << 20;  // reserved at once, so that stop() is prompt

}  // namespace

void HostPool::start(std::uint64_t size, std::uint64_t segment, Callbacks callbacks) {
  thread_ = std::thread(
      [this, size, segment, callbacks = std::move(callbacks)] { run(size, segment, callbacks); });
}

void HostPool::stop() {
  stop_ = true;
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
    if (const std::uint64_t available = available_host_memory(); want > available) {
      error = "the host has too little memory for another " + format_size(want) + " (" +
              format_size(available) + " may be taken)";
      break;
    }
    Result<PoolSegment> made = create(want, order[i % order.size()]);
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
