#include "daemon/transactions/transaction.h"

#include <algorithm>
#include <utility>

namespace amem {

Transaction::Transaction(const std::vector<std::string>& out, const std::vector<std::string>& in,
                         Task pause, bool duplex, bool spans_nodes)
    : outgoing_(out.size()), pause_(std::move(pause)), duplex_(duplex), spans_nodes_(spans_nodes) {
  for (const auto* names : {&out, &in})
    for (const std::string& name : *names) members_.push_back({name});
}

template <class Is>
bool Transaction::all(Side side, Is is) const {
  return std::all_of(members_.begin() + static_cast<std::ptrdiff_t>(first(side)),
                     members_.begin() + static_cast<std::ptrdiff_t>(end(side)), is);
}

Transaction::Steps Transaction::start() {
  Steps steps;
  const Side side = outgoing_ > 0 ? Side::kOut : Side::kIn;
  begin(side, spans_nodes_ || end(side) - first(side) > 1, steps);
  return steps;
}

void Transaction::begin(Side side, bool held, Steps& steps) {
  for (std::size_t i = first(side); i < end(side); ++i) {
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
      all(Side::kOut, [](const Member& each) { return each.state >= MemberState::kLeaves; });
  if (swaps() && duplex_ && all_leave) begin(Side::kIn, true, steps);
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
  const Side side = side_of(member);
  if (members_[member].state == MemberState::kReady)
    members_[member].state = MemberState::kUnderWay;
  if (asked_[side] && !may_[side] && !std::exchange(withdrawn_[side], true))
    steps.push_back({Step::kWithdraw, first(side)});
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
    if (out) give_up(Side::kOut, steps);
    give_up(Side::kIn, steps);
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
    if (all(Side::kOut, [](const Member& m) { return m.state == MemberState::kEnded; }))
      begin(Side::kIn, spans_nodes_ || members_.size() - outgoing_ > 1, steps);
    return;
  }
  const bool all_gone = all(Side::kOut, [](const Member& m) { return m.gone(); });
  if (!all_gone || std::exchange(vacated_, true)) return;
  for (std::size_t i = first(Side::kIn); i < end(Side::kIn); ++i)
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

Transaction::Steps Transaction::may_go_on(Side side) {
  Steps steps;
  if (broken() || withdrawn_[side] || std::exchange(may_[side], true)) return steps;
  if (asked_[side]) go_on(side, steps);
  return steps;
}

Transaction::Steps Transaction::give_up(const Status& why) {
  Steps steps;
  if (broken()) return steps;
  given_up_ = why;
  give_up(Side::kOut, steps);
  give_up(Side::kIn, steps);
  // Between the halves of a swap in turn nothing is under way.
  if (steps.empty()) finish_if_ended(0, steps);
  return steps;
}

void Transaction::go_on_or_ask(Side side, Steps& steps) {
  if (!spans_nodes_ || may_[side]) return go_on(side, steps);
  if (!std::exchange(asked_[side], true)) steps.push_back({Step::kAsk, first(side)});
}

void Transaction::release_if_all_may(Steps& steps) {
  const auto may = [](const Member& m) { return m.left || m.state == MemberState::kReady; };
  if (all(Side::kOut, may)) go_on_or_ask(Side::kOut, steps);
}

void Transaction::open_if_all_may(Steps& steps) {
  const auto has_left = [](const Member& m) { return m.gone(); };
  const auto is_ready = [](const Member& m) { return m.state == MemberState::kReady; };
  // It has nobody else to wait for.
  const bool alone = !spans_nodes_ && members_.size() - outgoing_ == 1;
  if (all(Side::kOut, has_left) && (alone || all(Side::kIn, is_ready)))
    go_on_or_ask(Side::kIn, steps);
}

void Transaction::go_on(Side side, Steps& steps) {
  for (std::size_t i = first(side); i < end(side); ++i) {
    Member& m = members_[i];
    if (m.left || m.state == MemberState::kEnded) continue;
    m.state = MemberState::kReleased;
    steps.push_back({Step::kGoOn, i});
  }
}

void Transaction::give_up(Side side, Steps& steps) {
  for (std::size_t i = first(side); i < end(side); ++i) {
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
                                  names(Side::kOut) + " paused, " + names(Side::kIn) +
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

std::string Transaction::names(Side side) const {
  std::string text;
  for (std::size_t i = first(side); i < end(side); ++i)
    text += (text.empty() ? "'" : ", '") + members_[i].name + "'";
  return text;
}

}  // namespace amem
