#include "daemon/turns/decide.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "daemon/base/units.h"
#include "daemon/owners/account.h"
#include "daemon/turns/load.h"
#include "daemon/turns/longest_wait.h"

namespace amem {
namespace {

/// Also for a time that is kNever, or for ever ago.
Time later(Time at, Duration by) { return at > kNever - by ? kNever : at + by; }

bool contains(const std::vector<GroupId>& groups, GroupId id) {
  return std::find(groups.begin(), groups.end(), id) != groups.end();
}

/// Where a group is in the course of turns.
enum class TurnPlace : std::uint8_t { kOut, kComing, kIn, kLeaving, kHeld };

TurnPlace place_of(const StageMemory& memory, const GroupView& group, const GroupMemory& m) {
  if (memory.under_way && contains(memory.under_way->in, group.id)) return TurnPlace::kComing;
  if (memory.under_way && contains(memory.under_way->out, group.id))
    return m.presence == Presence::kIn ? TurnPlace::kLeaving : TurnPlace::kOut;
  switch (group.presence) {
    case Presence::kIn:
      return TurnPlace::kIn;
    case Presence::kOut:
      return TurnPlace::kOut;
    case Presence::kHeld:
      return TurnPlace::kHeld;
    case Presence::kLeaves:
    case Presence::kComes:
      break;
  }
  return m.presence == Presence::kIn ? TurnPlace::kIn : TurnPlace::kHeld;
}

bool wants_now(const TurnRules& rules, const GroupView& group, TurnPlace place) {
  if (group.first_turn == FirstTurn::kLapsed && !group.has_ranks) return false;
  if (group.first_turn == FirstTurn::kDue && place != TurnPlace::kIn) return true;
  if (rules.policy != TurnPolicy::kLease) return group.waiting;
  return group.leased || group.lease_wanted ||
         (group.first_turn == FirstTurn::kEndedUnasked && group.waiting);
}

/// One that takes turns.
struct Member {
  const GroupView* group = nullptr;
  const GroupMemory* memory = nullptr;
  TurnPlace place = TurnPlace::kOut;
  TurnTaker terms;
  DeviceShares runs;    // what it has while it runs
  DeviceShares comes;   // what it needs to come in
  DeviceShares leaves;  // what remains when it has left
  DeviceShares is_out;  // what is there while it is out

  bool starts() const { return group->first_turn == FirstTurn::kDue; }
  bool present() const { return place != TurnPlace::kOut && place != TurnPlace::kHeld; }
  bool has_rest() const {
    return place == TurnPlace::kOut &&
           std::any_of(is_out.begin(), is_out.end(),
                       [](const DeviceShare& each) { return each.user; });
  }
  /// What it has on the devices now.
  const DeviceShares& there() const { return present() ? runs : is_out; }
};

using Members = std::vector<const Member*>;

bool has(const Members& members, const Member* member) {
  return std::find(members.begin(), members.end(), member) != members.end();
}

/// "group 'a'", "groups 'a', 'b'".
std::string names(const Members& members) {
  std::string text = members.size() == 1 ? "group" : "groups";
  for (std::size_t i = 0; i < members.size(); ++i)
    text += std::string(i == 0 ? " '" : ", '") + members[i]->group->name + "'";
  return text;
}

/// All that take turns, as they are now.
class Snapshot {
 public:
  Snapshot(const StageView& view, const StageMemory& memory, Time now)
      : view_(view), rules_(view.rules), memory_(memory), now_(now), least_(view) {
    all_.reserve(view.groups.size());
    for (const GroupView& group : view.groups) {
      const GroupMemory* const m = memory.taker(group.id);
      if (m == nullptr) continue;
      all_.push_back({&group, m, place_of(memory, group, *m), terms_of(group, m->out, m->in),
                      running(group), coming(group), left_over(group), remaining(group)});
    }
    for (const Member& m : all_) {
      least_.add(m.leaves);
      if (!waits(m)) continue;
      several_owners_wait_ =
          several_owners_wait_ || (waiting_owner_ && *waiting_owner_ != m.group->owner);
      waiting_owner_ = m.group->owner;
    }
  }

  const std::vector<Member>& all() const { return all_; }

  /// If nothing happens; kNever.
  Time idle_from(const Member& m) const {
    if (m.memory->wants || m.starts()) return kNever;
    // Who yields says so.
    return rules_.policy == TurnPolicy::kLease ? m.memory->worked
                                               : later(m.memory->worked, rules_.idle);
  }
  bool idle(const Member& m) const { return idle_from(m) <= now_; }

  /// If nothing happens; kNever.
  Time leaves_from(const Member& m) const {
    if (m.place != TurnPlace::kIn || !m.group->missing.empty()) return kNever;
    if (m.group->first_turn == FirstTurn::kLapsed) return m.memory->not_before;
    Time from = idle_from(m);
    // A weight that its owner has set is for turns among the owner's own groups.
    const bool weighs = m.group->wishes.by_operator || !foreign_waits(*m.group);
    if (const auto limit =
            turn_limit(rules_, weighs ? m.group->wishes.weight : 1, m.terms.residency))
      from = std::min(from, m.memory->turn ? later(*m.memory->turn, *limit) : Time{});
    // A lease that has been yielded is not held up.
    const bool yielded = rules_.policy == TurnPolicy::kLease && !m.memory->wants && !m.starts();
    if (m.memory->came_in && !yielded)
      from = std::max(from, later(*m.memory->came_in, m.terms.residency));
    return std::max(from, m.memory->not_before);
  }
  bool may_leave(const Member& m) const { return leaves_from(m) <= now_; }

  bool waits(const Member& m) const { return m.place == TurnPlace::kOut && m.memory->wants; }
  /// From when on it is in the queue. REQUIRES: it waits.
  Time asked(const Member& m) const {
    // Whoever begins is no call that may be over soon.
    const bool has_grace = rules_.policy == TurnPolicy::kDemand && !m.starts();
    const Time since = m.memory->asked.value_or(now_);
    return has_grace ? later(since, rules_.grace) : since;
  }
  bool anybody_waits() const { return waiting_owner_.has_value(); }
  /// A group of another owner does.
  bool foreign_waits(const GroupView& group) const {
    return several_owners_wait_ || (waiting_owner_ && *waiting_owner_ != group.owner);
  }

  StageLoad load() const {
    StageLoad load(view_);
    for (const Member& m : all_) load.add(m.there());
    return load;
  }

  /// All other groups have left, with all that can leave.
  StageLoad load_without_others(const Member& m) const {
    StageLoad load = least_;
    load.remove(m.leaves);
    return load;
  }
  bool could_come_in(const Member& m) const {
    return load_without_others(m).has_space_for(m.comes);
  }

  /// All that ask now, the first one first.
  Members queue() const {
    Members asking;
    for (const Member& m : all_)
      if (waits(m) && m.group->missing.empty() && asked(m) <= now_ &&
          m.memory->not_before <= now_ && could_come_in(m))
        asking.push_back(&m);
    Members order = in_order(asking, kEverybody);
    // What owners have set moves their own groups among the places that these have.
    std::map<std::uint64_t, Members> own;
    for (const Member* m : asking)
      if (!m->group->wishes.by_operator) own[m->group->owner];
    for (auto& [owner, members] : own) {
      for (const Member* m : asking)
        if (m->group->owner == owner) members.push_back(m);
      members = in_order(members, owner);
      auto next = members.begin();
      for (const Member*& m : order)
        if (m->group->owner == owner) m = *next++;
    }
    return order;
  }

  /// Whose first one has a place among those with longest waits that hold against `of`'s groups.
  bool promised_first(const Member& m, std::uint64_t of) const {
    return rules_.policy == TurnPolicy::kSlice ||
           (m.group->wishes.longest_wait > Duration{} && holds(m, of));
  }

  static constexpr std::uint64_t kEverybody = 0;

 private:
  static bool holds(const Member& m, std::uint64_t of) {
    return of != kEverybody || m.group->wishes.by_operator;
  }

  /// By the wishes that hold: of everybody only those that operators have set.
  Members in_order(const Members& asking, std::uint64_t of) const {
    Members first;
    Members others;
    Time others_since = kNever;
    // Whoever starts many groups at once waits for others in between.
    const auto since = [&](const Member& m) {
      const auto last = memory_.last_start.find(m.group->owner);
      const bool starts = of == kEverybody && m.starts() && !m.group->has_ranks;
      return starts && last != memory_.last_start.end() ? std::max(asked(m), last->second)
                                                        : asked(m);
    };
    for (const Member* m : asking) {
      (promised_first(*m, of) ? first : others).push_back(m);
      if (!promised_first(*m, of)) others_since = std::min(others_since, since(*m));
    }
    if (const auto last = memory_.last_of_others.find(of); last != memory_.last_of_others.end())
      others_since = std::max(others_since, last->second);
    std::sort(first.begin(), first.end(), [&](const Member* a, const Member* b) {
      return std::tuple(since(*a), a->memory->joined) < std::tuple(since(*b), b->memory->joined);
    });
    const auto place = [&](const Member& m) {
      const std::int32_t priority = holds(m, of) ? m.group->wishes.priority : 0;
      return std::tuple(since(m) - rules_.ageing * priority, m.memory->joined);
    };
    std::sort(others.begin(), others.end(),
              [&](const Member* a, const Member* b) { return place(*a) < place(*b); });
    if (others.empty()) return first;
    const auto before = std::find_if(first.begin(), first.end(),
                                     [&](const Member* m) { return since(*m) > others_since; });
    first.insert(before, others.front());
    first.insert(first.end(), others.begin() + 1, others.end());
    return first;
  }

  const StageView& view_;
  const TurnRules& rules_;
  const StageMemory& memory_;
  const Time now_;
  std::vector<Member> all_;
  StageLoad least_;  // if all had left
  std::optional<std::uint64_t> waiting_owner_;
  bool several_owners_wait_ = false;
};

// ---- one decision -------------------------------------------------------------------------------

/// A switch in the making: who leaves, and who comes in.
class Decision {
 public:
  Decision(const StageView& view, const StageMemory& memory, Time now)
      : view_(view), now_(now), stage_(view, memory, now), load_(stage_.load()) {}

  /// Those that have to leave though nobody waits for their memory.
  bool forced() {
    for (const Member& m : stage_.all())
      if (m.place == TurnPlace::kIn && m.group->first_turn == FirstTurn::kLapsed &&
          !m.group->has_ranks && m.memory->not_before <= now_)
        out_.push_back(&m);
    if (!out_.empty()) why_ = names(out_) + " had its first turn, and no rank has come";
    if (!out_.empty()) return true;
    out_ = too_many();
    why_ = "the groups that run have outgrown the GPUs";
    return !out_.empty();
  }

  /// Whoever can come in.
  bool from_queue() {
    for (const Member* m : stage_.queue()) {
      // What it has left of its memory may be on its way out for one that comes before it.
      if (has(out_, m) || !may_pass(*m)) {
        before(*m);
        continue;
      }
      if (!make_space(*m)) {
        before(*m);
        continue;
      }
      in_.push_back(m);
      load_.add(m->comes);
      candidates_.reset();
      for (Earlier& each : before_) each.load.add(m->runs);
    }
    if (in_.empty()) return false;
    why_ = reason();
    return true;
  }

  Switch begin(StageMemory& memory) const {
    Switch begun{++memory.switches, {}, {}, why_};
    for (const Member* m : out_) {
      begun.out.push_back(m->group->id);
      const auto count = parts_.find(m);
      if (count == parts_.end()) continue;
      std::string tags;
      for (std::size_t i = 0; i < count->second; ++i) {
        const std::string& tag = m->group->parts[i].tag;
        begun.parts[m->group->id].push_back(tag);
        tags += (i == 0 ? "" : ", ") + tag;
      }
      begun.why += "; of group '" + m->group->name + "' only " + tags + " leaves";
    }
    for (const Member* m : in_) {
      begun.in.push_back(m->group->id);
      if (m->group->waiting && !m->group->call.empty())
        begun.why += "; " + m->group->call + " waits";
      if (m->starts() && !m->group->has_ranks) memory.last_start[m->group->owner] = now_;
    }
    note_first_of_others(memory);
    memory.under_way = begun;
    return begun;
  }

  /// Beside what has been decided, if those leave that may.
  bool could_come_in(const Member& m) {
    StageLoad least = candidates().least;
    least.remove(has(candidates().members, &m) ? m.leaves : m.is_out);
    return least.has_space_for(m.comes);
  }

  const Snapshot& stage() const { return stage_; }

  /// Those of `before` whose place in the queue keeps the group out.
  std::vector<GroupId> in_the_way(const Member& m) const {
    std::vector<GroupId> ids;
    for (const Earlier& each : before_) {
      if (each.member == &m) break;
      if (!fits_beside(m, each)) ids.push_back(each.member->group->id);
    }
    return ids;
  }

 private:
  /// One that waits and cannot come in yet, with what has come in since it asked.
  struct Earlier {
    const Member* member;
    StageLoad load;
  };

  void before(const Member& m) {
    StageLoad load(view_);
    load.add(m.runs);
    for (const Member* each : in_) load.add(each->runs);
    for (const Member& each : stage_.all())
      if (each.present() && each.memory->came_in && *each.memory->came_in >= stage_.asked(m))
        load.add(each.runs);
    before_.push_back({&m, std::move(load)});
  }

  static bool fits_beside(const Member& m, const Earlier& earlier) {
    StageLoad load = earlier.load;
    load.add(m.runs);
    return load.fits();
  }
  /// Whether `m` may come in before those that stand before it.
  bool may_pass(const Member& m) const {
    return std::all_of(before_.begin(), before_.end(),
                       [&](const Earlier& each) { return fits_beside(m, each); });
  }

  /// What it has on the devices, when what was decided before has left.
  DeviceShares there(const Member& m) const {
    DeviceShares shares = m.there();
    if (const auto count = parts_.find(&m); count != parts_.end())
      take_parts(m, count->second, shares);
    return shares;
  }
  static void take_parts(const Member& m, std::size_t count, DeviceShares& shares) {
    for (std::size_t part = 0; part < count; ++part)
      for (std::size_t i = 0; i < shares.size(); ++i)
        shares[i].bytes -= std::min(shares[i].bytes, m.group->parts[part].bytes[i]);
  }
  static bool anything(const Member& m, const DeviceShares& shares) {
    for (std::size_t i = 0; i < shares.size(); ++i)
      if (shares[i].bytes > m.leaves[i].bytes) return true;
    return false;
  }

  /// Who may leave, in the order in which they do, and the load if all of them did.
  struct Candidates {
    Members members;
    StageLoad least;
  };
  const Candidates& candidates() {
    if (candidates_) return *candidates_;
    candidates_.emplace(Candidates{{}, load_});
    Members& may = candidates_->members;
    for (const Member& m : stage_.all()) {
      if (has(in_, &m)) continue;
      const bool may_go = m.memory->not_before <= now_ && m.group->missing.empty();
      const bool rest = m.has_rest() ? may_go && !has(out_, &m) : parts_.contains(&m);
      if (rest || (stage_.may_leave(m) && !has(out_, &m))) may.push_back(&m);
    }
    // What is left of a group that does not run leaves before one that runs. Of these the one that
    // has been idle longest leaves first, one that has work last. One that has failed to leave is
    // kept for when no other suffices.
    const auto place = [&](const Member& m) {
      const bool rest = m.has_rest();
      const bool idle = stage_.idle(m);
      return std::tuple(
          m.memory->failures, !parts_.contains(&m), !rest, rest ? m.memory->wants : !idle,
          rest || idle ? m.memory->worked : m.memory->turn.value_or(Time{}), m.memory->joined);
    };
    std::sort(may.begin(), may.end(),
              [&](const Member* a, const Member* b) { return place(*a) < place(*b); });
    for (const Member* m : may) leave(candidates_->least, *m);
    return *candidates_;
  }
  void leave(StageLoad& load, const Member& m) const {
    load.remove(there(m));
    load.add(m.leaves);
  }
  void stay(StageLoad& load, const Member& m) const {
    load.remove(m.leaves);
    load.add(there(m));
  }

  /// Makes more leave, if need be, so that this one can come in; what it has on the devices while
  /// it is out is not in the load then. False: it is not enough, and nothing has changed.
  bool make_space(const Member& comes) {
    const DeviceShares& needs = comes.comes;
    StageLoad left = load_;
    left.remove(comes.is_out);
    if (left.has_space_for(needs)) {
      load_ = left;
      return true;
    }
    StageLoad least = candidates().least;
    least.remove(has(candidates().members, &comes) ? comes.leaves : comes.is_out);
    if (!least.has_space_for(needs)) return false;
    Members chosen;
    for (const Member* m : candidates().members) {
      if (left.has_space_for(needs)) break;
      if (m == &comes) continue;
      leave(left, *m);
      chosen.push_back(m);
    }
    // Some may have left in vain: another device was short.
    for (std::size_t i = chosen.size(); i-- > 0;) {
      StageLoad with = left;
      stay(with, *chosen[i]);
      if (!with.has_space_for(needs)) continue;
      left = with;
      chosen.erase(chosen.begin() + static_cast<std::ptrdiff_t>(i));
    }
    // Of some a part may do.
    std::map<const Member*, std::size_t> parts;
    for (std::size_t i = chosen.size(); i-- > 0;) {
      const Member& m = *chosen[i];
      if (m.has_rest() || parts_.contains(&m)) continue;
      for (std::size_t count = 1; count <= m.group->parts.size(); ++count) {
        DeviceShares stays = m.runs;
        take_parts(m, count, stays);
        StageLoad with = left;
        with.remove(m.leaves);
        with.add(stays);
        if (!anything(m, stays) || !with.has_space_for(needs)) continue;
        left = with;
        parts[&m] = count;
        break;
      }
    }
    for (const Member* m : chosen) {
      parts_.erase(m);
      if (!has(out_, m)) out_.push_back(m);
    }
    parts_.merge(parts);
    load_ = left;
    return true;
  }

  Members too_many() const {
    StageLoad left = load_;
    Members out;
    if (left.within_limits()) return out;
    Members all;
    for (const Member& m : stage_.all())
      if ((m.has_rest() || m.place == TurnPlace::kIn) && m.memory->not_before <= now_ &&
          m.group->missing.empty())
        all.push_back(&m);
    // What is left of groups that are out leaves first, then who may leave anyway, and who came
    // last of the others.
    const auto place = [&](const Member& m) {
      const bool may = stage_.may_leave(m);
      const Time at = stage_.idle(m) ? m.memory->worked : m.memory->turn.value_or(Time{});
      return std::tuple(
          !m.has_rest(), !may,
          may ? at.time_since_epoch() : -m.memory->came_in.value_or(Time{}).time_since_epoch(),
          m.memory->joined);
    };
    std::sort(all.begin(), all.end(),
              [&](const Member* a, const Member* b) { return place(*a) < place(*b); });
    for (const Member* m : all) {
      // One without bytes that can leave stays.
      if (anything(*m, m->there())) {
        leave(left, *m);
        out.push_back(m);
      }
      if (left.within_limits()) break;
    }
    for (std::size_t i = out.size(); i-- > 0;) {
      StageLoad with = left;
      stay(with, *out[i]);
      if (!with.within_limits()) continue;
      left = with;
      out.erase(out.begin() + static_cast<std::ptrdiff_t>(i));
    }
    return out;
  }

  std::string reason() const {
    Duration waited{};
    for (const Member* m : in_) waited = std::max(waited, now_ - m->memory->asked.value_or(now_));
    std::string text = names(in_) + (in_.size() == 1 ? " has" : " have") + " waited for " +
                       (in_.size() == 1 ? "" : "up to ") + rounded_duration(waited);
    if (in_.front()->starts()) text += " to start";
    for (const Member* m : out_) {
      if (m->has_rest()) {
        text += ", group '" + m->group->name + "' is paused and has memory on the GPUs";
        continue;
      }
      text += ", group '" + m->group->name + "' has ";
      if (!stage_.idle(*m))
        text += m->memory->turn ? "had its turn for " + rounded_duration(now_ - *m->memory->turn)
                                : "no turn";
      else if (view_.rules.policy == TurnPolicy::kLease)
        text += "no turn";
      else
        text += "been idle for " + rounded_duration(now_ - m->memory->worked);
    }
    return text;
  }

  /// The first of those without a longest wait has come in, among everybody or its owner's groups.
  void note_first_of_others(StageMemory& memory) const {
    std::set<std::uint64_t> seen;
    for (const Member* m : stage_.queue())
      for (const std::uint64_t of : {Snapshot::kEverybody, m->group->owner})
        if (!stage_.promised_first(*m, of) && seen.insert(of).second && has(in_, m))
          memory.last_of_others[of] = now_;
  }

  const StageView& view_;
  const Time now_;
  const Snapshot stage_;
  StageLoad load_;
  Members out_;
  std::map<const Member*, std::size_t> parts_;  // of some that leave only so many parts do
  Members in_;
  std::vector<Earlier> before_;
  std::optional<Candidates> candidates_;
  std::string why_;
};

// ---- what the memory follows --------------------------------------------------------------------

/// Those that take turns, of this owner or of all.
std::size_t places(const StageView& view, const StageMemory& memory,
                   std::optional<std::uint64_t> of) {
  return static_cast<std::size_t>(
      std::count_if(view.groups.begin(), view.groups.end(), [&](const GroupView& group) {
        return memory.taker(group.id) != nullptr && (!of || group.owner == *of);
      }));
}

/// What no other group can change.
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

/// No memory is on its way, and what others have is known: what can come in can be told.
bool settled(const StageView& view, const StageMemory& memory) {
  return view.seen && !moving(view, memory);
}

/// It is in from now on, by itself.
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
  m.has_rest = std::any_of(group.on.begin(), group.on.end(),
                           [](const Footprint& on) { return on.rest > 0; });
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
  if (!wants || place == TurnPlace::kIn || place == TurnPlace::kHeld)
    m.asked.reset();
  else if (!m.asked)
    m.asked = now;
}

/// While there are no ranks, somebody is about to make them.
bool at_work(const GroupView& group) {
  return !group.has_ranks || group.leased || group.lease_wanted || group.working || group.waiting;
}

void follow_first_turn(const StageMemory& memory, const GroupView& group, GroupMemory& m,
                       Time now) {
  if (group.first_turn != FirstTurn::kDue) return m.first_turn.reset();
  if (group.presence != Presence::kIn || memory.is_switching(group.id)) return;
  if (!m.first_turn) m.first_turn = m.busy = now;
  m.busy = std::max(m.busy, at_work(group) ? now : group.worked);
}

/// If nothing happens; kNever. REQUIRES: it has begun.
Time first_turn_ends(const StageView& view, const Snapshot& stage, const GroupView& group,
                     const GroupMemory& m) {
  Time ends = at_work(group) ? kNever : later(m.busy, view.rules.start_idle);
  const TurnTaker terms = terms_of(group, m.out, m.in);
  if (const auto limit = turn_limit(view.rules, group.wishes.weight, terms.residency))
    ends = std::min(ends, later(*m.first_turn, *limit));
  if (!group.has_ranks)
    ends = std::min(ends,
                    later(*m.first_turn, stage.foreign_waits(group) ? view.rules.start_limit_shared
                                                                    : view.rules.start_limit));
  return ends;
}

void fail(const TurnRules& rules, GroupMemory& m, const std::string& why, Time now) {
  Duration wait = rules.first_retry;
  for (std::uint32_t i = 0; i < m.failures && wait < rules.last_retry; ++i) wait *= 2;
  ++m.failures;
  m.failure = why;
  m.not_before = later(now, std::min(wait, rules.last_retry));
}

/// What others have has changed: what was tried in vain was decided on by other figures.
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

/// What check_longest_waits() depends on.
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

Hindrance does_not_fit(const StageView& view, const Snapshot& stage, const Member& m) {
  Hindrance found{.kind = Hindrance::Kind::kDoesNotFit};
  const StageLoad least = stage.load_without_others(m);
  found.device = least.lacks_space(m.comes);
  found.needs = m.comes[found.device].bytes + m.comes[found.device].restore;
  found.at_most = least.free_on(found.device);
  found.taken = view.taken[found.device];
  for (const Member& each : stage.all()) {
    if (&each == &m || each.leaves[found.device].bytes == 0) continue;
    found.stays += each.leaves[found.device].bytes;
    found.others.push_back(each.group->id);
  }
  return found;
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
  if (!settled(view, memory)) return news;
  const Snapshot stage(view, memory, now);
  for (const Member& m : stage.all()) {
    const bool unfit = stage.waits(m) && !stage.could_come_in(m);
    if (std::exchange(memory.groups[m.group->id].unfit, unfit) || !unfit) continue;
    // Whose memory it is, only those may know who may see the groups.
    const auto nameless = [](GroupId) { return std::string("another"); };
    news.push_back({m.group->id,
                    "waits: " + describe(view, memory, m.group->id, does_not_fit(view, stage, m),
                                         nameless, now),
                    true});
  }
  return news;
}

std::vector<std::pair<GroupId, FirstTurn>> first_turns(const StageView& view,
                                                       const StageMemory& memory, Time now) {
  std::vector<std::pair<GroupId, FirstTurn>> changes;
  const Snapshot stage(view, memory, now);
  for (const GroupView& group : view.groups) {
    const GroupMemory& m = memory.groups.at(group.id);
    const bool in = group.presence == Presence::kIn;
    if (memory.is_switching(group.id)) continue;
    if (group.first_turn == FirstTurn::kLapsed && group.has_ranks && (in || group.waiting))
      changes.emplace_back(group.id, FirstTurn::kDue);
    if (group.first_turn != FirstTurn::kDue || !m.first_turn) continue;
    // Who pauses it, or pauses itself, says that it has started.
    const bool held = group.presence == Presence::kHeld;
    if (!held && (!in || first_turn_ends(view, stage, group, m) > now)) continue;
    if (!group.has_ranks && !held)
      changes.emplace_back(group.id, FirstTurn::kLapsed);
    else
      changes.emplace_back(group.id, after_first_turn(view.rules, group));
  }
  return changes;
}

FirstTurn after_first_turn(const TurnRules& rules, const GroupView& group) {
  const bool leases = rules.policy == TurnPolicy::kLease && (group.leased || group.lease_wanted);
  return rules.policy == TurnPolicy::kLease && !leases ? FirstTurn::kEndedUnasked
                                                       : FirstTurn::kOver;
}

std::optional<Switch> decide(const StageView& view, StageMemory& memory, Time now) {
  // What is on its way by somebody else's wish is neither in nor out.
  if (!settled(view, memory)) return std::nullopt;
  Decision decision(view, memory, now);
  if (!decision.forced() && !decision.from_queue()) return std::nullopt;
  return decision.begin(memory);
}

void switched(const StageView& view, StageMemory& memory, const Status& status, Time now) {
  if (!memory.under_way) return;
  const Switch ended = *std::exchange(memory.under_way, std::nullopt);
  for (const GroupView& group : view.groups) {
    const auto found = memory.groups.find(group.id);
    if (found == memory.groups.end() || !ended.has(group.id)) continue;
    GroupMemory& m = found->second;
    const bool in = group.presence == Presence::kIn;
    const bool came = contains(ended.in, group.id);
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
      const bool rest = m.presence != Presence::kIn;
      if (came || in || rest) fail(view.rules, m, status.text(), now);
      m.presence = in ? Presence::kIn : Presence::kOut;
    }
  }
}

Time wakeup(const StageView& view, const StageMemory& memory, Time now) {
  Time next = kNever;
  const auto consider = [&](Time at) {
    if (at > now) next = std::min(next, at);
  };
  const Snapshot stage(view, memory, now);
  for (const GroupView& group : view.groups) {
    const auto m = memory.groups.find(group.id);
    if (m != memory.groups.end() && m->second.first_turn && !memory.is_switching(group.id) &&
        group.presence == Presence::kIn)
      consider(first_turn_ends(view, stage, group, m->second));
  }
  if (memory.under_way) return next;
  const bool waits = stage.anybody_waits();
  const bool over = !stage.load().within_limits();
  for (const Member& m : stage.all()) {
    if (stage.waits(m)) consider(std::max(stage.asked(m), m.memory->not_before));
    const bool lapsed = m.group->first_turn == FirstTurn::kLapsed;
    if (m.place == TurnPlace::kIn && (waits || lapsed)) consider(stage.leaves_from(m));
    if ((m.place == TurnPlace::kIn && over) || (m.has_rest() && (waits || over)))
      consider(m.memory->not_before);
  }
  return next;
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

bool moving(const StageView& view, const StageMemory& memory) {
  return memory.under_way ||
         std::any_of(view.groups.begin(), view.groups.end(),
                     [](const GroupView& each) { return moves(each.presence); });
}

bool waits(const StageMemory& memory, const GroupView& group) {
  const GroupMemory* const m = memory.taker(group.id);
  return m != nullptr && m->wants && place_of(memory, group, *m) == TurnPlace::kOut;
}

std::map<GroupId, Hindrance> hindrances(const StageView& view, const StageMemory& memory,
                                        Time now) {
  using Kind = Hindrance::Kind;
  std::map<GroupId, Hindrance> found;
  Decision decision(view, memory, now);
  const Snapshot& stage = decision.stage();
  decision.from_queue();
  for (const Member& m : stage.all()) {
    if (!stage.waits(m)) continue;
    Hindrance& its = found[m.group->id];
    if (!m.group->missing.empty()) {
      its.kind = Kind::kMissing;
    } else if (m.memory->not_before > now) {
      its = {.kind = Kind::kFailed, .until = m.memory->not_before};
    } else if (!settled(view, memory)) {
      its.kind = Kind::kSwitching;
    } else if (!stage.could_come_in(m)) {
      its = does_not_fit(view, stage, m);
    } else if (stage.asked(m) > now && decision.could_come_in(m)) {
      its = {.kind = Kind::kGrace, .until = stage.asked(m)};
    } else if (its.others = decision.in_the_way(m); !its.others.empty()) {
      its.kind = Kind::kBefore;
    } else {
      its.kind = Kind::kRuns;
      for (const Member& each : stage.all()) {
        if (each.place != TurnPlace::kIn) continue;
        const Time from = stage.leaves_from(each);
        if (from <= now && each.memory->not_before <= now) continue;
        its.others.push_back(each.group->id);
        its.until = std::min(its.until, from);
      }
    }
  }
  return found;
}

std::string first_turn_end(const StageView& view, const StageMemory& memory, GroupId id, Time now) {
  const GroupView* const group = view.find(id);
  const GroupMemory& m = memory.groups.at(id);
  if (group == nullptr || !m.first_turn) return {};
  const Time ends = first_turn_ends(view, Snapshot(view, memory, now), *group, m);
  if (ends == kNever) return "its first turn has no limit";
  return "its first turn ends in " + rounded_duration(std::max(ends - now, Duration{}));
}

std::string describe(const StageView& view, const StageMemory& memory, GroupId group,
                     const Hindrance& hindrance, const std::function<std::string(GroupId)>& name,
                     Time now) {
  const auto in = [now](Time at) {
    return " in " + rounded_duration(std::max(at - now, Duration{}));
  };
  std::string others;
  std::set<std::string> told;
  for (const GroupId id : hindrance.others)
    if (told.insert(name(id)).second) others += (others.empty() ? "" : ", ") + name(id);
  switch (hindrance.kind) {
    case Hindrance::Kind::kNone:
      return {};
    case Hindrance::Kind::kSwitching:
      return "waits for the end of a switch or of an operation of a group of this stage";
    case Hindrance::Kind::kMissing:
      return "waits for " + view.find(group)->missing + " to reconnect";
    case Hindrance::Kind::kGrace:
      return "waits for the grace time of the stage, which ends" + in(hindrance.until);
    case Hindrance::Kind::kFailed: {
      const GroupMemory& m = memory.groups.at(group);
      return "its switch has failed " + std::to_string(m.failures) +
             (m.failures == 1 ? " time: " : " times: ") + m.failure + ". The next try is" +
             in(hindrance.until);
    }
    case Hindrance::Kind::kDoesNotFit: {
      std::string text = "does not fit: it needs " + format_size(hindrance.needs) + " on GPU " +
                         std::to_string(view.devices[hindrance.device].ordinal) + ", and at most " +
                         format_size(hindrance.at_most) +
                         " can become free. Processes and contexts that take no "
                         "turns have " +
                         format_size(hindrance.taken);
      if (!others.empty())
        text += ", and " + format_size(hindrance.stays) + " of " + others +
                " cannot leave, because it is registered with a NIC or open in other groups";
      return text;
    }
    case Hindrance::Kind::kRuns:
      if (others.empty()) return "waits for memory of groups that run";
      return "waits for " + others + ", which may leave" +
             (hindrance.until == kNever ? " when it is idle" : in(hindrance.until));
    case Hindrance::Kind::kBefore:
      return others + " is before it in the queue";
  }
  return {};
}

}  // namespace amem
