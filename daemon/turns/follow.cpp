// What StageMemory follows: who takes turns, and what happened to them.
#include <algorithm>
#include <set>
#include <utility>

#include "daemon/base/units.h"
#include "daemon/owners/account.h"
#include "daemon/turns/decide.h"
#include "daemon/turns/longest_wait.h"
#include "daemon/turns/snapshot.h"

namespace amem {
namespace {

bool wants_now(const TurnRules& rules, const GroupView& group, TurnPlace place) {
  if (group.first_turn == FirstTurn::kLapsed && !group.has_ranks) return false;
  if (group.first_turn == FirstTurn::kDue && place != TurnPlace::kIn) return true;
  if (rules.policy != TurnPolicy::kLease) return group.waiting;
  return group.leased || group.lease_wanted ||
         (group.first_turn == FirstTurn::kEndedUnasked && group.waiting);
}

/// Those that take turns, of this owner or of all.
std::size_t places(const StageView& view, const StageMemory& memory,
                   std::optional<std::uint64_t> of) {
  return static_cast<std::size_t>(
      std::count_if(view.groups.begin(), view.groups.end(), [&](const GroupView& group) {
        return memory.taker(group.id) != nullptr && (!of || group.owner == *of);
      }));
}

/// Checks what no other group can change.
Status check_alone(const StageView& view, const GroupView& group) {
  if (!group.refusal.empty()) return {Code::kInvalidArgument, group.refusal};
  for (std::size_t i = 0; i < view.devices.size(); ++i) {
    const StageDevice& device = view.devices[i];
    if (group.on[i].needs > device.usable())
      return {Code::kOutOfRange,
              "group '" + group.name + "' needs " + format_size(group.on[i].needs) + " on GPU " +
                  std::to_string(device.ordinal) + " (" + to_string(device.device) +
                  "), and the stage has " + format_size(device.usable()) +
                  " there: it cannot run there, even alone"};
  }
  return {};
}

std::vector<TurnTaker> all_terms(const StageView& view, const StageMemory& memory) {
  std::vector<TurnTaker> terms;
  for (const GroupView& group : view.groups) {
    if (const GroupMemory* const m = memory.taker(group.id))
      terms.push_back(terms_of(group, m->out, m->in));
  }
  return terms;
}

/// Whether a group can begin to take turns. What another owner has set for itself keeps nobody out.
Status check_join(const StageView& view, const StageMemory& memory, const GroupView& group,
                  const GroupMemory& m) {
  if (Status status = check_alone(view, group); !status.ok()) return status;
  const TurnTaker its = terms_of(group, m.out, m.in);
  if (Status status = check_wishes(view.rules, group.name, group.wishes, its.residency);
      !status.ok())
    return status;
  const std::size_t own = places(view, memory, group.owner);
  const std::size_t all = places(view, memory, std::nullopt);
  if (!leaves_a_share(own, all, kMaxGroupsOfStage))
    return {Code::kResourceExhausted,
            "group '" + group.name + "' cannot take turns: " + std::to_string(all) + " of the " +
                std::to_string(kMaxGroupsOfStage) + " places of the stage are taken, " +
                std::to_string(own) +
                " of them by groups of the same owner, and an owner may have as many as are free. "
                "End groups of this owner"};
  std::vector<TurnTaker> terms = all_terms(view, memory);
  terms.push_back(its);
  return check_longest_waits(view, terms, &group);
}

bool anybody_waits(const StageView& view, const StageMemory& memory) {
  return std::any_of(view.groups.begin(), view.groups.end(),
                     [&](const GroupView& group) { return waits(memory, group); });
}

/// It is in from now on, without a switch.
void arrive_unasked(const StageView& view, const StageMemory& memory, GroupMemory& m, Time now) {
  m.came_in.reset();
  m.turn.reset();
  // Whoever waits already is not made to wait for longer.
  if (anybody_waits(view, memory)) return;
  m.came_in = now;
  m.turn = now;
}

void arrive(GroupMemory& m, Time now) {
  m.presence = Presence::kIn;
  m.came_in = now;
  m.turn = now;
  m.worked = now;
}

void follow_presence(const StageView& view, const StageMemory& memory, const GroupView& group,
                     GroupMemory& m, Time now) {
  if (moves(group.presence)) return;
  m.has_remainder = std::any_of(group.on.begin(), group.on.end(),
                                [](const Footprint& on) { return on.remainder > 0; });
  if (group.presence == m.presence) return;
  m.presence = group.presence;
  m.worked = now;
  m.asked.reset();
  m.failures = 0;
  m.failure.clear();
  m.not_before = {};
  if (group.presence == Presence::kIn) arrive_unasked(view, memory, m, now);
}

void follow_work(const StageView& view, const StageMemory& memory, const GroupView& group,
                 GroupMemory& m, Time now) {
  const TurnRules& rules = view.rules;
  const TurnPlace place = place_of(memory, group, m);
  const bool starts = group.first_turn == FirstTurn::kDue;
  const bool leases = rules.policy == TurnPolicy::kLease;
  const auto begin_turn_if_idle = [&] {
    const Time idle_from = leases ? m.worked : later(m.worked, rules.idle);
    if (place == TurnPlace::kIn && !m.wants && !starts && idle_from <= now &&
        !anybody_waits(view, memory))
      m.turn = now;
  };
  const Time worked = group.working ? now : group.worked;
  if (!leases && worked > m.worked) {
    begin_turn_if_idle();
    m.worked = worked;
  }
  const bool wants = wants_now(rules, group, place);
  if (wants && !m.wants) begin_turn_if_idle();
  if (!wants && m.wants) m.worked = now;
  m.wants = wants;
  if (!wants || place == TurnPlace::kIn || place == TurnPlace::kPausedByOthers)
    m.asked.reset();
  else if (!m.asked)
    m.asked = now;
}

void follow_first_turn(const StageMemory& memory, const GroupView& group, GroupMemory& m,
                       Time now) {
  if (group.first_turn != FirstTurn::kDue) return m.first_turn.reset();
  if (group.presence != Presence::kIn || memory.is_switching(group.id)) return;
  if (!m.first_turn) m.first_turn = m.busy = now;
  m.busy = std::max(m.busy, at_work(group) ? now : group.worked);
}

void fail(const TurnRules& rules, GroupMemory& m, const std::string& why, bool with_others,
          Time now) {
  Duration wait = rules.first_retry;
  for (std::uint32_t i = 0; i < m.failures && wait < rules.last_retry; ++i) wait *= 2;
  ++m.failures;
  m.failure = why;
  m.failed_with_others = with_others;
  m.not_before = later(now, std::min(wait, rules.last_retry));
}

/// If others' memory has changed, failures do not count: they were decided on by other figures.
void forget_failures_if_others_changed(const StageView& view, StageMemory& memory) {
  bool changed = false;
  for (std::size_t i = 0; i < view.devices.size() && i < memory.taken.size(); ++i) {
    const auto [less, more] = std::minmax(view.taken[i], memory.taken[i]);
    changed = changed || more - less > view.devices[i].margin;
  }
  memory.taken = view.taken;
  if (!changed) return;
  for (auto& [id, m] : memory.groups) m.not_before = {};
}

void follow_admission(const StageView& view, StageMemory& memory, const GroupView& group,
                      GroupMemory& m, std::vector<TurnNews>& news, Time now) {
  const Status status = m.admitted ? check_alone(view, group) : check_join(view, memory, group, m);
  if (!status.ok()) {
    m.admitted = false;
    if (std::exchange(m.refusal, status.text()) == status.text()) return;
    return news.push_back(
        {group.id,
         "takes no turns in stage '" + view.name + "': " + m.refusal + ". It stays as it is",
         true});
  }
  if (std::exchange(m.admitted, true)) return;
  if (!std::exchange(m.refusal, {}).empty())
    news.push_back({group.id, "takes turns in stage '" + view.name + "' again", false});
  m.joined = ++memory.joined;
  m.presence = group.presence == Presence::kLeaves  ? Presence::kIn
               : group.presence == Presence::kComes ? Presence::kOut
                                                    : group.presence;
  m.worked = now;
  m.wants = false;
  m.asked.reset();
  if (m.presence == Presence::kIn) arrive_unasked(view, memory, m, now);
}

/// Returns a hash of what check_longest_waits() depends on.
std::size_t hash_of(const StageView& view, const std::vector<TurnTaker>& takers) {
  std::size_t hash = 0;
  const auto add = [&hash](auto value) {
    hash = (hash ^ std::hash<decltype(value)>()(value)) * 0x9e3779b97f4a7c15ULL;
  };
  for (const std::uint64_t bytes : view.taken) add(bytes);
  for (const TurnTaker& each : takers) {
    const GroupView& group = *each.group;
    add(group.id);
    add(group.wishes.weight);
    add(group.wishes.longest_wait.count());
    add(group.wishes.by_operator);
    add(group.first_turn == FirstTurn::kDue);
    add(group.parts.empty());
    add(each.cost_out.count());
    add(each.cost_in.count());
    add(each.residency.count());
    for (const Footprint& on : group.on) add(on.used ? on.needs + 1 : 0);
  }
  return hash;
}

void check_promises(const StageView& view, StageMemory& memory, std::vector<TurnNews>& news) {
  const std::vector<TurnTaker> takers = all_terms(view, memory);
  const std::size_t terms = hash_of(view, takers);
  if (std::exchange(memory.terms, terms) == terms) return;
  GroupId whose = 0;
  const Status promised = check_longest_waits(view, takers, nullptr, &whose);
  if (std::exchange(memory.promised, promised.ok()) && !promised.ok())
    news.push_back({whose, promised.text(), true});
}

}  // namespace

std::vector<TurnNews> look(const StageView& view, StageMemory& memory, Time now) {
  std::vector<TurnNews> news;
  const auto gone = [&](GroupId id) { return view.find(id) == nullptr; };
  std::erase_if(memory.groups, [&](const auto& each) { return gone(each.first); });
  if (memory.under_way)
    for (auto* ids : {&memory.under_way->out, &memory.under_way->in}) std::erase_if(*ids, gone);
  forget_failures_if_others_changed(view, memory);
  for (const GroupView& group : view.groups) {
    GroupMemory& m = memory.groups[group.id];
    if (!memory.is_switching(group.id)) {
      follow_admission(view, memory, group, m, news, now);
      follow_presence(view, memory, group, m, now);
    }
    if (m.admitted) follow_work(view, memory, group, m, now);
    follow_first_turn(memory, group, m, now);
  }
  check_promises(view, memory, news);
  // Else nobody knows what can leave.
  if (!is_steady(view, memory)) return news;
  const StageSnapshot stage(view, memory, now);
  for (const StageMember& m : stage.all()) {
    const bool unfit = stage.waits(m) && !stage.could_come_in(m);
    if (std::exchange(memory.groups[m.group->id].unfit, unfit) || !unfit) continue;
    // Whose memory it is, only those may know who may see the groups.
    const auto nameless = [](GroupId) { return std::string("another"); };
    news.push_back(
        {m.group->id,
         "waits: " + describe(view, memory, m.group->id, stage.does_not_fit(m), nameless, now),
         true});
  }
  return news;
}

std::vector<std::pair<GroupId, FirstTurn>> first_turns(const StageView& view,
                                                       const StageMemory& memory, Time now) {
  std::vector<std::pair<GroupId, FirstTurn>> changes;
  const StageSnapshot stage(view, memory, now);
  for (const GroupView& group : view.groups) {
    const GroupMemory& m = memory.groups.at(group.id);
    const bool in = group.presence == Presence::kIn;
    if (memory.is_switching(group.id)) continue;
    if (group.first_turn == FirstTurn::kLapsed && group.has_ranks && (in || group.waiting))
      changes.emplace_back(group.id, FirstTurn::kDue);
    if (group.first_turn != FirstTurn::kDue || !m.first_turn) continue;
    // Who pauses it, or pauses itself, says that it has started.
    const bool by_others = group.presence == Presence::kPausedByOthers;
    if (!by_others && (!in || stage.first_turn_ends(group, m) > now)) continue;
    if (!group.has_ranks && !by_others)
      changes.emplace_back(group.id, FirstTurn::kLapsed);
    else
      changes.emplace_back(group.id, after_first_turn(view.rules, group));
  }
  return changes;
}

FirstTurn after_first_turn(const TurnRules& rules, const GroupView& group) {
  const bool asks = group.leased || group.lease_wanted;
  return rules.policy == TurnPolicy::kLease && !asks ? FirstTurn::kEndedUnasked : FirstTurn::kOver;
}

void switched(const StageView& view, StageMemory& memory, const Status& status, Time now) {
  if (!memory.under_way) return;
  const Switch ended = *std::exchange(memory.under_way, std::nullopt);
  for (const GroupView& group : view.groups) {
    const auto found = memory.groups.find(group.id);
    if (found == memory.groups.end() || !ended.has(group.id)) continue;
    GroupMemory& m = found->second;
    const bool in = group.presence == Presence::kIn;
    const bool came = ended.comes(group.id);
    if (status.ok()) {
      m.failures = 0;
      m.failure.clear();
      if (came)
        arrive(m, now);
      else
        m.presence = Presence::kOut;
    } else if (came && in) {
      arrive(m, now);
    } else {
      // One that has left and is not in was not what failed. One that has not left has not ended
      // its turn.
      const bool remainder = m.presence != Presence::kIn;
      if (came || in || remainder) fail(view.rules, m, status.text(), ended.several_owners, now);
      m.presence = in ? Presence::kIn : Presence::kOut;
    }
  }
}

Status can_join(const StageView& view, const StageMemory& memory, const GroupView& group) {
  return check_join(view, memory, group, {});
}

Status can_wish(const StageView& view, const StageMemory& memory, GroupId id,
                const TurnWishes& wishes) {
  StageView changed = view;
  const auto group = std::find_if(changed.groups.begin(), changed.groups.end(),
                                  [id](const GroupView& each) { return each.id == id; });
  const auto m = memory.groups.find(id);
  if (group == changed.groups.end() || m == memory.groups.end()) return {};
  group->wishes = wishes;
  const Duration residency = terms_of(*group, m->second.out, m->second.in).residency;
  if (Status status = check_wishes(view.rules, group->name, wishes, residency); !status.ok())
    return status;
  if (!m->second.admitted) return {};
  return check_longest_waits(changed, all_terms(changed, memory), &*group);
}

}  // namespace amem
