#include "daemon/turns/snapshot.h"

#include <tuple>

namespace amem {
namespace {

bool counts(const StageMember& m, std::uint64_t of) {
  return of != StageSnapshot::kEverybody || m.group->wishes.by_operator;
}

}  // namespace

Time later(Time at, Duration by) { return at > kNever - by ? kNever : at + by; }

TurnPlace place_of(const StageMemory& memory, const GroupView& group, const GroupMemory& m) {
  if (memory.under_way && memory.under_way->comes(group.id)) return TurnPlace::kComing;
  if (memory.under_way && memory.under_way->leaves(group.id))
    return m.presence == Presence::kIn ? TurnPlace::kLeaving : TurnPlace::kOut;
  switch (group.presence) {
    case Presence::kIn:
      return TurnPlace::kIn;
    case Presence::kOut:
      return TurnPlace::kOut;
    case Presence::kPausedByOthers:
      return TurnPlace::kPausedByOthers;
    case Presence::kLeaves:
    case Presence::kComes:
      break;
  }
  return m.presence == Presence::kIn ? TurnPlace::kIn : TurnPlace::kPausedByOthers;
}

bool has(const StageMembers& members, const StageMember* member) {
  return std::find(members.begin(), members.end(), member) != members.end();
}

std::string names(const StageMembers& members) {
  std::string text = members.size() == 1 ? "group" : "groups";
  for (std::size_t i = 0; i < members.size(); ++i)
    text += std::string(i == 0 ? " '" : ", '") + members[i]->group->name + "'";
  return text;
}

bool at_work(const GroupView& group) {
  return !group.has_ranks || group.leased || group.lease_wanted || group.working || group.waiting;
}

StageSnapshot::StageSnapshot(const StageView& view, const StageMemory& memory, Time now)
    : view_(view), rules_(view.rules), memory_(memory), now_(now), least_(view) {
  all_.reserve(view.groups.size());
  for (const GroupView& group : view.groups) {
    const GroupMemory* const m = memory.taker(group.id);
    if (m == nullptr) continue;
    all_.push_back({&group, m, place_of(memory, group, *m), terms_of(group, m->out, m->in),
                    running(group), coming(group), left_over(group), remaining(group)});
  }
  for (const StageMember& m : all_) {
    least_.add(m.leaves);
    if (!waits(m)) continue;
    several_owners_wait_ =
        several_owners_wait_ || (waiting_owner_ && *waiting_owner_ != m.group->owner);
    waiting_owner_ = m.group->owner;
  }
}

Time StageSnapshot::idle_from(const StageMember& m) const {
  if (m.memory->wants || m.starts()) return kNever;
  // Who yields says so.
  return rules_.policy == TurnPolicy::kLease ? m.memory->worked
                                             : later(m.memory->worked, rules_.idle);
}

Time StageSnapshot::leaves_from(const StageMember& m) const {
  if (m.place != TurnPlace::kIn || !m.group->missing.empty()) return kNever;
  if (m.group->first_turn == FirstTurn::kLapsed) return m.memory->not_before;
  Time from = idle_from(m);
  // A weight that its owner has set is for turns among the owner's own groups.
  const bool weighs = m.group->wishes.by_operator || !foreign_waits(*m.group);
  if (const auto limit = turn_limit(rules_, weighs ? m.group->wishes.weight : 1, m.terms.residency))
    from = std::min(from, m.memory->turn ? later(*m.memory->turn, *limit) : Time{});
  // A lease that has been yielded is not held up.
  const bool yielded = rules_.policy == TurnPolicy::kLease && !m.memory->wants && !m.starts();
  if (m.memory->came_in && !yielded)
    from = std::max(from, later(*m.memory->came_in, m.terms.residency));
  return std::max(from, m.memory->not_before);
}

Time StageSnapshot::asked(const StageMember& m) const {
  // Whoever begins is not a call that may be over soon.
  const bool has_grace = rules_.policy == TurnPolicy::kDemand && !m.starts();
  const Time since = m.memory->asked.value_or(now_);
  return has_grace ? later(since, rules_.grace) : since;
}

Time StageSnapshot::first_turn_ends(const GroupView& group, const GroupMemory& m) const {
  Time ends = at_work(group) ? kNever : later(m.busy, rules_.start_idle);
  const TurnTaker terms = terms_of(group, m.out, m.in);
  if (const auto limit = turn_limit(rules_, group.wishes.weight, terms.residency))
    ends = std::min(ends, later(*m.first_turn, *limit));
  if (!group.has_ranks)
    ends = std::min(ends, later(*m.first_turn, foreign_waits(group) ? rules_.start_limit_shared
                                                                    : rules_.start_limit));
  return ends;
}

StageLoad StageSnapshot::load() const {
  StageLoad load(view_);
  for (const StageMember& m : all_) load.add(m.there());
  return load;
}

StageLoad StageSnapshot::load_without_others(const StageMember& m) const {
  StageLoad load = least_;
  load.remove(m.leaves);
  return load;
}

Hindrance StageSnapshot::does_not_fit(const StageMember& m) const {
  Hindrance found{.kind = Hindrance::Kind::kDoesNotFit};
  const StageLoad least = load_without_others(m);
  found.device = least.lacks_space(m.comes);
  found.needs = m.comes[found.device].bytes + m.comes[found.device].restore;
  found.at_most = least.free_on(found.device);
  found.taken = view_.taken[found.device];
  for (const StageMember& each : all_) {
    if (&each == &m || each.leaves[found.device].bytes == 0) continue;
    found.stays += each.leaves[found.device].bytes;
    found.others.push_back(each.group->id);
  }
  return found;
}

StageMembers StageSnapshot::queue() const {
  StageMembers asking;
  for (const StageMember& m : all_)
    if (waits(m) && m.group->missing.empty() && asked(m) <= now_ && m.memory->not_before <= now_ &&
        could_come_in(m))
      asking.push_back(&m);
  StageMembers order = in_order(asking, kEverybody);
  // What owners have set moves their own groups among the places that these have.
  std::map<std::uint64_t, StageMembers> own;
  for (const StageMember* m : asking)
    if (!m->group->wishes.by_operator) own[m->group->owner];
  for (auto& [owner, members] : own) {
    for (const StageMember* m : asking)
      if (m->group->owner == owner) members.push_back(m);
    members = in_order(members, owner);
    auto next = members.begin();
    for (const StageMember*& m : order)
      if (m->group->owner == owner) m = *next++;
  }
  return order;
}

bool StageSnapshot::promised_first(const StageMember& m, std::uint64_t of) const {
  return rules_.policy == TurnPolicy::kSlice ||
         (m.group->wishes.longest_wait > Duration{} && counts(m, of));
}

StageMembers StageSnapshot::in_order(const StageMembers& asking, std::uint64_t of) const {
  StageMembers first;
  StageMembers others;
  Time others_since = kNever;
  // Whoever starts many groups at once waits for others in between.
  const auto since = [&](const StageMember& m) {
    const auto last = memory_.last_start.find(m.group->owner);
    const bool starts = of == kEverybody && m.starts() && !m.group->has_ranks;
    return starts && last != memory_.last_start.end() ? std::max(asked(m), last->second) : asked(m);
  };
  for (const StageMember* m : asking) {
    (promised_first(*m, of) ? first : others).push_back(m);
    if (!promised_first(*m, of)) others_since = std::min(others_since, since(*m));
  }
  if (const auto last = memory_.last_of_others.find(of); last != memory_.last_of_others.end())
    others_since = std::max(others_since, last->second);
  std::sort(first.begin(), first.end(), [&](const StageMember* a, const StageMember* b) {
    return std::tuple(since(*a), a->memory->joined) < std::tuple(since(*b), b->memory->joined);
  });
  const auto place = [&](const StageMember& m) {
    const std::int32_t priority = counts(m, of) ? m.group->wishes.priority : 0;
    return std::tuple(since(m) - rules_.ageing * priority, m.memory->joined);
  };
  std::sort(others.begin(), others.end(),
            [&](const StageMember* a, const StageMember* b) { return place(*a) < place(*b); });
  if (others.empty()) return first;
  const auto before = std::find_if(first.begin(), first.end(),
                                   [&](const StageMember* m) { return since(*m) > others_since; });
  first.insert(before, others.front());
  first.insert(first.end(), others.begin() + 1, others.end());
  return first;
}

}  // namespace amem
