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

Transaction::Effects Transaction::start() {
  Effects effects;
  const Side side = outgoing_ > 0 ? Side::kOut : Side::kIn;
  begin(side, spans_nodes_ || end(side) - first(side) > 1, effects);
  return effects;
}

void Transaction::begin(Side side, bool barrier, Effects& effects) {
  for (std::size_t i = first(side); i < end(side); ++i) {
    members_[i].state = MemberState::kUnderWay;
    members_[i].barrier = barrier;
    effects.push_back({Effect::kBegin, i});
  }
}

Transaction::Effects Transaction::leaves(std::size_t member) {
  Effects effects;
  Member& m = members_[member];
  if (m.state != MemberState::kUnderWay || broken()) return effects;
  m.state = MemberState::kLeaves;
  const bool all_leave =
      all(Side::kOut, [](const Member& each) { return each.state >= MemberState::kLeaves; });
  if (swaps() && duplex_ && all_leave) begin(Side::kIn, true, effects);
  return effects;
}

Transaction::Effects Transaction::ready(std::size_t member) {
  Effects effects;
  if (members_[member].state >= MemberState::kReady) return effects;
  members_[member].state = MemberState::kReady;
  if (goes_out(member))
    release_if_all_may(effects);
  else
    open_if_all_may(effects);
  return effects;
}

Transaction::Effects Transaction::unready(std::size_t member) {
  Effects effects;
  const Side side = side_of(member);
  if (members_[member].state == MemberState::kReady)
    members_[member].state = MemberState::kUnderWay;
  if (asked_[side] && !may_[side] && !std::exchange(withdrawn_[side], true))
    effects.push_back({Effect::kWithdraw, first(side)});
  return effects;
}

Transaction::Effects Transaction::ended(std::size_t member, const Status& status) {
  Effects effects;
  Member& m = members_[member];
  m.state = MemberState::kEnded;
  m.status = status;
  const bool out = goes_out(member);
  if (!status.ok()) failed_.push_back(member);
  if (!status.ok() && !m.left) {
    broken_ = true;
    if (out) give_up(Side::kOut, effects);
    give_up(Side::kIn, effects);
  }
  if (out) bring_in(effects);
  finish_if_ended(member, effects);
  return effects;
}

Transaction::Effects Transaction::left(std::size_t member) {
  Effects effects;
  Member& m = members_[member];
  if (m.state == MemberState::kEnded || std::exchange(m.left, true)) return effects;
  // One that is only made deep has nothing to be ready with.
  if (m.barrier && m.state < MemberState::kReleased) release_if_all_may(effects);
  bring_in(effects);
  return effects;
}

void Transaction::bring_in(Effects& effects) {
  if (!swaps() || broken()) return;
  if (members_[outgoing_].state == MemberState::kBefore) {
    if (all(Side::kOut, [](const Member& m) { return m.state == MemberState::kEnded; }))
      begin(Side::kIn, spans_nodes_ || members_.size() - outgoing_ > 1, effects);
    return;
  }
  const bool all_gone = all(Side::kOut, [](const Member& m) { return m.gone(); });
  if (!all_gone || std::exchange(vacated_, true)) return;
  for (std::size_t i = first(Side::kIn); i < end(Side::kIn); ++i)
    if (members_[i].state != MemberState::kEnded) effects.push_back({Effect::kVacated, i});
  open_if_all_may(effects);
}

void Transaction::finish_if_ended(std::size_t member, Effects& effects) {
  if (std::all_of(members_.begin(), members_.end(), [&](const Member& each) {
        return each.state == MemberState::kEnded ||
               (each.state == MemberState::kBefore && broken());
      }))
    effects.push_back({Effect::kFinish, member});
}

Transaction::Effects Transaction::may_go_on(Side side) {
  Effects effects;
  if (broken() || withdrawn_[side] || std::exchange(may_[side], true)) return effects;
  if (asked_[side]) go_on(side, effects);
  return effects;
}

Transaction::Effects Transaction::give_up(const Status& why) {
  Effects effects;
  if (broken()) return effects;
  given_up_ = why;
  give_up(Side::kOut, effects);
  give_up(Side::kIn, effects);
  // Between the halves of a swap in turn nothing is under way.
  if (effects.empty()) finish_if_ended(0, effects);
  return effects;
}

void Transaction::go_on_or_ask(Side side, Effects& effects) {
  if (!spans_nodes_ || may_[side]) return go_on(side, effects);
  if (!std::exchange(asked_[side], true)) effects.push_back({Effect::kAsk, first(side)});
}

void Transaction::release_if_all_may(Effects& effects) {
  const auto may = [](const Member& m) { return m.left || m.state == MemberState::kReady; };
  if (all(Side::kOut, may)) go_on_or_ask(Side::kOut, effects);
}

void Transaction::open_if_all_may(Effects& effects) {
  const auto has_left = [](const Member& m) { return m.gone(); };
  const auto is_ready = [](const Member& m) { return m.state == MemberState::kReady; };
  // It has nobody else to wait for.
  const bool alone = !spans_nodes_ && members_.size() - outgoing_ == 1;
  if (all(Side::kOut, has_left) && (alone || all(Side::kIn, is_ready)))
    go_on_or_ask(Side::kIn, effects);
}

void Transaction::go_on(Side side, Effects& effects) {
  for (std::size_t i = first(side); i < end(side); ++i) {
    Member& m = members_[i];
    if (m.left || m.state == MemberState::kEnded) continue;
    m.state = MemberState::kReleased;
    effects.push_back({Effect::kGoOn, i});
  }
}

void Transaction::give_up(Side side, Effects& effects) {
  for (std::size_t i = first(side); i < end(side); ++i) {
    Member& m = members_[i];
    if (!m.barrier || m.left || m.state == MemberState::kBefore ||
        m.state >= MemberState::kReleased)
      continue;
    m.state = MemberState::kReleased;
    effects.push_back({Effect::kGiveUp, i});
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
