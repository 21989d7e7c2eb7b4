#include "daemon/cut.h"

#include <algorithm>

namespace amem {
namespace {

constexpr Duration kFirstPatience = std::chrono::milliseconds(1);
constexpr int kMostSettleDoublings = 5;
constexpr int kMostStalls = 5;  // patience ends growing at so many times `stall`

}  // namespace

Cut::Cut(const std::vector<RankId>& ranks, Duration stall, Time now)
    : stall_(stall), patience_(std::min(kFirstPatience, stall)), last_change_(now) {
  for (RankId rank : ranks) ranks_.emplace(rank, Rank());
}

bool Cut::Rank::busy() const {
  return last.captures > 0 || std::any_of(last.devices.begin(), last.devices.end(),
                                          [](const auto& device) { return device.busy; });
}

void Cut::report(RankId rank, CutReport report, Time now) {
  const auto it = ranks_.find(rank);
  if (it == ranks_.end()) return;
  Rank& r = it->second;
  r.reported = true;
  r.last = std::move(report);
  // What it does not report any more is forgotten: a rank cannot make us remember without end.
  std::set<DeviceUuid> reported;
  for (const CutReport::Device& device : r.last.devices) {
    reported.insert(device.device);
    if (device.busy) continue;
    r.moved.insert(device.device);
    r.stuck.erase(device.device);
  }
  std::erase_if(r.moved, [&](const DeviceUuid& device) { return !reported.contains(device); });
  std::erase_if(r.stuck, [&](const DeviceUuid& device) { return !reported.contains(device); });
  last_change_ = now;
}

bool Cut::taken() const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [](const auto& entry) { return entry.second.quiet(); });
}

std::size_t Cut::quiet_ranks() const {
  return static_cast<std::size_t>(std::count_if(
      ranks_.begin(), ranks_.end(), [](const auto& entry) { return entry.second.quiet(); }));
}

// A rank that has not reported, or has a Step to use up, is no reason to move others: what it says
// next may be that it is quiet.
bool Cut::somebody_busy() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& entry) {
    return entry.second.current() && entry.second.busy();
  });
}

bool Cut::old_work() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& entry) {
    const Rank& rank = entry.second;
    if (!rank.current()) return false;
    return rank.last.captures > 0 ||
           std::any_of(rank.last.devices.begin(), rank.last.devices.end(), [&](const auto& device) {
             return device.busy && !rank.moved.contains(device.device);
           });
  });
}

bool Cut::stuck_work() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& entry) {
    const Rank& rank = entry.second;
    return rank.current() &&
           std::any_of(rank.last.devices.begin(), rank.last.devices.end(), [&](const auto& device) {
             return device.busy && rank.stuck.contains(device.device);
           });
  });
}

void Cut::mark_stuck() {
  for (auto& [id, rank] : ranks_)
    if (rank.current())
      for (const CutReport::Device& device : rank.last.devices)
        if (device.busy) rank.stuck.insert(device.device);
}

bool Cut::idle_waiters() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& entry) {
    const Rank& rank = entry.second;
    return rank.current() &&
           std::any_of(rank.last.devices.begin(), rank.last.devices.end(),
                       [](const auto& device) { return !device.busy && device.waiting > 0; });
  });
}

Duration Cut::needed_quiet() const {
  if (old_work()) return Duration::zero();
  if (!stuck_work()) return patience_;
  // Grows too, but slowly: where reports are very late even this wait begins collectives.
  const Duration settle = kFirstPatience * (1 << std::min(expiries_ / 4, kMostSettleDoublings));
  return std::min(settle, patience_);
}

std::vector<Cut::Step> Cut::decide(Time now) {
  std::vector<Step> steps;
  if (!somebody_busy()) return steps;
  const Duration quiet_for = now - last_change_;
  const bool step_idle = quiet_for >= needed_quiet();
  const bool stalled = quiet_for >= std::max(stall_, patience_);
  const bool out_of_patience = quiet_for >= patience_ && !old_work();
  if (out_of_patience) mark_stuck();
  for (auto& [id, rank] : ranks_) {
    if (!rank.current()) continue;
    for (const CutReport::Device& device : rank.last.devices) {
      // A busy device runs what it has first; only when nothing moves may its callers be what
      // somebody waits for (two threads of one rank).
      if (device.waiting == 0 || !(device.busy ? stalled : step_idle)) continue;
      steps.push_back({id, device.device});
      rank.moved.insert(device.device);
      rank.stuck.erase(device.device);
      ++rank.sent;
    }
  }
  if (!steps.empty() && out_of_patience) {
    patience_ = std::min(2 * patience_, kMostStalls * stall_);
    ++expiries_;
  }
  if (stalled || !steps.empty()) last_change_ = now;
  return steps;
}

Time Cut::next_decision() const {
  if (!somebody_busy()) return kNever;
  return last_change_ + (idle_waiters() ? needed_quiet() : std::max(stall_, patience_));
}

std::map<RankId, std::string> Cut::laggards() const {
  std::map<RankId, std::string> late;
  for (const auto& [id, rank] : ranks_) {
    if (rank.quiet()) continue;
    std::string why;
    if (!rank.reported) {
      why = "has not answered";
    } else if (!rank.current()) {
      why = "has not used the step it was given";
    } else if (rank.last.captures > 0) {
      why = "is capturing a stream";
    } else {
      why = "has work running on";
      for (const CutReport::Device& device : rank.last.devices)
        if (device.busy) why += " " + to_string(device.device);
    }
    late.emplace(id, std::move(why));
  }
  return late;
}

}  // namespace amem
