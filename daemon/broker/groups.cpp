#include "daemon/broker/groups.h"

#include <spdlog/spdlog.h>

#include <tuple>
#include <utility>

#include "common/job.h"
#include "daemon/base/units.h"
#include "daemon/node/names.h"
#include "daemon/plans/plan.h"
#include "daemon/reports/reports.h"
#include "daemon/sessions/messages.h"

namespace amem {

Result<GroupId> Groups::new_id() {
  const GroupId id = next_group_++;
  if (Status status = node_.records.used_group(id); !status.ok()) return status;
  return id;
}

Result<GroupEntry*> Groups::join(const std::string& name, const PeerCredentials& peer,
                                 std::string_view stage) {
  if (Status status = check_whole_name(name); !status.ok()) return status;
  if (GroupEntry* group = own_group(node_, *peer.account, name)) return group;
  if (GroupEntry* group = stages_.started_for(*peer.account, name)) {
    group->machine.rename(name);
    if (Status status = node_.records.write(*group); !status.ok()) return status;
    return group;
  }
  return add(name, peer.account, stages_.begins_paused(peer.account, peer.groups, name, stage),
             stage);
}

Result<GroupEntry*> Groups::begin(const std::string& name, const std::shared_ptr<Account>& account,
                                  const std::string& stage) {
  return add(name, account, true, stage);
}

/// `paused`: it waits for its first turn in this stage.
Result<GroupEntry*> Groups::add(const std::string& name, const std::shared_ptr<Account>& account,
                                bool paused, std::string_view stage) {
  const Result<GroupId> id = new_id();
  if (!id.ok()) return id.status();
  RestartState restart_state;
  if (paused) restart_state.stable_state = GroupState::kPaused;
  const auto [it, added] =
      node_.groups.try_emplace(id.value(), id.value(), name, account, deadlines_,
                               memory_of(id.value()), restart_state, Members(), Duration{});
  GroupEntry& group = it->second;
  group.paused_by_stage = paused;
  if (paused) group.stage = stage;
  if (paused) group.first_turn = FirstTurn::kDue;
  if (paused) group.paused_by = "stage '" + std::string(stage) + "'";
  if (Status status = node_.records.write(group); !status.ok()) {
    node_.groups.erase(it);
    return status;
  }
  group.log().info("group '{}' has begun. Its owner is {}", name, to_string(account->owner()));
  for (const auto& [other, its] : node_.groups)
    if (other != group.id && its.account == group.account &&
        name_of_group(its.machine.name()) == name_of_group(name))
      group.log().info(
          "group '{}' and group '{}' are of different jobs, so each pauses and resumes alone. Set "
          "AMEM_JOB to one value if they are one job",
          name, its.machine.name());
  if (paused) group.log().info("group '{}' waits for its first turn in stage '{}'", name, stage);
  const GroupState state = group.machine.state();
  events_.publish(&group, "state", std::string(to_string(state)), to_proto(state));
  return &group;
}

GroupEntry& Groups::restore(GroupId id, const std::string& name, std::shared_ptr<Account> account,
                            const RestartState& restart_state, Members members) {
  // A rank that is in the middle of copies reconnects when it has done them.
  return node_.groups
      .try_emplace(id, id, name, std::move(account), deadlines_, memory_of(id), restart_state,
                   std::move(members), deadlines_.save)
      .first->second;
}

Status Groups::may_set_policy(const GroupEntry& group, const std::string& tag, TagDrop drop) const {
  const std::string& name = group.machine.name();
  if (tag.empty() || tag.size() > sizeof(amem_v1_Create::tag) - 1)
    return {Code::kInvalidArgument, "a tag must have 1 to 31 characters"};
  if (drop != TagDrop::kNo)
    if (Status status = may_drop(node_.allocations, group.id, tag, drop == TagDrop::kForced);
        !status.ok())
      return status;
  // While a pause waits for guests the group runs, and what it will save is not settled.
  const Phase phase = group.machine.phase();
  const bool running = group.machine.state() == GroupState::kRunning && phase == Phase::kNone;
  if (!running && phase != Phase::kGuests)
    return {Code::kFailedPrecondition,
            "group '" + name + "' is " + std::string(to_string(group.machine.state())) +
                (phase != Phase::kNone ? " (" + std::string(phase_name(phase)) + ")" : "") +
                ". Its policies can change only while it is running, and no pause or resume of it "
                "is under way"};
  if (node_.allocations.any(group.id,
                            [&](const Allocation& a) { return a.tag == tag && a.left(); }))
    return {Code::kFailedPrecondition, "tag '" + tag + "' of group '" + name +
                                           "' is paused. Resume it before you change its policy"};
  if (!group.policies.contains(tag) && group.policies.size() >= kMostPolicies)
    return {Code::kResourceExhausted,
            "group '" + name + "' has policies of " + std::to_string(group.policies.size()) +
                " tags, which is the limit. Reuse tags, or set the policy with the region"};
  return {};
}

Status Groups::set_policy(GroupEntry& group, const std::string& tag, TagDrop drop,
                          const std::function<void(GroupEntry&)>& change) {
  if (Status status = may_set_policy(group, tag, drop); !status.ok()) return status;
  const bool first = !group.policies.contains(tag);
  if (first) {
    Result<Charge> charge = group.account->take(Resource::kPolicies, 1);
    if (!charge.ok()) return charge.status();
    group.policies.emplace(tag, std::move(charge).value());
  }
  const auto before = std::tuple(group.tag_discards, group.tag_forms, group.rank_discards);
  change(group);
  Status status = node_.records.write(group);
  if (status.ok()) return status;
  std::tie(group.tag_discards, group.tag_forms, group.rank_discards) = before;
  if (first) group.policies.erase(tag);
  return status;
}

MemoryView Groups::memory_of(GroupId group) const {
  const auto can_leave = [this, group](const Selection& what) {
    return node_.allocations.any(
        group, [&](const Allocation& a) { return what.takes(a.tag, a.sharers) && a.may_leave(); });
  };
  return {can_leave,
          [this, group](const Selection& what) {
            return node_.allocations.any(group, [&](const Allocation& a) {
              return what.takes(a.tag, a.sharers) && a.left();
            });
          },
          [this, group](const Selection& what) {
            return node_.allocations.any(group, [&](const Allocation& a) {
              return what.takes(a.tag, a.sharers) && a.may_leave() && a.opened();
            });
          },
          can_leave,
          [this, group](RankId rank, const Selection& what) {
            std::set<RankId> ranks;
            for (const Allocation* a : node_.allocations.shared_by(rank))
              if (a->group == group && what.takes(a->tag))
                ranks.insert(a->sharers.begin(), a->sharers.end());
            return ranks;
          },
          [this, group] { return operations_.await_ranks_of(group); }};
}

void Groups::drive(GroupEntry& group) {
  while (std::optional<Action> next = group.machine.next_action()) {
    meter_.enter(group.id, first_of_name(group.machine.phase()));
    std::visit(
        [&](const auto& what) {
          if constexpr (requires { act(group, what); })
            act(group, what);
          else if (GroupOperation* const operation = operations_.of(group.id))
            operation->carry_out(*next);
        },
        *next);
  }
  operations_.look_at_guests();
  // One without ranks ends when what is under way has.
  if (group.machine.members().empty() && !stages_.awaits_first_rank(group.id) &&
      !group.machine.under_way())
    return forget(group.id);

  if (group.timer) loop_.cancel(*group.timer);
  group.timer.reset();
  if (const Time time = group.machine.wakeup(); time != kNever)
    group.timer = loop_.at(time, [this, &group] {
      group.machine.tick(Clock::now());
      drive(group);
    });
}

void Groups::forget(GroupId id) {
  GroupEntry& group = node_.groups.at(id);
  if (group.timer) loop_.cancel(*group.timer);
  group.log().info("group '{}' has ended with its last rank", group.machine.name());
  stages_.ended(group);
  node_.groups.erase(id);
  operations_.close_spares();
}

void Groups::act(GroupEntry&, const action::Answer& answer) {
  if (const Rank* rank = node_.find_rank(answer.rank))
    sessions_.send(rank->session, reply_message(answer.seq, answer.status));
}

void Groups::act(GroupEntry& group, const action::Waits& waits) {
  group.log().info("{}", waits.text);
  events_.publish(&group, "waits", waits.text);
}

void Groups::act(GroupEntry& group, const action::StateChanged& changed) {
  events_.publish(&group, "state", std::string(to_string(changed.state)), to_proto(changed.state));
  stages_.changed(group);
}

/// Returns what the pause that has just ended kept.
std::vector<TagSave> Groups::saves(const GroupEntry& group, const Task& task) const {
  std::map<std::string, TagSave> tags;
  for (const Allocation* a : std::as_const(node_.allocations).of_group(group.id)) {
    if (!task.selection.takes(a->tag, a->sharers) || a->saved.empty() ||
        a->saved.attempt != group.machine.epoch().attempt)
      continue;
    TagSave& save = tags[a->tag];
    for (const Stored& piece : a->pieces()) {
      save.kept += piece.length;
      if (piece.hashed && a->saved.since != 0) save.compared += piece.length;
      save.unchanged += piece.unchanged;
      save.copied += piece.bytes - std::min(piece.bytes, piece.unchanged);
      save.hashed = save.hashed || piece.hashed;
    }
  }
  std::vector<TagSave> all;
  for (auto& [tag, save] : tags) {
    save.tag = tag;
    all.push_back(std::move(save));
  }
  return all;
}

/// The stage that has a group from now on because an operator's resume found no space; empty: none.
std::string Groups::lets_go(const GroupEntry& group, const Outcome& outcome) {
  if (outcome.status.code() != Code::kResourceExhausted || !operations_.refusal().ok() ||
      !operations_.resumes_for_operator(group.id))
    return {};
  return stages_.stage_to_resume(group);
}

void Groups::act(GroupEntry& group, const action::Finished& finished) {
  Outcome outcome = finished.outcome;
  if (outcome.status.code() == Code::kDeadlineExceeded)
    if (const std::string stopped = describe_stopped(node_, group); !stopped.empty())
      outcome.status = {Code::kDeadlineExceeded, outcome.status.text() + ". " + stopped};
  meter_.take(group.id, outcome.times);
  if (outcome.again) {
    spdlog::debug("{}", outcome.status.text());
    (void)node_.records.write(group);
    return operations_.ended(group, outcome);
  }
  if (outcome.status.ok() && outcome.task.op == Operation::kPause) {
    outcome.saves = saves(group, outcome.task);
    for (const TagSave& save : outcome.saves)
      group.changes[save.tag].paused(save.hashed, save.compared, save.unchanged);
  }
  node_.totals.add(outcome);
  stages_.finished(group, outcome);
  if (outcome.status.ok()) {
    std::string times;
    for (const PhaseTime& t : outcome.times)
      times += fmt::format("{}{} {:.1f}", times.empty() ? "" : ", ", phase_name(t.phase),
                           static_cast<double>(to_us(t.time)) / 1000);
    const Task& task = outcome.task;
    spdlog::info("group '{}': {}{}{} took {:.1f} ms ({})", group.machine.name(),
                 task.deep      ? "deep pause"
                 : task.partial ? "partial pause"
                                : to_string(task.op),
                 task.selection.all() ? "" : " of ", to_string(task.selection),
                 static_cast<double>(to_us(outcome.total)) / 1000, times);
    if (task.op == Operation::kPause) {
      const Usage kept = node_.allocations.usage([&](const Allocation& a) {
        return a.group == group.id && task.selection.takes(a.tag, a.sharers) && !a.saved.empty();
      });
      spdlog::info("group '{}': {} of the pool hold the bytes of {}; {} dropped",
                   group.machine.name(), format_size(kept.saved), format_size(kept.allocated),
                   format_size(dropped(node_, group, task.selection)));
    }
    const Leftover stays = leftover(node_, group, task.selection);
    if (task.op == Operation::kPause && stays.pinned + stays.unbrokered > 0)
      spdlog::info(
          "group '{}': still on the devices: {} bytes pinned, registered with a NIC; {} bytes not "
          "brokered",
          group.machine.name(), stays.pinned, stays.unbrokered);
  } else if (const std::string stage = lets_go(group, outcome); !stage.empty()) {
    outcome.status = {outcome.status.code(), outcome.status.text() + ". Stage '" + stage +
                                                 "' resumes the group at its turn"};
    spdlog::warn("{}", outcome.status.text());
    events_.publish(&group, "turn", outcome.status.text());
  } else {
    spdlog::error("{}", outcome.status.text());
    events_.publish(&group, "error", outcome.status.text());
  }
  (void)node_.records.write(group);  // what it says yet ends the same way after a restart
  operations_.ended(group, outcome);
}

}  // namespace amem
