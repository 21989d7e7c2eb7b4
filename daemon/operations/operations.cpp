#include "daemon/operations/operations.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "daemon/plans/handing_on.h"
#include "daemon/reports/reports.h"

namespace amem {
namespace {

/// The shares kept of a group, for nodes that ask late: after the next operation on it, and two
/// more.
constexpr std::size_t kMostShares = 4;

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
      if (const auto visible = amem::visible_to(context_, group); !visible.ok())
        status = visible.status();
    if (status.ok())
      if (const std::string stopped = describe_stopped(node_, group); !stopped.empty())
        status = {Code::kFailedPrecondition, "group '" + name + "' cannot " +
                                                 std::string(to_string(task.op)) + ": " + stopped};
    if (!status.ok()) return status;
  }
  return {};
}

Evictor::Sets Operations::visible_to(const Groups& groups) const {
  Evictor::Sets all;
  for (const NamedGroup& group : groups)
    all.merge(amem::visible_to(context_, node_.groups.at(group.id)).value());
  return all;
}

std::uint64_t Operations::start(const Order& order, const Observer& observer, const Requester& who,
                                std::shared_ptr<RemoteNodes> remote_nodes) {
  const Groups all = order.all();
  Status status;
  if (all.empty()) status = {Code::kInvalidArgument, "no group is named"};
  // A swap is refused before the pause, not after it.
  if (status.ok() && !order.out.empty()) status = check(order.out, order.pause, order.parts);
  if (status.ok() && !order.in.empty()) status = check(order.in, order.resume, {});
  // Other nodes do not wait with this one.
  if (remote_nodes != nullptr && status.ok()) status = set_ranks_aside(all);
  if (status.ok() && await_ranks(all, observer, [=, this] { start(order, observer, who); }))
    return 0;
  // A swap's pause is proven when it comes to that.
  if (status.ok() && order.pause.deep && order.in.empty()) {
    const Evictor::Sets visible = visible_to(order.out);
    if (await_proof(visible, observer, [=, this] { start(order, observer, who, remote_nodes); }))
      return 0;
    if (const std::optional<Status> proven = context_.evictor.verdict(visible)) status = *proven;
  }
  if (!status.ok()) {
    observer->finished(status);
    return 0;
  }
  if (remote_nodes == nullptr && closed_.ok() && refusal_.ok() &&
      elastic_.await(order, observer, [=, this](const Observer& then) { start(order, then, who); }))
    return 0;
  return run(order, observer, who, std::move(remote_nodes));
}

std::uint64_t Operations::swap(const Order& order, const Observer& observer, const Requester& who,
                               std::shared_ptr<RemoteNodes> remote_nodes) {
  Status status;
  if (order.out.empty() || order.in.empty())
    status = {Code::kInvalidArgument, "a swap requires groups to pause and groups to resume"};
  for (const NamedGroup& goes : order.out)
    if (std::any_of(order.in.begin(), order.in.end(),
                    [&](const NamedGroup& comes) { return comes.id == goes.id; }))
      status = {Code::kInvalidArgument,
                "group '" + goes.name +
                    "' is named both to pause and to resume. A swap requires different groups"};
  if (status.ok()) return start(order, observer, who, std::move(remote_nodes));
  observer->finished(status);
  return 0;
}

bool Operations::await_proof(const Evictor::Sets& visible, const Observer& observer,
                             std::function<void()> go_on) {
  if (context_.evictor.verdict(visible) || !closed_.ok() || !refusal_.ok()) return false;
  await_proof_.insert(observer);
  observer->on_wait([this, waits = std::weak_ptr(observer)] {
    const Observer gone = waits.lock();
    if (await_proof_.erase(gone) > 0)
      gone->finished({Code::kCancelled, "the caller has disconnected"});
  });
  context_.evictor.prove(visible, [this, observer, go_on = std::move(go_on)](const Status& now) {
    const auto waits = await_proof_.find(observer);
    if (waits == await_proof_.end()) return;  // its caller has gone, or amemd ends
    await_proof_.erase(waits);
    now.ok() ? go_on() : observer->finished(now);
  });
  return true;
}

// ---- what ranks do on their own ----------------------------------------------------------------

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
    context_.drive(group->second);
  }
  // What was set aside has ended already, and begins again if nothing else does.
  context_.loop.post([this, groups] { look_at_requests(groups); });
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
      context_.drive(group->second);
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
void Operations::overdue(GroupId group) {
  context_.loop.post([this, group] { deepen(group); });
}

void Operations::deepen(GroupId id) {
  const auto found = node_.groups.find(id);
  if (found == node_.groups.end() || !closed_.ok() || !refusal_.ok()) return;
  const std::string& name = found->second.machine.name();
  Task task(Operation::kPause);
  task.deep = true;
  // Somebody may have asked for something in between, such as a swap that brings it in later.
  if (found->second.machine.state() != GroupState::kPaused) return;
  for (const auto& [other, operation] : running_)
    if (operation->of().command != nullptr && operation->of().command->has(id)) return;
  if (const Status status = check({{id, name}}, task, {}); !status.ok())
    return spdlog::warn("group '{}': deep.after: {}", name, status.text());
  // Refused for good: a first try has said so.
  const auto proven = context_.evictor.verdict(visible_to({{id, name}}));
  if (proven && !proven->ok()) return;
  spdlog::info("group '{}' has been paused for deep.after: amemd makes it deep", name);
  Requester requester("amemd (deep.after)");
  requester.by_broker = true;
  run(order_of(task, {{id, name}}), nullptr, requester, nullptr);
}

// ---- commands -----------------------------------------------------------------------------------

std::uint64_t Operations::run(const Order& order, const Observer& observer, const Requester& who,
                              std::shared_ptr<RemoteNodes> remote_nodes) {
  if (const Status& why = closed_.ok() ? refusal_ : closed_; !why.ok()) {
    observer->finished(why);
    return 0;
  }
  const std::uint64_t number = ++last_number_;
  const bool spans_nodes = remote_nodes != nullptr;
  const auto command = std::make_shared<RunningCommand>(*this, context_, number, order, duplex_,
                                                        observer, who, std::move(remote_nodes));
  if (spans_nodes) spanning_[number] = command;
  command->start();
  return number;
}

std::shared_ptr<RunningCommand> Operations::spanning(std::uint64_t number) const {
  const auto found = spanning_.find(number);
  return found != spanning_.end() ? found->second.lock() : nullptr;
}

void Operations::tell(std::uint64_t number, const std::string& group, const Event& event) {
  if (const auto command = spanning(number)) command->tell(group, event);
}

bool Operations::may_go_on(std::uint64_t number, Side side) {
  const auto command = spanning(number);
  return command != nullptr && command->may_go_on(side);
}

void Operations::give_up(std::uint64_t number, const Status& why) {
  if (const auto command = spanning(number)) command->give_up(why);
}

// ---- operations ---------------------------------------------------------------------------------

Status Operations::begin(GroupEntry& group, const Task& task, Duration timeout, Barrier barrier,
                         Membership of) {
  if (!closed_.ok()) return closed_;
  Status status = check_tags(node_.allocations, group.id, task);
  if (status.ok()) status = group.machine.start(task, timeout, Clock::now(), barrier);
  if (!status.ok()) return status;
  begins_[group.id] = std::move(of);
  context_.drive(group);
  return {};
}

void Operations::began(GroupEntry& group, const action::Begun& begun) {
  Membership of;
  if (auto asked = begins_.extract(group.id)) of = std::move(asked.mapped());
  const RunningCommand* const command = of.command.get();
  if (command != nullptr)
    if (std::optional<FleetShare> share = command->new_share(of.member)) {
      group.shares.push_front(*std::move(share));
      if (group.shares.size() > kMostShares) group.shares.pop_back();
    }
  // A pause of tags leaves the group running, so whose it was says nothing.
  // Whose one is that an earlier amemd has begun is on record.
  // A group that amemd makes deep stays with its stage.
  const bool by_broker = command != nullptr && command->requester().by_broker;
  if (begun.task.stops() && !begun.continues && !by_broker)
    group.paused_by_stage = command != nullptr && !command->requester().stage.empty();
  (void)node_.records.write(group);  // a pause looks again in its save, a resume in admit
  std::unique_ptr<GroupOperation>& operation = running_[group.id];
  if (begun.task.op == Operation::kResume) {
    operation = std::make_unique<ResumeOperation>(context_, group, begun.task, std::move(of));
    return;
  }
  if (!begun.deepens)
    group.paused_by = command != nullptr ? command->requester().who : std::string(kPausedByItself);
  Exchange* const exchange =
      command != nullptr && command->swaps() ? &of.command->exchange() : nullptr;
  operation = std::make_unique<PauseOperation>(context_, group, begun.task, exchange,
                                               begun.continues, std::move(of));
}

void Operations::tell(GroupEntry& group, Event event) {
  group.machine.tell(std::move(event), Clock::now());
  context_.drive(group);
}

void Operations::answered(GroupEntry& group, Rank& rank, event::PhaseDone done) {
  context_.saved.answered(rank, done.epoch, done.phase);
  if (GroupOperation* const operation = of(group.id)) operation->answered(rank, done);
  if (!done.status.ok() && (done.phase == RankPhase::kSave || done.phase == RankPhase::kLoad))
    node_.pool_of(rank).reach.doubt(rank.id);
  tell(group, std::move(done));
}

void Operations::answered(GroupEntry& group, Rank& rank, event::CutStatus status) {
  context_.saved.answered(rank, status.epoch, RankPhase::kQuiet);
  tell(group, std::move(status));
}

void Operations::look_at_guests() {
  for (const auto& [group, operation] : running_)
    if (PauseOperation* const pause = pause_of(group)) pause->look_at_guests();
}

void Operations::close_spares() {
  if (context_.workers.spares().empty()) return;
  std::vector<GroupId> groups;
  for (const auto& [id, group] : context_.node.groups) groups.push_back(id);
  context_.workers.close_spares_but(lacking(context_.node.allocations, groups));
}

void Operations::look_at_pool() {
  for (const auto& [group, operation] : running_)
    if (PauseOperation* const pause = pause_of(group)) pause->look_at_pool();
}

bool Operations::resumes_for_operator(GroupId group) const {
  const GroupOperation* const operation = of(group);
  return operation != nullptr && operation->of().command != nullptr &&
         operation->of().command->resumes(operation->of().member);
}

void Operations::ended(GroupEntry& group, const Outcome& outcome) {
  group.waits_for.clear();
  const auto it = running_.find(group.id);
  if (it == running_.end()) return;
  const std::unique_ptr<GroupOperation> operation = std::move(it->second);
  running_.erase(it);
  if (outcome.task.selection.local() && !await_ranks_.empty())
    context_.loop.post([this] { look_at_ranks(); });
  if (outcome.again) return;
  remember(*operation, outcome);
  if (RunningCommand* const command = operation->of().command.get())
    command->ended(*operation, outcome);
}

void Operations::remember(const GroupOperation& operation, const Outcome& outcome) {
  const GroupEntry& group = operation.group();
  PastOperation past;
  past.remarks = operation.remarks();
  past.memory = operation.memory();
  MovedMemory moved = past.memory;
  if (outcome.task.op == Operation::kPause) moved.handed_on = 0;  // the resume counts it
  node_.totals.add(moved);
  if (const RunningCommand* const command = operation.of().command.get()) {
    past.transaction = command->number();
    past.swap = command->swaps();
    past.by_broker = command->requester().by_broker;
    past.stage = command->requester().stage;
    past.why = command->requester().why;
    past.of_several = command->of_several(*group.account);
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

void Operations::close(const Status& status) {
  closed_ = status;
  std::set<Observer> observers(await_proof_.begin(), await_proof_.end());  // each once
  await_proof_.clear();
  for (const AwaitsRanks& waits : std::exchange(await_ranks_, {})) observers.insert(waits.observer);
  for (const Observer& waits : elastic_.dismiss()) observers.insert(waits);
  for (const auto& [id, operation] : running_)
    if (operation->of().command != nullptr)
      if (Observer observer = operation->of().command->dismiss())
        observers.insert(std::move(observer));
  for (const Observer& observer : observers) observer->finished(status);
}

}  // namespace amem
