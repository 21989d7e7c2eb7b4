#include "tests/model/fleet_world.h"

#include <algorithm>
#include <utility>

#include "tests/model/model_peek.h"

namespace amem::model {
namespace {

const std::string kTransaction(sizeof(Token), 'o');
const Time kNow(std::chrono::hours(1));
/// After so many of its rounds of questions a phase has lasted too long.
constexpr int kRounds = 8;

std::string instance(std::size_t node) { return "instance " + std::to_string(node); }
std::string address(std::size_t node) { return std::to_string(node); }

}  // namespace

const std::vector<FleetScenario>& fleet_scenarios() {
  static const std::vector<FleetScenario> all = {
      {"nodes-pause", "two nodes pause, and one of them leads", 2, true, false, true, 2},
      {"nodes-resume", "two nodes resume, and one of them leads", 2, false, true, true, 2},
      {"nodes-swap", "two nodes swap, and one of them leads", 2, true, true, true, 1},
      {"nodes-led", "two nodes pause, and the leader is none of them", 2, true, false, false, 2},
      {"nodes-three", "three nodes pause, and one of them leads", 3, true, false, true, 0, false},
  };
  return all;
}

struct FleetWorld::Question {
  std::size_t asker;
  std::size_t target;
  unsigned life;  // of the asker
  std::shared_ptr<bool> listens;
  std::function<void(const Result<v1::FleetStanding>&)> then;
  std::optional<v1::FleetStanding> told;
};

struct FleetWorld::Node {
  enum Work : std::uint8_t { kNone, kWorks, kAboutToAsk, kHeld, kGone, kFails, kEnded };
  bool lives = true;
  bool linked = true;
  unsigned life = 0;
  std::unique_ptr<KnownTransactions> known;
  std::unique_ptr<Links> links;
  std::unique_ptr<Doing> doing;
  std::shared_ptr<Participant> participant;
  std::deque<v1::FleetCommand> in;
  std::deque<v1::FleetReport> out;
  std::vector<std::function<void()>> timers;
  int rounds = 0;
  Work work = kNone;
  Side side = Side::kOut;
  PerSide<std::optional<FleetShare>> record;
  bool no_more = false;  // what has gone out is all
  bool refused = false;  // has promised to take no part
  bool late = false;     // its deadline has passed
};

/// What a participant has its node do.
class FleetWorld::Doing final : public LocalNode {
 public:
  Doing(FleetWorld& world, std::size_t node) : world_(world), number_(node) {}
  std::uint64_t begin(const Caller&, const FleetTransaction&, const Operations::Observer& observer,
                      std::shared_ptr<RemoteNodes> remote_nodes) override {
    observer_ = observer;
    remote_nodes_ = std::move(remote_nodes);
    works(world_.scenario_.out ? Side::kOut : Side::kIn);
    return 1;
  }
  void tell(std::uint64_t, const std::string&, const amem::Event&) override {}
  bool may_go_on(std::uint64_t, Side side) override {
    if (node().work != Node::kHeld || node().side != side) return false;
    node().work = Node::kGone;
    node().record[side]->went_on = true;
    world_.push(FleetWorld::Event::kDone, number_);
    return true;
  }
  void give_up(std::uint64_t, const Status&) override {
    for (const Side side : kSides)
      if (auto& share = node().record[side]; share && !share->went_on) share->given_up = true;
    if (node().work == Node::kGone) {
      node().no_more = true;
    } else if (node().work != Node::kEnded && node().work != Node::kFails) {
      const bool comes = node().work == Node::kWorks || node().work == Node::kAboutToAsk;
      node().work = Node::kFails;
      if (!comes) world_.push(FleetWorld::Event::kDone, number_);
    }
  }
  void done() {
    const bool last = !world_.scenario_.in || node().side == Side::kIn;
    switch (node().work) {
      case Node::kWorks:
        node().work = Node::kAboutToAsk;
        node().record[node().side]->asked = true;
        return world_.push(FleetWorld::Event::kDone, number_);
      case Node::kAboutToAsk:
        node().work = Node::kHeld;
        return remote_nodes_->asks(node().side);
      case Node::kGone:
        if (last || node().no_more) return ends(node().no_more && !last);
        return works(Side::kIn);
      case Node::kFails:
        return ends(true);
      case Node::kNone:
      case Node::kHeld:
      case Node::kEnded:
        return;
    }
  }
  /// By itself.
  void fails() {
    if (node().work == Node::kWorks) {
      node().work = Node::kFails;  // it is about to be done
    } else if (node().side == Side::kOut) {
      ends(true);
    } else {  // takes back what it has loaded first
      node().work = Node::kFails;
      remote_nodes_->withdraws(node().side);
      world_.push(FleetWorld::Event::kDone, number_);
    }
  }

 private:
  Node& node() { return *world_.nodes_[number_]; }
  void works(Side side) {
    node().work = Node::kWorks;
    node().side = side;
    node().record[side] = FleetShare{kTransaction, side};
    world_.push(FleetWorld::Event::kDone, number_);
  }
  void ends(bool badly) {
    node().work = Node::kEnded;
    observer_->finished(badly ? Status(Code::kAborted, "failed") : Status());
  }

  FleetWorld& world_;
  const std::size_t number_;
  Operations::Observer observer_;
  std::shared_ptr<RemoteNodes> remote_nodes_;
};

class FleetWorld::Asking final : public Questions {
 public:
  Asking(FleetWorld& world, std::size_t node) : world_(world), node_(node) {}
  ~Asking() override { *listens_ = false; }
  void ask(std::vector<Questions::Question> round) override {
    for (Questions::Question& each : round) {
      world_.questions_.push_back(std::make_unique<FleetWorld::Question>(
          FleetWorld::Question{node_,
                               static_cast<std::size_t>(std::stoul(each.address)),
                               world_.nodes_[node_]->life,
                               listens_,
                               std::move(each.answer),
                               {}}));
      world_.push(FleetWorld::Event::kQuestion, world_.questions_.size() - 1);
      ++world_.asked_;
    }
  }

 private:
  FleetWorld& world_;
  const std::size_t node_;
  const std::shared_ptr<bool> listens_ = std::make_shared<bool>(true);
};

/// Of one node.
class FleetWorld::Links final : public NodeLinks {
 public:
  Links(FleetWorld& world, std::size_t node) : world_(world), node_(node) {}
  Result<std::unique_ptr<NodeLink>> open(const std::string&, NodeLink::Heard) override {
    return Status(Code::kInternal, "the world has the ways");
  }
  std::unique_ptr<Questions> questions(const std::string&) override {
    return std::make_unique<Asking>(world_, node_);
  }

 private:
  FleetWorld& world_;
  const std::size_t node_;
};

// ---- the beginning ------------------------------------------------------------------------------

FleetWorld::FleetWorld(const FleetScenario& scenario, int faults, Bug bug)
    : scenario_(scenario), most_faults_(faults), bug_(bug) {
  begin();
}

FleetWorld::~FleetWorld() = default;

void FleetWorld::begin() {
  nodes_.clear();
  questions_.clear();
  ready_.clear();
  history_.clear();
  broken_.clear();
  faults_ = most_faults_;
  committed_ = 0;
  asked_ = 0;
  Conductor::Params params;
  params.goes_out = scenario_.out;
  params.comes_in = scenario_.in;
  params.to_join = std::chrono::hours(1);
  params.instance = scenario_.takes_part ? instance(0) : "the leader's";
  std::vector<std::string> names;
  for (std::size_t i = 0; i < scenario_.nodes; ++i) names.push_back(address(i));
  conductor_ = std::make_unique<Conductor>(names, params, kNow);
  v1::FleetBegin begin;
  begin.set_transaction(kTransaction);
  begin.set_leader("leader");
  for (const std::string& name : names) begin.add_nodes(name);
  for (std::size_t i = 0; i < scenario_.nodes; ++i) {
    Node& node = *nodes_.emplace_back(std::make_unique<Node>());
    node.known = std::make_unique<KnownTransactions>(std::vector<FleetShare>(), true);
    node.links = std::make_unique<Links>(*this, i);
    node.doing = std::make_unique<Doing>(*this, i);
    v1::FleetCommand first;
    begin.set_number(static_cast<std::uint32_t>(i));
    *first.mutable_begin() = begin;
    node.in.push_back(std::move(first));
    push(Event::kCommand, i);
  }
}

void FleetWorld::restore(const Snapshot& snapshot) {
  const Snapshot to = snapshot;  // it may be of this very history
  begin();
  for (const auto& [event, taken] : to) {
    Choices choices(taken);
    apply(event, choices);
  }
}

// ---- what comes next ----------------------------------------------------------------------------

void FleetWorld::push(Event::What what, std::size_t who) {
  ready_.push_back({what, static_cast<std::uint32_t>(who)});
}

void FleetWorld::take(const Event& event) {
  const auto found = std::find(ready_.begin(), ready_.end(), event);
  if (found == ready_.end()) return;
  *found = ready_.back();
  ready_.pop_back();
}

bool FleetWorld::waits(std::size_t node) const {
  const Node& it = *nodes_[node];
  return it.lives && it.work == Node::kHeld;
}

std::vector<FleetWorld::Event> FleetWorld::due() const {
  std::vector<Event> events;
  for (const Event& event : ready_)
    if (std::find(events.begin(), events.end(), event) == events.end()) events.push_back(event);
  if (!events.empty()) return events;
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    if (nodes_[i]->lives && !nodes_[i]->timers.empty() && nodes_[i]->rounds < kRounds)
      events.push_back({Event::kTimer, static_cast<std::uint32_t>(i)});
  if (!events.empty()) return events;
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    if (waits(i)) events.push_back({Event::kDeadline, static_cast<std::uint32_t>(i)});
  return events;
}

std::optional<FleetWorld::Event> FleetWorld::draw(
    const std::function<std::size_t(std::size_t)>& below) const {
  if (!ready_.empty()) return ready_[below(ready_.size())];
  const std::vector<Event> events = due();
  if (events.empty()) return std::nullopt;
  return events[below(events.size())];
}

std::vector<FleetWorld::Event> FleetWorld::possible() const {
  std::vector<Event> events;
  if (faults_ == 0) return events;
  const auto add = [&](Event::What what, std::size_t who) {
    events.push_back({what, static_cast<std::uint32_t>(who)});
  };
  if (conductor_) add(Event::kLeaderDies, 0);
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = *nodes_[i];
    const bool leads = conductor_ && scenario_.takes_part && i == 0;
    if (node.lives && !leads) add(Event::kDies, i);
    if (node.lives && node.linked && conductor_) add(Event::kBreaks, i);
    if (scenario_.fails && node.lives && (node.work == Node::kWorks || node.work == Node::kHeld))
      add(Event::kFails, i);
  }
  for (const Event& event : ready_)
    if (event.what == Event::kQuestion || event.what == Event::kAnswer)
      add(Event::kUnheard, event.who);
  return events;
}

std::string FleetWorld::apply(Event event, Choices& choices) {
  ++events_;
  take(event);
  const bool is_fault = event.what >= Event::kFails;
  if (is_fault) --faults_;
  switch (event.what) {
    case Event::kCommand:
      deliver(event.who);
      break;
    case Event::kReport:
      report(event.who);
      break;
    case Event::kDone:
      nodes_[event.who]->doing->done();
      break;
    case Event::kQuestion:
      question(event.who);
      break;
    case Event::kAnswer:
      answer(event.who);
      break;
    case Event::kRestarts:
      restarts(event.who);
      break;
    case Event::kTimer: {
      ++nodes_[event.who]->rounds;
      for (const auto& job : std::exchange(nodes_[event.who]->timers, {})) job();
      break;
    }
    case Event::kDeadline: {
      const auto knows = [&](const std::unique_ptr<Node>& other) {
        const auto& share = other->record[nodes_[event.who]->side];
        return other->lives && (other->refused || (share && (share->went_on || share->given_up)));
      };
      if (std::any_of(nodes_.begin(), nodes_.end(), knows))
        broken_ = "a node finds out what another knows that it can ask";
      nodes_[event.who]->late = true;
      nodes_[event.who]->doing->fails();
      break;
    }
    case Event::kFails:
      nodes_[event.who]->doing->fails();
      break;
    case Event::kLeaderDies:
      leader_dies(choices);
      break;
    case Event::kDies:
      if (nodes_[event.who]->linked) lose_some(nodes_[event.who]->out, event.who, choices);
      dies(event.who);
      if (choices.choose(2) == 0) push(Event::kRestarts, event.who);
      break;
    case Event::kBreaks:
      breaks(event.who, choices);
      break;
    case Event::kUnheard: {
      take({Event::kQuestion, event.who});
      take({Event::kAnswer, event.who});
      questions_[event.who]->told.reset();
      push(Event::kAnswer, event.who);
      break;
    }
  }
  if (remembers_) history_.emplace_back(event, choices.taken());
  if (broken_.empty()) broken_ = promise();
  return broken_;
}

// ---- ways ---------------------------------------------------------------------------------------

void FleetWorld::deliver(std::size_t number) {
  Node& node = *nodes_[number];
  const v1::FleetCommand command = std::move(node.in.front());
  node.in.pop_front();
  if (!command.has_begin()) {
    if (node.participant == nullptr) return;
    return command.what_case() == v1::FleetCommand::WHAT_NOT_SET
               ? node.participant->leader_lost()
               : node.participant->handle(command);
  }
  const auto tell = [this, number, life = node.life](v1::FleetReport report, bool) {
    if (nodes_[number]->life != life || !nodes_[number]->linked || !conductor_) return;
    nodes_[number]->out.push_back(std::move(report));
    push(Event::kReport, number);
  };
  v1::FleetReport first;
  if (const Status refused = node.known->refuses(command.begin()); !refused.ok()) {
    first.mutable_ended()->set_code(static_cast<std::uint32_t>(refused.code()));
    return tell(first, false);
  }
  first.mutable_joined()->set_instance(instance(number));
  first.mutable_joined()->set_silence_us(to_us(std::chrono::hours(1)));
  tell(first, false);
  node.participant = std::make_shared<Participant>(
      *node.doing, *node.links,
      [this, number, life = node.life](Duration, std::function<void()> job) {
        if (nodes_[number]->life == life) nodes_[number]->timers.push_back(std::move(job));
      },
      command.begin(), tell);
  node.known->add(kTransaction, node.participant);
  FleetTransaction transaction;
  transaction.swap = scenario_.out && scenario_.in;
  if (!scenario_.out) transaction.task = Operation::kResume;
  node.participant->begin(Caller(), transaction);
}

void FleetWorld::report(std::size_t number) {
  Node& node = *nodes_[number];
  const v1::FleetReport report = std::move(node.out.front());
  node.out.pop_front();
  if (!conductor_) return;
  if (report.what_case() == v1::FleetReport::WHAT_NOT_SET)
    conductor_->lost(number, {Code::kUnavailable, "lost"}, kNow);
  else
    conductor_->told(number, report, kNow);
  carry_out_commands();
}

void FleetWorld::carry_out_commands() {
  for (auto commands = conductor_->take_commands(); !commands.empty();
       commands = conductor_->take_commands())
    for (Conductor::NodeCommand& each : commands) {
      Node& node = *nodes_[each.node];
      const bool hang_up = each.command.what_case() == v1::FleetCommand::WHAT_NOT_SET;
      if (each.command.has_go_on()) committed_ = each.command.go_on().out() ? 1 : 2;
      if (hang_up) each.command.set_hang_up(true);
      if (node.linked) {
        node.in.push_back(std::move(each.command));
        push(Event::kCommand, each.node);
      }
      if (hang_up) conductor_->lost(each.node, {Code::kAborted, "not known"}, kNow);
    }
  if (conductor_->ended()) lead_ends();
}

void FleetWorld::lead_ends() {
  conductor_.reset();
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    Node& node = *nodes_[i];
    for (; !node.out.empty(); node.out.pop_back()) take({Event::kReport, std::uint32_t(i)});
    if (!std::exchange(node.linked, false) || !node.lives) continue;
    node.in.emplace_back();
    push(Event::kCommand, i);
  }
}

void FleetWorld::lose_some(std::deque<v1::FleetReport>& said, std::size_t node, Choices& choices) {
  for (std::size_t lost = choices.choose(said.size() + 1); lost > 0; --lost) {
    said.pop_back();
    take({Event::kReport, static_cast<std::uint32_t>(node)});
  }
}

void FleetWorld::lose_some(std::deque<v1::FleetCommand>& said, std::size_t node, Choices& choices) {
  for (std::size_t lost = choices.choose(said.size() + 1); lost > 0; --lost) {
    said.pop_back();
    take({Event::kCommand, static_cast<std::uint32_t>(node)});
  }
}

void FleetWorld::breaks(std::size_t number, Choices& choices) {
  Node& node = *nodes_[number];
  lose_some(node.in, number, choices);
  lose_some(node.out, number, choices);
  node.linked = false;
  node.in.emplace_back();
  push(Event::kCommand, number);
  node.out.emplace_back();
  push(Event::kReport, number);
}

// ---- deaths -------------------------------------------------------------------------------------

void FleetWorld::leader_dies(Choices& choices) {
  if (scenario_.takes_part) nodes_[0]->linked = false;
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    if (nodes_[i]->linked) lose_some(nodes_[i]->in, i, choices);
  lead_ends();
  if (!scenario_.takes_part) return;
  dies(0);
  if (choices.choose(2) == 0) push(Event::kRestarts, 0);
}

void FleetWorld::dies(std::size_t number) {
  Node& node = *nodes_[number];
  node.lives = false;
  ++node.life;
  for (; !node.in.empty(); node.in.pop_back()) take({Event::kCommand, std::uint32_t(number)});
  take({Event::kDone, static_cast<std::uint32_t>(number)});
  node.timers.clear();
  if (std::exchange(node.linked, false) && conductor_) {
    node.out.emplace_back();
    push(Event::kReport, number);
  }
  // What its next broker does with it is not told to anybody.
  node.work = Node::kEnded;
  node.participant.reset();
  node.known.reset();
  node.doing = std::make_unique<Doing>(*this, number);
}

void FleetWorld::restarts(std::size_t number) {
  Node& node = *nodes_[number];
  node.lives = true;
  std::vector<FleetShare> shares;
  for (const auto& share : node.record)
    if (share) shares.push_back(*share);
  if (bug_ == Bug::kForgetsTransactions) shares.clear();
  node.known = std::make_unique<KnownTransactions>(shares, true);
}

// ---- questions ----------------------------------------------------------------------------------

void FleetWorld::question(std::size_t number) {
  Question& question = *questions_[number];
  Node& target = *nodes_[question.target];
  if (target.lives) {
    const bool leads = conductor_ && scenario_.takes_part && question.target == 0;
    question.told = target.known->standing(kTransaction, leads);
    target.refused = target.refused || question.told->never();
  }
  push(Event::kAnswer, number);
}

void FleetWorld::answer(std::size_t number) {
  const std::unique_ptr<Question> question = std::move(questions_[number]);
  if (!*question->listens || nodes_[question->asker]->life != question->life) return;
  if (question->told)
    question->then(*question->told);
  else
    question->then(Status(Code::kUnavailable, "no answer"));
}

// ---- promises -----------------------------------------------------------------------------------

std::string FleetWorld::promise() const {
  for (const Side side : kSides) {
    bool gone = false;
    bool given_up = false;
    for (const std::unique_ptr<Node>& node : nodes_) {
      const auto& share = node->record[side];
      gone = gone || (share && share->went_on);
      given_up = given_up || node->refused || (share && share->given_up);
    }
    if (gone && given_up) return "no node gives up what another has gone on with";
  }
  return "";
}

std::string FleetWorld::at_rest() const {
  for (const std::unique_ptr<Node>& node : nodes_)
    if (node->lives && node->work != Node::kEnded && node->work != Node::kNone)
      return "every node comes to an end";
  return "";
}

std::size_t FleetWorld::gone_on(Side side) const {
  return static_cast<std::size_t>(
      std::count_if(nodes_.begin(), nodes_.end(), [&](const std::unique_ptr<Node>& node) {
        return node->record[side] && node->record[side]->went_on;
      }));
}

std::size_t FleetWorld::timed_out() const {
  return static_cast<std::size_t>(std::count_if(
      nodes_.begin(), nodes_.end(), [](const std::unique_ptr<Node>& node) { return node->late; }));
}

// ---- states -------------------------------------------------------------------------------------

std::uint64_t FleetWorld::hash() const {
  world::Digest digest;
  digest.add(static_cast<std::uint64_t>(faults_));
  digest.add(conductor_ != nullptr);
  if (conductor_) ModelPeek::add(*conductor_, digest);
  for (const std::unique_ptr<Node>& node : nodes_) {
    digest.add((node->lives ? 1U : 0U) | (node->linked ? 2U : 0U) | (node->no_more ? 4U : 0U) |
               (node->refused ? 8U : 0U) | (node->late ? 16U : 0U) | (node->known ? 32U : 0U));
    digest.add(static_cast<std::uint64_t>(node->work));
    digest.add(static_cast<std::uint64_t>(node->side));
    digest.add(static_cast<std::uint64_t>(node->rounds));
    digest.add(node->timers.size());
    for (const auto& share : node->record)
      digest.add(!share ? 0U
                        : 1U | (share->asked ? 2U : 0U) | (share->went_on ? 4U : 0U) |
                              (share->given_up ? 8U : 0U));
    digest.add(node->in.size());
    for (const v1::FleetCommand& command : node->in) digest.add(command.SerializeAsString());
    digest.add(node->out.size());
    for (const v1::FleetReport& report : node->out) digest.add(report.SerializeAsString());
    digest.add(node->participant != nullptr);
    if (node->participant) ModelPeek::add(*node->participant, digest);
  }
  std::vector<std::string> events;
  for (const Event& event : ready_) {
    std::string text = std::to_string(event.what) + " ";
    if (event.what == Event::kQuestion || event.what == Event::kAnswer) {
      const Question& it = *questions_[event.who];
      const bool heard = *it.listens && nodes_[it.asker]->life == it.life;
      text += std::to_string(it.asker) + " " + std::to_string(it.target) + (heard ? " " : " un");
      if (it.told) text += "heard " + it.told->SerializeAsString();
    } else {
      text += std::to_string(event.who);
    }
    events.push_back(std::move(text));
  }
  std::sort(events.begin(), events.end());
  for (const std::string& event : events) digest.add(event);
  return digest.hash();
}

std::string FleetWorld::text(Event event) const {
  const std::string node = "node " + std::to_string(event.who);
  switch (event.what) {
    case Event::kCommand:
      return node + " hears: " + nodes_[event.who]->in.front().ShortDebugString().substr(0, 60);
    case Event::kReport:
      return "the leader hears of " + node + ": " +
             nodes_[event.who]->out.front().ShortDebugString();
    case Event::kDone:
      return node + " is a step further";
    case Event::kQuestion:
    case Event::kAnswer:
    case Event::kUnheard: {
      const Question& it = *questions_[event.who];
      const std::string of =
          " node " + std::to_string(it.asker) + " has asked node " + std::to_string(it.target);
      if (event.what == Event::kQuestion) return "heard:" + of;
      if (event.what == Event::kUnheard) return "unheard:" + of;
      return "answered:" + of + (it.told ? ": " + it.told->ShortDebugString() : ": nothing");
    }
    case Event::kRestarts:
      return node + " has another broker";
    case Event::kTimer:
      return node + " asks again";
    case Event::kDeadline:
      return node + " has waited too long";
    case Event::kFails:
      return node + " fails";
    case Event::kLeaderDies:
      return "the leader dies";
    case Event::kDies:
      return node + " dies";
    case Event::kBreaks:
      return "the way between the leader and " + node + " breaks";
  }
  return "";
}

}  // namespace amem::model
