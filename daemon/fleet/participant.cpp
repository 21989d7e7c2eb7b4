#include "daemon/fleet/participant.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "daemon/fleet/node_link.h"

namespace amem {
namespace {

/// Within a phase, beside its beginning: what each rank does is too much to hear of.
constexpr Duration kTellAgain = std::chrono::milliseconds(200);
/// Progress waits so long for a report that it can go with: a message of its own costs the leader,
/// who hears all nodes, as much as one for which somebody waits.
constexpr Duration kTellWithin = std::chrono::milliseconds(50);

}  // namespace

Participant::Participant(LocalNode& local_node, NodeLinks& links, Later later, v1::FleetBegin begin,
                         Report report)
    : local_node_(local_node),
      links_(links),
      later_(std::move(later)),
      begin_(std::move(begin)),
      report_(std::move(report)) {}

void Participant::begin(const Caller& caller, const FleetTransaction& transaction) {
  last_ = transaction.last();
  const auto self = shared_from_this();
  number_ = local_node_.begin(caller, transaction, self, self);
}

void Participant::tell(v1::FleetReport report) {
  tell_progress(true);
  report.set_node(begin_.number());
  if (report_) report_(std::move(report), false);
}

// ---- what the leader says -----------------------------------------------------------------------

void Participant::handle(const v1::FleetCommand& command) {
  switch (command.what_case()) {
    case v1::FleetCommand::kPermit: {
      const v1::FleetPermit& told = command.permit();
      Cut::Permit permit;
      permit.rank = told.rank();
      if (told.device().size() != permit.device.bytes.size()) return;
      permit.device = make_uuid(told.device().data());
      permit.in_turn = told.in_turn();
      return local_node_.tell(number_, told.group(), event::PermitOf{permit});
    }
    case v1::FleetCommand::kCutTaken:
      return local_node_.tell(number_, command.cut_taken(), event::CutTaken{});
    case v1::FleetCommand::kGoOn:
      go_on(side_of(command.go_on()));
      return;
    case v1::FleetCommand::kGiveUp:
      return give_up({static_cast<Code>(command.give_up().code()), command.give_up().text()});
    case v1::FleetCommand::kLeader:
      leader_ = command.leader().number();
      return;
    case v1::FleetCommand::kHangUp:
      return leader_lost();
    case v1::FleetCommand::kBegin:  // once, and the one who has made this has seen it
    case v1::FleetCommand::WHAT_NOT_SET:
      return;
  }
}

/// Who has not gone on does not say so, even if told to: the leader's own part goes by that.
void Participant::go_on(Side side) {
  if (given_up_ || !asked_[side]) return;
  if (!went_on_[side]) went_on_[side] = local_node_.may_go_on(number_, side);
  if (!went_on_[side]) return;
  v1::FleetReport report;
  put(side, *report.mutable_went_on());
  tell(std::move(report));
}

void Participant::give_up(const Status& why) {
  if (ended_ || withdrawn_ || std::exchange(given_up_, true)) return;
  local_node_.give_up(number_, why);
}

// ---- what the leader is told --------------------------------------------------------------------

void Participant::quiesces(const std::string& group, const std::vector<RankId>& ranks) {
  v1::FleetReport report;
  report.mutable_quiesces()->set_group(group);
  for (const RankId rank : ranks) report.mutable_quiesces()->add_ranks(rank);
  tell(std::move(report));
}

void Participant::reported(const std::string& group, RankId rank,
                           const std::optional<CutReport>& cut) {
  v1::FleetReport report;
  v1::FleetRank& told = *report.mutable_rank();
  told.set_group(group);
  told.set_rank(rank);
  told.set_gone(!cut);
  if (cut) {
    told.set_permits(cut->permits);
    told.set_captures(cut->captures);
    for (const CutReport::Device& device : cut->devices) {
      v1::FleetDevice& each = *told.add_devices();
      each.set_uuid(device.device.bytes.data(), device.device.bytes.size());
      each.set_busy(device.busy);
      each.set_waiting(device.waiting);
      each.set_ready(device.ready);
    }
  }
  tell(std::move(report));
}

void Participant::asks(Side side) {
  if (ended_ || given_up_) return;
  if (promised_ || !report_) return give_up(leader_is_lost(""));
  asked_[side] = true;
  v1::FleetReport report;
  put(side, *report.mutable_asks());
  tell(std::move(report));
}

void Participant::withdraws(Side side) {
  if (ended_ || given_up_ || !asked_[side]) return;
  withdrawn_ = true;
  v1::FleetReport report;
  put(side, *report.mutable_withdraws());
  tell(std::move(report));
}

void Participant::progress(const v1::Progress& progress) {
  Told& told = told_[progress.group()];
  const Time now = Clock::now();
  if (!progress.done() && progress.phase() == told.phase && now < told.at + kTellAgain) return;
  told = {progress.phase(), now};
  if (progress_.empty())
    later_(kTellWithin, [self = weak_from_this()] {
      if (const auto participant = self.lock()) participant->tell_progress(false);
    });
  progress_[progress.group()] = progress;
}

void Participant::tell_progress(bool more) {
  while (!progress_.empty()) {
    v1::FleetReport report;
    report.set_node(begin_.number());
    *report.mutable_progress() = std::move(progress_.extract(progress_.begin()).mapped());
    if (report_) report_(std::move(report), more || !progress_.empty());
  }
}

void Participant::finished(const Status& status) {
  ended_ = true;
  v1::FleetReport report;
  report.mutable_ended()->set_code(static_cast<std::uint32_t>(status.code()));
  report.mutable_ended()->set_text(status.text());
  tell(std::move(report));
  report_ = nullptr;
}

// ---- without a leader ---------------------------------------------------------------------------

std::optional<Side> Participant::waits() const {
  if (ended_ || given_up_ || withdrawn_) return std::nullopt;
  for (const Side side : kSides)
    if (asked_[side] && !went_on_[side]) return side;
  return std::nullopt;
}

Status Participant::leader_is_lost(const std::string& and_what) const {
  return {Code::kAborted, "the leader " + begin_.leader() + " is lost" + and_what};
}

void Participant::leader_lost() {
  if (ended_) return;
  if (std::exchange(report_, nullptr))
    spdlog::warn("the leader {} of an operation over several nodes is lost", begin_.leader());
  if (const std::optional<Side> side = waits()) {
    if (inquiry_) return;
    inquiry_ = std::make_shared<Inquiry>(static_cast<std::size_t>(begin_.nodes_size()),
                                         begin_.number(), *side, leader_);
    questions_ = links_.questions(begin_.transaction());
    return ask_the_others();
  }
  // Of a swap what goes out may have gone on; then only what comes in is given up.
  if (!went_on_[last_]) give_up(leader_is_lost(""));
}

void Participant::ask_the_others() {
  std::vector<Questions::Question> round;
  for (const std::size_t node : inquiry_->next_round())
    round.push_back({name_of(node), [self = shared_from_this(), inquiry = inquiry_,
                                     node](const Result<v1::FleetStanding>& told) {
                       self->heard(inquiry, node, told);
                     }});
  if (round.empty()) return decide(inquiry_);
  questions_->ask(std::move(round));
}

void Participant::heard(const std::shared_ptr<Inquiry>& inquiry, std::size_t node,
                        const Result<v1::FleetStanding>& standing) {
  if (inquiry != inquiry_) return;  // it has been decided
  inquiry->heard(node, standing.ok() ? &standing.value() : nullptr);
  decide(inquiry);
}

void Participant::decide(const std::shared_ptr<Inquiry>& inquiry) {
  const std::optional<Side> side = waits();
  const Inquiry::Verdict verdict = inquiry->verdict();
  if (side && verdict != Inquiry::Verdict::kGoOn && !inquiry->round_has_ended()) return;
  if (side && verdict == Inquiry::Verdict::kAskAgain) {
    later_(inquiry->pause(), [self = shared_from_this(), inquiry] {
      if (self->inquiry_ != inquiry) return;
      self->waits() ? self->ask_the_others() : self->decide(inquiry);
    });
    return;
  }
  inquiry_ = nullptr;
  questions_ = nullptr;
  if (!side) return;  // its own deadline has passed meanwhile
  const std::optional<std::size_t>& by = inquiry->by();
  if (verdict == Inquiry::Verdict::kGoOn) {
    spdlog::info("node {} was told to continue, so this node continues", name_of(*by));
    return go_on(*side);
  }
  give_up(leader_is_lost(by ? ", and node " + name_of(*by) + " has given up"
                            : ", and no node was told to continue"));
}

v1::FleetStanding Participant::standing_for_others() {
  promised_ = true;
  if (!waits() && !went_on_[last_]) give_up(leader_is_lost(" for another node, which gives up"));
  v1::FleetStanding standing;
  standing.set_known(true);
  standing.set_given_up(given_up_);
  standing.set_asked_out(asked_[Side::kOut]);
  standing.set_went_on_out(went_on_[Side::kOut]);
  standing.set_asked_in(asked_[Side::kIn]);
  standing.set_went_on_in(went_on_[Side::kIn]);
  standing.set_led(report_ != nullptr);
  if (leader_) standing.mutable_leader()->set_number(static_cast<std::uint32_t>(*leader_));
  return standing;
}

}  // namespace amem
