#include "tests/workload/nccl/collective.h"

#include <array>
#include <optional>
#include <thread>

namespace amem::workload {
namespace {

using Clock = std::chrono::steady_clock;

std::uint64_t Read(std::uint64_t& flag) {
  return std::atomic_ref(flag).load(std::memory_order_acquire);
}

void Write(std::uint64_t& flag, std::uint64_t value) {
  std::atomic_ref(flag).store(value, std::memory_order_release);
}

/// A rank whose flag did not reach `round` in time; nothing when all did.
std::optional<int> AwaitAll(const CollectivePlan& plan, std::uint64_t CommunicatorBuffer::*flag,
                            std::uint64_t round, Clock::time_point deadline) {
  for (std::size_t peer = 0; peer < plan.buffers.size(); ++peer) {
    for (unsigned spins = 0; Read(plan.buffers[peer]->*flag) < round; ++spins) {
      if (Clock::now() >= deadline) return static_cast<int>(peer);
      // Spinning with every rank on few processors keeps the awaited one from running.
      if (spins < 64) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
    }
  }
  return std::nullopt;
}

void CheckPeers(const CollectivePlan& plan, std::uint64_t last_round) {
  for (const Stamped& peer : plan.peers) {
    for (std::size_t i = 0; i < kStampWords; ++i) {
      if (peer.words[i] == StampWord(peer.key, last_round, i)) continue;
      if (plan.report->mismatches.fetch_add(1) == 0) {
        plan.report->first_bad_owner = static_cast<std::uint64_t>(peer.key.owner);
        plan.report->first_bad_id = peer.key.id;
      }
      break;
    }
  }
}

void RunRound(const CollectivePlan& plan, std::uint64_t loop) {
  CollectiveReport& report = *plan.report;
  CommunicatorBuffer& own = *plan.buffers[static_cast<std::size_t>(plan.rank)];
  if (report.failed() || (loop != 0 && own.loop_ended == loop)) return;

  const std::uint64_t round = own.round + 1;
  const Clock::time_point deadline = Clock::now() + plan.timeout;
  Write(own.stop, loop != 0 && report.stop_requested.load() ? loop : 0);
  Write(own.arrived, round);
  if (const auto missing = AwaitAll(plan, &CommunicatorBuffer::arrived, round, deadline)) {
    report.missing = *missing;
    return;
  }

  // Between its arrival and our `done` no peer touches what is read here, so all ranks read the
  // same: they stop alike.
  bool stop = false;
  std::array<std::uint64_t, kContributionWords> sum{};
  for (CommunicatorBuffer* buffer : plan.buffers) {
    stop = stop || (loop != 0 && Read(buffer->stop) == loop);
    for (std::size_t i = 0; i < kContributionWords; ++i) sum[i] += buffer->words[i];
  }
  CheckPeers(plan, round - 1);

  Write(own.done, round);
  if (const auto missing = AwaitAll(plan, &CommunicatorBuffer::done, round, deadline)) {
    report.missing = *missing;
    return;
  }
  for (std::size_t i = 0; i < kContributionWords; ++i) {
    own.words[i] = ReducedWord(sum[i], plan.rank, i);
  }
  for (const Stamped& mine : plan.own) {
    for (std::size_t i = 0; i < kStampWords; ++i) mine.words[i] = StampWord(mine.key, round, i);
  }
  Write(own.round, round);
  report.rounds.fetch_add(1);
  if (stop) {
    own.loop_ended = loop;
    report.loop_ended = loop;
  }
  if (const auto missing = AwaitAll(plan, &CommunicatorBuffer::round, round, deadline)) {
    report.missing = *missing;
  }
}

}  // namespace

void CollectiveKernel(void** parameters) {
  const auto* plan = *static_cast<const CollectivePlan* const*>(parameters[0]);
  RunRound(*plan, *static_cast<const std::uint64_t*>(parameters[1]));
}

}  // namespace amem::workload
