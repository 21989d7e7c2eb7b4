#include "daemon/operations/running_command.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>

#include "daemon/operations/group_operation.h"
#include "daemon/operations/operations.h"

namespace amem {

namespace {

std::vector<std::string> names_of(const std::vector<NamedGroup>& groups) {
  std::vector<std::string> names;
  for (const NamedGroup& group : groups) names.push_back(group.name);
  return names;
}

std::vector<GroupId> ids_of(const std::vector<NamedGroup>& groups) {
  std::vector<GroupId> ids;
  for (const NamedGroup& group : groups) ids.push_back(group.id);
  return ids;
}

}  // namespace

std::vector<NamedGroup> Order::all() const {
  std::vector<NamedGroup> groups = out;
  groups.insert(groups.end(), in.begin(), in.end());
  return groups;
}

Order order_of(const Task& task, const std::vector<NamedGroup>& groups, Duration timeout) {
  Order order;
  const bool out = task.op == Operation::kPause;
  (out ? order.pause : order.resume) = task;
  (out ? order.out : order.in) = groups;
  order.timeout = timeout;
  return order;
}

RunningCommand::RunningCommand(Operations& operations, const OperationContext& context,
                               std::uint64_t number, Order order, bool duplex, Observer observer,
                               Requester requester, std::shared_ptr<RemoteNodes> remote_nodes)
    : operations_(operations),
      context_(context),
      number_(number),
      order_(std::move(order)),
      transaction_(names_of(order_.out), names_of(order_.in), order_.pause, duplex,
                   remote_nodes != nullptr),
      groups_(ids_of(order_.all())),
      exchange_{ids_of(order_.out), ids_of(order_.in), order_.parts, {}, duplex},
      observer_(std::move(observer)),
      requester_(std::move(requester)),
      remote_nodes_(std::move(remote_nodes)) {
  context_.node.spares.insert(&exchange_.spares);
}

RunningCommand::~RunningCommand() { context_.node.spares.erase(&exchange_.spares); }

Task part_of(Task task, GroupId group, const Parts& parts) {
  const auto part = parts.find(group);
  if (part == parts.end()) return task;
  task.selection = part->second;
  task.partial = true;
  return task;
}

void RunningCommand::start() { carry_out(transaction_.start()); }

// ---- what it is ---------------------------------------------------------------------------------

bool RunningCommand::has(GroupId group) const {
  return std::find(groups_.begin(), groups_.end(), group) != groups_.end();
}

bool RunningCommand::of_several(const Account& owner) const {
  return std::any_of(groups_.begin(), groups_.end(), [&](GroupId id) {
    const auto group = context_.node.groups.find(id);
    return group == context_.node.groups.end() || group->second.account.get() != &owner;
  });
}

bool RunningCommand::resumes(std::size_t member) const {
  return !swaps() && requester_.stage.empty() && order_.resume == Task(Operation::kResume) &&
         !transaction_.goes_out(member);
}

std::optional<FleetShare> RunningCommand::new_share(std::size_t member) const {
  if (remote_nodes_ == nullptr) return std::nullopt;
  return FleetShare{remote_nodes_->transaction(), transaction_.side_of(member)};
}

GroupOperation* RunningCommand::operation(std::size_t member) const {
  GroupOperation* const found = operations_.of(groups_[member]);
  return found != nullptr && found->of().command.get() == this ? found : nullptr;
}

// ---- what its members say -----------------------------------------------------------------------

void RunningCommand::quiesces(std::size_t member, const std::vector<RankId>& ranks) {
  if (remote_nodes_ != nullptr) remote_nodes_->quiesces(transaction_.name(member), ranks);
}

void RunningCommand::reported(std::size_t member, const action::Reported& report) {
  if (remote_nodes_ != nullptr)
    remote_nodes_->reported(transaction_.name(member), report.rank, report.what);
}

void RunningCommand::tell_transaction(std::size_t member,
                                      Transaction::Effects (Transaction::*what)(std::size_t)) {
  if (what == &Transaction::leaves && !operations_.closed().ok())
    return;  // nothing begins any more
  carry_out((transaction_.*what)(member));
}

void RunningCommand::progress(std::size_t member, v1::Progress progress) {
  if (observer_ == nullptr) return;
  progress.set_group(transaction_.name(member));
  progress.set_transaction(number_);
  observer_->progress(progress);
}

void RunningCommand::ended(const GroupOperation& operation, const Outcome& outcome) {
  const std::size_t member = operation.of().member;
  if (observer_ != nullptr && outcome.status.ok()) {
    v1::Progress last;
    last.set_done(true);
    last.set_elapsed_us(to_us(outcome.total));
    operation.report(outcome, last);
    if (outcome.task.op == Operation::kResume && swaps() && transaction_.last(member))
      last.set_swap_us(to_us(Clock::now() - began_));
    progress(member, std::move(last));
  }
  if (transaction_.goes_out(member)) {
    std::erase(exchange_.leaving, groups_[member]);
    out_ended_ = Clock::now();
    pause_time_ = std::max(pause_time_, outcome.total);
  } else {
    resume_time_ = std::max(resume_time_, outcome.total);
  }
  carry_out(transaction_.ended(
      member, requester_.sees_all ? operation.for_operators(outcome.status) : outcome.status));
}

// ---- what other nodes say -----------------------------------------------------------------------

void RunningCommand::tell(const std::string& group, const Event& event) {
  for (std::size_t member = 0; member < groups_.size(); ++member)
    if (transaction_.name(member) == group)
      if (GroupOperation* const its = operation(member)) return its->tell(event);
}

bool RunningCommand::may_go_on(Side side) {
  const Transaction::Effects effects = transaction_.may_go_on(side);
  carry_out(effects);
  return !effects.empty();
}

void RunningCommand::give_up(const Status& why) {
  (void)note(groups_, &FleetShare::given_up);
  carry_out(transaction_.give_up(why));
}

FleetShare* RunningCommand::share_of(GroupEntry& group) const {
  if (remote_nodes_ == nullptr) return nullptr;
  const auto found = std::find_if(
      group.shares.begin(), group.shares.end(),
      [&](const FleetShare& share) { return share.transaction == remote_nodes_->transaction(); });
  return found != group.shares.end() ? &*found : nullptr;
}

Status RunningCommand::note(const std::vector<GroupId>& groups, bool FleetShare::*what) {
  Status status;
  for (const GroupId id : groups) {
    const auto group = context_.node.groups.find(id);
    if (group == context_.node.groups.end()) continue;
    FleetShare* const share = share_of(group->second);
    if (share == nullptr || share->went_on || std::exchange(share->*what, true)) continue;
    if (const Status written = context_.node.records.write(group->second); !written.ok())
      status = written;
  }
  return status;
}

// ---- its effects --------------------------------------------------------------------------------

/// What one effect brings about may call for more effects: these come after it.
void RunningCommand::carry_out(const Transaction::Effects& effects) {
  effects_.insert(effects_.end(), effects.begin(), effects.end());
  if (std::exchange(carrying_out_, true)) return;
  const auto self = shared_from_this();  // the last of its operations may end by an effect
  while (!effects_.empty()) {
    const Transaction::Effect effect = effects_.front();
    effects_.pop_front();
    carry_out(effect);
  }
  carrying_out_ = false;
}

void RunningCommand::carry_out(Transaction::Effect effect) {
  switch (effect.what) {
    case Transaction::Effect::kFinish:
      return finish();
    case Transaction::Effect::kAsk:
    case Transaction::Effect::kWithdraw:
      return ask(effect);
    case Transaction::Effect::kBegin:
      if (const Status status = begin(effect.member); !status.ok())
        carry_out(transaction_.ended(effect.member, status));
      return;
    case Transaction::Effect::kVacated:
      if (GroupOperation* const its = operation(effect.member)) its->tell(event::AllLeft{});
      return;
    case Transaction::Effect::kGiveUp:
      if (GroupOperation* const its = operation(effect.member))
        its->tell(event::GiveUp{transaction_.why_given_up()});
      return;
    case Transaction::Effect::kGoOn:
      if (GroupOperation* const its = operation(effect.member)) {
        // The row that says that it releases, or opens, says this, too.
        if (FleetShare* const share = share_of(its->group())) share->went_on = true;
        its->tell(event::GoOn{});
      }
      return;
  }
}

void RunningCommand::ask(const Transaction::Effect& effect) {
  const Side side = transaction_.side_of(effect.member);
  const bool asks = effect.what == Transaction::Effect::kAsk;
  // On record before anybody is asked: the next broker must not take it for one that never will.
  if (asks) {
    std::vector<GroupId> groups;
    for (std::size_t member = 0; member < groups_.size(); ++member)
      if (transaction_.side_of(member) == side) groups.push_back(groups_[member]);
    if (const Status status = note(groups, &FleetShare::asked); !status.ok())
      return carry_out(transaction_.give_up(status));
  }
  // From a turn of its own: the answer may be there at once.
  context_.loop.post([remote_nodes = remote_nodes_, side, asks] {
    asks ? remote_nodes->asks(side) : remote_nodes->withdraws(side);
  });
}

Status RunningCommand::begin(std::size_t member) {
  const auto found = context_.node.groups.find(groups_[member]);
  if (found == context_.node.groups.end())
    return {Code::kAborted, "group '" + transaction_.name(member) + "' has ended in the meantime"};
  const bool out = transaction_.goes_out(member);
  if (!out) in_began_ = Clock::now();
  const Task task = out ? part_of(order_.pause, groups_[member], order_.parts) : order_.resume;
  return operations_.begin(found->second, task, order_.timeout, transaction_.barrier(member),
                           {shared_from_this(), member});
}

void RunningCommand::finish() {
  operations_.forget(number_);
  const Status result = transaction_.result();
  const Duration total = Clock::now() - began_;
  if (swaps()) context_.node.totals.add_swap(result.code(), total);
  const auto ms = [](Duration time) { return static_cast<double>(to_us(time)) / 1000; };
  std::string what;
  if (swaps())
    what = "swap of " + transaction_.names(Side::kOut) + " for " + transaction_.names(Side::kIn);
  else if (groups_.size() > 1)
    what = transaction_.goes_out(0) ? "pause of groups " + transaction_.names(Side::kOut)
                                    : "resume of groups " + transaction_.names(Side::kIn);
  if (what.empty()) {
    // Of one group alone its own log line says everything.
  } else if (!result.ok()) {
    spdlog::error("{} failed: {}", what, result.text());
  } else if (swaps()) {
    spdlog::info(
        "{} took {:.1f} ms: pause {:.1f} ms; resume {:.1f} ms, which began {:.1f} ms {} the end of "
        "the pause",
        what, ms(total), ms(pause_time_), ms(resume_time_),
        ms(std::chrono::abs(out_ended_ - in_began_)), in_began_ < out_ended_ ? "before" : "after");
  } else {
    spdlog::info("{} took {:.1f} ms", what, ms(total));
  }
  if (observer_ != nullptr) observer_->finished(result);
}

}  // namespace amem
