#include "daemon/operations/operations.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "daemon/node/reports.h"

namespace amem {
namespace {

std::vector<std::string> names_of(const Operations::Groups& groups) {
  std::vector<std::string> names;
  for (const NamedGroup& group : groups) names.push_back(group.name);
  return names;
}

std::vector<GroupId> ids_of(const Operations::Groups& groups) {
  std::vector<GroupId> ids;
  for (const NamedGroup& group : groups) ids.push_back(group.id);
  return ids;
}

/// Of a group, for nodes that ask late: after the next operation on it, and two more.
constexpr std::size_t kSharesKept = 4;

}  // namespace

Status Operations::allows(const Task& task) const {
  if (task.deep && !task.selection.all())
    return {Code::kInvalidArgument,
            "a deep pause takes all memory of a group. Pass no tags with it"};
  if (task.deep && !node_.deep_pauses)
    return {
        Code::kFailedPrecondition,
        "deep pauses are off on this node. Set deep.enabled = true in amemd's configuration, and "
        "restart amemd; docs/phases.md says what such a pause can lose"};
  return {};
}

Task Operations::part_of(Task task, GroupId group, const Parts& parts) {
  const auto part = parts.find(group);
  if (part == parts.end()) return task;
  task.selection = part->second;
  task.partial = true;
  return task;
}

Status Operations::check(const Groups& groups, const Task& of_all, const Parts& parts) {
  if (Status status = allows(of_all); !status.ok()) return status;
  for (const auto& [id, name] : groups) {
    const Task task = part_of(of_all, id, parts);
    const auto is_this = [id = id](const NamedGroup& group) { return group.id == id; };
    if (std::count_if(groups.begin(), groups.end(), is_this) > 1)
      return {Code::kInvalidArgument, "group '" + name + "' is named twice"};
    if (!node_.groups.contains(id))
      return {Code::kAborted, "group '" + name + "' has ended in the meantime"};
    Status status = check_tags(node_.allocations, id, task);
    if (!status.ok() && groups.size() > 1)
      return {status.code(), "group '" + name + "': " + status.text()};
    const GroupEntry& group = node_.groups.at(id);
    if (status.ok() && !group.machine.local()) status = group.machine.can_start(task);
    if (status.ok() && task.deep && group.machine.members().empty())
      status = {Code::kFailedPrecondition,
                "group '" + name + "' has no rank yet, so there is nothing to be made deep"};
    if (status.ok() && task.deep)
      if (const auto visible = amem::visible_to(means_, group); !visible.ok())
        status = visible.status();
    if (!status.ok()) return status;
  }
  return {};
}

DeepProof::Sets Operations::visible_to(const Groups& groups) const {
  DeepProof::Sets all;
  for (const NamedGroup& group : groups)
    all.merge(amem::visible_to(means_, node_.groups.at(group.id)).value());
  return all;
}

std::uint64_t Operations::start(const Task& task, const Groups& groups, Duration timeout,
                                const Observer& observer, const Asker& who,
                                std::shared_ptr<Abroad> abroad, const Parts& parts) {
  const bool out = task.op == Operation::kPause;
  Status status = check(groups, task, parts);
  if (groups.empty()) status = {Code::kInvalidArgument, "no group is named"};
  // Other nodes do not wait with this one.
  if (abroad != nullptr && status.ok()) status = set_ranks_aside(groups);
  if (status.ok() && await_ranks(groups, observer, [=, this] {
        start(task, groups, timeout, observer, who, nullptr, parts);
      }))
    return 0;
  if (task.deep && status.ok()) {
    const DeepProof::Sets visible = visible_to(groups);
    const std::optional<Status> proven = means_.deep_proof.verdict(visible);
    if (!proven && closed_.ok() && refusal_.ok()) {
      await_proof_.insert(observer);
      observer->on_wait([this, waits = std::weak_ptr(observer)] {
        const Observer gone = waits.lock();
        if (await_proof_.erase(gone) > 0)
          gone->finished({Code::kCancelled, "the caller has disconnected"});
      });
      means_.deep_proof.prove(
          visible, [this, task, groups, timeout, observer, who, abroad](const Status& now) {
            const auto waits = await_proof_.find(observer);
            if (waits == await_proof_.end()) return;  // its caller has gone, or amemd ends
            await_proof_.erase(waits);
            if (!now.ok()) return observer->finished(now);
            start(task, groups, timeout, observer, who, abroad);
          });
      return 0;
    }
    if (proven) status = *proven;
  }
  if (!status.ok()) {
    observer->finished(status);
    return 0;
  }
  const std::vector<std::string> names = names_of(groups);
  const std::vector<std::string> none;
  const auto request = std::make_shared<Request>(
      Transaction(out ? names : none, out ? none : names, task, duplex_, abroad != nullptr), task,
      task, timeout, observer);
  request->abroad = std::move(abroad);
  request->asker = who;
  request->groups = ids_of(groups);
  (out ? request->exchange.leaving : request->exchange.arriving) = request->groups;
  request->exchange.parts = parts;
  return start(request);
}

std::uint64_t Operations::swap(const Groups& out, const Groups& in, const Task& pause,
                               Duration timeout, const Observer& observer, const Asker& who,
                               std::shared_ptr<Abroad> abroad, const Parts& parts) {
  const Task resume(Operation::kResume);
  const std::vector<GroupId> coming = ids_of(in);
  Status status;
  if (out.empty() || in.empty())
    status = {Code::kInvalidArgument, "a swap requires groups to pause and groups to resume"};
  for (const auto& [id, name] : out)
    if (std::find(coming.begin(), coming.end(), id) != coming.end())
      status = {Code::kInvalidArgument,
                "group '" + name +
                    "' is named both to pause and to resume. A swap requires different groups"};
  // Refused before the pause, not after it.
  if (status.ok()) status = check(out, pause, parts);
  if (status.ok()) status = check(in, resume);
  Groups all = out;
  all.insert(all.end(), in.begin(), in.end());
  if (abroad != nullptr && status.ok()) status = set_ranks_aside(all);
  if (status.ok() && await_ranks(all, observer, [=, this] {
        swap(out, in, pause, timeout, observer, who, nullptr, parts);
      }))
    return 0;
  if (!status.ok()) {
    observer->finished(status);
    return 0;
  }
  const auto request = std::make_shared<Request>(
      Transaction(names_of(out), names_of(in), pause, duplex_, abroad != nullptr), pause, resume,
      timeout, observer);
  request->abroad = std::move(abroad);
  request->asker = who;
  request->exchange = {ids_of(out), coming, parts};
  request->groups = request->exchange.leaving;
  request->groups.insert(request->groups.end(), coming.begin(), coming.end());
  return start(request);
}

// ---- what ranks do by themselves ----------------------------------------------------------------

bool Operations::await_ranks_of(GroupId group) const {
  return std::any_of(await_ranks_.begin(), await_ranks_.end(), [&](const AwaitsRanks& waits) {
    return std::any_of(waits.groups.begin(), waits.groups.end(),
                       [&](const NamedGroup& each) { return each.id == group; });
  });
}

bool Operations::local(const Groups& groups) const {
  return std::any_of(groups.begin(), groups.end(), [&](const NamedGroup& each) {
    const auto group = node_.groups.find(each.id);
    return group != node_.groups.end() && group->second.machine.local();
  });
}

bool Operations::await_ranks(const Groups& groups, const Observer& observer,
                             std::function<void()> again) {
  if (!closed_.ok() || !refusal_.ok() || !local(groups)) return false;
  // From here on no rank of them begins another one.
  await_ranks_.push_back({groups, observer, std::move(again)});
  observer->on_wait([this, groups, waits = std::weak_ptr(observer)] {
    const Observer gone = waits.lock();
    if (std::erase_if(await_ranks_,
                      [&](const AwaitsRanks& each) { return each.observer == gone; }) > 0)
      gone->finished({Code::kCancelled, "the caller has disconnected"});
    look_at_requests(groups);
  });
  for (const NamedGroup& each : groups) {
    const auto group = node_.groups.find(each.id);
    if (group == node_.groups.end() || !group->second.machine.local()) continue;
    const std::string what = group->second.machine.what_is_under_way();
    spdlog::info("group '{}': an operation waits: {}", each.name, what);
    v1::Progress progress;
    progress.set_group(each.name);
    progress.set_waits_for(what);
    observer->progress(progress);
  }
  (void)set_ranks_aside(groups);
  return true;
}

/// Not OK: some of them have begun to copy, and go on.
Status Operations::set_ranks_aside(const Groups& groups) {
  for (const NamedGroup& each : groups) {
    const auto group = node_.groups.find(each.id);
    if (group == node_.groups.end() || !group->second.machine.local()) continue;
    group->second.machine.set_aside(Clock::now());
    drive_(group->second);
  }
  // What was set aside has ended already, and begins again if nothing else does.
  means_.loop.post([this, groups] { look_at_requests(groups); });
  for (const NamedGroup& each : groups)
    if (local({each}))
      return {Code::kFailedPrecondition, node_.groups.at(each.id).machine.what_is_under_way() +
                                             ". Try again when that has ended"};
  return {};
}

void Operations::look_at_requests(const Groups& groups) {
  for (const NamedGroup& each : groups)
    if (const auto group = node_.groups.find(each.id); group != node_.groups.end()) {
      group->second.machine.tick(Clock::now());
      drive_(group->second);
    }
}

void Operations::look_at_ranks() {
  std::vector<AwaitsRanks> ready;
  for (auto waits = await_ranks_.begin(); waits != await_ranks_.end();)
    if (local(waits->groups)) {
      ++waits;
    } else {
      ready.push_back(std::move(*waits));
      waits = await_ranks_.erase(waits);
    }
  for (const AwaitsRanks& waits : ready) waits.again();
  // If that has been refused, what ranks ask for begins.
  for (const AwaitsRanks& waits : ready) look_at_requests(waits.groups);
}

/// In a turn of its own: the group's actions are being carried out.
void Operations::run(GroupEntry& group, const action::Overdue&) {
  means_.loop.post([this, id = group.id] { deepen(id); });
}

void Operations::deepen(GroupId id) {
  const auto found = node_.groups.find(id);
  if (found == node_.groups.end() || !closed_.ok() || !refusal_.ok()) return;
  const std::string& name = found->second.machine.name();
  Task task(Operation::kPause);
  task.deep = true;
  // Somebody may have asked for something in between, such as a swap that brings it in later.
  if (found->second.machine.state() != GroupState::kPaused) return;
  for (const auto& [other, running] : running_)
    if (running.request != nullptr &&
        std::count(running.request->groups.begin(), running.request->groups.end(), id) > 0)
      return;
  if (const Status status = check({{id, name}}, task); !status.ok())
    return spdlog::warn("group '{}': deep.after: {}", name, status.text());
  // Refused for good: a first try has said so.
  const auto proven = means_.deep_proof.verdict(visible_to({{id, name}}));
  if (proven && !proven->ok()) return;
  spdlog::info("group '{}' has been paused for deep.after: amemd makes it deep", name);
  const auto request = std::make_shared<Request>(Transaction({name}, {}, task, duplex_, false),
                                                 task, task, Duration::zero(), nullptr);
  request->by_broker = true;
  request->asker = Asker("amemd (deep.after)");
  request->groups = request->exchange.leaving = {id};
  start(request);
}

// ---- transactions -------------------------------------------------------------------------------

std::uint64_t Operations::start(const RequestPtr& request) {
  if (const Status& why = closed_.ok() ? refusal_ : closed_; !why.ok()) {
    request->observer->finished(why);
    return 0;
  }
  request->number = ++last_number_;
  if (request->abroad != nullptr) abroad_[request->number] = request;
  carry_out(request, request->transaction.start());
  return request->number;
}

// ---- transactions over several nodes ------------------------------------------------------------

Operations::RequestPtr Operations::abroad(std::uint64_t number) const {
  const auto found = abroad_.find(number);
  return found != abroad_.end() ? found->second.lock() : nullptr;
}

void Operations::tell(std::uint64_t number, const std::string& group, const Event& event) {
  const RequestPtr request = abroad(number);
  if (request == nullptr) return;
  for (const GroupId id : request->groups) {
    const auto running = running_.find(id);
    if (running == running_.end() || running->second.request != request ||
        name_of(running->second) != group)
      continue;
    GroupEntry& entry = node_.groups.at(id);
    entry.machine.tell(event, Clock::now());
    return drive_(entry);
  }
}

bool Operations::may_go_on(std::uint64_t number, Stage stage) {
  const RequestPtr request = abroad(number);
  if (request == nullptr) return false;
  const Transaction::Steps steps = request->transaction.may_go_on(stage);
  carry_out(request, steps);
  return !steps.empty();
}

void Operations::give_up(std::uint64_t number, const Status& why) {
  const RequestPtr request = abroad(number);
  if (request == nullptr) return;
  (void)note(*request, request->groups, &FleetShare::given_up);
  carry_out(request, request->transaction.give_up(why));
}

FleetShare* Operations::share_of(const Request& request, GroupEntry& group) {
  if (request.abroad == nullptr) return nullptr;
  const auto found = std::find_if(
      group.shares.begin(), group.shares.end(),
      [&](const FleetShare& share) { return share.transaction == request.abroad->transaction(); });
  return found != group.shares.end() ? &*found : nullptr;
}

Status Operations::note(const Request& request, const std::vector<GroupId>& groups,
                        bool FleetShare::*what) {
  Status status;
  for (const GroupId id : groups) {
    const auto group = node_.groups.find(id);
    if (group == node_.groups.end()) continue;
    FleetShare* const share = share_of(request, group->second);
    if (share == nullptr || share->went_on || std::exchange(share->*what, true)) continue;
    if (const Status written = node_.records.write(group->second); !written.ok()) status = written;
  }
  return status;
}

/// What a step brings about may call for more steps: these come after it.
void Operations::carry_out(const RequestPtr& request, const Transaction::Steps& steps) {
  request->steps.insert(request->steps.end(), steps.begin(), steps.end());
  if (std::exchange(request->stepping, true)) return;
  while (!request->steps.empty()) {
    const Transaction::Step step = request->steps.front();
    request->steps.pop_front();
    carry_out(request, step);
  }
  request->stepping = false;
}

void Operations::carry_out(const RequestPtr& request, Transaction::Step step) {
  if (step.what == Transaction::Step::kFinish) return finish(*request);
  if (step.what == Transaction::Step::kAsk || step.what == Transaction::Step::kWithdraw) {
    const Stage stage = request->transaction.stage_of(step.member);
    const bool asks = step.what == Transaction::Step::kAsk;
    // On record before anybody is asked: the next broker must not take it for one that never will.
    if (asks) {
      std::vector<GroupId> groups;
      for (std::size_t member = 0; member < request->groups.size(); ++member)
        if (request->transaction.stage_of(member) == stage)
          groups.push_back(request->groups[member]);
      if (const Status status = note(*request, groups, &FleetShare::asked); !status.ok())
        return carry_out(request, request->transaction.give_up(status));
    }
    // From a turn of its own: the answer may be there at once.
    means_.loop.post([abroad = request->abroad, stage, asks] {
      asks ? abroad->asks(stage) : abroad->withdraws(stage);
    });
    return;
  }
  if (step.what == Transaction::Step::kBegin) {
    if (const Status status = begin(request, step.member); !status.ok())
      carry_out(request, request->transaction.ended(step.member, status));
    return;
  }
  const auto running = running_.find(request->groups[step.member]);
  if (running == running_.end() || running->second.request != request) return;  // it has ended
  GroupEntry& group = node_.groups.at(running->first);
  if (step.what == Transaction::Step::kVacated)
    group.machine.tell(event::AllLeft{}, Clock::now());
  else if (step.what == Transaction::Step::kGiveUp)
    group.machine.tell(event::GiveUp{request->transaction.why_given_up()}, Clock::now());
  if (step.what == Transaction::Step::kGoOn) {
    // The row that says that it releases, or opens, says this, too.
    if (FleetShare* const share = share_of(*request, group)) share->went_on = true;
    group.machine.tell(event::GoOn{}, Clock::now());
  }
  drive_(group);
}

/// Not OK: it has not begun, and nobody has been told.
Status Operations::begin(const RequestPtr& request, std::size_t member) {
  if (!closed_.ok()) return closed_;
  const bool out = request->transaction.goes_out(member);
  const auto found = node_.groups.find(request->groups[member]);
  if (found == node_.groups.end())
    return {Code::kAborted,
            "group '" + request->transaction.name(member) + "' has ended in the meantime"};
  GroupEntry& group = found->second;
  const Task task =
      out ? part_of(request->pause, group.id, request->exchange.parts) : request->resume;
  Status status = check_tags(node_.allocations, group.id, task);
  if (status.ok())
    status = group.machine.start(task, request->timeout, Clock::now(),
                                 request->transaction.hold(member));
  if (!status.ok()) return status;
  if (!out) request->in_began = Clock::now();
  Running& running = running_[group.id];
  running.request = request;
  running.member = member;
  drive_(group);
  return {};
}

void Operations::finish(const Request& request) {
  abroad_.erase(request.number);
  const Status result = request.transaction.result();
  if (request.transaction.swaps())
    node_.totals.add_swap(result.code(), Clock::now() - request.began);
  const auto ms = [](Duration time) { return static_cast<double>(to_us(time)) / 1000; };
  std::string what;
  if (request.transaction.swaps())
    what = "swap of " + request.transaction.names(Stage::kOut) + " for " +
           request.transaction.names(Stage::kIn);
  else if (request.groups.size() > 1)
    what = request.transaction.goes_out(0)
               ? "pause of groups " + request.transaction.names(Stage::kOut)
               : "resume of groups " + request.transaction.names(Stage::kIn);
  if (what.empty()) {
    // Of one group alone its own log line says everything.
  } else if (!result.ok()) {
    spdlog::error("{} failed: {}", what, result.text());
  } else if (request.transaction.swaps()) {
    spdlog::info(
        "{} took {:.1f} ms: pause {:.1f} ms; resume {:.1f} ms, which began {:.1f} ms {} the end of "
        "the pause",
        what, ms(Clock::now() - request.began), ms(request.pause_time), ms(request.resume_time),
        ms(std::chrono::abs(request.out_ended - request.in_began)),
        request.in_began < request.out_ended ? "before" : "after");
  } else {
    spdlog::info("{} took {:.1f} ms", what, ms(Clock::now() - request.began));
  }
  if (request.observer != nullptr) request.observer->finished(result);
}

bool Operations::resumes_for_operator(GroupId group) const {
  const auto it = running_.find(group);
  if (it == running_.end() || it->second.request == nullptr) return false;
  const Request& request = *it->second.request;
  return !request.transaction.swaps() && request.asker.stage.empty() &&
         request.resume == Task(Operation::kResume) &&
         !request.transaction.goes_out(it->second.member);
}

// ---- what the groups do -------------------------------------------------------------------------

void Operations::run(GroupEntry& group, const action::Begun& begun) {
  Running& running = running_[group.id];
  Request* const request = running.request.get();
  if (request != nullptr && request->abroad != nullptr) {
    group.shares.push_front(
        {request->abroad->transaction(), request->transaction.stage_of(running.member)});
    if (group.shares.size() > kSharesKept) group.shares.pop_back();
  }
  // A pause of tags leaves the group running, so whose it was says nothing.
  // Whose one is that an earlier amemd has begun is on record.
  // A group that amemd makes deep stays with its stage.
  const bool by_broker = request != nullptr && request->by_broker;
  if (begun.task.stops() && !begun.continues && !by_broker)
    group.paused_by_stage = request != nullptr && !request->asker.stage.empty();
  (void)node_.records.write(group);  // a pause looks again in its save, a resume in admit
  if (begun.task.op == Operation::kPause) {
    if (!begun.deepens)
      group.paused_by = request != nullptr ? request->asker.who : std::string(kPausedByItself);
    const bool duplex = request != nullptr && request->transaction.swaps() && duplex_;
    running.operation.emplace<PauseOperation>(means_, group, begun.task,
                                              duplex ? &request->exchange : nullptr,
                                              begun.continues, back_to(group.id));
    return;
  }
  running.operation.emplace<ResumeOperation>(means_, group, begun.task.selection,
                                             request != nullptr ? &request->exchange : nullptr,
                                             back_to(group.id));
}

void Operations::run(GroupEntry& group, const action::Quiesce& quiesce) {
  const auto it = running_.find(group.id);
  PauseOperation* const pause = pause_of(group.id);
  if (pause == nullptr) return;
  pause->run(quiesce);
  const Running& running = it->second;
  if (running.request != nullptr && running.request->abroad != nullptr)
    running.request->abroad->quiesces(name_of(running), quiesce.ranks);
}

void Operations::run(GroupEntry& group, const action::Reported& report) {
  const auto it = running_.find(group.id);
  if (it == running_.end() || it->second.request == nullptr) return;
  const Running& running = it->second;
  if (running.request->abroad != nullptr)
    running.request->abroad->reported(name_of(running), report.rank, report.what);
}

Back Operations::back_to(GroupId id) {
  const std::uint64_t serial = running_[id].serial = ++last_serial_;
  return [this, id, serial](const std::function<void()>& what) {
    const auto running = running_.find(id);
    if (running == running_.end() || running->second.serial != serial) return;
    what();
    GroupEntry& group = node_.groups.at(id);
    tell_wait(group);
    drive_(group);
  };
}

void Operations::look_again(Phase phase, bool (PauseOperation::*look)()) {
  const auto awaits = [this, phase](GroupId id) {
    const auto group = node_.groups.find(id);
    return group != node_.groups.end() && group->second.machine.phase() == phase;
  };
  for (const auto& [group, running] : running_) {
    if (!awaits(group)) continue;
    means_.loop.post([this, awaits, look, id = group] {
      PauseOperation* const pause = pause_of(id);
      if (pause == nullptr || !awaits(id)) return;
      // Driving looks again at all that wait: without news this would go on for ever.
      if ((pause->*look)()) drive_(node_.groups.at(id));
    });
  }
}

/// Where it waits for space in the pool, it says so: nobody has been told to save anything yet.
void Operations::run(GroupEntry& group, const action::Save& save) {
  PauseOperation* const pause = pause_of(group.id);
  if (pause == nullptr) return;
  pause->run(save);
  tell_wait(group);
}

void Operations::tell_wait(const GroupEntry& group) {
  const auto it = running_.find(group.id);
  if (it == running_.end() || it->second.waits_for == group.waits_for) return;
  Running& running = it->second;
  running.waits_for = group.waits_for;
  if (!group.waits_for.empty())
    spdlog::info("group '{}': the {} waits: {}", group.machine.name(),
                 std::holds_alternative<PauseOperation>(running.operation) ? "pause" : "resume",
                 group.waits_for);
  const RequestPtr& request = running.request;
  if (request == nullptr || request->observer == nullptr) return;
  v1::Progress message = progress_of(running);
  message.set_phase(std::string(phase_name(group.machine.phase())));
  message.set_waits_for(group.waits_for);
  message.set_elapsed_us(to_us(Clock::now() - group.machine.since()));
  request->observer->progress(message);
}

void Operations::run(GroupEntry& group, const action::Leaves&) {
  const auto it = running_.find(group.id);
  if (it == running_.end() || it->second.request == nullptr || !closed_.ok()) return;
  const RequestPtr request = it->second.request;
  carry_out(request, request->transaction.leaves(it->second.member));
}

void Operations::run(GroupEntry& group, const action::Ready&) {
  const auto it = running_.find(group.id);
  if (it == running_.end() || it->second.request == nullptr) return;
  const RequestPtr request = it->second.request;
  carry_out(request, request->transaction.ready(it->second.member));
}

void Operations::run(GroupEntry& group, const action::Left&) {
  const auto it = running_.find(group.id);
  if (it == running_.end() || it->second.request == nullptr) return;
  const RequestPtr request = it->second.request;
  carry_out(request, request->transaction.left(it->second.member));
}

void Operations::run(GroupEntry& group, const action::Unready&) {
  const auto it = running_.find(group.id);
  if (it == running_.end() || it->second.request == nullptr) return;
  const RequestPtr request = it->second.request;
  carry_out(request, request->transaction.unready(it->second.member));
}

void Operations::run(GroupEntry& group, const action::Progress& progress) {
  const auto it = running_.find(group.id);
  if (it == running_.end()) return;
  const RequestPtr& request = it->second.request;
  if (request == nullptr || request->observer == nullptr) return;
  v1::Progress message = progress_of(it->second);
  message.set_phase(std::string(phase_name(progress.phase)));
  message.set_ranks_done(progress.ranks_done);
  message.set_ranks_total(progress.ranks_total);
  message.set_bytes(progress.bytes);
  message.set_copied_bytes(progress.copied);
  message.set_to_copy_bytes(progress.to_copy);
  message.set_elapsed_us(to_us(progress.elapsed));
  request->observer->progress(message);
}

void Operations::run(GroupEntry& group, const action::Finished& finished) {
  group.waits_for.clear();
  const auto ended = running_.extract(group.id);
  if (ended.empty()) return;
  const Running& running = ended.mapped();
  const RequestPtr request = running.request;
  const auto* const pause = std::get_if<PauseOperation>(&running.operation);
  if (finished.outcome.task.selection.local() && !await_ranks_.empty())
    means_.loop.post([this] { look_at_ranks(); });
  if (finished.outcome.again) return;
  remember(group, finished.outcome, request.get(),
           pause != nullptr ? pause->remarks() : std::vector<std::string>());
  if (request == nullptr) return;
  const Outcome& outcome = finished.outcome;
  if (request->observer != nullptr && outcome.status.ok()) tell_done(group, outcome, running);
  if (request->transaction.goes_out(running.member)) {
    std::erase(request->exchange.leaving, group.id);
    request->out_ended = Clock::now();
    request->pause_time = std::max(request->pause_time, outcome.total);
  } else {
    request->resume_time = std::max(request->resume_time, outcome.total);
  }
  const bool names = pause != nullptr && request->asker.sees_all;
  carry_out(request,
            request->transaction.ended(
                running.member, names ? pause->for_operators(outcome.status) : outcome.status));
}

void Operations::remember(const GroupEntry& group, const Outcome& outcome, const Request* request,
                          std::vector<std::string> remarks) {
  PastOperation past;
  past.remarks = std::move(remarks);
  past.transaction = request != nullptr ? request->number : 0;
  past.swap = request != nullptr && request->transaction.swaps();
  past.by_broker = request != nullptr && request->by_broker;
  if (request != nullptr) {
    past.stage = request->asker.stage;
    past.why = request->asker.why;
    past.of_several = std::any_of(request->groups.begin(), request->groups.end(), [&](GroupId id) {
      const auto other = node_.groups.find(id);
      return other == node_.groups.end() || other->second.account != group.account;
    });
  }
  past.owner = group.account->owner();
  past.group = group.machine.name();
  past.began = std::chrono::system_clock::now() -
               std::chrono::duration_cast<std::chrono::system_clock::duration>(outcome.total);
  past.outcome = outcome;
  for (const RankId id : group.machine.members().ids())
    if (const Rank* const rank = node_.find_rank(id))
      past.ranks[id] = {rank->number, rank->peer.pid};
  node_.history.add(std::move(past));
}

v1::Progress Operations::progress_of(const Running& running) {
  v1::Progress progress;
  progress.set_group(running.request->transaction.name(running.member));
  progress.set_transaction(running.request->number);
  return progress;
}

void Operations::tell_done(const GroupEntry& group, const Outcome& outcome,
                           const Running& running) {
  v1::Progress last = progress_of(running);
  last.set_done(true);
  last.set_elapsed_us(to_us(outcome.total));
  const auto number = [this](RankId id) {
    const Rank* const rank = node_.find_rank(id);
    return rank != nullptr ? rank->number : -1;
  };
  report_phase_times(outcome.times, number, *last.mutable_times());
  if (outcome.task.op == Operation::kPause) {
    const Leftover stays = leftover(node_, group, outcome.task.selection);
    last.set_pinned_bytes(stays.pinned);
    last.set_unbrokered_bytes(stays.unbrokered);
    last.set_unknown_calls(stays.unknown_calls);
    last.set_dropped_bytes(dropped(node_, group, outcome.task.selection));
    report_saves(outcome.saves, *last.mutable_saves());
    if (const auto* pause = std::get_if<PauseOperation>(&running.operation)) {
      for (const GuestUse& use : pause->guests()) report_guest(node_, use, *last.add_guests());
      for (const std::string& remark : pause->remarks()) last.add_remarks(remark);
    }
  } else if (running.request->transaction.swaps() &&
             running.request->transaction.last(running.member)) {
    last.set_swap_us(to_us(Clock::now() - running.request->began));
  }
  running.request->observer->progress(last);
}

void Operations::close(const Status& status) {
  closed_ = status;
  std::set<Observer> observers(await_proof_.begin(), await_proof_.end());  // each once
  await_proof_.clear();
  for (const AwaitsRanks& waits : std::exchange(await_ranks_, {})) observers.insert(waits.observer);
  for (auto& [id, running] : running_)
    if (running.request != nullptr && running.request->observer != nullptr)
      observers.insert(std::exchange(running.request->observer, nullptr));
  for (const Observer& observer : observers) observer->finished(status);
}

}  // namespace amem
