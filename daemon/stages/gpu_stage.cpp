#include "daemon/stages/gpu_stage.h"

#include <algorithm>
#include <utility>

namespace amem {
namespace {

/// A switch that took very long once does not count for ever.
constexpr std::size_t kCostsKept = 8;

void keep(std::deque<Duration>& costs, Duration cost) {
  costs.push_back(cost);
  if (costs.size() > kCostsKept) costs.pop_front();
}

Duration worst_of(const std::deque<Duration>& costs) {
  const auto it = std::max_element(costs.begin(), costs.end());
  return it == costs.end() ? Duration{} : std::min<Duration>(*it, kLongestTurnTime);
}

bool contains(const std::vector<GroupId>& groups, GroupId id) {
  return std::find(groups.begin(), groups.end(), id) != groups.end();
}

}  // namespace

Duration GpuStage::Member::Costs::worst() const { return worst_of(whole.empty() ? parts : whole); }

GpuStage::GpuStage(Host& host, std::string name, const TurnRules& rules,
                   std::vector<StageDevice> devices, std::optional<Duration> min_residency,
                   StageFigures& figures)
    : host_(host),
      name_(std::move(name)),
      rules_(rules),
      devices_(devices),
      min_residency_(min_residency),
      figures_(figures),
      turns_(rules, std::move(devices)) {}

GpuStage::Member* GpuStage::find(GroupId id) {
  const auto it = members_.find(id);
  return it == members_.end() ? nullptr : &it->second;
}

GroupId GpuStage::id_of(const std::string& name) const {
  const auto it = std::find_if(members_.begin(), members_.end(),
                               [&](const auto& each) { return each.second.name == name; });
  return it == members_.end() ? 0 : it->first;
}

bool GpuStage::in_switch(GroupId id) const {
  return under_way_ && (contains(under_way_->out, id) || contains(under_way_->in, id));
}

bool GpuStage::switches(GroupId id) const { return in_switch(id); }

// ---- groups -------------------------------------------------------------------------------------

void GpuStage::join(GroupId id, const std::string& name, const TurnWishes& wishes,
                    Whereabouts where, bool leased, Time now, FirstTurn first) {
  settle(now);
  const auto [it, added] = members_.try_emplace(id);
  if (!added) return;
  Member& m = it->second;
  m.name = name;
  m.wishes = wishes;
  m.where = where;
  m.leased = leased && rules_.policy == TurnPolicy::kLease;
  m.starts =
      (first == FirstTurn::kOfRanks || first == FirstTurn::kAnnounced) && rules_.starts_alone;
  m.by_calls = first == FirstTurn::kOverByItself && rules_.policy == TurnPolicy::kLease;
  m.there = first != FirstTurn::kAnnounced;
  admit(id, m, now);
  step(now);
}

Status GpuStage::can_start(const std::string& name, const TurnWishes& wishes) const {
  Member m;
  m.name = name;
  m.wishes = wishes;
  m.starts = true;
  return turns_.can_admit(terms_of(m));
}

void GpuStage::arrived(GroupId id, Time now) {
  Member* const m = find(id);
  if (m == nullptr || m->there) return;
  m->there = true;
  m->busy = now;
  step(now);
}

bool GpuStage::starts(GroupId id) const {
  const auto it = members_.find(id);
  return it != members_.end() && it->second.starts;
}

TurnTerms GpuStage::terms_of(const Member& m) const {
  TurnTerms terms;
  terms.group = m.name;
  terms.needs = m.starts ? whole(devices_) : m.needs;
  terms.weight = m.wishes.weight;
  terms.priority = m.wishes.priority;
  terms.longest_wait = m.wishes.longest_wait;
  terms.min_residency = min_residency_;
  terms.cost_out = m.outs.worst();
  terms.cost_in = m.ins.worst();
  terms.starts = m.starts;
  for (const Part& part : m.parts) terms.parts.push_back(part.needs);
  return terms;
}

void GpuStage::admit(GroupId id, Member& m, Time now) {
  const bool running = m.where == Whereabouts::kRuns || m.where == Whereabouts::kMoves;
  Status status = check_needs(devices_, m.name, m.needs);  // of a first turn, too
  if (status.ok()) status = turns_.add(terms_of(m), running, now);
  if (!status.ok()) return refuse(id, m, status, now);
  m.admitted = true;
  m.of_operator = false;
  if (!running) turns_.set_stays(m.name, m.stays, now);
  if (!std::exchange(m.refusal, {}).empty())
    host_.say(*this, id, "takes turns in stage '" + name_ + "' again", false);
  sync(m, now);
  ask_again(m, now);
}

void GpuStage::refuse(GroupId id, Member& m, const Status& why, Time now) {
  if (m.admitted) turns_.remove(m.name, now);
  m.admitted = false;
  if (m.refusal == why.text()) return;
  m.refusal = why.text();
  host_.say(*this, id,
            "takes no turns in stage '" + name_ + "': " + m.refusal + ". It stays as it is", true);
  for (const auto& [number, done] : std::exchange(m.waiters, {}))
    done({Code::kFailedPrecondition, "group '" + m.name + "' takes no turns: " + m.refusal});
}

void GpuStage::leave(GroupId id, Time now) {
  settle(now);
  Member* const m = find(id);
  if (m == nullptr) return;
  const auto waiters = std::move(m->waiters);
  const Status ended(Code::kAborted, "group '" + m->name + "' has ended or left stage '" + name_ +
                                         "'. Ask again when it is there");
  turns_.remove(m->name, now);
  members_.erase(id);
  figures_.groups.erase(id);
  if (under_way_) {
    std::erase(under_way_->out, id);
    std::erase(under_way_->in, id);
  }
  for (const auto& [number, done] : waiters) done(ended);
  step(now);
}

void GpuStage::place(GroupId id, Whereabouts where, Time now) {
  settle(now);
  Member* const m = find(id);
  if (m == nullptr) return;
  m->where = where;
  // Who pauses it, or pauses itself, says that it has started.
  if (where == Whereabouts::kPausedByOperator && m->starts && m->began) end_first_turn(id, *m, now);
  if (in_switch(id)) return;
  sync(*m, now);
  step(now);
}

/// Turns learns where the group is, if it thinks otherwise. REQUIRES: it is in no switch.
void GpuStage::sync(Member& m, Time now) {
  if (!m.admitted || m.where == Whereabouts::kMoves) return;
  const auto take = [&] {
    if (!std::exchange(m.of_operator, true)) turns_.paused_by_operator(m.name, now);
  };
  const auto let_go = [&](bool running) {
    if (std::exchange(m.of_operator, false)) turns_.released(m.name, running, now);
  };
  if (m.where == Whereabouts::kPausedByOperator) return take();
  const bool running = m.where == Whereabouts::kRuns;
  if (!m.of_operator && turns_.runs(m.name) != running) take();
  let_go(running);
}

bool GpuStage::asks(const Member& m) const {
  const bool waits = std::any_of(m.ranks.begin(), m.ranks.end(),
                                 [](const auto& each) { return each.second.waiting; });
  if (rules_.policy != TurnPolicy::kLease) return waits;
  return m.leased || !m.waiters.empty() || (m.by_calls && waits);
}

/// What it wants, after Turns may have forgotten.
void GpuStage::ask_again(Member& m, Time now) {
  if (m.admitted && (asks(m) || (m.starts && !turns_.runs(m.name)))) turns_.wants(m.name, now);
}

void GpuStage::needs(GroupId id, const TurnNeeds& needs, Time now) {
  Member* const m = find(id);
  if (m == nullptr) return;
  if (m->needs == needs) {
    // What others leave, or whose longest wait is over, may be what it was refused for.
    if (m->admitted) return;
    settle(now);
    admit(id, *m, now);
    return step(now);
  }
  settle(now);
  m->needs = needs;
  if (!m->admitted) {
    admit(id, *m, now);
    return step(now);
  }
  const bool promised = turns_.promised().ok();
  const Status status =
      m->starts ? check_needs(devices_, m->name, needs) : turns_.set_needs(m->name, needs, now);
  if (status.code() == Code::kFailedPrecondition) {
    if (promised) host_.say(*this, id, status.text(), true);
  } else if (!status.ok()) {
    refuse(id, *m, status, now);
  }
  step(now);
}

void GpuStage::parts(GroupId id, std::vector<Part> parts, Time now) {
  Member* const m = find(id);
  if (m == nullptr || m->parts == parts) return;
  m->parts = std::move(parts);
  std::vector<TurnNeeds> needs;
  for (const Part& part : m->parts) needs.push_back(part.needs);
  const bool promised = turns_.promised().ok();
  const Status status = turns_.set_parts(m->name, std::move(needs), now);
  if (!status.ok() && promised) host_.say(*this, id, status.text(), true);
}

void GpuStage::stays(GroupId id, const TurnNeeds& stays, Time now) {
  Member* const m = find(id);
  if (m == nullptr) return;
  m->stays = stays;
  turns_.set_stays(m->name, stays, now);
}

void GpuStage::taken(const DeviceUuid& device, std::uint64_t bytes, Time now) {
  turns_.set_taken(device, bytes, now);
}

void GpuStage::measured(GroupId id, Operation op, Duration time, bool whole, Time now) {
  Member* const m = find(id);
  if (m == nullptr) return;
  Member::Costs& costs = op == Operation::kPause ? m->outs : m->ins;
  keep(whole && m->stays.empty() ? costs.whole : costs.parts, time);
  if (!m->admitted) return;
  const bool promised = turns_.promised().ok();
  const Status status = turns_.set_costs(m->name, m->outs.worst(), m->ins.worst(), now);
  if (!status.ok() && promised) host_.say(*this, id, status.text(), true);
}

Status GpuStage::set_wishes(GroupId id, const TurnWishes& wishes, Time now) {
  settle(now);
  Member* const m = find(id);
  if (m == nullptr) return {Code::kNotFound, "the group is in no stage"};
  if (m->admitted) {
    const Status status =
        turns_.set_terms(m->name, wishes.weight, wishes.priority, wishes.longest_wait, now);
    if (!status.ok()) return status;
  }
  m->wishes = wishes;
  if (!m->admitted) admit(id, *m, now);
  step(now);
  return {};
}

// ---- what ranks report --------------------------------------------------------------------------

void GpuStage::report(GroupId id, RankId rank, const Report& report, Time now) {
  settle(now);
  Member* const m = find(id);
  if (m == nullptr) return;
  still_working(now);
  m->ranks[rank] = report;
  if (!m->admitted || !(wants_reports() || m->by_calls)) {
    if (m->starts) step(now);
    return;
  }
  const auto any = [&](bool Report::*what) {
    return std::any_of(m->ranks.begin(), m->ranks.end(),
                       [&](const auto& each) { return each.second.*what; });
  };
  if (report.worked) turns_.worked(m->name, now);
  if (any(&Report::waiting))
    turns_.wants(m->name, now);
  else if (!any(&Report::worked) && (!m->starts || turns_.runs(m->name)))
    turns_.wants_nothing(m->name, now);
  step(now);
}

void GpuStage::rank_gone(GroupId id, RankId rank, Time now) {
  Member* const m = find(id);
  if (m == nullptr || !m->ranks.contains(rank)) return;
  still_working(now);
  m->ranks.erase(rank);
  if (!m->ranks.empty()) report(id, m->ranks.begin()->first, m->ranks.begin()->second, now);
}

/// Ranks report what has changed. What has work is not idle until they report that it has none.
void GpuStage::still_working(Time now) {
  for (auto& [id, m] : members_) {
    if (m.starts && at_work(m)) m.busy = now;
    if (!wants_reports() && !m.by_calls) continue;
    const bool works = std::any_of(m.ranks.begin(), m.ranks.end(),
                                   [](const auto& each) { return each.second.worked; });
    if (!works || !m.admitted || m.where != Whereabouts::kRuns || in_switch(id)) continue;
    turns_.worked(m.name, now);
    ask_again(m, now);
  }
}

// ---- first turns --------------------------------------------------------------------------------

bool GpuStage::at_work(const Member& m) const {
  return !m.there || m.leased || !m.waiters.empty() ||
         std::any_of(m.ranks.begin(), m.ranks.end(),
                     [](const auto& each) { return each.second.worked || each.second.waiting; });
}

/// If nothing happens; kNever. REQUIRES: it has begun.
Time GpuStage::first_turn_ends(const Member& m) const {
  Time ends = at_work(m) ? kNever : m.busy + rules_.start_idle;
  if (const auto limit = turn_limit(rules_, terms_of(m))) ends = std::min(ends, *m.began + *limit);
  return ends;
}

/// From here on it counts as what it has.
void GpuStage::end_first_turn(GroupId id, Member& m, Time now) {
  m.starts = false;
  m.by_calls = rules_.policy == TurnPolicy::kLease && !m.leased && m.waiters.empty();
  host_.changed(id);
  if (!m.admitted) return;
  m.needs = host_.has_now(id).value_or(m.needs);
  const bool promised = turns_.promised().ok();
  const Status status = turns_.started(m.name, m.needs, now);
  if (status.code() == Code::kFailedPrecondition) {
    if (promised) host_.say(*this, id, status.text(), true);
  } else if (!status.ok()) {
    return refuse(id, m, status, now);
  }
  if (!asks(m)) turns_.wants_nothing(m.name, now);
}

void GpuStage::look_at_first_turns(Time now) {
  for (auto& [id, m] : members_) {
    if (!m.starts || m.where != Whereabouts::kRuns || in_switch(id)) continue;
    if (!m.began) m.began = m.busy = now;
    if (first_turn_ends(m) <= now) end_first_turn(id, m, now);
  }
}

// ---- leases -------------------------------------------------------------------------------------

std::uint64_t GpuStage::lease(GroupId id, OnLease done, Time now) {
  settle(now);
  Member* const m = find(id);
  const auto fail = [&](Status status) {
    done(status);
    return std::uint64_t{0};
  };
  if (m == nullptr) return fail({Code::kFailedPrecondition, "the group is in no stage"});
  if (rules_.policy != TurnPolicy::kLease)
    return fail({Code::kFailedPrecondition, "stage '" + name_ + "' has the policy " +
                                                std::string(to_string(rules_.policy)) +
                                                ". Leases require the policy lease"});
  if (!m->admitted)
    return fail(
        {Code::kFailedPrecondition, "group '" + m->name + "' takes no turns: " + m->refusal});
  const std::uint64_t number = ++leases_;
  m->waiters.emplace(number, std::move(done));
  turns_.wants(m->name, now);
  step(now);
  return m->waiters.contains(number) ? number : 0;
}

void GpuStage::forget(std::uint64_t lease, Time now) {
  for (auto& [id, m] : members_) {
    if (m.waiters.erase(lease) == 0) continue;
    if (asks(m) || m.starts) return;
    settle(now);
    turns_.wants_nothing(m.name, now);
    return step(now);
  }
}

Status GpuStage::yield(GroupId id, Time now) {
  settle(now);
  Member* const m = find(id);
  if (m == nullptr) return {Code::kFailedPrecondition, "the group is in no stage"};
  const bool starts = m->starts && m->began;
  if (rules_.policy != TurnPolicy::kLease && !starts)
    return {Code::kFailedPrecondition, "stage '" + name_ + "' has the policy " +
                                           std::string(to_string(rules_.policy)) +
                                           ". Leases require the policy lease"};
  if (starts) end_first_turn(id, *m, now);
  const bool leased = std::exchange(m->leased, false);
  const bool by_calls = starts && std::exchange(m->by_calls, false);
  if (by_calls || leased) host_.changed(id);
  if (rules_.policy == TurnPolicy::kLease && !asks(*m) && !m->starts)
    turns_.wants_nothing(m->name, now);
  step(now);
  return {};
}

bool GpuStage::asks_by_calls(GroupId id) const {
  const auto it = members_.find(id);
  return it != members_.end() && it->second.by_calls;
}

bool GpuStage::leased(GroupId id) const {
  const auto it = members_.find(id);
  return it != members_.end() && it->second.leased;
}

void GpuStage::grant() {
  for (auto& [id, m] : members_) {
    if (m.waiters.empty() || !m.admitted || !turns_.runs(m.name)) continue;
    const bool fresh = !std::exchange(m.leased, true);
    // Calls do not ask for its turn any more: after its first lease it says when it needs one.
    if (std::exchange(m.by_calls, false) || fresh) host_.changed(id);
    for (const auto& [number, done] : std::exchange(m.waiters, {})) done({});
  }
}

void GpuStage::close(const Status& why) {
  for (auto& [id, m] : members_)
    for (const auto& [number, done] : std::exchange(m.waiters, {})) done(why);
}

// ---- switches -----------------------------------------------------------------------------------

void GpuStage::step(Time now) {
  // What is on its way by somebody else's wish is neither in nor out.
  const bool moves = held_ || std::any_of(members_.begin(), members_.end(), [](const auto& each) {
                       return each.second.where == Whereabouts::kMoves;
                     });
  still_working(now);
  look_at_first_turns(now);
  if (!moves) {
    if (const auto next = turns_.decide(now)) {
      StageSwitch& what = under_way_.emplace();
      what.number = next->number;
      what.why = next->why;
      for (const std::string& name : next->out) what.out.push_back(id_of(name));
      for (const std::string& name : next->in) what.in.push_back(id_of(name));
      for (const auto& [name, count] : next->parts) {
        const GroupId id = id_of(name);
        std::string tags;
        for (std::size_t i = 0; i < count; ++i) {
          what.parts[id].push_back(members_.at(id).parts[i].tag);
          tags += (i == 0 ? "" : ", ") + what.parts[id].back();
        }
        what.why += "; of group '" + name + "' only " + tags + " leaves";
      }
      for (const GroupId id : what.in)
        for (const auto& [rank, report] : members_.at(id).ranks)
          if (report.waiting && !report.call.empty()) {
            what.why += "; " + report.call + " waits";
            break;
          }
      switch_began_ = now;
      last_ = {what, std::chrono::system_clock::now(), {}, {}};
      host_.carry_out(*this, what);
    }
  }
  grant();
  settle(now);
  Time next = turns_.wakeup();
  for (const auto& [id, m] : members_)
    if (m.starts && m.began && m.where == Whereabouts::kRuns && !in_switch(id))
      next = std::min(next, first_turn_ends(m));
  host_.wake(*this, moves ? kNever : next);
}

void GpuStage::tick(Time now) {
  settle(now);
  step(now);
}

void GpuStage::switched(std::uint64_t number, const Status& status, Time now) {
  settle(now);
  if (!under_way_ || under_way_->number != number) return;
  const StageSwitch what = std::move(*under_way_);
  under_way_.reset();
  const Duration took = now - switch_began_;
  figures_.switching += took;
  ++figures_.switches[status.code()];
  last_->took = std::max(took, Duration(1));
  last_->status = status;
  if (status.ok()) {
    turns_.switch_done(number, now);
  } else {
    std::vector<std::string> running;
    for (const auto* groups : {&what.out, &what.in})
      for (const GroupId id : *groups)
        if (Member* m = find(id); m != nullptr && m->where == Whereabouts::kRuns)
          running.push_back(m->name);
    turns_.switch_failed(number, running, now);
  }
  for (auto& [id, m] : members_) {
    if (!m.admitted) continue;
    sync(m, now);
    ask_again(m, now);
  }
  step(now);
}

// ---- for reports --------------------------------------------------------------------------------

void GpuStage::settle(Time now) {
  const Duration passed = settled_ && now > *settled_ ? now - *settled_ : Duration{};
  settled_ = settled_ ? std::max(*settled_, now) : now;
  for (auto& [id, m] : members_) {
    StageFigures::Group& figures = figures_.groups[id];
    figures.there += passed;
    if (m.runs) figures.ran += passed;
    if (m.waits) figures.waited += passed;
    const bool waits = m.admitted && turns_.waits(m.name);
    const bool runs = m.admitted ? turns_.runs(m.name) : m.where == Whereabouts::kRuns;
    if (waits && !m.waits) m.waits = now;
    if (runs && !m.runs) m.runs = now;
    if (!runs) m.runs.reset();
    if (!waits && m.waits) {
      if (runs) figures_.waits.add(to_us(now - *m.waits));
      m.waits.reset();
    }
  }
}

std::vector<GpuStage::GroupView> GpuStage::groups(Time now) const {
  std::vector<GroupView> all;
  for (const auto& [id, m] : members_) {
    GroupView view;
    view.id = id;
    view.leased = m.leased;
    view.wishes = m.wishes;
    view.refusal = m.refusal;
    for (const auto& [device, bytes] : m.needs) view.needs = std::max(view.needs, bytes);
    if (m.where == Whereabouts::kPausedByStage)
      for (const auto& [device, bytes] : m.stays) view.stays = std::max(view.stays, bytes);
    for (const auto& [rank, report] : m.ranks)
      if (report.waiting && view.call.empty()) view.call = report.call;
    if (m.starts && !m.began && view.call.empty()) view.call = "its start";
    if (!m.admitted)
      view.what = "apart";
    else if (under_way_ && contains(under_way_->out, id))
      view.what = "leaves";
    else if (under_way_ && contains(under_way_->in, id))
      view.what = "comes";
    else if (m.where == Whereabouts::kPausedByOperator)
      view.what = "paused";
    else if (m.runs)
      view.what = m.starts ? "starts" : "runs";
    else
      view.what = m.waits ? "waits" : "idle";
    const std::optional<Time>& since = m.waits ? m.waits : m.runs;
    if (since) view.since = std::max(now - *since, Duration{});
    all.push_back(std::move(view));
  }
  return all;
}

}  // namespace amem
