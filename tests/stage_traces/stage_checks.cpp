// What must hold of a stage, as far as the ranks and the devices say.
#include <algorithm>
#include <utility>

#include "daemon/base/units.h"
#include "tests/stage_traces/stage_player.h"
#include "tests/world/death.h"
#include "tests/world/ground.h"

namespace amem::stage_traces {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using world::Ground;

/// After something went wrong on purpose: deadlines pass, and what failed is tried again.
constexpr Duration kCalm = seconds(30);
/// amemd looks at devices once a second.
constexpr Duration kSeen = milliseconds(2500);
/// Of a pause and a resume of one group here, for its residency.
constexpr Duration kMostResidency = seconds(20);

}  // namespace

StagePlayer::Group* StagePlayer::find(const std::string& name) {
  const auto found = std::find_if(groups_.begin(), groups_.end(),
                                  [&](const Group& each) { return each.plan->name == name; });
  return found == groups_.end() ? nullptr : &*found;
}

const StagePlayer::Group* StagePlayer::find(const std::string& name) const {
  return const_cast<StagePlayer*>(this)->find(name);
}

bool StagePlayer::has_work(const std::string& name) const {
  const Group* const group = find(name);
  return group != nullptr &&
         std::any_of(group->programs.begin(), group->programs.end(),
                     [](const Program* each) { return each->left > Duration{}; });
}

StagePlayer::View StagePlayer::look_at_all(bool asks) const {
  View view;
  (void)node_.broker().stages().report(Caller{}, "s", view.turns);
  v1::ListGroupsResponse list;
  node_.broker().reports().groups(Caller{}, list);
  const auto plain = [](const std::string& name) { return name.substr(0, name.find('@')); };
  for (const v1::GroupInfo& group : list.groups()) view.groups[plain(group.name())] = group;
  for (const v1::StageInfo& stage : view.turns.stages())
    for (const v1::TurnInfo& info : stage.groups()) view.infos[plain(info.group())] = info;
  const v1::NodeStatus status = asks ? v1::NodeStatus() : node_.status();
  for (const Device& device : Ground::get().devices().all()) {
    if (asks) {
      view.free.push_back(Ground::get().nvml().memory(device.uuid)->free);
      continue;
    }
    std::uint64_t used = 0;
    for (const v1::DeviceStatus& each : status.devices())
      if (each.uuid() == to_string(device.uuid)) used += each.brokered_bytes();
    for (const Program& program : programs_)
      used += program.contexts.contains(device.uuid) ? kPage : 0;
    used += node_.neighbours.bytes(device.uuid);
    view.free.push_back(device.total - std::min(device.total, used));
  }
  return view;
}

bool StagePlayer::takes_turns(const View& view, const std::string& name) const {
  const auto info = view.infos.find(name);
  return info != view.infos.end() && info->second.turn() != "apart";
}

std::uint64_t StagePlayer::lacks(const View& view, const std::string& name, int device) const {
  std::uint64_t bytes = 0;
  const DeviceUuid& uuid = Ground::get().devices().all()[static_cast<std::size_t>(device)].uuid;
  if (const auto group = view.groups.find(name); group != view.groups.end())
    for (const v1::GroupDeviceUsage& usage : group->second.devices())
      if (usage.uuid() == to_string(uuid))
        bytes += usage.allocated_bytes() - usage.resident_bytes();
  // Of a process that is checkpointed its context has to return, too.
  for (const Program* program : find(name)->programs)
    if (program->uses.contains(device) &&
        node_.checkpoints.state(program->rank.pid()) == ProcessState::kCheckpointed)
      bytes += kPage + kPage / 8;  // amemd keeps some space beside that
  return bytes;
}

std::uint64_t StagePlayer::keeps(const std::string& name, int device) const {
  const DeviceUuid& uuid = Ground::get().devices().all()[static_cast<std::size_t>(device)].uuid;
  std::set<std::uint64_t> opened;
  for (const Group& group : groups_)
    for (const Program* program : group.programs)
      for (const Rank::Has& each : program->rank.has())
        if (each.guest) opened.insert(each.id);
  std::uint64_t bytes = 0;
  for (const Program* program : find(name)->programs)
    for (const Rank::Has& each : program->rank.has())
      if (!each.guest && each.device == uuid && (each.pinned || opened.contains(each.id)))
        bytes += each.size;
  return bytes;
}

bool StagePlayer::fits(const View& view, const std::string& name, bool alone) const {
  for (int device = 0; device < kDevices; ++device) {
    const std::uint64_t lacks = this->lacks(view, name, device);
    if (lacks == 0) continue;
    std::uint64_t free = view.free[static_cast<std::size_t>(device)];
    const DeviceUuid& uuid = Ground::get().devices().all()[static_cast<std::size_t>(device)].uuid;
    for (const auto& [other, group] : view.groups) {
      if (!alone || other == name || !takes_turns(view, other)) continue;
      for (const v1::GroupDeviceUsage& usage : group.devices())
        if (usage.uuid() == to_string(uuid))
          free += usage.resident_bytes() - std::min(usage.resident_bytes(), keeps(other, device));
    }
    if (lacks + kMarginPages * kPage > free) return false;
  }
  return true;
}

bool StagePlayer::can_come_in(const View& view, const std::string& name) const {
  const Group& group = *find(name);
  // What a checkpointed process needs amemd has measured, with what others let go of meanwhile.
  const bool deep = std::any_of(group.programs.begin(), group.programs.end(),
                                [](const Program* each) { return !each->rank.is_free(); });
  const auto info = view.infos.find(name);
  return takes_turns(view, name) && fits(view, name, true) &&
         !(deep && info->second.note().starts_with("does not fit"));
}

void StagePlayer::check() {
  if (!played_.broken.empty() || world::death::came()) return;
  check_bytes(false);
  const View view = look_at_all();
  if (view.turns.stages_size() != 1) return breaks("the stage is there");
  for (const auto& [name, info] : view.infos) {
    if (options_.aloud && turn_[name] != info.turn())
      say("group " + name + " " + info.turn() + (info.note().empty() ? "" : ": " + info.note()));
    if (turn_[name] != info.turn() && info.turn() == "waits") ++played_.waits;
    turn_[name] = info.turn();
    const auto group = view.groups.find(name);
    if (group != view.groups.end() && group->second.state() == v1::GROUP_STATE_RUNNING)
      find(name)->has_run = true;
  }
  std::erase_if(turn_, [&](const auto& each) { return !view.infos.contains(each.first); });
  check_first_turns(view);
  check_waits(view);
  if (trace_.reasons) check_names();
}

/// A first turn without a rank ends.
void StagePlayer::check_first_turns(const View& view) {
  for (const auto& [name, info] : view.infos) {
    if (info.turn() != "starts" || !find(name)->programs.empty()) continue;
    const auto waits = [&](bool others) {
      return std::any_of(view.infos.begin(), view.infos.end(), [&](const auto& each) {
        return each.second.turn() == "waits" && each.second.since_ms() > 2000 &&
               (!others || find(each.first)->plan->user != find(name)->plan->user);
      });
    };
    const Duration limit = waits(true) ? kStartLimitShared : kStartLimit;
    if (waits(false) && milliseconds(info.since_ms()) > limit + seconds(4))
      breaks("a first turn without a rank ends, but not that of group " + name);
  }
}

void StagePlayer::check_promise(const std::string& name, const std::string& text) {
  if (text.find("at its turn") == std::string::npos) return;
  // Not in here: whoever says it is in the middle of it.
  after(milliseconds(100), [this, name] {
    View view = look_at_all();
    if (view.groups.contains(name) && !takes_turns(view, name))
      breaks("an operator was told that group " + name +
             " is resumed at its turn, but it takes no turns: " + view.infos[name].note());
  });
}

/// Nobody reads the names of others' groups.
void StagePlayer::check_names() {
  const uid_t user = 1001 + static_cast<uid_t>(dice_.below(3));
  Caller caller;
  caller.account = node_.broker().accounts().of({user, {}});
  caller.operates = caller.sees_all = false;
  v1::TurnsResponse turns;
  (void)node_.broker().stages().report(caller, "s", turns);
  for (const v1::TurnInfo& info : turns.stages(0).groups())
    for (const Group& group : groups_)
      if (group.plan->user != user &&
          info.note().find("'" + group.plan->name + "'") != std::string::npos)
        breaks("nobody reads the names of others' groups, but the owner of group " + info.group() +
               " does: " + info.note());
}

void StagePlayer::check_bytes(bool all) {
  for (const Program& program : programs_) {
    if (!program.rank.lives() || !program.rank.runs()) continue;
    if (const std::string wrong = program.rank.check(all); !wrong.empty()) breaks(wrong);
    if (!program.rank.is_free()) breaks("no rank runs whose process is locked or checkpointed");
  }
}

/// No switch is begun that must fail.
void StagePlayer::look_at_switches() {
  if (!played_.broken.empty() || world::death::came()) return;
  if (std::any_of(programs_.begin(), programs_.end(),
                  [](const Program& each) { return each.stopped && each.rank.lives(); }))
    trouble_ = now();
  v1::TurnsResponse turns;
  (void)node_.broker().stages().report(Caller{}, "s", turns);
  const v1::StageInfo& stage = turns.stages(0);
  const std::uint64_t ended = stage.switches() - std::exchange(switches_, stage.switches());
  const std::uint64_t failed =
      stage.failed_switches() - std::exchange(failed_, stage.failed_switches());
  played_.switches += ended;
  played_.failed += failed;
  if (ended > 0) say("switch: " + stage.last().why() + ": " + stage.last().error());
  if (failed > 0 && std::max(changed_, trouble_) + kSeen < switch_began_.value_or(now()))
    breaks("no switch is begun that must fail, but one has (" + stage.last().why() +
           "): " + stage.last().error());
  if (ended > 0 || stage.switching()) last_switch_ = now();
  if (ended > 0 || !stage.switching()) switch_began_.reset();
  if (stage.switching() && !switch_began_) switch_began_ = now();
}

void StagePlayer::say_all() const {
  const View view = look_at_all(true);
  const View added = look_at_all();
  const auto pages = [](std::uint64_t bytes) { return std::to_string(bytes / kPage); };
  for (int device = 0; device < kDevices; ++device) {
    const auto number = static_cast<std::size_t>(device);
    say("GPU " + std::to_string(device) + ": " + pages(view.free[number]) + " of " +
        std::to_string(kDevicePages) + " pages free, as added up " + pages(added.free[number]) +
        (device < trace_.devices ? "" : ", not in the stage"));
  }
  for (const auto& [name, info] : view.infos) {
    std::string text = "group " + name + " " + info.turn() + " for " +
                       std::to_string(info.since_ms()) + " ms" +
                       (has_work(name) ? ", has work" : "") +
                       (fits(view, name, false)  ? ", fits"
                        : fits(view, name, true) ? ", fits alone"
                                                 : ", does not fit");
    if (const auto group = view.groups.find(name); group != view.groups.end())
      for (const v1::GroupDeviceUsage& usage : group->second.devices())
        for (int device = 0; device < kDevices; ++device)
          if (usage.uuid() ==
              to_string(Ground::get().devices().all()[static_cast<std::size_t>(device)].uuid))
            text += ", GPU " + std::to_string(device) + ": " + pages(usage.allocated_bytes()) +
                    ", there " + pages(usage.resident_bytes()) + ", keeps " +
                    pages(keeps(name, device)) + ", lacks " + pages(lacks(view, name, device));
    say(text + (info.note().empty() ? "" : ": " + info.note()));
  }
}

namespace {

bool contradicts(const std::string& turn, v1::GroupState state) {
  if (turn == "runs" || turn == "starts") return state != v1::GROUP_STATE_RUNNING;
  if (turn == "waits" || turn == "idle" || turn == "paused") return state != v1::GROUP_STATE_PAUSED;
  return false;
}

}  // namespace

void StagePlayer::check_waits(const View& view) {
  const TurnRules& rules = trace_.stage.rules;
  const Duration residency = trace_.stage.min_residency.value_or(kMostResidency);
  const v1::StageInfo& stage = view.turns.stages(0);
  const bool calm = now() > trouble_ + kCalm && now() > changed_ + seconds(4);
  bool moves = stage.switching();
  bool works = false;  // somebody who runs by turns
  Time worked{};       // and the last who has
  std::vector<std::string> waiting;
  for (const auto& [name, info] : view.infos) {
    const std::string& turn = info.turn();
    moves = moves || turn == "comes" || turn == "leaves";
    const auto group = view.groups.find(name);
    if (group != view.groups.end() && contradicts(turn, group->second.state()))
      breaks("a turn is where the group is, but group " + name + " '" + turn + "' while it is " +
             v1::GroupState_Name(group->second.state()));
    if (turn == "runs" || turn == "starts") {
      worked = std::max(worked, find(name)->worked);
      works = works || has_work(name) || info.leased() || find(name)->leasing ||
              find(name)->programs.empty();
    }
    if (turn == "waits") waiting.push_back(name);
  }
  for (const auto& [name, info] : view.groups)
    moves = moves ||
            (info.state() != v1::GROUP_STATE_RUNNING && info.state() != v1::GROUP_STATE_PAUSED);
  std::set<std::string> can;  // come in, if others leave
  for (const std::string& name : waiting) {
    const v1::TurnInfo& info = view.infos.at(name);
    if (can_come_in(view, name)) can.insert(name);
    const Duration waits = milliseconds(info.since_ms());
    const auto since = fits_since_.find(name);  // what does not fit is not promised
    if (info.longest_wait_ms() > 0 && find(name)->promised && since != fits_since_.end() &&
        since->second <= now() - waits + seconds(2) &&
        waits > milliseconds(info.longest_wait_ms()) + seconds(2) * (groups_.size() + 1))
      breaks("no longest wait is exceeded, but group " + name + " waits for " +
             format_duration(waits) + ", and " +
             format_duration(milliseconds(info.longest_wait_ms())) + " were promised");
  }
  // Nobody waits while its memory is free, unless another one is before it. Who starts needs all of
  // the GPUs that it sees.
  for (const std::string& name : waiting) {
    const bool first = can.contains(name) && can.size() == 1;
    const bool starts_here = rules.starts_alone && !find(name)->has_run;
    const bool taken = std::any_of(view.infos.begin(), view.infos.end(), [&](const auto& each) {
      const std::string& turn = each.second.turn();
      const bool starts_there = turn == "starts";
      return each.first != name && (starts_here || starts_there) && turn != "apart" &&
             (turn == "runs" || starts_there) &&
             std::any_of(find(name)->plan->sees.begin(), find(name)->plan->sees.end(),
                         [&](int device) { return find(each.first)->plan->sees.contains(device); });
    });
    if (!calm || moves || !first || taken || !fits(view, name, false)) {
      free_since_.erase(name);
      continue;
    }
    const Time since = free_since_.try_emplace(name, now()).first->second;
    if (now() > since + rules.grace + seconds(5) && fits(look_at_all(true), name, false))
      breaks("nobody waits while its memory is free, but group " + name +
             " does: " + view.infos.at(name).note());
  }
  std::erase_if(free_since_, [&](const auto& each) { return turn_[each.first] != "waits"; });
  // Something happens while somebody who can come in waits, and nobody works.
  if (!calm || moves || works || can.empty() || now() < last_switch_ + seconds(2)) {
    still_since_.reset();
  } else {
    if (!still_since_) still_since_ = now();
    still_since_ = std::max(*still_since_, worked);
    if (now() > *still_since_ + rules.idle + rules.start_idle + residency + seconds(6) &&
        fits(look_at_all(true), *can.begin(), true))
      breaks("nobody works, and group " + *can.begin() +
             " could come in, but waits: " + view.infos.at(*can.begin()).note());
  }
  // Nobody starves. Where turns have no limit, groups that work in turns may keep a third one out.
  const bool has_limit = rules.policy == TurnPolicy::kSlice || rules.max_hold > Duration{};
  Duration hold = rules.max_hold > Duration{} ? rules.max_hold : seconds(20);
  if (rules.policy == TurnPolicy::kSlice) hold = 3 * rules.slice;
  const auto all = static_cast<std::int64_t>(groups_.size() + 2);
  const Duration bound = all * (hold + residency + rules.start_idle + seconds(8)) + seconds(60);
  for (const std::string& name : can) {
    if (now() < trouble_ + kCalm) fits_since_.erase(name);
    const Time since = fits_since_.try_emplace(name, now()).first->second;
    if (has_limit && now() > since + bound) breaks("nobody starves, but group " + name + " does");
  }
  std::erase_if(fits_since_, [&](const auto& each) { return !can.contains(each.first); });
  for (const std::string& name : waiting)
    if (trace_.reasons && calm) check_reason(view, view.infos.at(name), can.contains(name));
}

/// Every group that waits has a reason, and it is true.
void StagePlayer::check_reason(const View& view, const v1::TurnInfo& info, bool can) {
  const std::string name = info.group().substr(0, info.group().find('@'));
  const std::string& note = info.note();
  const auto says = [&](const char* phrase) { return note.find(phrase) != std::string::npos; };
  if (info.since_ms() < 3000) return;
  if (note.empty()) return breaks("a group that waits has a reason, but " + name + " has none");
  // How much a checkpointed process needs only amemd knows.
  const Group& group = *find(name);
  const bool deep = std::any_of(group.programs.begin(), group.programs.end(),
                                [](const Program* each) { return !each->rank.is_free(); });
  const bool moves = view.turns.stages(0).switching() ||
                     std::any_of(view.groups.begin(), view.groups.end(), [](const auto& each) {
                       return each.second.state() != v1::GROUP_STATE_RUNNING &&
                              each.second.state() != v1::GROUP_STATE_PAUSED;
                     });
  if (moves && says("waits for the end of a switch")) return;
  if (!deep && says("does not fit") == can)
    breaks("what is said of group " + name + " is true, but it says: " + note);
  if (says("does not fit")) return;
  const auto names_one = [&](const std::set<std::string>& turns) {
    return std::any_of(view.infos.begin(), view.infos.end(), [&](const auto& each) {
      return each.first != name && turns.contains(each.second.turn()) &&
             note.find("'" + each.first + "'") != std::string::npos;
    });
  };
  const bool is_true = says("has failed")        ? info.failures() > 0
                       : says("is before it")    ? names_one({"waits", "comes"})
                       : says("waits for group") ? names_one({"runs", "starts", "comes", "leaves"})
                                                 : false;
  // One that may leave now leaves in the next turn of the loop.
  if (is_true)
    untrue_since_.erase(name);
  else if (now() > untrue_since_.try_emplace(name, now()).first->second + milliseconds(400))
    breaks("what is said of group " + name + " is true, but it says: " + note);
}

void StagePlayer::check_end() {
  if (const std::string left = node_.left_over(); !left.empty()) breaks(left);
}

}  // namespace amem::stage_traces
