#include "daemon/stages/stages.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "common/job.h"
#include "common/packet.h"
#include "common/protocol.h"
#include "common/utf8.h"
#include "daemon/base/units.h"
#include "daemon/node/names.h"
#include "daemon/phases/task.h"

namespace amem {
namespace {

/// How often what groups need is looked at.
constexpr Duration kPollEvery = std::chrono::seconds(1);
/// So long a group may take to its first rank if nobody can tell whether its program lives.
constexpr Duration kUnseen = std::chrono::minutes(10);

Result<DeviceUuid> device_named(const Devices& devices, const std::string& name) {
  std::string all;
  for (const Device& device : devices.all()) {
    if (name == std::to_string(device.ordinal) || name == to_string(device.uuid))
      return device.uuid;
    all += (all.empty() ? "" : ", ") + std::to_string(device.ordinal) + " (" +
           to_string(device.uuid) + ")";
  }
  return Status(Code::kInvalidArgument, "this node has no GPU " + name + ". It has " + all);
}

/// Without unknown ones.
std::vector<StageDevice> devices_of(const StageSettings& stage, const Devices& devices) {
  std::vector<StageDevice> all;
  for (const std::string& name : stage.devices) {
    const Result<DeviceUuid> found = device_named(devices, name);
    if (!found.ok()) continue;
    const Device& device = *devices.find(found.value());
    all.push_back({device.uuid, device.ordinal, device.total, stage.margin});
  }
  return all;
}

class SwitchObserver final : public OperationObserver {
 public:
  explicit SwitchObserver(std::function<void(const Status&)> done) : done_(std::move(done)) {}
  void progress(const v1::Progress&) override {}
  void finished(const Status& status) override { done_(status); }

 private:
  const std::function<void(const Status&)> done_;
};

/// Root of the node, or amemd's own user.
bool is_operator(const Account& account) {
  const Owner& owner = account.owner();
  return owner.compartment.empty() && (owner.uid == 0 || owner.uid == ::geteuid());
}

/// Memory with these tags may come later.
Status check_order(const std::vector<std::string>& tags) {
  constexpr std::size_t kLongest = sizeof(amem_v1_Create::tag) - 1;
  if (tags.size() > kMaxTags)
    return {Code::kInvalidArgument, "a group can name at most " + std::to_string(kMaxTags) +
                                        " tags that leave first, and as many that return first"};
  std::set<std::string_view> seen;
  for (const std::string& tag : tags) {
    if (tag.empty() || tag.size() > kLongest)
      return {Code::kInvalidArgument,
              "a tag must have 1 to " + std::to_string(kLongest) + " characters"};
    if (!seen.insert(tag).second)
      return {Code::kInvalidArgument, "tag '" + tag + "' is named twice"};
  }
  return {};
}

}  // namespace

Status check_stages(const std::vector<StageSettings>& settings, const Devices& devices) {
  std::map<DeviceUuid, std::string> stage_of;
  for (const StageSettings& stage : settings) {
    const std::string key = "stage." + stage.name;
    for (const std::string& name : stage.devices) {
      const Result<DeviceUuid> found = device_named(devices, name);
      if (!found.ok()) return {Code::kInvalidArgument, key + ".devices: " + found.status().text()};
      const auto [it, added] = stage_of.emplace(found.value(), stage.name);
      if (!added)
        return {Code::kInvalidArgument, key + ".devices: GPU " + name + " is in stage '" +
                                            it->second + "', too. A GPU can be in one stage"};
    }
    const Status status = check_stage(stage.rules, devices_of(stage, devices));
    if (!status.ok()) return {status.code(), key + ": " + status.text()};
  }
  return {};
}

Stages::Stages(const OperationContext& context, SessionServer& sessions, EventHub& events,
               Operations& operations)
    : node_(context.node),
      context_(context),
      loop_(context.loop),
      sessions_(sessions),
      events_(events),
      operations_(operations),
      waits_(context.loop, [this](GroupId id) { start_ended(id); }),
      views_(context.node, context.workers.seen(), waits_) {}

Stages::~Stages() {
  for (const auto& [name, stage] : stages_)
    if (stage.timer) loop_.cancel(*stage.timer);
  if (poll_timer_) loop_.cancel(*poll_timer_);
}

void Stages::open(const std::vector<StageSettings>& settings) {
  for (const StageSettings& each : settings) {
    Stage& stage = stages_.emplace(each.name, Stage(node_.stages[each.name])).first->second;
    stage.name = each.name;
    stage.rules = each.rules;
    stage.devices = devices_of(each, context_.devices);
    stage.others = views_.others_use(stage, stage.memory);
    stage.min_residency = each.min_residency;
    stage.users = each.users;
    stage.groups = each.groups;
    spdlog::info("stage '{}': policy {}, {} GPUs", each.name, to_string(each.rules.policy),
                 each.devices.size());
  }
  // Nothing is decided before it is known what others have.
  if (!stages_.empty()) poll_devices();
}

void Stages::close(const Status& why) {
  closed_ = true;
  waits_.close(why);
  if (poll_timer_) loop_.cancel(*poll_timer_);
  poll_timer_.reset();
}

Stages::Stage* Stages::find(std::string_view name) {
  const auto it = stages_.find(name);
  return it == stages_.end() ? nullptr : &it->second;
}

const Stages::Stage* Stages::find(std::string_view name) const {
  const auto it = stages_.find(name);
  return it == stages_.end() ? nullptr : &it->second;
}

std::string Stages::names() const {
  if (stages_.empty()) return "This node has no stages. Configure [stage.NAME] in amemd.toml";
  std::string text = "This node's stages are";
  for (const auto& [name, stage] : stages_) text += " '" + name + "'";
  return text;
}

StageView Stages::view_of(const Stage& stage) const {
  StageView view = views_.of(stage, stage.memory, stage.others, Clock::now());
  view.seen = !stage.unseen;
  return view;
}

Status Stages::admits(const Stage& stage, const Account& account, const std::vector<gid_t>& gids,
                      bool operates) {
  if (operates || (stage.users.empty() && stage.groups.empty())) return {};
  const Owner& owner = account.owner();
  const bool is_user =
      owner.compartment.empty() &&
      std::find(stage.users.begin(), stage.users.end(), owner.uid) != stage.users.end();
  // Whoever is in a compartment of its own chooses its gids.
  const bool in_group =
      owner.compartment.empty() && std::any_of(gids.begin(), gids.end(), [&](gid_t gid) {
        return std::find(stage.groups.begin(), stage.groups.end(), gid) != stage.groups.end();
      });
  if (is_user || in_group) return {};
  return {Code::kPermissionDenied, "stage '" + stage.name + "' is not for " + to_string(owner) +
                                       ". The settings stage." + stage.name + ".users and stage." +
                                       stage.name + ".groups say whose groups it takes"};
}

// ---- one turn of the loop -----------------------------------------------------------------------

void Stages::touch(Stage& stage) {
  if (std::exchange(stage.due, true)) return;
  loop_.post(scope_.bind([this, &stage] { advance(stage); }));
}

void Stages::advance(Stage& stage) {
  stage.due = false;
  if (closed_) return;
  const Time now = Clock::now();
  std::optional<StageView> view(view_of(stage));
  for (;;) {
    tell(look(*view, stage.memory, now));
    const auto changes = first_turns(*view, stage.memory, now);
    if (changes.empty()) break;
    for (const auto& [id, first_turn] : changes) set_first_turn(node_.groups.at(id), first_turn);
    view.emplace(view_of(stage));
  }
  account_time(stage, *view, now);
  if (moving(*view, stage.memory))
    stage.unseen = now;
  else if (stage.unseen)
    poll_devices();  // what came or went with it, such as contexts, is others' memory
  else if (const std::optional<Switch> next = decide(*view, stage.memory, now))
    carry_out(stage, *next);
  else
    foresee(stage);
  end_waits(stage, *view);
  wake(stage, wakeup(*view, stage.memory, now));
}

void Stages::wake(Stage& stage, Time at) {
  if (stage.timer) loop_.cancel(*stage.timer);
  stage.timer.reset();
  if (at == kNever || closed_) return;
  stage.timer = loop_.at(at, [this, &stage] {
    stage.timer.reset();
    touch(stage);
  });
}

void Stages::set_first_turn(GroupEntry& group, FirstTurn first_turn) {
  const FirstTurn before = std::exchange(group.first_turn, first_turn);
  if (before == first_turn) return;
  if (first_turn == FirstTurn::kLapsed) group.leased = false;
  if (before == FirstTurn::kDue) {
    const std::string text =
        "its first turn in stage '" + group.stage + "' has ended" +
        (first_turn == FirstTurn::kLapsed ? ": no rank has come. It waits for another one when "
                                            "a call of its first rank waits"
                                          : "");
    group.log().info("group '{}': {}", group.machine.name(), text);
    events_.publish(&group, "turn", text);
  }
  if (!wants_reports(group))
    for (const auto& [id, rank] : node_.ranks)
      if (rank.group == group.id) tell_reports(rank, false);
  (void)node_.records.write(group);
}

/// Whoever reads it may see this group only.
void Stages::tell(const std::vector<TurnNews>& news) {
  for (const TurnNews& each : news) {
    const auto it = node_.groups.find(each.group);
    if (it == node_.groups.end()) continue;
    GroupEntry& group = it->second;
    const std::string text = without_names_of_others(node_, *group.account, each.text);
    if (each.trouble)
      group.log().warn("group '{}': {}", group.machine.name(), text);
    else
      group.log().info("group '{}': {}", group.machine.name(), text);
    events_.publish(&group, each.trouble ? "error" : "turn", text);
  }
}

/// Whoever waits for a turn that has come, or that cannot come.
void Stages::end_waits(Stage& stage, const StageView& view) {
  for (const GroupView& its : view.groups) {
    const auto memory = stage.memory.groups.find(its.id);
    if (memory == stage.memory.groups.end()) continue;  // it is looked at soon
    GroupEntry& group = node_.groups.at(its.id);
    const GroupMemory& m = memory->second;
    const bool runs =
        group.machine.state() == GroupState::kRunning && !stage.memory.is_switching(its.id);
    const std::vector<WaitId> leases = waits_.of(its.id, StageWaits::For::kLease);
    const std::vector<WaitId> starts = waits_.of(its.id, StageWaits::For::kStart);
    if (!m.refusal.empty()) {
      const Status status(Code::kFailedPrecondition,
                          "group '" + its.name + "' takes no turns: " +
                              without_names_of_others(node_, *group.account, m.refusal));
      for (const WaitId id : leases) waits_.end(id, status);
      if (its.has_ranks) continue;
      for (const WaitId id : starts) waits_.end(id, status);
      continue;
    }
    if (!runs) continue;
    if (!leases.empty()) {
      group.leased = true;
      // Calls do not ask for its turn any more: after its first lease it says when it needs one.
      if (group.first_turn == FirstTurn::kEndedUnasked)
        set_first_turn(group, FirstTurn::kOver);
      else
        (void)node_.records.write(group);
    }
    for (const WaitId id : leases) waits_.end(id, {});
    for (const WaitId id : starts) {
      if (its.has_ranks)
        waits_.end(id, {});
      else if (waits_.waits(id))
        waits_.answer_start(id, kUnseen);
    }
  }
}

// ---- groups and ranks ---------------------------------------------------------------------------

GroupEntry* Stages::started_for(const Account& account, const std::string& name) {
  // Who asks before a launcher has begun knows less of the job: the part before that launcher's.
  for (std::string asked = name;; asked.resize(asked.find_last_of(".:"))) {
    GroupEntry* const group = own_group(node_, account, asked);
    if (group != nullptr && group->machine.members().empty() && awaits_first_rank(group->id))
      return group;
    if (name_of_group(asked) == asked) return nullptr;
  }
}

bool Stages::begins_paused(const std::shared_ptr<Account>& account, const std::vector<gid_t>& gids,
                           const std::string& name, std::string_view stage_name) const {
  const Stage* const stage = find(stage_name);
  if (stage == nullptr || closed_ || !stage->rules.starts_alone) return false;
  return admits(*stage, *account, gids, is_operator(*account)).ok() &&
         can_join(view_of(*stage), stage->memory, views_.beginning(*stage, name, *account)).ok();
}

bool Stages::wants_reports(const GroupEntry& group) const {
  const Stage* const stage = find(group.stage);
  return stage != nullptr &&
         (stage->rules.policy != TurnPolicy::kLease || group.first_turn != FirstTurn::kOver);
}

void Stages::rank_joined(GroupEntry& group, const Rank& rank, std::string_view name) {
  if (!name.empty() && group.stage != name) {
    const std::string wanted(printable(std::string(name).c_str()));
    std::string trouble;
    if (group.stage == kNoStage) {
      group.log().info(
          "group '{}': {} names the stage '{}', but the group was taken out of its "
          "stage",
          group.machine.name(), rank.program, wanted);
    } else if (!group.stage.empty()) {
      group.log().warn("group '{}': {} names the stage '{}', but the group is in stage '{}'",
                       group.machine.name(), rank.program, wanted, group.stage);
    } else if (const Stage* const stage = find(name); stage == nullptr) {
      trouble = "there is no stage '" + wanted + "', so the group takes no turns. " + names();
    } else if (const Status status =
                   admits(*stage, *group.account, rank.peer.groups, is_operator(*group.account));
               !status.ok()) {
      trouble = status.text() + ". The group takes no turns";
    } else {
      group.stage = name;
      (void)node_.records.write(group);
    }
    if (!trouble.empty()) {
      group.log().warn("group '{}': {}", group.machine.name(), trouble);
      events_.publish(&group, "error", trouble);
    }
  }
  Stage* const stage = find(group.stage);
  if (stage == nullptr) return;
  if (wants_reports(group)) tell_reports(rank, true);
  touch(*stage);
  poll();
}

void Stages::tell_reports(const Rank& rank, bool on) {
  if (rank.session == 0) return;
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_turn_reports_tag;
  message.body.turn_reports.on = on;
  sessions_.send(rank.session, message);
}

void Stages::restored(GroupEntry& group) {
  if (group.stage.empty() || group.stage == kNoStage) return;
  if (Stage* const stage = find(group.stage)) {
    const TurnWishes& wishes = group.wishes;
    const bool set = wishes.weight != 1 || wishes.priority != 0 || wishes.longest_wait > Duration{};
    // amemd 0.1.0 has not put on record who had set them.
    if (set && !wishes.by_operator)
      spdlog::warn(
          "group '{}': its weight, priority and longest wait hold against groups of its own owner "
          "only, unless an operator sets them: `amemctl stage`",
          group.machine.name());
    touch(*stage);
    return poll();
  }
  spdlog::warn("group '{}' was in stage '{}', which is not configured any more. It takes no turns",
               group.machine.name(), group.stage);
  group.stage.clear();
}

void Stages::changed(const GroupEntry& group) {
  if (Stage* const stage = find(group.stage)) touch(*stage);
}

void Stages::finished(const GroupEntry& group, const Outcome& outcome) {
  Stage* const stage = find(group.stage);
  const bool whole = outcome.task.selection.all();
  if (stage == nullptr || !outcome.status.ok() || !(whole || outcome.task.stops())) return;
  const auto m = stage->memory.groups.find(group.id);
  if (m == stage->memory.groups.end()) return;
  // Of a group that had some of its memory on the GPUs this was only a part.
  const bool all = whole && !outcome.task.partial && !m->second.has_remainder;
  (outcome.task.op == Operation::kPause ? m->second.out : m->second.in).add(outcome.total, all);
}

void Stages::ended(const GroupEntry& group) {
  const Status status(Code::kAborted,
                      "group '" + group.machine.name() + "' has ended. Ask again when it is there");
  for (const StageWaits::For what :
       {StageWaits::For::kLease, StageWaits::For::kStart, StageWaits::For::kSwitch})
    for (const WaitId id : waits_.of(group.id, what)) waits_.end(id, status);
  if (Stage* const stage = find(group.stage)) {
    stage->figures.groups.erase(group.id);
    touch(*stage);
  }
}

void Stages::work(Rank& rank, const amem_v1_Work& work) {
  const Time now = Clock::now();
  if (work.worked || rank.work.worked) rank.work.at = now;
  rank.work.waiting = work.waiting;
  rank.work.call = printable(work.call);
  rank.work.worked = work.worked;
  rank.work.heard = now;
  changed(node_.group_of(rank));
}

// ---- what others have ---------------------------------------------------------------------------

void Stages::poll() {
  if (poll_timer_ || closed_) return;
  poll_timer_ = loop_.at(Clock::now() + kPollEvery, [this] {
    poll_timer_.reset();
    const bool any =
        std::any_of(node_.groups.begin(), node_.groups.end(),
                    [this](const auto& each) { return find(each.second.stage) != nullptr; });
    if (!any) return;
    poll();
    polled_after_failure_ = false;
    for (auto& [id, rank] : node_.ranks)
      if (find(node_.groups.at(rank.group).stage) != nullptr)
        rank.work.stopped = rank.peer.stopped();
    ask_for_work();
    poll_devices();
  });
}

void Stages::poll_devices() {
  std::set<DeviceUuid> devices;
  for (const auto& [name, stage] : stages_)
    for (const StageDevice& device : stage.devices) devices.insert(device.device);
  if (std::exchange(poll_in_flight_, true)) return;
  poll_began_ = Clock::now();
  context_.workers.look(devices, scope_.bind([this](const Workers::Uses&) {
    poll_in_flight_ = false;
    for (auto& [name, stage] : stages_) see(stage);
  }));
}

void Stages::see(Stage& stage) {
  const bool since = !stage.unseen || poll_began_ >= *stage.unseen;
  if (!moving(view_of(stage), stage.memory) && since) {
    stage.others = views_.others_use(stage, stage.memory);
    stage.unseen.reset();
  }
  touch(stage);
}

/// A process that is stopped reports no change.
void Stages::ask_for_work() {
  const Time now = Clock::now();
  for (const auto& [id, rank] : node_.ranks)
    if (rank.work.worked && now >= rank.work.heard + kAskForWork &&
        find(node_.groups.at(rank.group).stage) != nullptr)
      tell_reports(rank, true);
}

// ---- switches -----------------------------------------------------------------------------------

void Stages::carry_out(Stage& stage, const Switch& what) {
  spdlog::info("stage '{}': switch {}: {}", stage.name, what.number, what.why);
  stage.last = {what, std::chrono::system_clock::now(), Clock::now(), {}, {}};
  for (const auto* ids : {&what.out, &what.in})
    for (const GroupId id : *ids) {
      const GroupEntry& group = node_.groups.at(id);
      std::string text = "it gets its turn in stage '" + stage.name + "'";
      if (ids == &what.out && group.machine.state() == GroupState::kPaused)
        text = "the rest of its memory leaves in stage '" + stage.name + "'";
      else if (ids == &what.out)
        text = "its turn in stage '" + stage.name + "' ends";
      events_.publish(&group, "turn", text);
    }
  const auto observer =
      std::make_shared<SwitchObserver>(scope_.bind([this, &stage](const Status& status) {
        loop_.post(scope_.bind([this, &stage, status] { switch_ended(stage, status); }));
      }));
  const auto named = [this](const std::vector<GroupId>& ids) {
    Operations::Groups groups;
    for (const GroupId id : ids) groups.push_back({id, node_.groups.at(id).machine.name()});
    return groups;
  };
  const Requester requester("stage '" + stage.name + "'", stage.name, what.why);
  operations_.start({.out = named(what.out), .in = named(what.in), .parts = tags_of(what)},
                    observer, requester);
}

void Stages::foresee(const Stage& stage) {
  if (stage.waiting.empty()) return;
  Operations::Groups groups;
  for (const auto& [id, since] : stage.runs)
    if (const auto group = node_.groups.find(id); group != node_.groups.end())
      groups.push_back({id, group->second.machine.name()});
  if (!groups.empty()) operations_.elastic().foresee(groups);
}

Parts Stages::tags_of(const Switch& what) const {
  Parts parts;
  for (const auto& [id, tags] : what.parts) {
    Selection selection;
    for (const std::string& tag : tags)
      if (node_.allocations.any(id, [&](const Allocation& a) { return a.tag == tag; }))
        selection.tags.insert(tag);
    if (!selection.all()) parts[id] = selection;
  }
  return parts;
}

void Stages::switch_ended(Stage& stage, const Status& status) {
  const Time now = Clock::now();
  const Switch what = stage.memory.under_way.value_or(Switch());
  const StageView view = view_of(stage);
  switched(view, stage.memory, status, now);
  end_waits(stage, view);
  stage.last->took = std::max(now - stage.last->began, Duration(1));
  stage.last->status = status;
  stage.figures.switching += stage.last->took;
  ++stage.figures.switches[status.code()];
  if (!status.ok())
    spdlog::warn("stage '{}': switch {} has failed: {}. It is tried again", stage.name, what.number,
                 status.text());
  // Operators come before what the stage does next.
  std::vector<WaitId> commands;
  for (const auto& [number, wait] : waits_.all())
    if (wait.what == StageWaits::For::kSwitch && !switches({{wait.group, {}}}))
      commands.push_back(number);
  for (const WaitId number : commands) waits_.end(number, {});
  // Others may have taken what was free. Another switch may do then.
  if (!status.ok() && !std::exchange(polled_after_failure_, true)) return poll_devices();
  touch(stage);
}

// ---- what is waited for -------------------------------------------------------------------------

Status Stages::check_start(const Caller& caller, const std::string& name,
                           const std::string& stage) const {
  if (Status status = check_whole_name(name); !status.ok()) return status;
  if (caller.account == nullptr)
    return {Code::kFailedPrecondition, "only a process of this node can start a group here"};
  if (find(stage) == nullptr)
    return {Code::kNotFound, "there is no stage '" + printable(stage.c_str()) + "'. " + names()};
  return {};
}

Result<bool> Stages::may_begin(const Caller& caller, const std::string& name,
                               const std::string& stage_name) const {
  const Stage& stage = *find(stage_name);
  if (Status status = admits(stage, *caller.account, caller.groups, caller.operates); !status.ok())
    return status;
  if (!stage.rules.starts_alone) return false;
  const Status status =
      can_join(view_of(stage), stage.memory, views_.beginning(stage, name, *caller.account));
  if (status.ok()) return true;
  return Status(status.code(), without_unseen_names(node_, caller, status.text()));
}

Stages::WaitId Stages::start(const Caller& caller, GroupEntry& group, Duration timeout,
                             StageWaits::Done done) {
  Amounts amounts;
  amounts[Resource::kDescriptors] = 1;
  Result<Charge> charge = caller.account->take(amounts);
  if (!charge.ok()) {
    done(charge.status());
    return 0;
  }
  if (find(group.stage) == nullptr) {  // it was taken out of its stage, so its ranks may begin
    done({});
    return 0;
  }
  // It may have had its turn already, which another process has not used.
  if (presence_of(group) != Presence::kIn) group.first_turn = FirstTurn::kDue;
  group.log().info("group '{}' is to start: it waits for its first turn in stage '{}'",
                   group.machine.name(), group.stage);
  const WaitId id = waits_.add(
      {.what = StageWaits::For::kStart,
       .group = group.id,
       .done = std::move(done),
       .process = caller.process,
       .pid = caller.pid,
       .charge = std::move(charge).value()},
      timeout,
      "group '" + group.machine.name() + "' has not got its first turn in stage '" + group.stage +
          "' within " + format_duration(timeout) + ". `amemctl turns` shows who runs");
  changed(group);
  poll();
  return id;
}

void Stages::start_ended(GroupId id) {
  const auto group = node_.groups.find(id);
  if (group != node_.groups.end() && group->second.machine.members().empty())
    context_.drive(group->second);
}

Stages::WaitId Stages::lease(const GroupEntry& group, Duration timeout, StageWaits::Done done) {
  Stage* const stage = find(group.stage);
  const auto fail = [&](Status status) {
    done(status);
    return WaitId{0};
  };
  if (stage == nullptr)
    return fail({Code::kFailedPrecondition, "group '" + group.machine.name() +
                                                "' is in no stage. Start it with `amemctl run "
                                                "--stage NAME`, or use `amemctl stage`. " +
                                                names()});
  if (stage->rules.policy != TurnPolicy::kLease)
    return fail({Code::kFailedPrecondition, "stage '" + stage->name + "' has the policy " +
                                                std::string(to_string(stage->rules.policy)) +
                                                ". Leases require the policy lease"});
  if (closed_) return fail({Code::kUnavailable, "amemd is ending. Ask the next amemd"});
  if (group.machine.members().empty())
    return fail({Code::kFailedPrecondition, "group '" + group.machine.name() +
                                                "' has no rank yet, and its first turn needs no "
                                                "lease"});
  touch(*stage);
  return waits_.add({.what = StageWaits::For::kLease, .group = group.id, .done = std::move(done)},
                    timeout,
                    "the group has not got its turn within " + format_duration(timeout) +
                        ". `amemctl turns` shows who runs");
}

bool Stages::switches(const Operations::Groups& groups) const {
  return std::any_of(groups.begin(), groups.end(), [this](const NamedGroup& each) {
    const auto group = node_.groups.find(each.id);
    const Stage* const stage = group != node_.groups.end() ? find(group->second.stage) : nullptr;
    return stage != nullptr && stage->memory.is_switching(each.id);
  });
}

Stages::WaitId Stages::after_switch(const Operations::Groups& groups, Duration timeout,
                                    StageWaits::Done go) {
  const auto switched = std::find_if(groups.begin(), groups.end(),
                                     [this](const NamedGroup& each) { return switches({each}); });
  if (switched == groups.end()) {
    go({});
    return 0;
  }
  const std::string& stage = node_.groups.at(switched->id).stage;
  return waits_.add(
      {.what = StageWaits::For::kSwitch, .group = switched->id, .done = std::move(go)}, timeout,
      "stage '" + stage + "' has been switching group '" + switched->name + "' for all of " +
          format_duration(timeout) +
          ", and the operation waited for the end of that. Nothing else has happened");
}

void Stages::forget(WaitId wait) {
  const auto it = waits_.all().find(wait);
  if (it == waits_.all().end()) return;
  const GroupId id = it->second.group;
  waits_.forget(wait);  // after which the group may be gone
  if (const auto group = node_.groups.find(id); group != node_.groups.end()) changed(group->second);
}

Status Stages::yield(GroupEntry& group) {
  Stage* const stage = find(group.stage);
  const std::string& name = group.machine.name();
  if (stage == nullptr)
    return {Code::kFailedPrecondition, "group '" + name + "' is in no stage. " + names()};
  const auto m = stage->memory.groups.find(group.id);
  const bool starts = group.first_turn == FirstTurn::kDue && m != stage->memory.groups.end() &&
                      m->second.first_turn;
  if (stage->rules.policy != TurnPolicy::kLease && !starts)
    return {Code::kFailedPrecondition, "stage '" + stage->name + "' has the policy " +
                                           std::string(to_string(stage->rules.policy)) +
                                           ". Leases require the policy lease"};
  group.leased = false;
  if (starts)
    set_first_turn(group, group.machine.members().empty() ? FirstTurn::kLapsed : FirstTurn::kOver);
  (void)node_.records.write(group);
  touch(*stage);
  return {};
}

// ---- operators ----------------------------------------------------------------------------------

Operations::Groups Stages::adopt_as_operator_pause(const Operations::Groups& groups) {
  Operations::Groups left;
  for (const NamedGroup& each : groups) {
    GroupEntry& group = node_.groups.at(each.id);
    // Who pauses a group wants its memory to leave: of one that has some on the devices the rest.
    if (find(group.stage) == nullptr || presence_of(group) != Presence::kOut ||
        remainder_of(node_, group) > 0) {
      left.push_back(each);
      continue;
    }
    group.paused_by_stage = false;
    (void)node_.records.write(group);
    changed(group);
  }
  return left;
}

void Stages::hand_back_to_stage(const Operations::Groups& groups) {
  for (const NamedGroup& each : groups) {
    const auto it = node_.groups.find(each.id);
    if (it == node_.groups.end() || !takes_turns(it->second) ||
        presence_of(it->second) != Presence::kPausedByOthers)
      continue;
    it->second.paused_by_stage = true;
    if (it->second.machine.members().empty()) it->second.first_turn = FirstTurn::kDue;
    (void)node_.records.write(it->second);
    changed(it->second);
  }
}

bool Stages::takes_turns(const GroupEntry& group) const {
  const Stage* const stage = find(group.stage);
  if (stage == nullptr) return false;
  const auto m = stage->memory.groups.find(group.id);
  return m == stage->memory.groups.end() || m->second.refusal.empty();
}

std::string Stages::stage_to_resume(const GroupEntry& group) const {
  return takes_turns(group) && group.machine.state() == GroupState::kPaused ? group.stage : "";
}

Status Stages::set(const Caller& caller, GroupEntry& group, const Change& change) {
  const std::string name = change.stage.value_or(group.stage);
  Stage* const from = find(group.stage);
  Stage* const to = find(name);
  if (to == nullptr && !name.empty() && name != kNoStage)
    return {Code::kNotFound, "there is no stage '" + name + "'. " + names()};
  if (to != nullptr && to != from)
    if (Status status = admits(*to, *group.account, caller.groups, caller.operates); !status.ok())
      return status;
  TurnWishes wishes = group.wishes;
  wishes.weight = change.weight.value_or(wishes.weight);
  wishes.priority = change.priority.value_or(wishes.priority);
  wishes.longest_wait = change.longest_wait.value_or(wishes.longest_wait);
  wishes.leave_first = change.leave_first.value_or(wishes.leave_first);
  wishes.return_order = change.return_order.value_or(wishes.return_order);
  if (change.weight || change.priority || change.longest_wait) wishes.by_operator = caller.operates;
  for (const auto* tags : {&wishes.leave_first, &wishes.return_order})
    if (const Status status = check_order(*tags); !status.ok()) return status;
  if (const Status status =
          check_wishes(to != nullptr ? to->rules : TurnRules(), group.machine.name(), wishes);
      !status.ok())
    return status;
  if (to != nullptr && from == to) {
    if (Status status = can_wish(view_of(*to), to->memory, group.id, wishes); !status.ok())
      return {status.code(), without_unseen_names(node_, caller, status.text())};
  } else if (from != nullptr && switches({{group.id, {}}})) {
    return {Code::kFailedPrecondition, "stage '" + from->name + "' switches group '" +
                                           group.machine.name() + "' now. Try again"};
  }
  group.wishes = wishes;
  if (from != to) {
    group.leased = false;
    const bool starts = to != nullptr && group.machine.members().empty();
    group.first_turn = starts ? FirstTurn::kDue : FirstTurn::kOver;
    group.stage = to != nullptr ? name : std::string(kNoStage);
    const Status left(Code::kAborted, "group '" + group.machine.name() + "' has left its stage");
    for (const WaitId id : waits_.of(group.id, StageWaits::For::kLease)) waits_.end(id, left);
    if (from != nullptr) from->figures.groups.erase(group.id);
    for (const auto& [id, rank] : node_.ranks)
      if (rank.group == group.id) tell_reports(rank, wants_reports(group));
    if (to == nullptr) let_start(group);
    poll();
  }
  for (Stage* const stage : {from, to})
    if (stage != nullptr) touch(*stage);
  return node_.records.write(group);
}

/// It is in no stage any more, so its ranks may begin.
void Stages::let_start(GroupEntry& group) {
  if (!awaits_first_rank(group.id)) return;
  for (const WaitId id : waits_.of(group.id, StageWaits::For::kStart))
    if (waits_.waits(id)) waits_.answer_start(id, kUnseen);
  if (presence_of(group) != Presence::kOut) return;
  const auto nobody = std::make_shared<SwitchObserver>([](const Status&) {});
  operations_.start({.out = {}, .in = {{group.id, group.machine.name()}}}, nobody,
                    std::string("amemd"));
}

}  // namespace amem
