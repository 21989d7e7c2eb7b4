#include "daemon/turns/decide.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "daemon/base/units.h"
#include "daemon/turns/load.h"
#include "daemon/turns/snapshot.h"

namespace amem {
namespace {

/// A switch in the making: who leaves, and who comes in.
class Decision {
 public:
  Decision(const StageView& view, const StageMemory& memory, Time now)
      : view_(view), now_(now), stage_(view, memory, now), load_(stage_.load()) {}

  /// Those that have to leave though nobody waits for their memory.
  bool forced() {
    for (const StageMember& m : stage_.all())
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
    for (const StageMember* m : stage_.queue()) {
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
    for (const StageMember* m : out_) {
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
    for (const StageMember* m : in_) {
      begun.in.push_back(m->group->id);
      if (m->group->waiting && !m->group->call.empty())
        begun.why += "; " + m->group->call + " waits";
      if (m->starts() && !m->group->has_ranks) memory.last_start[m->group->owner] = now_;
    }
    std::set<std::uint64_t> owners;
    for (const auto* members : {&out_, &in_})
      for (const StageMember* m : *members) owners.insert(m->group->owner);
    begun.several_owners = owners.size() > 1;
    note_first_of_others(memory);
    memory.under_way = begun;
    return begun;
  }

  /// Beside what has been decided, if those leave that may.
  bool could_come_in(const StageMember& m) {
    StageLoad least = candidates().least;
    least.remove(has(candidates().members, &m) ? m.leaves : m.is_out);
    return least.has_space_for(m.comes);
  }

  const StageSnapshot& stage() const { return stage_; }

  /// Those of `before` whose place in the queue keeps the group out.
  std::vector<GroupId> in_the_way(const StageMember& m) const {
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
    const StageMember* member;
    StageLoad load;
  };

  void before(const StageMember& m) {
    StageLoad load(view_);
    load.add(m.runs);
    for (const StageMember* each : in_) load.add(each->runs);
    for (const StageMember& each : stage_.all())
      if (each.present() && each.memory->came_in && *each.memory->came_in >= stage_.asked(m))
        load.add(each.runs);
    before_.push_back({&m, std::move(load)});
  }

  static bool fits_beside(const StageMember& m, const Earlier& earlier) {
    StageLoad load = earlier.load;
    load.add(m.runs);
    return load.fits();
  }
  /// Whether `m` may come in before those that stand before it.
  bool may_pass(const StageMember& m) const {
    return std::all_of(before_.begin(), before_.end(),
                       [&](const Earlier& each) { return fits_beside(m, each); });
  }

  /// Returns what it has on the devices, when what was decided before has left.
  DeviceShares there(const StageMember& m) const {
    DeviceShares shares = m.there();
    if (const auto count = parts_.find(&m); count != parts_.end())
      take_parts(m, count->second, shares);
    return shares;
  }
  static void take_parts(const StageMember& m, std::size_t count, DeviceShares& shares) {
    for (std::size_t part = 0; part < count; ++part)
      for (std::size_t i = 0; i < shares.size(); ++i)
        shares[i].bytes -= std::min(shares[i].bytes, m.group->parts[part].bytes[i]);
  }
  static bool anything(const StageMember& m, const DeviceShares& shares) {
    for (std::size_t i = 0; i < shares.size(); ++i)
      if (shares[i].bytes > m.leaves[i].bytes) return true;
    return false;
  }

  /// Who may leave, in the order in which they do, and the load if all of them did.
  struct Candidates {
    StageMembers members;
    StageLoad least;
  };
  const Candidates& candidates() {
    if (candidates_) return *candidates_;
    candidates_.emplace(Candidates{{}, load_});
    StageMembers& may = candidates_->members;
    for (const StageMember& m : stage_.all()) {
      if (has(in_, &m)) continue;
      const bool may_go = m.memory->not_before <= now_ && m.group->missing.empty();
      const bool remainder = m.has_remainder() ? may_go && !has(out_, &m) : parts_.contains(&m);
      if (remainder || (stage_.may_leave(m) && !has(out_, &m))) may.push_back(&m);
    }
    // What is left of a group that does not run leaves before one that runs. Of these the one that
    // has been idle longest leaves first, one that has work last. One that has failed to leave is
    // kept for when no other suffices.
    const auto place = [&](const StageMember& m) {
      const bool remainder = m.has_remainder();
      const bool idle = stage_.idle(m);
      return std::tuple(
          m.memory->failures, !parts_.contains(&m), !remainder, remainder ? m.memory->wants : !idle,
          remainder || idle ? m.memory->worked : m.memory->turn.value_or(Time{}), m.memory->joined);
    };
    std::sort(may.begin(), may.end(),
              [&](const StageMember* a, const StageMember* b) { return place(*a) < place(*b); });
    for (const StageMember* m : may) leave(candidates_->least, *m);
    return *candidates_;
  }
  void leave(StageLoad& load, const StageMember& m) const {
    load.remove(there(m));
    load.add(m.leaves);
  }
  void stay(StageLoad& load, const StageMember& m) const {
    load.remove(m.leaves);
    load.add(there(m));
  }

  /// Makes more leave, if necessary, so that this one can come in; what it has on the devices while
  /// it is out is not in the load then. Returns false if it is not enough; then nothing has
  /// changed.
  bool make_space(const StageMember& comes) {
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
    StageMembers chosen;
    for (const StageMember* m : candidates().members) {
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
    // A part of some may suffice.
    std::map<const StageMember*, std::size_t> parts;
    for (std::size_t i = chosen.size(); i-- > 0;) {
      const StageMember& m = *chosen[i];
      if (m.has_remainder() || parts_.contains(&m)) continue;
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
    for (const StageMember* m : chosen) {
      parts_.erase(m);
      if (!has(out_, m)) out_.push_back(m);
    }
    parts_.merge(parts);
    load_ = left;
    return true;
  }

  StageMembers too_many() const {
    StageLoad left = load_;
    StageMembers out;
    if (left.within_limits()) return out;
    StageMembers all;
    for (const StageMember& m : stage_.all())
      if ((m.has_remainder() || m.place == TurnPlace::kIn) && m.memory->not_before <= now_ &&
          m.group->missing.empty())
        all.push_back(&m);
    // What is left of groups that are out leaves first, then who may leave anyway, and who came
    // last of the others.
    const auto place = [&](const StageMember& m) {
      const bool may = stage_.may_leave(m);
      const Time at = stage_.idle(m) ? m.memory->worked : m.memory->turn.value_or(Time{});
      return std::tuple(
          !m.has_remainder(), !may,
          may ? at.time_since_epoch() : -m.memory->came_in.value_or(Time{}).time_since_epoch(),
          m.memory->joined);
    };
    std::sort(all.begin(), all.end(),
              [&](const StageMember* a, const StageMember* b) { return place(*a) < place(*b); });
    for (const StageMember* m : all) {
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
    for (const StageMember* m : in_)
      waited = std::max(waited, now_ - m->memory->asked.value_or(now_));
    std::string text = names(in_) + (in_.size() == 1 ? " has" : " have") + " waited for " +
                       (in_.size() == 1 ? "" : "up to ") + rounded_duration(waited);
    if (in_.front()->starts()) text += " to start";
    for (const StageMember* m : out_) {
      if (m->has_remainder()) {
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
    for (const StageMember* m : stage_.queue())
      for (const std::uint64_t of : {StageSnapshot::kEverybody, m->group->owner})
        if (!stage_.promised_first(*m, of) && seen.insert(of).second && has(in_, m))
          memory.last_of_others[of] = now_;
  }

  const StageView& view_;
  const Time now_;
  const StageSnapshot stage_;
  StageLoad load_;
  StageMembers out_;
  std::map<const StageMember*, std::size_t> parts_;  // of some that leave only so many parts do
  StageMembers in_;
  std::vector<Earlier> before_;
  std::optional<Candidates> candidates_;
  std::string why_;
};

}  // namespace

std::optional<Switch> decide(const StageView& view, StageMemory& memory, Time now) {
  // What is on its way by somebody else's wish is neither in nor out.
  if (!is_steady(view, memory)) return std::nullopt;
  Decision decision(view, memory, now);
  if (!decision.forced() && !decision.from_queue()) return std::nullopt;
  return decision.begin(memory);
}

Time wakeup(const StageView& view, const StageMemory& memory, Time now) {
  Time next = kNever;
  const auto consider = [&](Time at) {
    if (at > now) next = std::min(next, at);
  };
  const StageSnapshot stage(view, memory, now);
  for (const GroupView& group : view.groups)
    if (const GroupMemory& m = memory.groups.at(group.id); m.first_turn)
      consider(stage.first_turn_ends(group, m));
  if (memory.under_way) return next;
  const bool waits = stage.anybody_waits();
  const bool over = !stage.load().within_limits();
  for (const StageMember& m : stage.all()) {
    if (stage.waits(m)) consider(std::max(stage.asked(m), m.memory->not_before));
    const bool lapsed = m.group->first_turn == FirstTurn::kLapsed;
    if (waits || lapsed) consider(stage.leaves_from(m));
    if ((m.place == TurnPlace::kIn && over) || (m.has_remainder() && (waits || over)))
      consider(m.memory->not_before);
  }
  return next;
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

bool is_steady(const StageView& view, const StageMemory& memory) {
  return view.seen && !moving(view, memory);
}

std::map<GroupId, Hindrance> hindrances(const StageView& view, const StageMemory& memory,
                                        Time now) {
  using Kind = Hindrance::Kind;
  std::map<GroupId, Hindrance> found;
  Decision decision(view, memory, now);
  const StageSnapshot& stage = decision.stage();
  decision.from_queue();
  for (const StageMember& m : stage.all()) {
    if (!stage.waits(m)) continue;
    Hindrance& its = found[m.group->id];
    if (!m.group->missing.empty()) {
      its.kind = Kind::kMissing;
    } else if (m.memory->not_before > now) {
      its = {.kind = Kind::kFailed, .until = m.memory->not_before};
    } else if (!is_steady(view, memory)) {
      its.kind = Kind::kSwitching;
    } else if (!stage.could_come_in(m)) {
      its = stage.does_not_fit(m);
    } else if (stage.asked(m) > now && decision.could_come_in(m)) {
      its = {.kind = Kind::kGrace, .until = stage.asked(m)};
    } else if (its.others = decision.in_the_way(m); !its.others.empty()) {
      its.kind = Kind::kBefore;
    } else {
      its.kind = Kind::kRuns;
      for (const StageMember& each : stage.all()) {
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

}  // namespace amem
