// Reports of the stages: Turns for people and programs, and figures for metrics.
#include <algorithm>
#include <utility>

#include "daemon/base/units.h"
#include "daemon/node/names.h"
#include "daemon/stages/stages.h"

namespace amem {
namespace {

std::uint64_t ms(Duration duration) { return to_us(duration) / 1000; }

/// As TurnInfo::turn.
std::string turn_of(const StageMemory& memory, const GroupView& group) {
  if (!memory.groups.at(group.id).admitted) return "apart";
  if (memory.under_way && memory.under_way->leaves(group.id)) return "leaves";
  if (memory.under_way && memory.under_way->comes(group.id)) return "comes";
  switch (group.presence) {
    case Presence::kIn:
      return group.first_turn == FirstTurn::kDue ? "starts" : "runs";
    case Presence::kOut:
      return waits(memory, group) ? "waits" : "idle";
    case Presence::kPausedByOthers:
      return "paused";
    case Presence::kLeaves:
      return "leaves";
    case Presence::kComes:
      return "comes";
  }
  return "";
}

}  // namespace

void Stages::account_time() {
  const Time now = Clock::now();
  for (auto& [name, stage] : stages_) account_time(stage, view_of(stage), now);
}

void Stages::account_time(Stage& stage, const StageView& view, Time now) {
  const Duration passed = now - stage.accounted.value_or(now);
  stage.accounted = now;
  for (const GroupView& group : view.groups) {
    const bool runs = group.presence == Presence::kIn;
    const bool waits = amem::waits(stage.memory, group);
    StageFigures::Group& figures = stage.figures.groups[group.id];
    figures.there += passed;
    if (stage.runs.contains(group.id)) figures.ran += passed;
    const auto waited = stage.waiting.find(group.id);
    if (waited != stage.waiting.end()) figures.waited += passed;
    // While it comes in it waits still.
    const bool comes = stage.memory.is_switching(group.id);
    if (waited != stage.waiting.end() && !waits && !comes) {
      if (runs) stage.figures.waits.add(to_us(now - waited->second));
      stage.waiting.erase(waited);
    }
    if (waits) stage.waiting.try_emplace(group.id, now);
    if (runs)
      stage.runs.try_emplace(group.id, now);
    else
      stage.runs.erase(group.id);
  }
  const auto gone = [this](const auto& each) { return !node_.groups.contains(each.first); };
  std::erase_if(stage.runs, gone);
  std::erase_if(stage.waiting, gone);
}

bool Stages::may_see(const Caller& caller, GroupId id) const {
  const auto group = node_.groups.find(id);
  return group != node_.groups.end() && caller.may_see(*group->second.account);
}

std::string Stages::name_for(const Caller& caller, GroupId id) const {
  return may_see(caller, id) ? amem::name_for(node_, caller, node_.groups.at(id))
                             : "another owner's group";
}

Status Stages::report(const Caller& caller, const std::string& name, v1::TurnsResponse& response) {
  if (!name.empty() && find(name) == nullptr)
    return {Code::kNotFound, "there is no stage '" + name + "'. " + names()};
  for (auto& [its, stage] : stages_)
    if (name.empty() || its == name) report(caller, stage, *response.add_stages());
  return {};
}

void Stages::report(const Caller& caller, Stage& stage, v1::StageInfo& info) {
  const Time now = Clock::now();
  const StageView view = view_of(stage);
  tell(look(view, stage.memory, now));
  account_time(stage, view, now);
  info.set_name(stage.name);
  info.set_policy(std::string(to_string(stage.rules.policy)));
  for (const StageDevice& device : stage.devices) {
    v1::StageDevice& each = *info.add_devices();
    each.set_uuid(to_string(device.device));
    each.set_ordinal(device.ordinal);
    each.set_total_bytes(device.capacity);
    each.set_margin_bytes(device.margin);
  }
  const auto named = [&](GroupId id) {
    return may_see(caller, id) ? "group '" + name_for(caller, id) + "'" : name_for(caller, id);
  };
  const std::map<GroupId, Hindrance> why = hindrances(view, stage.memory, now);
  for (const GroupView& its : view.groups) {
    if (!may_see(caller, its.id)) continue;
    const GroupEntry& group = node_.groups.at(its.id);
    const GroupMemory& memory = stage.memory.groups.at(its.id);
    v1::TurnInfo& each = *info.add_groups();
    each.set_group(name_for(caller, its.id));
    each.set_turn(turn_of(stage.memory, its));
    const auto waits = stage.waiting.find(its.id);
    const auto runs = stage.runs.find(its.id);
    if (waits != stage.waiting.end())
      each.set_since_ms(ms(now - waits->second));
    else if (runs != stage.runs.end())
      each.set_since_ms(ms(now - runs->second));
    each.set_call(its.call);
    const bool begins = its.first_turn == FirstTurn::kDue && its.presence == Presence::kOut;
    if (begins && its.call.empty()) each.set_call("its start");
    each.set_leased(its.leased);
    each.set_weight(its.wishes.weight);
    each.set_priority(its.wishes.priority);
    each.set_longest_wait_ms(ms(its.wishes.longest_wait));
    std::uint64_t needs = 0;
    for (const Footprint& on : its.on) needs = std::max(needs, on.needs + on.restore);
    each.set_needs_bytes(needs);
    if (its.presence == Presence::kOut) {
      std::uint64_t stays = 0;
      for (const Footprint& on : its.on) stays = std::max(stays, on.stays + on.remainder);
      each.set_stays_bytes(stays);
    }
    std::string note = memory.refusal;
    if (const auto its_why = why.find(its.id); its_why != why.end())
      note = describe(view, stage.memory, its.id, its_why->second, named, now);
    if (!its.has_ranks && its.presence == Presence::kIn && its.first_turn == FirstTurn::kDue)
      note = "no rank has come yet; " + first_turn_end(view, stage.memory, its.id, now);
    if (const std::string& lost = group.machine.lost(); !lost.empty())
      note += (note.empty() ? "" : "; ") + lost;
    // The error is of all groups of the switch, with their ranks.
    const bool failed = memory.failures > 0 && memory.not_before > now;
    const bool sees_all = caller.sees_all || caller.operates;
    each.set_note(failed && memory.failed_with_others && !sees_all
                      ? "its switch with another owner's group has failed"
                      : without_unseen_names(node_, caller, note));
    each.set_failures(memory.failures);
    for (const pid_t pid : waits_.pids(its.id)) each.add_pids(pid);
    for (const std::string& tag : its.wishes.leave_first) each.add_leave_first(tag);
    for (const std::string& tag : its.wishes.return_order) each.add_return_order(tag);
    if (const auto time = stage.figures.groups.find(its.id); time != stage.figures.groups.end()) {
      each.set_there_ms(ms(time->second.there));
      each.set_ran_ms(ms(time->second.ran));
      each.set_waited_ms(ms(time->second.waited));
    }
  }
  info.set_switching(stage.memory.under_way.has_value());
  info.set_switching_us(to_us(stage.figures.switching));
  for (const auto& [code, count] : stage.figures.switches) {
    info.set_switches(info.switches() + count);
    if (code != Code::kOk) info.set_failed_switches(info.failed_switches() + count);
  }
  report_last(caller, stage, info);
}

void Stages::report_last(const Caller& caller, const Stage& stage, v1::StageInfo& info) const {
  if (!stage.last) return;
  const LastSwitch& last = *stage.last;
  // Whose groups they were is for those who may see all of them.
  for (const auto* ids : {&last.what.out, &last.what.in})
    for (const GroupId id : *ids)
      if (!caller.sees_all && !caller.operates && !may_see(caller, id)) return;
  v1::StageSwitch& message = *info.mutable_last();
  const auto put = [&](const std::vector<GroupId>& ids, auto* names) {
    for (const GroupId id : ids)
      if (may_see(caller, id)) names->Add(name_for(caller, id));
  };
  put(last.what.out, message.mutable_out_groups());
  put(last.what.in, message.mutable_in_groups());
  message.set_why(last.what.why);
  message.set_began_us(static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(last.at.time_since_epoch()).count()));
  message.set_us(to_us(last.took));
  message.set_code(static_cast<std::uint32_t>(last.status.code()));
  message.set_error(last.status.text());
}

}  // namespace amem
