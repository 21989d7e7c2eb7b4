#include "daemon/phases/cut.h"

#include <algorithm>

namespace amem {
namespace {

constexpr Duration kFirstPatience = std::chrono::milliseconds(1);
constexpr int kMostQuietDoublings = 5;
// A device is pushed by 1, 2, 4 or 8 calls of each thread: one whose work waits for nobody must not
// keep it without end, and how far another has to go is not known.
constexpr std::uint32_t kPushLengths = 4;
constexpr int kMostStalls = 5;  // patience ends growing at so many times `stall`

/// It could begin something more although it is busy.
bool can_be_pushed(const CutReport::Device& device) {
  return device.busy && device.ready > 0 && device.waiting > 0;
}

/// For people: why nobody knows whether it is idle, and what to do.
std::string refusal(const CutReport::Device& device) {
  if (device.error.empty()) return {};
  const bool capture = device.error.find("STREAM_CAPTURE") != std::string::npos;
  return " (its driver refuses to wait for it: " + device.error + "; " +
         (capture ? "end the stream capture that amem does not see, and pause again)"
                  : "pause again; if that fails too, restart the process)");
}

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
  // Forgets what it does not report any more: a rank cannot make us remember without end.
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
  look_at_pushed();
}

void Cut::forget(RankId rank) {
  ranks_.erase(rank);
  look_at_pushed();
}

bool Cut::taken() const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [](const auto& entry) { return entry.second.quiet(); });
}

std::size_t Cut::quiet_ranks() const {
  return static_cast<std::size_t>(std::count_if(
      ranks_.begin(), ranks_.end(), [](const auto& entry) { return entry.second.quiet(); }));
}

// A rank that has not reported, or has a Permit to use up, does not make others move: what it says
// next may be that it is quiet.
bool Cut::somebody_busy() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& entry) {
    return entry.second.current() && entry.second.busy();
  });
}

template <class Condition>
bool Cut::any_device(Condition condition) const {
  return std::any_of(ranks_.begin(), ranks_.end(), [&](const auto& entry) {
    const Rank& rank = entry.second;
    return rank.current() &&
           std::any_of(rank.last.devices.begin(), rank.last.devices.end(),
                       [&](const CutReport::Device& device) { return condition(rank, device); });
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
  return any_device([](const Rank& rank, const CutReport::Device& device) {
    return rank.stuck.contains(device.device);
  });
}

void Cut::mark_stuck() {
  for (auto& [id, rank] : ranks_)
    if (rank.current())
      for (const CutReport::Device& device : rank.last.devices)
        if (device.busy) rank.stuck.insert(device.device);
}

bool Cut::idle_waiters() const {
  return any_device([](const Rank&, const CutReport::Device& device) {
    return !device.busy && device.waiting > 0;
  });
}

Duration Cut::quiet_time() const {
  if (!stuck_work()) return patience_;
  // Grows too, but slowly: where reports come much later even this wait begins collectives.
  const Duration quiet_time = kFirstPatience * (1 << std::min(expiries_ / 4, kMostQuietDoublings));
  return std::min(quiet_time, patience_);
}

bool Cut::can_push_on() const {
  const auto it = ranks_.find(pushed_->rank);
  return it != ranks_.end() && it->second.current() &&
         std::any_of(
             it->second.last.devices.begin(), it->second.last.devices.end(),
             [&](const auto& d) { return d.device == pushed_->device && can_be_pushed(d); });
}

void Cut::look_at_pushed() {
  if (!pushed_) return;
  const auto it = ranks_.find(pushed_->rank);
  if (it != ranks_.end() && !it->second.current()) return;  // its report will tell
  if (pushes_left_ == 0 || !can_push_on()) pushed_.reset();
}

void Cut::choose_pushed() {
  std::vector<std::pair<Permit, std::uint32_t>> candidates;
  for (const auto& [id, rank] : ranks_) {
    if (!rank.current()) continue;
    for (const CutReport::Device& device : rank.last.devices)
      if (can_be_pushed(device)) candidates.push_back({{id, device.device}, device.waiting});
  }
  if (candidates.empty()) return;
  const auto& [permit, waiting] = candidates[random_() % candidates.size()];
  pushed_ = permit;
  pushes_left_ = waiting << (random_() % kPushLengths);
}

std::vector<Cut::Permit> Cut::decide(Time now) {
  std::vector<Permit> permits;
  if (!somebody_busy()) return permits;
  const Duration quiet_for = now - last_change_;
  const bool idle_first = idle_waiters();
  const bool stalled = quiet_for >= std::max(stall_, patience_);
  const bool out_of_patience = quiet_for >= patience_ && !(old_work() && idle_first);
  if (out_of_patience) mark_stuck();
  const bool push = quiet_for >= quiet_time();
  // The chances keep any rhythm of the ranks from meeting one of ours.
  if (!pushed_ && push && (!idle_first || random_() % 4 == 0)) choose_pushed();
  const bool permit_idle = !pushed_ && quiet_for >= needed_quiet();
  const bool permit_busy = stalled && (!idle_first || random_() % 2 == 0);
  for (auto& [id, rank] : ranks_) {
    if (!rank.current()) continue;
    for (const CutReport::Device& device : rank.last.devices) {
      if (device.waiting == 0) continue;
      Permit permit{id, device.device};
      // A busy device runs what it has first; only when nothing moves may its callers be what
      // somebody waits for.
      const bool is_pushed = push && pushed_ == permit;
      if (!(device.busy ? permit_busy || is_pushed : permit_idle)) continue;
      if (is_pushed) --pushes_left_;
      // Those that could begin must not keep the others waiting without end.
      permit.in_turn = device.busy && !is_pushed;
      permits.push_back(permit);
      rank.moved.insert(device.device);
      if (!device.busy) rank.stuck.erase(device.device);
      ++rank.sent;
    }
  }
  if (!permits.empty() && out_of_patience) {
    patience_ = std::min(2 * patience_, kMostStalls * stall_);
    ++expiries_;
  }
  if (stalled || !permits.empty()) last_change_ = now;
  return permits;
}

void Cut::sent(RankId rank) {
  if (const auto it = ranks_.find(rank); it != ranks_.end()) ++it->second.sent;
}

Time Cut::next_decision() const {
  if (!somebody_busy()) return kNever;
  if (!pushed_ && idle_waiters()) return last_change_ + needed_quiet();
  // While a device is pushed no other is chosen, though it could be.
  const bool can_push =
      pushed_ ? can_push_on() : any_device([](const Rank&, const CutReport::Device& device) {
        return can_be_pushed(device);
      });
  return last_change_ + (can_push ? quiet_time() : std::max(stall_, patience_));
}

std::map<RankId, std::string> Cut::laggards() const {
  std::map<RankId, std::string> late;
  for (const auto& [id, rank] : ranks_) {
    if (rank.quiet()) continue;
    std::string why;
    if (!rank.reported) {
      why = "has not answered";
    } else if (!rank.current()) {
      why = "has not used its step";
    } else if (rank.last.captures > 0) {
      why = "is capturing a stream";
    } else {
      why = "has work running on";
      for (const CutReport::Device& device : rank.last.devices)
        if (device.busy) why += " " + to_string(device.device) + refusal(device);
    }
    late.emplace(id, std::move(why));
  }
  return late;
}

}  // namespace amem
