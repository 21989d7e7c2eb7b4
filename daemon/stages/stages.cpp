#include "daemon/stages/stages.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "common/job.h"
#include "common/packet.h"
#include "common/protocol.h"
#include "daemon/base/units.h"
#include "daemon/node/names.h"
#include "daemon/phases/task.h"

namespace amem {
namespace {

/// How often what groups need is looked at.
constexpr Duration kLookEvery = std::chrono::seconds(1);

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
    all.push_back({found.value(), devices.find(found.value())->total, stage.margin});
  }
  return all;
}

Whereabouts whereabouts(const GroupEntry& group) {
  switch (group.machine.state()) {
    case GroupState::kRunning:
      return Whereabouts::kRuns;
    case GroupState::kPaused:
      return group.paused_by_stage ? Whereabouts::kPausedByStage : Whereabouts::kPausedByOperator;
    default:
      return Whereabouts::kMoves;
  }
}

class SwitchObserver final : public OperationObserver {
 public:
  explicit SwitchObserver(std::function<void(const Status&)> done) : done_(std::move(done)) {}
  void progress(const v1::Progress&) override {}
  void finished(const Status& status) override { done_(status); }

 private:
  const std::function<void(const Status&)> done_;
};

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

std::uint64_t ms(Duration duration) { return to_us(std::max(duration, Duration{})) / 1000; }

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

Stages::Stages(const Means& means, SessionServer& sessions, EventHub& events,
               Operations& operations)
    : node_(means.node),
      means_(means),
      loop_(means.loop),
      sessions_(sessions),
      events_(events),
      operations_(operations),
      starts_(means.loop, [this](const Starts::Start& start) {
        node_.stages[start.stage->name()].starts.erase(start.id);
        start.stage->leave(start.id, Clock::now());
      }) {}

Stages::~Stages() {
  *alive_ = false;
  for (const auto& [stage, timer] : timers_) loop_.cancel(timer);
  for (const auto& [id, lease] : leases_)
    if (lease.timer) loop_.cancel(*lease.timer);
  for (const auto& [number, command] : commands_)
    if (command.timer) loop_.cancel(*command.timer);
  if (looks_) loop_.cancel(*looks_);
}

void Stages::open(const std::vector<StageSettings>& settings) {
  for (const StageSettings& each : settings) {
    StageFigures& figures = node_.stages[each.name];
    stages_.emplace(each.name, std::make_unique<GpuStage>(*this, each.name, each.rules,
                                                          devices_of(each, means_.devices),
                                                          each.min_residency, figures));
    spdlog::info("stage '{}': policy {}, {} GPUs", each.name, to_string(each.rules.policy),
                 each.devices.size());
  }
  if (stages_.empty()) return;
  // Nothing is decided before it is known what others have.
  for (const auto& [name, stage] : stages_) stage->hold(true);
  look_at_needs();
}

void Stages::close(const Status& why) {
  closed_ = true;
  for (const auto& [name, stage] : stages_) stage->close(why);
  starts_.close(why);
  for (auto& [number, command] : std::exchange(commands_, {})) {
    if (command.timer) loop_.cancel(*command.timer);
    command.go(why);
  }
  if (looks_) loop_.cancel(*looks_);
  looks_.reset();
}

GpuStage* Stages::find(const std::string& name) {
  const auto it = stages_.find(name);
  return it == stages_.end() ? nullptr : it->second.get();
}

GpuStage* Stages::stage_of(GroupId group) {
  for (const auto& [name, stage] : stages_)
    if (stage->has(group)) return stage.get();
  return nullptr;
}

std::string Stages::names() const {
  if (stages_.empty()) return "This node has no stages. Configure [stage.NAME] in amemd.toml";
  std::string text = "This node's stages are";
  for (const auto& [name, stage] : stages_) text += " '" + name + "'";
  return text;
}

// ---- groups and ranks ---------------------------------------------------------------------------

/// Another one for each group of the stage.
std::string Stages::name_in(const GpuStage& stage, GroupId id, const Account& account,
                            const std::string& name) const {
  if (!stage.knows(name, id)) return name;
  const std::string its = name + "@" + key_of(account.owner());
  return stage.knows(its, id) ? its + "#" + std::to_string(id) : its;
}

void Stages::enter(GpuStage& stage, GroupEntry& group) {
  const FirstTurn first = group.starts          ? FirstTurn::kOfRanks
                          : group.asks_by_calls ? FirstTurn::kOverByItself
                                                : FirstTurn::kOver;
  stage.join(group.id, name_in(stage, group.id, *group.account, group.machine.name()), group.wishes,
             whereabouts(group), group.leased, Clock::now(), first);
  group.starts = stage.starts(group.id);
  group.asks_by_calls = stage.asks_by_calls(group.id);
  look();
  // What it needs is known before it asks: after a restart it has its memory already.
  loop_.post([this, &stage, alive = alive_] {
    if (*alive && !closed_ && looked_) measure(stage);
  });
}

Stages::Beginning Stages::begins(const std::shared_ptr<Account>& account, const std::string& name,
                                 std::string_view stage_name) {
  // Who asks before a launcher has begun knows less of the job: the part before that launcher's.
  for (std::string asked = name;; asked.resize(asked.find_last_of(".:"))) {
    const Starts::Start* const start = starts_.find(*account, asked);
    if (start != nullptr && !start->has_ranks) return {start->id, true, !start->runs};
    if (name_of_group(asked) == asked) break;
  }
  const GpuStage* stage = find(std::string(stage_name));
  if (stage == nullptr || closed_ || !stage->rules().starts_alone) return {};
  const Status status = stage->can_start(name_in(*stage, 0, *account, name), {});
  return {0, status.ok(), status.ok()};
}

void Stages::rank_joined(GroupEntry& group, const Rank& rank, std::string_view name) {
  if (const Starts::Start* start = starts_.find(group.id); start != nullptr && !start->has_ranks) {
    GpuStage& stage = *start->stage;
    group.stage = stage.name();
    group.starts = stage.starts(group.id);
    (void)node_.records.write(group);
    starts_.arrived(group.id, group.machine.name());
    node_.stages[stage.name()].starts.erase(group.id);
    stage.place(group.id, whereabouts(group), Clock::now());
    stage.arrived(group.id, Clock::now());
    look();
  } else if (!name.empty() && group.stage != name) {
    const std::string wanted(name);
    if (!group.stage.empty()) {
      group.log().warn("group '{}': {} names the stage '{}', but the group is in stage '{}'",
                       group.machine.name(), rank.program, printable(wanted.c_str()), group.stage);
    } else if (GpuStage* stage = find(wanted); stage == nullptr) {
      const std::string text = "there is no stage '" + std::string(printable(wanted.c_str())) +
                               "', so the group takes no turns. " + names();
      group.log().warn("group '{}': {}", group.machine.name(), text);
      events_.publish(&group, "error", text);
    } else {
      group.stage = wanted;
      (void)node_.records.write(group);
      enter(*stage, group);
    }
  }
  if (const GpuStage* stage = stage_of(group.id);
      stage != nullptr && stage->wants_reports(group.id))
    tell_reports(rank, true);
}

void Stages::tell_reports(const Rank& rank, bool on) {
  if (rank.session == 0) return;
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_turn_reports_tag;
  message.body.turn_reports.on = on;
  sessions_.send(rank.session, message);
}

void Stages::tell_reports(GroupId group, bool on) {
  for (const auto& [id, rank] : node_.ranks)
    if (rank.group == group) tell_reports(rank, on);
}

void Stages::rank_gone(const GroupEntry& group, RankId rank) {
  if (GpuStage* stage = stage_of(group.id)) stage->rank_gone(group.id, rank, Clock::now());
}

void Stages::restored(GroupEntry& group) {
  if (group.stage.empty()) return;
  if (GpuStage* stage = find(group.stage)) return enter(*stage, group);
  spdlog::warn("group '{}' was in stage '{}', which is not configured any more. It takes no turns",
               group.machine.name(), group.stage);
  group.stage.clear();
}

void Stages::state_changed(GroupId id) {
  if (stages_.empty()) return;
  // In a turn of its own: who reports it is in the middle of something.
  loop_.post([this, id, alive = alive_] {
    if (!*alive) return;
    const auto group = node_.groups.find(id);
    GpuStage* const stage = stage_of(id);
    if (group == node_.groups.end() || stage == nullptr) return;
    place(*stage, group->second);
    answer_starts({id});
  });
}

void Stages::finished(const GroupEntry& group, const Outcome& outcome) {
  GpuStage* const stage = stage_of(group.id);
  const bool whole = outcome.task.selection.all();
  if (stage == nullptr || !outcome.status.ok() || !(whole || outcome.task.stops())) return;
  stage->measured(group.id, outcome.task.op, outcome.total, whole, Clock::now());
}

void Stages::ended(GroupId id) {
  if (stages_.empty()) return;
  loop_.post([this, id, alive = alive_] {
    if (!*alive) return;
    if (GpuStage* stage = stage_of(id)) stage->leave(id, Clock::now());
    starts_.answer(id, {Code::kAborted, "the group has ended. Start it again"});
  });
}

void Stages::work(const Rank& rank, const amem_v1_Work& work) {
  if (GpuStage* stage = stage_of(rank.group))
    stage->report(rank.group, rank.id, {work.waiting, printable(work.call), work.worked},
                  Clock::now());
}

// ---- needs --------------------------------------------------------------------------------------

/// Looks from now on, once a second, while there is a group to look at.
void Stages::look() {
  if (looks_ || closed_) return;
  looks_ = loop_.at(Clock::now() + kLookEvery, [this] {
    looks_.reset();
    const bool any =
        std::any_of(node_.groups.begin(), node_.groups.end(),
                    [this](const auto& each) { return stage_of(each.first) != nullptr; });
    if (!any) return;
    look();
    looked_after_failure_ = false;
    look_at_needs();
  });
}

void Stages::look_at_needs() {
  std::set<DeviceUuid> devices;
  for (const auto& [name, stage] : stages_)
    for (const StageDevice& device : stage->devices()) devices.insert(device.device);
  if (std::exchange(looking_, true)) return;
  means_.workers.look(devices, [this, alive = alive_](const Workers::Uses&) {
    if (!*alive) return;
    looking_ = false;
    if (closed_) return;
    const bool first = !std::exchange(looked_, true);
    for (const auto& [name, stage] : stages_) {
      if (first) stage->hold(false);
      measure(*stage);
    }
  });
}

TurnNeeds Stages::bytes_of(GroupId id, const std::function<bool(const Allocation&)>& counts) const {
  TurnNeeds bytes;
  for (const Allocation* a : std::as_const(node_.allocations).of_group(id))
    if (!counts || counts(*a)) bytes[a->device] += a->size;
  return bytes;
}

TurnNeeds Stages::rest_of(const GroupEntry& group) const {
  if (whereabouts(group) != Whereabouts::kPausedByStage) return {};
  return bytes_of(group.id, [](const Allocation& a) { return a.may_leave(); });
}

std::vector<GpuStage::Part> Stages::parts_of(const GroupEntry& group) const {
  std::vector<GpuStage::Part> parts;
  for (const std::string& tag : group.wishes.leave_first) {
    TurnNeeds needs =
        bytes_of(group.id, [&](const Allocation& a) { return a.tag == tag && a.can_leave(); });
    if (!needs.empty()) parts.push_back({tag, std::move(needs)});
  }
  return parts;
}

void Stages::place(GpuStage& stage, const GroupEntry& group) {
  const Whereabouts where = whereabouts(group);
  if (where != Whereabouts::kMoves) stage.stays(group.id, rest_of(group), Clock::now());
  stage.place(group.id, where, Clock::now());
}

void Stages::measure(GpuStage& stage) {
  if (stage.switching()) return;  // memory is on its way
  const Time now = Clock::now();
  std::map<DeviceUuid, std::uint64_t> resident;  // of groups that run by turns
  std::map<GroupId, TurnNeeds> needs;
  for (const auto& [id, group] : node_.groups) {
    if (!stage.has(id)) continue;
    const bool runs = group.machine.state() == GroupState::kRunning;
    const TurnNeeds rest = rest_of(group);
    for (const auto& [device, bytes] : rest) resident[device] += bytes;
    if (!runs && whereabouts(group) != Whereabouts::kMoves) stage.stays(id, rest, now);
    if (runs) stage.parts(id, parts_of(group), now);
    needs[id] = bytes_of(id);
    if (!runs) continue;
    for (const auto& [device, bytes] :
         bytes_of(id, [](const Allocation& a) { return a.resident(); }))
      resident[device] += bytes;
  }
  for (const StageDevice& device : stage.devices()) {
    std::uint64_t taken = 0;
    const auto use = means_.workers.seen().find(device.device);
    if (use != means_.workers.seen().end()) {
      const std::uint64_t ours = use->second.free + resident[device.device];
      taken = device.capacity - std::min(device.capacity, ours);
    } else {  // nobody says, so it is what is known of
      for (const auto& [id, rank] : node_.ranks)
        for (const Unbrokered& each : rank.unbrokered)
          if (!each.host && each.device == device.device) taken += each.bytes;
      const Usage all = node_.allocations.usage(
          [&](const Allocation& a) { return a.device == device.device && a.resident(); });
      taken += all.resident - std::min(all.resident, resident[device.device]);
    }
    stage.taken(device.device, taken, now);
  }
  for (const auto& [id, its] : needs) stage.needs(id, its, now);
  stage.tick(now);
}

// ---- switches -----------------------------------------------------------------------------------

void Stages::carry_out(GpuStage& stage, const StageSwitch& what) {
  const auto named = [this](const std::vector<GroupId>& ids) {
    Operations::Groups groups;
    for (const GroupId id : ids)
      groups.push_back({id, node_.groups.contains(id) ? node_.groups.at(id).machine.name() : "?"});
    return groups;
  };
  spdlog::info("stage '{}': switch {}: {}", stage.name(), what.number, what.why);
  // The stage decides in the middle of other things, and a transaction may be refused at once.
  loop_.post([this, &stage, what, named, alive = alive_] {
    if (!*alive) return;
    const auto observer = std::make_shared<SwitchObserver>(
        [this, &stage, what, loop = &loop_, alive](const Status& status) {
          loop->post([this, &stage, what, status, alive] {
            if (*alive) ended(stage, what, status);
          });
        });
    const auto gone = [this](GroupId id) { return !node_.groups.contains(id); };
    StageSwitch left = what;
    std::erase_if(left.out, gone);
    std::erase_if(left.in, gone);
    for (const auto* ids : {&left.out, &left.in})
      for (const GroupId id : *ids) {
        const GroupEntry& group = node_.groups.at(id);
        std::string text = "it gets its turn in stage '" + stage.name() + "'";
        if (ids == &left.out && group.machine.state() == GroupState::kPaused)
          text = "the rest of its memory leaves in stage '" + stage.name() + "'";
        else if (ids == &left.out)
          text = "its turn in stage '" + stage.name() + "' ends";
        events_.publish(&group, "turn", text);
      }
    const Asker asker("stage '" + stage.name() + "'", stage.name(), what.why);
    // A group without ranks has nothing to be moved.
    const auto announced = [this](GroupId id) { return starts_.find(id) != nullptr; };
    const bool starts = std::any_of(what.out.begin(), what.out.end(), announced) ||
                        std::any_of(what.in.begin(), what.in.end(), announced);
    if (left.out.empty() && left.in.empty())
      observer->finished(starts ? Status() : Status(Code::kAborted, "its groups have ended"));
    else if (left.in.empty())
      operations_.start(Task(Operation::kPause), named(left.out), {}, observer, asker, nullptr,
                        tags_of(left));
    else if (left.out.empty())
      operations_.start(Task(Operation::kResume), named(left.in), {}, observer, asker);
    else
      operations_.swap(named(left.out), named(left.in), Task(Operation::kPause), {}, observer,
                       asker, nullptr, tags_of(left));
  });
}

Operations::Parts Stages::tags_of(const StageSwitch& what) const {
  Operations::Parts parts;
  for (const GroupId id : what.out) {
    const auto part = what.parts.find(id);
    if (part == what.parts.end()) continue;
    Selection selection;
    for (const std::string& tag : part->second)
      if (node_.allocations.any(id, [&](const Allocation& a) { return a.tag == tag; }))
        selection.tags.insert(tag);
    if (!selection.all()) parts[id] = selection;
  }
  return parts;
}

void Stages::ended(GpuStage& stage, const StageSwitch& what, const Status& status) {
  const Time now = Clock::now();
  for (const auto* ids : {&what.out, &what.in})
    for (const GroupId id : *ids) {
      Starts::Start* const start = starts_.find(id);
      if (const auto group = node_.groups.find(id); group != node_.groups.end()) {
        place(stage, group->second);
      } else if (start != nullptr) {
        if (status.ok()) start->runs = ids == &what.in;
        stage.place(id, start->runs ? Whereabouts::kRuns : Whereabouts::kPausedByStage, now);
      }
    }
  if (!status.ok())
    spdlog::warn("stage '{}': switch {} has failed: {}. It is tried again", stage.name(),
                 what.number, status.text());
  std::vector<std::uint64_t> waiting;
  for (const auto& [number, command] : commands_)
    if (command.stage == &stage) waiting.push_back(number);
  stage.hold(!waiting.empty());
  stage.switched(what.number, status, now);
  // Others may have taken what was free. Another switch may do then.
  if (!status.ok() && !std::exchange(looked_after_failure_, true)) look_at_needs();
  if (!waiting.empty()) carry_on(stage, waiting);
  answer_starts(what.in);
}

/// Operators come before what the stage would do next.
void Stages::carry_on(GpuStage& stage, const std::vector<std::uint64_t>& numbers) {
  std::set<GroupId> groups;
  for (const std::uint64_t number : numbers) {
    auto command = commands_.extract(number);
    if (command.empty()) continue;
    if (command.mapped().timer) loop_.cancel(*command.mapped().timer);
    for (const NamedGroup& group : command.mapped().groups) groups.insert(group.id);
    command.mapped().go({});
  }
  for (const GroupId id : groups)
    if (const auto group = node_.groups.find(id); group != node_.groups.end())
      stage.place(id, whereabouts(group->second), Clock::now());
  stage.hold(false);
  stage.tick(Clock::now());
}

void Stages::answer_starts(const std::vector<GroupId>& groups) {
  for (const GroupId id : groups) {
    const Starts::Start* start = starts_.find(id);
    if (start == nullptr) continue;
    const auto group = node_.groups.find(id);
    const bool runs = group != node_.groups.end()
                          ? group->second.machine.state() == GroupState::kRunning
                          : start->runs;
    if (runs) starts_.answer(id, {});
  }
}

void Stages::wake(GpuStage& stage, Time at) {
  if (const auto it = timers_.find(&stage); it != timers_.end()) {
    loop_.cancel(it->second);
    timers_.erase(it);
  }
  if (at == kNever || closed_) return;
  timers_[&stage] = loop_.at(at, [this, &stage] {
    timers_.erase(&stage);
    stage.tick(Clock::now());
  });
}

void Stages::changed(GroupId id) {
  const auto it = node_.groups.find(id);
  GpuStage* const stage = stage_of(id);
  if (it == node_.groups.end() || stage == nullptr) return;
  it->second.leased = stage->leased(id);
  const bool reported = it->second.starts || it->second.asks_by_calls;
  it->second.asks_by_calls = stage->asks_by_calls(id);
  if (std::exchange(it->second.starts, stage->starts(id)) && !stage->starts(id)) {
    it->second.log().info("group '{}': its first turn in stage '{}' has ended",
                          it->second.machine.name(), stage->name());
    events_.publish(&it->second, "turn",
                    "its first turn in stage '" + stage->name() + "' has ended");
  }
  if (reported && !stage->wants_reports(id)) tell_reports(id, false);
  (void)node_.records.write(it->second);
}

std::optional<TurnNeeds> Stages::has_now(GroupId id) const { return bytes_of(id); }

void Stages::say(GpuStage&, GroupId id, const std::string& text, bool trouble) {
  const auto it = node_.groups.find(id);
  if (it == node_.groups.end()) return;
  if (trouble)
    it->second.log().warn("group '{}': {}", it->second.machine.name(), text);
  else
    it->second.log().info("group '{}': {}", it->second.machine.name(), text);
  events_.publish(&it->second, trouble ? "error" : "turn", text);
}

// ---- starts -------------------------------------------------------------------------------------

Starts::Number Stages::start(const Caller& caller, GroupId id, const std::string& name,
                             const std::string& stage_name, Duration timeout, Starts::Done done) {
  const auto fail = [&](Status status) {
    done(status);
    return Starts::Number{0};
  };
  if (!valid_whole_name(name))
    return fail({Code::kInvalidArgument, "\"" + printable(name.c_str()) +
                                             "\" is not a valid group name. Use 1 to 63 of the "
                                             "characters A-Z a-z 0-9 . _ -, and do not begin with "
                                             ". or -"});
  if (caller.account == nullptr)
    return fail({Code::kFailedPrecondition, "only a process of this node can start a group here"});
  GpuStage* const stage = find(stage_name);
  if (stage == nullptr)
    return fail(
        {Code::kNotFound, "there is no stage '" + printable(stage_name.c_str()) + "'. " + names()});
  Starts::Start* start = starts_.find(*caller.account, name);
  const GroupEntry* const group = own_group(node_, *caller.account, name);
  if (group != nullptr && (start == nullptr || group->machine.state() == GroupState::kRunning))
    return fail({});
  if (start == nullptr) {
    if (!stage->rules().starts_alone) return fail({});
    const std::string its_name = name_in(*stage, id, *caller.account, name);
    if (Status status = stage->can_start(its_name, {}); !status.ok()) return fail(status);
    start = &starts_.add({id, name, caller.account, stage});
    node_.stages[stage_name].starts[id] = {name, caller.account};
    stage->join(id, its_name, {}, Whereabouts::kPausedByStage, false, Clock::now(),
                FirstTurn::kAnnounced);
    caller.account->log().info("group '{}' is to start: it waits for its first turn in stage '{}'",
                               name, stage_name);
  } else if (start->runs && !start->has_ranks) {
    const Starts::Number number = starts_.wait(*start, caller.process, {}, std::move(done));
    starts_.answer(start->id, {});
    return number;
  }
  return starts_.wait(*start, caller.process, timeout, std::move(done));
}

// ---- operators ----------------------------------------------------------------------------------

bool Stages::switches(const Operations::Groups& groups) {
  return std::any_of(groups.begin(), groups.end(), [this](const NamedGroup& each) {
    const GpuStage* const stage = stage_of(each.id);
    return stage != nullptr && stage->switches(each.id);
  });
}

void Stages::after_switch(const Operations::Groups& groups, Duration timeout,
                          std::function<void(const Status&)> go) {
  const auto switched = std::find_if(groups.begin(), groups.end(),
                                     [this](const NamedGroup& each) { return switches({each}); });
  if (switched == groups.end()) return go({});
  const std::uint64_t number = next_command_++;
  GpuStage* const stage = stage_of(switched->id);
  Command& command =
      commands_.emplace(number, Command{.stage = stage, .groups = groups, .go = std::move(go)})
          .first->second;
  if (timeout == Duration{}) return;
  const std::string text = "stage '" + stage->name() + "' has been switching group '" +
                           switched->name + "' for all of " + format_duration(timeout) +
                           ", and the operation waited for the end of that. Nothing else has "
                           "happened";
  command.timer = loop_.at(Clock::now() + timeout, [this, number, text] {
    auto late = commands_.extract(number);
    if (!late.empty()) late.mapped().go({Code::kDeadlineExceeded, text});
  });
}

Operations::Groups Stages::take_paused(const Operations::Groups& groups) {
  Operations::Groups left;
  for (const NamedGroup& each : groups) {
    GroupEntry& group = node_.groups.at(each.id);
    GpuStage* const stage = stage_of(each.id);
    // Who pauses a group wants its memory to leave: of one that has some on the devices the rest.
    if (stage == nullptr || group.machine.state() != GroupState::kPaused ||
        !group.paused_by_stage || !rest_of(group).empty()) {
      left.push_back(each);
      continue;
    }
    group.paused_by_stage = false;
    (void)node_.records.write(group);
    place(*stage, group);
  }
  return left;
}

void Stages::let_go(const Operations::Groups& groups) {
  for (const NamedGroup& each : groups) {
    const auto it = node_.groups.find(each.id);
    GpuStage* const stage = stage_of(each.id);
    if (it == node_.groups.end() || stage == nullptr ||
        it->second.machine.state() != GroupState::kPaused || it->second.paused_by_stage)
      continue;
    it->second.paused_by_stage = true;
    (void)node_.records.write(it->second);
    place(*stage, it->second);
  }
}

std::string Stages::gets(const GroupEntry& group) {
  const GpuStage* const stage = stage_of(group.id);
  return stage != nullptr && group.machine.state() == GroupState::kPaused ? stage->name() : "";
}

Status Stages::set(GroupEntry& group, const Change& change) {
  const std::string name = change.stage.value_or(group.stage);
  GpuStage* const to = name.empty() ? nullptr : find(name);
  if (to == nullptr && !name.empty())
    return {Code::kNotFound, "there is no stage '" + name + "'. " + names()};
  TurnWishes wishes = group.wishes;
  wishes.weight = change.weight.value_or(wishes.weight);
  wishes.priority = change.priority.value_or(wishes.priority);
  wishes.longest_wait = change.longest_wait.value_or(wishes.longest_wait);
  wishes.leave_first = change.leave_first.value_or(wishes.leave_first);
  wishes.return_order = change.return_order.value_or(wishes.return_order);
  for (const auto* tags : {&wishes.leave_first, &wishes.return_order})
    if (const Status status = check_order(*tags); !status.ok()) return status;
  TurnTerms terms;
  terms.group = group.machine.name();
  terms.weight = wishes.weight;
  terms.priority = wishes.priority;
  terms.longest_wait = wishes.longest_wait;
  if (const Status status = check_terms(to != nullptr ? to->rules() : TurnRules(), {}, terms);
      !status.ok())
    return status;
  GpuStage* const from = stage_of(group.id);
  if (to != nullptr && from == to) {
    if (Status status = to->set_wishes(group.id, wishes, Clock::now()); !status.ok()) return status;
  } else if (from != nullptr && from->switches(group.id)) {
    return {Code::kFailedPrecondition, "stage '" + from->name() + "' switches group '" +
                                           group.machine.name() + "' now. Try again"};
  }
  group.wishes = wishes;
  group.stage = name;
  if (to != nullptr && from == to && group.machine.state() == GroupState::kRunning)
    to->parts(group.id, parts_of(group), Clock::now());
  if (from != to) {
    group.leased = group.starts = group.asks_by_calls = false;
    if (from != nullptr) from->leave(group.id, Clock::now());
    if (to != nullptr) enter(*to, group);
    tell_reports(group.id, to != nullptr && to->wants_reports(group.id));
  }
  return node_.records.write(group);
}

Stages::LeaseId Stages::lease(const GroupEntry& group, Duration timeout, GpuStage::OnLease done) {
  GpuStage* const stage = stage_of(group.id);
  if (stage == nullptr) {
    done({Code::kFailedPrecondition, "group '" + group.machine.name() +
                                         "' is in no stage. Start it with `amemctl run --stage "
                                         "NAME`, or use `amemctl stage`. " +
                                         names()});
    return 0;
  }
  const LeaseId id = next_lease_++;
  leases_.emplace(id, Waiting{.stage = stage, .done = std::move(done)});
  const std::uint64_t number = stage->lease(
      group.id, [this, id](const Status& status) { end_lease(id, status); }, Clock::now());
  const auto it = leases_.find(id);
  if (it == leases_.end() || number == 0) return 0;
  it->second.number = number;
  if (timeout > Duration{})
    it->second.timer = loop_.at(Clock::now() + timeout, [this, id, timeout] {
      const auto late = leases_.find(id);
      if (late == leases_.end()) return;
      late->second.timer.reset();
      late->second.stage->forget(late->second.number, Clock::now());
      end_lease(id, {Code::kDeadlineExceeded, "the group has not got its turn within " +
                                                  format_duration(timeout) +
                                                  ". `amemctl turns` shows who runs"});
    });
  return id;
}

void Stages::end_lease(LeaseId id, const Status& status) {
  auto ended = leases_.extract(id);
  if (ended.empty()) return;
  if (ended.mapped().timer) loop_.cancel(*ended.mapped().timer);
  ended.mapped().done(status);
}

void Stages::forget(LeaseId id) {
  const auto it = leases_.find(id);
  if (it == leases_.end()) return;
  it->second.stage->forget(it->second.number, Clock::now());
  end_lease(id, {Code::kCancelled, "the caller has disconnected"});
}

Status Stages::yield(const GroupEntry& group) {
  GpuStage* const stage = stage_of(group.id);
  if (stage == nullptr)
    return {Code::kFailedPrecondition,
            "group '" + group.machine.name() + "' is in no stage. " + names()};
  return stage->yield(group.id, Clock::now());
}

void Stages::settle() {
  for (const auto& [name, stage] : stages_) stage->settle(Clock::now());
}

Status Stages::report(const Caller& caller, const std::string& name, v1::TurnsResponse& response) {
  if (!name.empty() && find(name) == nullptr)
    return {Code::kNotFound, "there is no stage '" + name + "'. " + names()};
  for (const auto& [its, stage] : stages_)
    if (name.empty() || its == name) report(caller, *stage, *response.add_stages());
  return {};
}

bool Stages::may_see(const Caller& caller, GroupId id) {
  if (const auto group = node_.groups.find(id); group != node_.groups.end())
    return caller.may_see(*group->second.account);
  const Starts::Start* const start = starts_.find(id);
  return start != nullptr && caller.may_see(*start->account);
}

/// REQUIRES: may_see().
std::string Stages::name_of(const Caller& caller, GroupId id) {
  if (const auto group = node_.groups.find(id); group != node_.groups.end())
    return name_for(node_, caller, group->second);
  const Starts::Start& start = *starts_.find(id);
  const bool own = caller.account == nullptr || caller.account == start.account;
  return own ? start.name : start.name + "@" + key_of(start.account->owner());
}

void Stages::report(const Caller& caller, GpuStage& stage, v1::StageInfo& info) {
  const Time now = Clock::now();
  stage.settle(now);
  const StageFigures& figures = node_.stages.at(stage.name());
  info.set_name(stage.name());
  info.set_policy(std::string(to_string(stage.rules().policy)));
  for (const StageDevice& device : stage.devices()) {
    v1::StageDevice& each = *info.add_devices();
    const Device* known = means_.devices.find(device.device);
    each.set_uuid(to_string(device.device));
    each.set_ordinal(known != nullptr ? known->ordinal : -1);
    each.set_total_bytes(device.capacity);
    each.set_margin_bytes(device.margin);
  }
  for (const GpuStage::GroupView& view : stage.groups(now)) {
    if (!may_see(caller, view.id)) continue;
    v1::TurnInfo& each = *info.add_groups();
    each.set_group(name_of(caller, view.id));
    each.set_turn(view.what);
    each.set_since_ms(ms(view.since));
    each.set_call(view.call);
    each.set_leased(view.leased);
    each.set_weight(view.wishes.weight);
    each.set_priority(view.wishes.priority);
    each.set_longest_wait_ms(ms(view.wishes.longest_wait));
    each.set_needs_bytes(view.needs);
    each.set_note(view.refusal);
    for (const std::string& tag : view.wishes.leave_first) each.add_leave_first(tag);
    for (const std::string& tag : view.wishes.return_order) each.add_return_order(tag);
    each.set_stays_bytes(view.stays);
    if (const auto its = figures.groups.find(view.id); its != figures.groups.end()) {
      each.set_there_ms(ms(its->second.there));
      each.set_ran_ms(ms(its->second.ran));
      each.set_waited_ms(ms(its->second.waited));
    }
  }
  info.set_switching(stage.switching());
  info.set_switching_us(to_us(figures.switching));
  for (const auto& [code, count] : figures.switches) {
    info.set_switches(info.switches() + count);
    if (code != Code::kOk) info.set_failed_switches(info.failed_switches() + count);
  }
  const auto& last = stage.last();
  if (!last) return;
  // Whose groups they were is for those who may see all of them.
  for (const auto* ids : {&last->what.out, &last->what.in})
    for (const GroupId id : *ids) {
      if (!caller.sees_all && !caller.operates && !may_see(caller, id)) return;
    }
  v1::StageSwitch& message = *info.mutable_last();
  const auto put = [&](const std::vector<GroupId>& ids, auto* names) {
    for (const GroupId id : ids)
      if (may_see(caller, id)) names->Add(name_of(caller, id));
  };
  put(last->what.out, message.mutable_out_groups());
  put(last->what.in, message.mutable_in_groups());
  message.set_why(last->what.why);
  message.set_began_us(static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(last->at.time_since_epoch()).count()));
  message.set_us(to_us(last->took));
  message.set_code(static_cast<std::uint32_t>(last->status.code()));
  message.set_error(last->status.text());
}

}  // namespace amem
