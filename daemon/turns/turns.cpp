#include "daemon/turns/turns.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "daemon/base/units.h"
#include "daemon/turns/longest_wait.h"

namespace amem {
namespace {

/// "group 'a'", "groups 'a', 'b'".
template <class Members>
std::string names(const Members& members) {
  std::string text = members.size() == 1 ? "group" : "groups";
  for (std::size_t i = 0; i < members.size(); ++i)
    text += std::string(i == 0 ? " '" : ", '") + members[i]->terms.group + "'";
  return text;
}

template <class Members, class Member>
bool contains(const Members& members, const Member* member) {
  return std::find(members.begin(), members.end(), member) != members.end();
}

/// Also for a time that is kNever, or for ever ago.
Time later(Time at, Duration by) { return at > kNever - by ? kNever : at + by; }

}  // namespace

Turns::Turns(const TurnRules& rules, std::vector<StageDevice> devices)
    : rules_(rules), devices_(std::move(devices)) {}

Time Turns::advance(Time at) { return now_ = std::max(now_, at); }

Turns::Member* Turns::find(const std::string& group) {
  const auto it = members_.find(group);
  return it == members_.end() ? nullptr : &it->second;
}

const Turns::Member* Turns::find(const std::string& group) const {
  const auto it = members_.find(group);
  return it == members_.end() ? nullptr : &it->second;
}

std::vector<TurnTerms> Turns::all_terms() const {
  std::vector<TurnTerms> terms;
  for (const auto& [name, each] : members_) terms.push_back(each.terms);
  return terms;
}

Status Turns::promised() const { return check_longest_waits(rules_, devices_, all_terms()); }

Status Turns::can_admit(const TurnTerms& terms) const {
  if (Status status = check_terms(rules_, devices_, terms); !status.ok()) return status;
  if (has(terms.group))
    return {Code::kAlreadyExists, "group '" + terms.group + "' takes turns already"};
  if (members_.size() >= kMaxGroupsOfStage)
    return {Code::kResourceExhausted, "group '" + terms.group + "' cannot take turns: the stage " +
                                          "has " + std::to_string(kMaxGroupsOfStage) +
                                          " groups, which is the most"};
  std::vector<TurnTerms> all = all_terms();
  all.push_back(terms);
  return check_longest_waits(rules_, devices_, all);
}

Status Turns::add(const TurnTerms& terms, bool running, Time at) {
  if (Status status = can_admit(terms); !status.ok()) return status;
  const Time now = advance(at);
  const bool waited_for = anybody_waits();
  Member& m = members_[terms.group];
  m.terms = terms;
  m.joined = ++joined_;
  m.worked = now;
  if (running) join(m, waited_for, now);
  return {};
}

void Turns::remove(const std::string& group, Time at) {
  advance(at);
  members_.erase(group);
  if (!under_way_) return;
  std::erase(under_way_->out, group);
  std::erase(under_way_->in, group);
}

Status Turns::set_needs(const std::string& group, const TurnNeeds& needs, Time at) {
  advance(at);
  Member* const m = find(group);
  if (m == nullptr) return {};
  if (Status status = check_needs(devices_, group, needs); !status.ok()) return status;
  m->terms.needs = needs;
  return promised();
}

Status Turns::started(const std::string& group, const TurnNeeds& needs, Time at) {
  Member* const m = find(group);
  if (m == nullptr) return {};
  m->terms.starts = false;
  return set_needs(group, needs, at);
}

Status Turns::set_parts(const std::string& group, std::vector<TurnNeeds> parts, Time at) {
  advance(at);
  Member* const m = find(group);
  if (m == nullptr) return {};
  m->terms.parts = std::move(parts);
  return promised();
}

void Turns::set_stays(const std::string& group, const TurnNeeds& stays, Time at) {
  advance(at);
  if (Member* const m = find(group)) m->stays = stays;
}

Status Turns::set_costs(const std::string& group, Duration out, Duration in, Time at) {
  advance(at);
  Member* const m = find(group);
  if (m == nullptr) return {};
  if (Status status = check_costs(group, out, in); !status.ok()) return status;
  m->terms.cost_out = out;
  m->terms.cost_in = in;
  return promised();
}

Status Turns::set_terms(const std::string& group, std::uint32_t weight, std::int32_t priority,
                        Duration longest_wait, Time at) {
  advance(at);
  Member* const m = find(group);
  if (m == nullptr) return {};
  TurnTerms terms = m->terms;
  terms.weight = weight;
  terms.priority = priority;
  terms.longest_wait = longest_wait;
  if (Status status = check_terms(rules_, devices_, terms); !status.ok()) return status;
  std::vector<TurnTerms> all;
  for (const auto& [name, each] : members_) all.push_back(name == group ? terms : each.terms);
  if (Status status = check_longest_waits(rules_, devices_, all); !status.ok()) return status;
  m->terms = std::move(terms);
  return {};
}

void Turns::set_taken(const DeviceUuid& device, std::uint64_t bytes, Time at) {
  advance(at);
  for (StageDevice& each : devices_) {
    if (each.device != device) continue;
    const std::uint64_t before = std::exchange(each.taken, bytes);
    const std::uint64_t change = std::max(before, bytes) - std::min(before, bytes);
    if (change <= each.margin) continue;
    // What was tried in vain was decided on by other figures.
    for (auto& [name, m] : members_) m.not_before = {};
  }
}

void Turns::wants(const std::string& group, Time at) {
  const Time now = advance(at);
  Member* const m = find(group);
  if (m == nullptr || m->wants) return;
  begin_turn_if_idle(*m, now);
  m->wants = true;
  m->wanted = now;
}

void Turns::wants_nothing(const std::string& group, Time at) {
  const Time now = advance(at);
  Member* const m = find(group);
  if (m == nullptr) return;
  if (m->wants) m->worked = now;
  m->wants = false;
}

void Turns::worked(const std::string& group, Time at) {
  const Time now = advance(at);
  Member* const m = find(group);
  if (m == nullptr || rules_.policy == TurnPolicy::kLease) return;
  begin_turn_if_idle(*m, now);
  m->worked = now;
  // What has waited has passed. The gate opens before the switch is done.
  if (m->place == Place::kIn || m->place == Place::kComing) m->wants = false;
}

void Turns::begin_turn_if_idle(Member& m, Time now) {
  // Whoever waits already is not made to wait for longer.
  if (m.place != Place::kIn || !idle(m, now) || anybody_waits()) return;
  m.turn = now;
}

void Turns::paused_by_operator(const std::string& group, Time at) {
  const Time now = advance(at);
  Member* const m = find(group);
  if (m == nullptr || m->of_operator) return;
  m->of_operator = true;
  if (m->place == Place::kIn) m->place = Place::kOut;
  m->worked = now;
}

void Turns::released(const std::string& group, bool running, Time at) {
  const Time now = advance(at);
  Member* const m = find(group);
  if (m == nullptr || !m->of_operator) return;
  m->of_operator = false;
  m->failures = 0;
  m->not_before = {};
  m->worked = now;
  const bool wants = std::exchange(m->wants, false);
  if (running && m->place == Place::kOut) join(*m, anybody_waits(), now);
  m->wants = wants;
  m->wanted = now;  // if it wants
}

void Turns::join(Member& m, bool waited_for, Time now) {
  m.place = Place::kIn;
  m.stays.clear();
  m.came_in.reset();
  m.turn.reset();
  if (waited_for) return;
  m.came_in = now;
  m.turn = now;
}

bool Turns::runs(const std::string& group) const {
  const Member* const m = find(group);
  return m != nullptr && m->place == Place::kIn && !m->of_operator;
}

bool Turns::waits(const std::string& group) const {
  const Member* const m = find(group);
  return m != nullptr && m->wants && m->place != Place::kIn && !m->of_operator;
}

bool Turns::present(const Member& m) const { return m.place != Place::kOut && !m.of_operator; }

bool Turns::has_rest(const Member& m) const {
  return m.place == Place::kOut && !m.of_operator && !m.stays.empty();
}

Time Turns::idle_from(const Member& m) const {
  if (m.wants || m.terms.starts) return kNever;
  // Who yields says so.
  return rules_.policy == TurnPolicy::kLease ? m.worked : later(m.worked, rules_.idle);
}

bool Turns::idle(const Member& m, Time now) const { return idle_from(m) <= now; }

Time Turns::leaves_from(const Member& m) const {
  if (m.place != Place::kIn || m.of_operator) return kNever;
  Time from = idle_from(m);
  if (const auto limit = turn_limit(rules_, m.terms))
    from = std::min(from, m.turn ? later(*m.turn, *limit) : Time{});
  // A lease that has been yielded is not held up.
  const bool yielded = rules_.policy == TurnPolicy::kLease && !m.wants && !m.terms.starts;
  if (m.came_in && !yielded) from = std::max(from, later(*m.came_in, m.terms.residency()));
  return std::max(from, m.not_before);
}

bool Turns::may_leave(const Member& m, Time now) const { return leaves_from(m) <= now; }

Time Turns::asked(const Member& m) const {
  // Whoever begins is no call that may be over soon.
  const bool has_grace = rules_.policy == TurnPolicy::kDemand && !m.terms.starts;
  return has_grace ? later(m.wanted, rules_.grace) : m.wanted;
}

bool Turns::asks(const Member& m, Time now) const {
  return m.place == Place::kOut && !m.of_operator && m.wants && asked(m) <= now &&
         m.not_before <= now;
}

bool Turns::anybody_waits() const {
  return std::any_of(members_.begin(), members_.end(), [](const auto& each) {
    const Member& m = each.second;
    return m.wants && m.place == Place::kOut && !m.of_operator;
  });
}

bool Turns::promised_first(const Member& m) const {
  return rules_.policy == TurnPolicy::kSlice || m.terms.longest_wait > Duration{};
}

std::vector<const Turns::Member*> Turns::queue(Time now) const {
  std::vector<const Member*> first;
  std::vector<const Member*> others;
  Time others_since = kNever;
  for (const auto& [name, m] : members_) {
    if (!asks(m, now)) continue;
    (promised_first(m) ? first : others).push_back(&m);
    if (!promised_first(m)) others_since = std::min(others_since, asked(m));
  }
  others_since = std::max(others_since, last_of_others_);
  std::sort(first.begin(), first.end(), [this](const Member* a, const Member* b) {
    return std::tuple(asked(*a), a->joined) < std::tuple(asked(*b), b->joined);
  });
  const auto place = [this](const Member& m) {
    return std::tuple(asked(m) - rules_.ageing * m.terms.priority, m.joined);
  };
  std::sort(others.begin(), others.end(),
            [&](const Member* a, const Member* b) { return place(*a) < place(*b); });
  if (others.empty()) return first;
  const auto before = std::find_if(first.begin(), first.end(),
                                   [&](const Member* m) { return asked(*m) > others_since; });
  first.insert(before, others.front());
  first.insert(first.end(), others.begin() + 1, others.end());
  return first;
}

TurnLoad Turns::load() const {
  TurnLoad load(devices_);
  for (const auto& [name, m] : members_)
    if (present(m))
      load.add(m.terms.needs);
    else if (has_rest(m))
      load.add(m.stays);
  return load;
}

TurnNeeds Turns::on_devices(const Member& m, const Leaving& leaving) const {
  if (has_rest(m)) return m.stays;
  TurnNeeds needs = m.terms.needs;
  if (const auto left = leaving.parts.find(&m); left != leaving.parts.end())
    for (std::size_t i = 0; i < left->second; ++i) needs = without(needs, m.terms.parts[i]);
  return needs;
}

bool Turns::make_space(TurnLoad& load, const TurnNeeds& needs, Leaving& leaving,
                       const std::vector<const Member*>& coming, Time now) const {
  std::vector<const Member*> may;
  for (const auto& [name, m] : members_) {
    if (contains(coming, &m)) continue;
    const bool rest = has_rest(m) ? m.not_before <= now && !contains(leaving.all, &m)
                                  : leaving.parts.contains(&m);
    if (rest || (may_leave(m, now) && !contains(leaving.all, &m))) may.push_back(&m);
  }
  // What is left of a group that does not run leaves before one that runs. Of these the one that
  // has been idle longest leaves first, one that has work last. One that has failed to leave is
  // kept for when no other suffices.
  const auto place = [&](const Member& m) {
    const bool rest = has_rest(m);
    return std::tuple(m.failures, !leaving.parts.contains(&m), !rest,
                      rest ? m.wants : !idle(m, now),
                      rest || idle(m, now) ? m.worked : m.turn.value_or(Time{}), m.joined);
  };
  std::sort(may.begin(), may.end(),
            [&](const Member* a, const Member* b) { return place(*a) < place(*b); });
  TurnLoad left = load;
  std::vector<const Member*> chosen;
  for (const Member* m : may) {
    if (left.has_space_for(needs)) break;
    left.remove(on_devices(*m, leaving));
    chosen.push_back(m);
  }
  if (!left.has_space_for(needs)) return false;
  // Some may have left in vain: another device was short.
  for (std::size_t i = chosen.size(); i-- > 0;) {
    TurnLoad with = left;
    with.add(on_devices(*chosen[i], leaving));
    if (!with.has_space_for(needs)) continue;
    left = with;
    chosen.erase(chosen.begin() + static_cast<std::ptrdiff_t>(i));
  }
  // Of some a part may do.
  std::map<const Member*, std::size_t> parts;
  for (std::size_t i = chosen.size(); i-- > 0;) {
    const Member& m = *chosen[i];
    if (has_rest(m) || leaving.parts.contains(&m)) continue;
    TurnNeeds stays = m.terms.needs;
    for (std::size_t count = 1; count <= m.terms.parts.size(); ++count) {
      stays = without(stays, m.terms.parts[count - 1]);
      TurnLoad with = left;
      with.add(stays);
      if (stays.empty() || !with.has_space_for(needs)) continue;
      left = with;
      parts[&m] = count;
      break;
    }
  }
  for (const Member* m : chosen) {
    leaving.parts.erase(m);
    if (!contains(leaving.all, m)) leaving.all.push_back(m);
  }
  leaving.parts.merge(parts);
  load = left;
  return true;
}

std::vector<const Turns::Member*> Turns::too_many(Time now) const {
  TurnLoad left = load();
  std::vector<const Member*> out;
  if (left.within_limits()) return out;
  std::vector<const Member*> all;
  for (const auto& [name, m] : members_)
    if ((has_rest(m) || (m.place == Place::kIn && !m.of_operator)) && m.not_before <= now)
      all.push_back(&m);
  // What is left of groups that are out leaves first, then who may leave anyway, and who came last
  // of the others.
  const auto place = [&](const Member& m) {
    const bool may = may_leave(m, now);
    const Time at = idle(m, now) ? m.worked : m.turn.value_or(Time{});
    return std::tuple(!has_rest(m), !may,
                      may ? at.time_since_epoch() : -m.came_in.value_or(Time{}).time_since_epoch(),
                      m.joined);
  };
  std::sort(all.begin(), all.end(),
            [&](const Member* a, const Member* b) { return place(*a) < place(*b); });
  for (const Member* m : all) {
    TurnLoad less = left;
    less.remove(on_devices(*m, {}));
    // One without bytes where there are too many stays.
    if (!on_devices(*m, {}).empty()) {
      left = less;
      out.push_back(m);
    }
    if (left.within_limits()) break;
  }
  for (std::size_t i = out.size(); i-- > 0;) {
    TurnLoad with = left;
    with.add(on_devices(*out[i], {}));
    if (!with.within_limits()) continue;
    left = with;
    out.erase(out.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return out;
}

bool Turns::may_pass(const Member& m, const std::vector<const Member*>& before,
                     const std::vector<const Member*>& coming) const {
  for (const Member* q : before) {
    TurnLoad load(devices_);
    load.add(q->terms.needs);
    load.add(m.terms.needs);
    for (const Member* each : coming) load.add(each->terms.needs);
    for (const auto& [name, each] : members_)
      if (present(each) && each.came_in && *each.came_in >= asked(*q)) load.add(each.terms.needs);
    if (!load.fits()) return false;
  }
  return true;
}

std::optional<TurnSwitch> Turns::decide(Time at) {
  const Time now = advance(at);
  if (under_way_) return std::nullopt;
  if (const std::vector<const Member*> most = too_many(now); !most.empty())
    return begin({most}, {}, "the groups that run have outgrown the GPUs", now);

  TurnLoad load = this->load();
  Leaving out;
  std::vector<const Member*> in;
  std::vector<const Member*> before;  // cannot come in yet
  const Member* first_of_others = nullptr;
  for (const Member* m : queue(now)) {
    if (first_of_others == nullptr && !promised_first(*m)) first_of_others = m;
    // What it has left of its memory may be on its way out for one that comes before it.
    if (contains(out.all, m) || !may_pass(*m, before, in)) {
      before.push_back(m);
      continue;
    }
    if (has_rest(*m)) load.remove(m->stays);
    in.push_back(m);
    if (!load.has_space_for(m->terms.needs) && !make_space(load, m->terms.needs, out, in, now)) {
      if (has_rest(*m)) load.add(m->stays);
      in.pop_back();
      before.push_back(m);
      continue;
    }
    load.add(m->terms.needs);
  }
  if (in.empty()) return std::nullopt;
  if (first_of_others != nullptr && contains(in, first_of_others)) last_of_others_ = now;
  return begin(out, in, reason(out.all, in, now), now);
}

std::string Turns::reason(const std::vector<const Member*>& out,
                          const std::vector<const Member*>& in, Time now) const {
  Duration waited{};
  for (const Member* m : in) waited = std::max(waited, now - m->wanted);
  std::string text = names(in) + (in.size() == 1 ? " has" : " have") + " waited for " +
                     (in.size() == 1 ? "" : "up to ") + rounded_duration(waited);
  if (in.front()->terms.starts) text += " to start";
  for (const Member* m : out) {
    if (has_rest(*m)) {
      text += ", group '" + m->terms.group + "' is paused and has memory on the GPUs";
      continue;
    }
    text += ", group '" + m->terms.group + "' has ";
    if (!idle(*m, now))
      text += m->turn ? "had its turn for " + rounded_duration(now - *m->turn) : "no turn";
    else if (rules_.policy == TurnPolicy::kLease)
      text += "no turn";
    else
      text += "been idle for " + rounded_duration(now - m->worked);
  }
  return text;
}

TurnSwitch Turns::begin(const Leaving& out, const std::vector<const Member*>& in, std::string why,
                        Time now) {
  TurnSwitch begun{++switches_, {}, {}, std::move(why)};
  for (const auto& [each, count] : out.parts) begun.parts[each->terms.group] = count;
  for (const Member* each : out.all) {
    Member& m = *find(each->terms.group);
    if (m.place == Place::kIn) {
      m.place = Place::kLeaving;
      m.wanted = now;  // if it wants: from here on it waits
    }
    begun.out.push_back(m.terms.group);
  }
  for (const Member* each : in) {
    find(each->terms.group)->place = Place::kComing;
    begun.in.push_back(each->terms.group);
  }
  under_way_ = begun;
  return begun;
}

void Turns::arrive(Member& m, Time at) {
  m.place = m.of_operator ? Place::kOut : Place::kIn;
  m.stays.clear();
  m.came_in = at;
  m.turn = at;
  m.worked = at;
}

void Turns::failed(Member& m, Time at) {
  Duration wait = rules_.first_retry;
  for (std::uint32_t i = 0; i < m.failures && wait < rules_.last_retry; ++i) wait *= 2;
  ++m.failures;
  m.not_before = later(at, std::min(wait, rules_.last_retry));
}

void Turns::switch_done(std::uint64_t number, Time at) {
  const Time now = advance(at);
  if (!under_way_ || under_way_->number != number) return;
  for (const std::string& name : under_way_->out) {
    Member& m = *find(name);
    m.stays.clear();
    if (const auto parts = under_way_->parts.find(name); parts != under_way_->parts.end()) {
      m.stays = m.terms.needs;
      for (std::size_t i = 0; i < std::min(parts->second, m.terms.parts.size()); ++i)
        m.stays = without(m.stays, m.terms.parts[i]);
    }
    m.place = Place::kOut;
    m.failures = 0;
  }
  for (const std::string& name : under_way_->in) {
    Member& m = *find(name);
    arrive(m, now);
    m.failures = 0;
  }
  under_way_.reset();
}

void Turns::switch_failed(std::uint64_t number, const std::vector<std::string>& running, Time at) {
  const Time now = advance(at);
  if (!under_way_ || under_way_->number != number) return;
  const auto runs_now = [&](const std::string& name) {
    return std::find(running.begin(), running.end(), name) != running.end();
  };
  for (const std::string& name : under_way_->out) {
    Member& m = *find(name);
    const bool rest = m.place == Place::kOut;
    // It has not left, so its turn has not ended.
    m.place = runs_now(name) && !m.of_operator ? Place::kIn : Place::kOut;
    if (m.place == Place::kIn || rest) failed(m, now);
  }
  for (const std::string& name : under_way_->in) {
    Member& m = *find(name);
    if (runs_now(name)) {
      arrive(m, now);
    } else {
      m.place = Place::kOut;
      failed(m, now);
    }
  }
  under_way_.reset();
}

Time Turns::wakeup() const {
  Time next = kNever;
  if (under_way_) return next;
  const auto consider = [&](Time at) {
    if (at > now_) next = std::min(next, at);
  };
  const bool waits = anybody_waits();
  const bool over = !load().within_limits();
  for (const auto& [name, m] : members_) {
    if (m.of_operator) continue;
    if (m.wants && m.place == Place::kOut) consider(std::max(asked(m), m.not_before));
    if (m.place == Place::kIn && waits) consider(leaves_from(m));
    const bool rest = has_rest(m);
    if ((m.place == Place::kIn && over) || (rest && (waits || over))) consider(m.not_before);
  }
  return next;
}

}  // namespace amem
