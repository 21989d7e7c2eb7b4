#include "daemon/fleet/part.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "daemon/fleet/stages.h"

namespace amem {
namespace {

/// Until nodes that could not be asked how far they are, are asked again.
constexpr Duration kAskAgain = std::chrono::milliseconds(500);
/// Within a phase, beside its beginning: what each rank does is too much to hear of.
constexpr Duration kTellAgain = std::chrono::milliseconds(200);
/// Progress waits so long for a report that it can go with: a message of its own costs the leader,
/// who hears all nodes, as much as one for which somebody waits.
constexpr Duration kTellWithin = std::chrono::milliseconds(50);

}  // namespace

Part::Part(Broker& broker, EventLoop& loop, NodeLinks& links, v1::FleetBegin begin, Report report)
    : broker_(broker),
      loop_(loop),
      links_(links),
      begin_(std::move(begin)),
      report_(std::move(report)) {}

void Part::begin(const Caller& caller, const FleetOrder& order) {
  begun_ = true;
  const auto self = shared_from_this();
  number_ = order.swap ? broker_.swap(caller, order.groups, order.in, order.task.discard,
                                      order.task.guests, order.timeout, self, self)
                       : broker_.start_operation(caller, order.task, order.groups, order.timeout,
                                                 self, self);
}

void Part::tell(v1::FleetReport report) {
  tell_progress(true);
  report.set_node(begin_.number());
  if (report_) report_(std::move(report), false);
}

// ---- what the leader says -----------------------------------------------------------------------

void Part::handle(const v1::FleetCommand& command) {
  switch (command.what_case()) {
    case v1::FleetCommand::kStep: {
      const v1::FleetStep& told = command.step();
      Cut::Step step;
      step.rank = told.rank();
      if (told.device().size() != step.device.bytes.size()) return;
      step.device = make_uuid(told.device().data());
      step.in_turn = told.in_turn();
      return broker_.operations().tell(number_, told.group(), event::StepOf{step});
    }
    case v1::FleetCommand::kCutTaken:
      return broker_.operations().tell(number_, command.cut_taken(), event::CutTaken{});
    case v1::FleetCommand::kGoOn:
      go_on(stage_of(command.go_on()));
      return;
    case v1::FleetCommand::kGiveUp:
      return give_up({static_cast<Code>(command.give_up().code()), command.give_up().text()});
    case v1::FleetCommand::kHangUp:
      return leader_lost();
    case v1::FleetCommand::kBegin:  // once, and the one who has made this has seen it
    case v1::FleetCommand::WHAT_NOT_SET:
      return;
  }
}

void Part::go_on(Stage stage) {
  if (given_up_ || !asked_[stage]) return;
  if (!std::exchange(went_on_[stage], true)) broker_.operations().may_go_on(number_, stage);
  v1::FleetReport report;
  put(stage, *report.mutable_went_on());
  tell(std::move(report));
}

void Part::give_up(const Status& why) {
  if (std::exchange(given_up_, true)) return;
  broker_.operations().give_up(number_, why);
}

// ---- what the leader is told --------------------------------------------------------------------

void Part::quiesces(const std::string& group, const std::vector<RankId>& ranks) {
  v1::FleetReport report;
  report.mutable_quiesces()->set_group(group);
  for (const RankId rank : ranks) report.mutable_quiesces()->add_ranks(rank);
  tell(std::move(report));
}

void Part::reported(const std::string& group, RankId rank, const std::optional<CutReport>& cut) {
  v1::FleetReport report;
  v1::FleetRank& told = *report.mutable_rank();
  told.set_group(group);
  told.set_rank(rank);
  told.set_gone(!cut);
  if (cut) {
    told.set_steps(cut->steps);
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

void Part::asks(Stage stage) {
  asked_[stage] = true;
  v1::FleetReport report;
  put(stage, *report.mutable_asks());
  tell(std::move(report));
  if (!report_) leader_lost();
}

void Part::progress(const v1::Progress& progress) {
  Told& told = told_[progress.group()];
  const Time now = Clock::now();
  if (!progress.done() && progress.phase() == told.phase && now < told.at + kTellAgain) return;
  told = {progress.phase(), now};
  if (progress_.empty())
    loop_.at(now + kTellWithin, [self = weak_from_this()] {
      if (const auto part = self.lock()) part->tell_progress(false);
    });
  progress_[progress.group()] = progress;
}

void Part::tell_progress(bool more) {
  while (!progress_.empty()) {
    v1::FleetReport report;
    report.set_node(begin_.number());
    *report.mutable_progress() = std::move(progress_.extract(progress_.begin()).mapped());
    if (report_) report_(std::move(report), more || !progress_.empty());
  }
}

void Part::finished(const Status& status) {
  ended_ = true;
  v1::FleetReport report;
  report.mutable_ended()->set_code(static_cast<std::uint32_t>(status.code()));
  report.mutable_ended()->set_text(status.text());
  tell(std::move(report));
  report_ = nullptr;
}

// ---- without a leader ---------------------------------------------------------------------------

std::optional<Stage> Part::waits() const {
  for (const Stage stage : kStages)
    if (asked_[stage] && !went_on_[stage]) return stage;
  return std::nullopt;
}

void Part::leader_lost() {
  if (ended_ || given_up_) return;
  if (std::exchange(report_, nullptr))
    spdlog::warn("the leader of an operation over several nodes, {}, is lost", begin_.leader());
  if (waits()) return ask_the_others();
  // Of a swap what goes out may have gone on; then only what comes in is given up.
  give_up({Code::kAborted, "the node that leads, " + begin_.leader() + ", is lost"});
}

struct Part::Round {
  std::size_t open = 0;         // questions without an answer yet
  std::size_t unreachable = 0;  // nodes
  bool led = false;             // the leader lives, and will decide, or some node thinks so
  bool decided = false;
};

void Part::ask_the_others() {
  const auto round = std::make_shared<Round>();
  round->open = static_cast<std::size_t>(begin_.nodes_size());
  for (const std::string& address : begin_.nodes())
    links_.ask(address, begin_.order(),
               [self = shared_from_this(), round, address](const Result<v1::FleetStanding>& told) {
                 self->heard(*round, address, told);
               });
}

void Part::heard(Round& round, const std::string& address,
                 const Result<v1::FleetStanding>& standing) {
  --round.open;
  const std::optional<Stage> stage = waits();
  if (round.decided || ended_ || given_up_ || !stage) return;
  if (standing.ok()) {
    const v1::FleetStanding& it = standing.value();
    round.led = round.led || it.leads() || it.led();
    const bool went_on = *stage == Stage::kOut ? it.went_on_out() : it.went_on_in();
    const bool asked = *stage == Stage::kOut ? it.asked_out() : it.asked_in();
    if (went_on) {
      spdlog::info("node {} was told to go on, so this one goes on, too", address);
      round.decided = true;
      return go_on(*stage);
    }
    if (it.given_up() || !it.known() || !asked) {
      round.decided = true;
      return give_up({Code::kAborted, "the node that leads, " + begin_.leader() +
                                          ", is lost, and node " + address + " has given up"});
    }
  } else {
    ++round.unreachable;
  }
  if (round.open > 0) return;
  // The leader is told to go on last. So where it alone has gone, somebody else would know.
  if (!round.led && round.unreachable <= 1)
    return give_up({Code::kAborted, "the node that leads, " + begin_.leader() +
                                        ", is lost, and no node was told to go on"});
  loop_.at(Clock::now() + kAskAgain, [self = shared_from_this()] {
    if (!self->ended_ && !self->given_up_ && self->waits()) self->ask_the_others();
  });
}

v1::FleetStanding Part::standing_for_others() {
  v1::FleetStanding standing;
  standing.set_known(true);
  // Whoever asks takes this for a promise.
  const bool may_ask_yet = !ended_ && !given_up_ && !waits() && !went_on_[Stage::kIn];
  if (may_ask_yet)
    give_up({Code::kAborted,
             "another node has lost the node that leads, " + begin_.leader() + ", and gives up"});
  standing.set_given_up(given_up_);
  standing.set_asked_out(asked_[Stage::kOut]);
  standing.set_went_on_out(went_on_[Stage::kOut]);
  standing.set_asked_in(asked_[Stage::kIn]);
  standing.set_went_on_in(went_on_[Stage::kIn]);
  standing.set_led(report_ != nullptr);
  return standing;
}

}  // namespace amem
