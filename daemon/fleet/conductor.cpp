#include "daemon/fleet/conductor.h"

#include <algorithm>
#include <utility>

#include "daemon/base/units.h"
#include "daemon/fleet/node_link.h"

namespace amem {
namespace {

constexpr std::chrono::microseconds kMostSilence = std::chrono::hours(24 * 365);

}  // namespace

Conductor::Conductor(std::vector<std::string> nodes, Params params, Time now)
    : params_(std::move(params)), join_by_(now + params_.to_join) {
  for (std::string& name : nodes) nodes_.push_back({std::move(name)});
  barriers_[Side::kIn].is = params_.comes_in;
  barriers_[Side::kOut].is = params_.goes_out;
}

template <class Is>
bool Conductor::all_under_way(Is is) const {
  for (std::size_t node = 0; node < nodes_.size(); ++node)
    if (!nodes_[node].over && !is(node)) return false;
  return true;
}

std::optional<std::size_t> Conductor::leader() const {
  for (std::size_t node = 0; node < nodes_.size(); ++node)
    if (nodes_[node].joined && nodes_[node].instance == params_.instance) return node;
  return std::nullopt;
}

void Conductor::send(std::size_t node, v1::FleetCommand command) {
  if (!nodes_[node].over) commands_.push_back({node, std::move(command)});
}

std::vector<Conductor::NodeCommand> Conductor::take_commands() {
  if (const auto when = std::exchange(look_at_cuts_, std::nullopt)) look_at_cuts(*when);
  return std::exchange(commands_, {});
}

// ---- what nodes report --------------------------------------------------------------------------

void Conductor::told(std::size_t node, const v1::FleetReport& report, Time now) {
  if (nodes_[node].over) return;
  nodes_[node].heard = now;
  switch (report.what_case()) {
    case v1::FleetReport::kJoined:
      return joined(node, report.joined());
    case v1::FleetReport::kQuiesces:
      cuts_.try_emplace(report.quiesces().group(), nodes_.size(), params_.stall)
          .first->second.quiesces(node, report.quiesces(), now);
      look_at_cuts_ = now;
      return;
    case v1::FleetReport::kRank:
      if (const auto cut = cuts_.find(report.rank().group()); cut != cuts_.end())
        cut->second.reported(node, report.rank(), now);
      look_at_cuts_ = now;
      return;
    case v1::FleetReport::kAsks:
      barriers_[side_of(report.asks())].asks.insert(node);
      return go_on_if_all_may(side_of(report.asks()));
    case v1::FleetReport::kWithdraws:
      return withdraws(node, side_of(report.withdraws()));
    case v1::FleetReport::kWentOn:
      barriers_[side_of(report.went_on())].gone.insert(node);
      return let_leader_go_on(side_of(report.went_on()));
    case v1::FleetReport::kEnded:
      return ended(node, Status(static_cast<Code>(report.ended().code()), report.ended().text()),
                   now);
    case v1::FleetReport::kLost:  // lost() is told
    case v1::FleetReport::kProgress:
    case v1::FleetReport::WHAT_NOT_SET:
      return;
  }
}

void Conductor::joined(std::size_t node, const v1::FleetJoined& joined) {
  for (const Node& other : nodes_)
    if (other.joined && other.instance == joined.instance())
      return give_up({Code::kInvalidArgument, "node '" + nodes_[node].name + "' and node '" +
                                                  other.name +
                                                  "' are the same node. Name each node once"});
  nodes_[node].joined = true;
  nodes_[node].instance = joined.instance();
  // Two nodes may have one host name, such as those of an image.
  const bool taken = std::any_of(nodes_.begin(), nodes_.end(),
                                 [&](const Node& other) { return other.name == joined.name(); });
  if (!joined.name().empty() && !taken) nodes_[node].name = joined.name();
  const auto told =
      static_cast<std::int64_t>(std::min<std::uint64_t>(joined.silence_us(), kMostSilence.count()));
  nodes_[node].silence = std::chrono::microseconds(told) + params_.timeout;
  look_for_silence_ = std::min(look_for_silence_, nodes_[node].heard + nodes_[node].silence);
  if (joined.instance() != params_.instance) return;
  for (std::size_t other = 0; other < nodes_.size(); ++other) {
    v1::FleetCommand command;
    command.mutable_leader()->set_number(static_cast<std::uint32_t>(node));
    send(other, std::move(command));
  }
}

/// Its error follows. If it comes too late, others have been told to go on, and go on.
void Conductor::withdraws(std::size_t node, Side side) {
  if (barriers_[side].committed) return;
  give_up(
      {Code::kAborted, "node '" + nodes_[node].name + "' failed while it waited for other nodes"});
}

void Conductor::ended(std::size_t node, const Status& status, Time now) {
  Node& it = nodes_[node];
  it.over = true;
  it.status = status;
  if (!status.ok()) {
    failed_.push_back(node);
    give_up({Code::kAborted, "node '" + it.name + "' failed: " + status.text()});
  }
  for (auto& [group, cut] : cuts_) cut.forget(node, now);
  look_at_cuts(now);
  for (const Side side : kSides) {
    go_on_if_all_may(side);
    let_leader_go_on(side);
  }
}

void Conductor::lost(std::size_t node, const Status& why, Time now) {
  if (nodes_[node].over) return;
  const Barrier& last = barriers_[barriers_[Side::kIn].is ? Side::kIn : Side::kOut];
  std::string text = "lost: " + why.text();
  if (last.told.contains(node))
    text += ". It continues its part alone; ask that node for the state";
  ended(node, Status(why.code(), text), now);
}

// ---- the cut ------------------------------------------------------------------------------------

void Conductor::look_at_cuts(Time now) {
  for (auto it = cuts_.begin(); it != cuts_.end();) {
    auto& [group, cut] = *it;
    if (cut.taken()) {
      for (std::size_t node = 0; node < nodes_.size(); ++node) {
        v1::FleetCommand taken;
        taken.set_cut_taken(group);
        send(node, std::move(taken));
      }
      it = cuts_.erase(it);
      continue;
    }
    for (FleetCut::Permit& permit : cut.decide(now)) {
      v1::FleetCommand command;
      *command.mutable_permit() = std::move(permit.permit);
      command.mutable_permit()->set_group(group);
      send(permit.node, std::move(command));
    }
    ++it;
  }
}

// ---- together -----------------------------------------------------------------------------------

void Conductor::go_on_if_all_may(Side side) {
  Barrier& barrier = barriers_[side];
  if (!barrier.is || barrier.committed || !given_up_.ok() || barrier.asks.empty()) return;
  if (!all_under_way([&](std::size_t node) { return barrier.asks.contains(node); })) return;
  barrier.committed = true;
  const std::optional<std::size_t> own = leader();
  for (std::size_t node = 0; node < nodes_.size(); ++node)
    if (own != node) tell_to_go_on(node, side);
  let_leader_go_on(side);
}

void Conductor::let_leader_go_on(Side side) {
  const Barrier& barrier = barriers_[side];
  const std::optional<std::size_t> own = leader();
  if (!barrier.committed || !own || barrier.told.contains(*own)) return;
  if (barrier.told.empty() || !barrier.gone.empty()) {
    tell_to_go_on(*own, side);
    if (!given_up_.ok()) send_give_up(*own);
  } else if (all_under_way([&](std::size_t node) { return node == *own; })) {
    // Whether anybody has heard of it is not known: its participant asks the others, as without a
    // leader.
    send(*own, {});
  }
}

void Conductor::tell_to_go_on(std::size_t node, Side side) {
  if (nodes_[node].over || !barriers_[side].told.insert(node).second) return;
  v1::FleetCommand command;
  put(side, *command.mutable_go_on());
  send(node, std::move(command));
}

void Conductor::give_up(const Status& why) {
  if (!given_up_.ok()) return;
  given_up_ = why;
  // What is decided stays decided: the leader, who is told last, waits for the others' answers.
  const auto waits = [&](std::size_t node) {
    return std::any_of(barriers_.begin(), barriers_.end(),
                       [&](const Barrier& b) { return b.committed && !b.told.contains(node); });
  };
  for (std::size_t node = 0; node < nodes_.size(); ++node)
    if (!waits(node)) send_give_up(node);
}

void Conductor::send_give_up(std::size_t node) {
  v1::FleetCommand command;
  command.mutable_give_up()->set_code(static_cast<std::uint32_t>(given_up_.code()));
  command.mutable_give_up()->set_text(given_up_.text());
  send(node, std::move(command));
}

// ---- time ---------------------------------------------------------------------------------------

Time Conductor::wakeup() const {
  Time time = look_for_silence_;
  for (const auto& [group, cut] : cuts_) time = std::min(time, cut.next_decision());
  const bool all = all_under_way([this](std::size_t node) { return nodes_[node].joined; });
  return all ? time : std::min(time, join_by_);
}

void Conductor::tick(Time now) {
  look_at_cuts(now);
  if (now >= look_for_silence_) lose_silent_nodes(now);
  if (now < join_by_) return;
  for (std::size_t node = 0; node < nodes_.size(); ++node)
    if (!nodes_[node].over && !nodes_[node].joined)
      lost(node,
           {Code::kDeadlineExceeded,
            "it has not answered within " + format_duration(params_.to_join) +
                ". Check that amemd runs there and listens at this address"},
           now);
}

void Conductor::lose_silent_nodes(Time now) {
  look_for_silence_ = kNever;
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    const Node& it = nodes_[node];
    if (it.over || !it.joined) continue;
    if (now < it.heard + it.silence) {
      look_for_silence_ = std::min(look_for_silence_, it.heard + it.silence);
      continue;
    }
    const Duration silence = it.silence;
    send(node, {});  // should it go on some time
    lost(node,
         {Code::kDeadlineExceeded,
          "it has sent nothing for " + format_duration(silence) +
              ", which is longer than any phase there. amemd may hang: see its log"},
         now);
  }
}

// ---- the end ------------------------------------------------------------------------------------

bool Conductor::ended() const {
  return std::all_of(nodes_.begin(), nodes_.end(), [](const Node& node) { return node.over; });
}

Status Conductor::result() const {
  if (failed_.empty()) return given_up_;
  std::string text;
  for (const std::size_t node : failed_)
    text += (text.empty() ? "node '" : "; node '") + nodes_[node].name +
            "': " + nodes_[node].status.text();
  for (const Node& node : nodes_)
    if (node.status.ok()) text += "; node '" + node.name + "' has done its part";
  return {nodes_[failed_.front()].status.code(), text};
}

}  // namespace amem
