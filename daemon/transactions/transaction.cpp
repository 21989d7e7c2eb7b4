#include "daemon/transactions/transaction.h"

#include <algorithm>
#include <utility>

namespace amem {

Transaction::Transaction(const std::vector<std::string>& out, const std::vector<std::string>& in,
                         Task pause, bool duplex, bool abroad)
    : outgoing_(out.size()), pause_(std::move(pause)), duplex_(duplex), abroad_(abroad) {
  for (const auto* names : {&out, &in})
    for (const std::string& name : *names) members_.push_back({name});
}

template <class Is>
bool Transaction::all(Stage stage, Is is) const {
  return std::all_of(members_.begin() + static_cast<std::ptrdiff_t>(first(stage)),
                     members_.begin() + static_cast<std::ptrdiff_t>(end(stage)), is);
}

Transaction::Steps Transaction::start() {
  Steps steps;
  const Stage stage = outgoing_ > 0 ? Stage::kOut : Stage::kIn;
  begin(stage, abroad_ || end(stage) - first(stage) > 1, steps);
  return steps;
}

void Transaction::begin(Stage stage, bool held, Steps& steps) {
  for (std::size_t i = first(stage); i < end(stage); ++i) {
    members_[i].state = MemberState::kUnderWay;
    members_[i].held = held;
    steps.push_back({Step::kBegin, i});
  }
}

Transaction::Steps Transaction::leaves(std::size_t member) {
  Steps steps;
  Member& m = members_[member];
  if (m.state != MemberState::kUnderWay || broken()) return steps;
  m.state = MemberState::kLeaves;
  const bool all_leave =
      all(Stage::kOut, [](const Member& each) { return each.state >= MemberState::kLeaves; });
  if (swaps() && duplex_ && all_leave) begin(Stage::kIn, true, steps);
  return steps;
}

Transaction::Steps Transaction::ready(std::size_t member) {
  Steps steps;
  if (members_[member].state >= MemberState::kReady) return steps;
  members_[member].state = MemberState::kReady;
  if (goes_out(member))
    release_if_all_may(steps);
  else
    open_if_all_may(steps);
  return steps;
}

Transaction::Steps Transaction::unready(std::size_t member) {
  Steps steps;
  const Stage stage = stage_of(member);
  if (members_[member].state == MemberState::kReady)
    members_[member].state = MemberState::kUnderWay;
  if (asked_[stage] && !may_[stage] && !std::exchange(withdrawn_[stage], true))
    steps.push_back({Step::kWithdraw, first(stage)});
  return steps;
}

Transaction::Steps Transaction::ended(std::size_t member, const Status& status) {
  Steps steps;
  Member& m = members_[member];
  m.state = MemberState::kEnded;
  m.status = status;
  const bool out = goes_out(member);
  if (!status.ok()) failed_.push_back(member);
  if (!status.ok() && !m.left) {
    broken_ = true;
    if (out) give_up(Stage::kOut, steps);
    give_up(Stage::kIn, steps);
  }
  if (out) bring_in(steps);
  finish_if_ended(member, steps);
  return steps;
}

Transaction::Steps Transaction::left(std::size_t member) {
  Steps steps;
  Member& m = members_[member];
  if (m.state == MemberState::kEnded || std::exchange(m.left, true)) return steps;
  // One that is only made deep has nothing to be ready with.
  if (m.held && m.state < MemberState::kReleased) release_if_all_may(steps);
  bring_in(steps);
  return steps;
}

void Transaction::bring_in(Steps& steps) {
  if (!swaps() || broken()) return;
  if (members_[outgoing_].state == MemberState::kBefore) {
    if (all(Stage::kOut, [](const Member& m) { return m.state == MemberState::kEnded; }))
      begin(Stage::kIn, abroad_ || members_.size() - outgoing_ > 1, steps);
    return;
  }
  const bool all_gone = all(Stage::kOut, [](const Member& m) { return m.gone(); });
  if (!all_gone || std::exchange(vacated_, true)) return;
  for (std::size_t i = first(Stage::kIn); i < end(Stage::kIn); ++i)
    if (members_[i].state != MemberState::kEnded) steps.push_back({Step::kVacated, i});
  open_if_all_may(steps);
}

void Transaction::finish_if_ended(std::size_t member, Steps& steps) {
  if (std::all_of(members_.begin(), members_.end(), [&](const Member& each) {
        return each.state == MemberState::kEnded ||
               (each.state == MemberState::kBefore && broken());
      }))
    steps.push_back({Step::kFinish, member});
}

Transaction::Steps Transaction::may_go_on(Stage stage) {
  Steps steps;
  if (broken() || withdrawn_[stage] || std::exchange(may_[stage], true)) return steps;
  if (asked_[stage]) go_on(stage, steps);
  return steps;
}

Transaction::Steps Transaction::give_up(const Status& why) {
  Steps steps;
  if (broken()) return steps;
  given_up_ = why;
  give_up(Stage::kOut, steps);
  give_up(Stage::kIn, steps);
  // Between the halves of a swap in turn nothing is under way.
  if (steps.empty()) finish_if_ended(0, steps);
  return steps;
}

void Transaction::go_on_or_ask(Stage stage, Steps& steps) {
  if (!abroad_ || may_[stage]) return go_on(stage, steps);
  if (!std::exchange(asked_[stage], true)) steps.push_back({Step::kAsk, first(stage)});
}

void Transaction::release_if_all_may(Steps& steps) {
  const auto may = [](const Member& m) { return m.left || m.state == MemberState::kReady; };
  if (all(Stage::kOut, may)) go_on_or_ask(Stage::kOut, steps);
}

void Transaction::open_if_all_may(Steps& steps) {
  const auto has_left = [](const Member& m) { return m.gone(); };
  const auto is_ready = [](const Member& m) { return m.state == MemberState::kReady; };
  // It has nobody else to wait for.
  const bool alone = !abroad_ && members_.size() - outgoing_ == 1;
  if (all(Stage::kOut, has_left) && (alone || all(Stage::kIn, is_ready)))
    go_on_or_ask(Stage::kIn, steps);
}

void Transaction::go_on(Stage stage, Steps& steps) {
  for (std::size_t i = first(stage); i < end(stage); ++i) {
    Member& m = members_[i];
    if (m.left || m.state == MemberState::kEnded) continue;
    m.state = MemberState::kReleased;
    steps.push_back({Step::kGoOn, i});
  }
}

void Transaction::give_up(Stage stage, Steps& steps) {
  for (std::size_t i = first(stage); i < end(stage); ++i) {
    Member& m = members_[i];
    if (!m.held || m.left || m.state == MemberState::kBefore || m.state >= MemberState::kReleased)
      continue;
    m.state = MemberState::kReleased;
    steps.push_back({Step::kGiveUp, i});
  }
}

bool Transaction::last(std::size_t member) const {
  for (std::size_t i = 0; i < members_.size(); ++i)
    if (i != member && !members_[i].left && members_[i].state != MemberState::kEnded) return false;
  return true;
}

Status Transaction::why_given_up() const {
  if (failed_.empty()) return {Code::kAborted, "called off: " + given_up_.text()};
  const std::size_t cause = failed_.front();
  return {Code::kAborted, std::string("called off, because the ") +
                              (goes_out(cause) ? "pause" : "resume") + " of group '" +
                              members_[cause].name + "' failed"};
}

Status Transaction::result() const {
  if (failed_.empty() && !given_up_.ok() &&
      std::any_of(members_.begin(), members_.end(),
                  [](const Member& m) { return m.state == MemberState::kBefore; }))
    return {given_up_.code(), "the resume was called off: " + given_up_.text() + "; " +
                                  names(Stage::kOut) + " paused, " + names(Stage::kIn) +
                                  " still paused"};
  if (failed_.empty()) return {};
  // What has gone wrong on the way out comes first.
  std::vector<std::size_t> order = failed_;
  std::stable_partition(order.begin(), order.end(), [this](std::size_t i) { return goes_out(i); });
  std::string text;
  for (const std::size_t i : order) text += (text.empty() ? "" : "; ") + members_[i].status.text();
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const Member& m = members_[i];
    if (m.state == MemberState::kBefore)
      text += "; group '" + m.name + "' is still paused";
    else if (!m.status.ok())
      continue;
    else if (goes_out(i) && !pause_.selection.all())
      text += "; the " + describe(pause_, m.name) + " succeeded";
    else
      text += "; group '" + m.name + "' is " + (goes_out(i) ? "paused" : "running");
  }
  return {members_[order.front()].status.code(), text};
}

std::string Transaction::names(Stage stage) const {
  std::string text;
  for (std::size_t i = first(stage); i < end(stage); ++i)
    text += (text.empty() ? "'" : ", '") + members_[i].name + "'";
  return text;
}

}  // namespace amem
