#include "daemon/fleet/fleet.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "common/version.h"
#include "daemon/base/ids.h"
#include "daemon/fleet/fan_out.h"

namespace amem {
namespace {

/// For a node to take up its share.
constexpr Duration kToJoin = std::chrono::seconds(10);
class OnBroker final : public LocalNode {
 public:
  explicit OnBroker(Broker& broker) : broker_(broker) {}
  std::uint64_t begin(const Caller& caller, const FleetTransaction& transaction,
                      const Operations::Observer& observer,
                      std::shared_ptr<RemoteNodes> remote_nodes) override {
    if (transaction.swap)
      return broker_.swap(caller, transaction.groups, transaction.in, transaction.task,
                          transaction.timeout, observer, std::move(remote_nodes));
    return broker_.start_operation(caller, transaction.task, transaction.groups,
                                   transaction.timeout, observer, std::move(remote_nodes));
  }
  void tell(std::uint64_t number, const std::string& group, const Event& event) override {
    broker_.operations().tell(number, group, event);
  }
  bool may_go_on(std::uint64_t number, Side side) override {
    return broker_.operations().may_go_on(number, side);
  }
  void give_up(std::uint64_t number, const Status& why) override {
    broker_.operations().give_up(number, why);
  }

 private:
  Broker& broker_;
};

std::string random_name() {
  const Result<Token> token = random_token();
  if (!token.ok()) return {};
  return {reinterpret_cast<const char*>(token.value().data()), token.value().size()};
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

}  // namespace

/// One that this node leads.
struct Fleet::Led {
  Led(std::vector<std::string> nodes, Conductor::Params params, Operations::Observer who)
      : conductor(std::move(nodes), std::move(params), Clock::now()), observer(std::move(who)) {}
  std::string transaction;
  Conductor conductor;
  Operations::Observer observer;
  std::vector<Branch> branches;
  std::vector<std::size_t> branch_of;            // by node
  std::vector<std::unique_ptr<NodeLink>> links;  // by branch; null: it is over
  std::optional<EventLoop::TimerId> timer;
  bool carrying_out = false;
  bool over = false;
};

Fleet::Fleet(Broker& broker, EventLoop& loop, NodeLinks& links, const Deadlines& deadlines)
    : loop_(loop),
      links_(links),
      deadlines_(deadlines),
      local_node_(std::make_unique<OnBroker>(broker)),
      instance_(random_name()),
      name_(host_name()),
      transactions_(broker.shares(), broker.remembers()) {}

Fleet::~Fleet() { shut(); }

void Fleet::shut() {
  for (const auto& [transaction, led] : std::exchange(led_, {})) {
    led->over = true;
    if (led->timer) loop_.cancel(*led->timer);
    led->links.clear();
    led->observer->finished(
        {Code::kUnavailable,
         "amemd is ending. The nodes that were told to continue finish the operation"});
  }
  transactions_.shut();
}

// ---- leading ------------------------------------------------------------------------------------

void Fleet::lead(const Caller& caller, v1::FleetBegin begin, const Operations::Observer& observer) {
  const std::set<std::string> different(begin.nodes().begin(), begin.nodes().end());
  const auto nodes = static_cast<std::size_t>(begin.nodes_size());
  Status refused;
  if (!caller.operates)
    refused = {
        Code::kPermissionDenied,
        "only root, amemd's own user and the group access.operators may control several nodes"};
  else if (different.size() != nodes)
    refused = {Code::kInvalidArgument, "a node is named twice"};
  else if (nodes > kMaxNodes)
    refused = {Code::kInvalidArgument, "an operation can name at most " +
                                           std::to_string(kMaxNodes) + " nodes, not " +
                                           std::to_string(nodes)};
  const std::string transaction = random_name();
  if (refused.ok() && (transaction.empty() || instance_.empty()))
    refused = {Code::kInternal, "the system provided no random numbers"};
  if (!refused.ok()) return observer->finished(refused);

  begin.set_protocol(kFleetProtocol);
  begin.set_transaction(transaction);
  begin.set_leader(name_);
  Conductor::Params params;
  params.goes_out = !begin.has_resume();
  params.comes_in = !begin.has_pause();
  params.stall = deadlines_.stall;
  params.to_join = kToJoin;
  params.instance = instance_;
  const auto timeout_ms = begin.has_pause()    ? begin.pause().timeout_ms()
                          : begin.has_resume() ? begin.resume().timeout_ms()
                                               : begin.swap().timeout_ms();
  params.timeout = std::chrono::milliseconds(timeout_ms);
  const auto led = std::make_shared<Led>(
      std::vector<std::string>(begin.nodes().begin(), begin.nodes().end()), params, observer);
  led->transaction = transaction;
  led_[transaction] = led;
  led->branches = fan_out(nodes);
  led->branch_of.resize(nodes);
  led->links.resize(led->branches.size());
  spdlog::info("amemd leads an operation over {} nodes, requested by {}", nodes, caller.who);
  // Where one cannot be opened the others must be told; they are open only after this.
  led->carrying_out = true;
  for (std::size_t branch = 0; branch < led->branches.size(); ++branch) open(led, branch, begin);
  led->carrying_out = false;
  carry_out(led);
}

void Fleet::open(const std::shared_ptr<Led>& led, std::size_t branch, v1::FleetBegin begin) {
  const auto& [head, rest] = led->branches[branch];
  led->branch_of[head] = branch;
  begin.set_number(static_cast<std::uint32_t>(head));
  for (const std::size_t node : rest) {
    led->branch_of[node] = branch;
    begin.add_passes_on(static_cast<std::uint32_t>(node));
  }
  NodeLink::Heard heard;
  heard.reports = [this, led, branch](v1::FleetReports reports) {
    this->heard(led, branch, std::move(reports));
  };
  heard.over = [this, led, branch](const Status& why) { over(led, branch, why); };
  Result<std::unique_ptr<NodeLink>> link =
      links_.open(begin.nodes(static_cast<int>(head)), std::move(heard));
  if (!link.ok()) return over(led, branch, link.status());
  v1::FleetCommand first;
  first.set_node(begin.number());
  *first.mutable_begin() = std::move(begin);
  (led->links[branch] = std::move(link).value())->send(std::move(first));
}

void Fleet::heard(const std::shared_ptr<Led>& led, std::size_t branch, v1::FleetReports reports) {
  if (led->over) return;
  const Time now = Clock::now();
  for (v1::FleetReport& report : *reports.mutable_each()) {
    const std::size_t node = report.node();
    if (node >= led->branch_of.size() || led->branch_of[node] != branch) continue;
    if (report.has_lost()) {
      led->conductor.lost(node, {static_cast<Code>(report.lost().code()), report.lost().text()},
                          now);
      continue;
    }
    led->conductor.told(node, report, now);
    if (report.has_progress()) {
      report.mutable_progress()->set_node(led->conductor.name(node));
      report.mutable_progress()->set_node_number(static_cast<std::uint32_t>(node));
      led->observer->progress(report.progress());
    }
  }
  carry_out(led);
}

/// The nodes that its head passes on to are lost with it.
void Fleet::over(const std::shared_ptr<Led>& led, std::size_t branch, const Status& why) {
  if (led->over) return;
  led->links[branch].reset();
  const auto& [head, rest] = led->branches[branch];
  const Time now = Clock::now();
  const Status status = lost_by(why);
  led->conductor.lost(head, status, now);
  for (const std::size_t node : rest)
    led->conductor.lost(node,
                        {status.code(), "it is reached through node '" + led->conductor.name(head) +
                                            "', which is lost: " + status.text()},
                        now);
  carry_out(led);
}

void Fleet::carry_out(const std::shared_ptr<Led>& led) {
  if (led->over || std::exchange(led->carrying_out, true)) return;
  for (std::vector<Conductor::NodeCommand> commands = led->conductor.take_commands();
       !commands.empty(); commands = led->conductor.take_commands())
    for (Conductor::NodeCommand& each : commands) {
      const std::unique_ptr<NodeLink>& link = led->links[led->branch_of[each.node]];
      if (link == nullptr) continue;
      each.command.set_node(static_cast<std::uint32_t>(each.node));
      const bool hang_up = each.command.what_case() == v1::FleetCommand::WHAT_NOT_SET;
      if (hang_up) each.command.set_hang_up(true);
      link->send(std::move(each.command));
      if (hang_up)
        led->conductor.lost(each.node,
                            {Code::kAborted, "it is unknown whether the other nodes continue"},
                            Clock::now());
    }
  led->carrying_out = false;
  if (led->timer) loop_.cancel(*std::exchange(led->timer, std::nullopt));
  if (led->conductor.ended()) return end(led);
  const Time wakeup = led->conductor.wakeup();
  if (wakeup == kNever) return;
  led->timer = loop_.at(wakeup, [this, led] {
    led->timer.reset();
    led->conductor.tick(Clock::now());
    carry_out(led);
  });
}

void Fleet::end(const std::shared_ptr<Led>& led) {
  led->over = true;
  const Status result = led->conductor.result();
  if (!result.ok())
    spdlog::error("the operation over {} nodes failed: {}", led->branch_of.size(), result.text());
  // The links may be what has called.
  loop_.post([led] { led->links.clear(); });
  led_.erase(led->transaction);
  led->observer->finished(result);
}

// ---- participants -------------------------------------------------------------------------------

std::shared_ptr<Participant> Fleet::take(const Caller& caller, const v1::FleetBegin& begin,
                                         const FleetTransaction& transaction,
                                         Participant::Report report) {
  const auto participant = std::make_shared<Participant>(
      *local_node_, links_,
      [this](Duration time, EventLoop::Job job) { loop_.at(Clock::now() + time, std::move(job)); },
      begin, report);
  Status refused;
  if (begin.protocol() != kFleetProtocol)
    refused = {Code::kFailedPrecondition,
               "this node's amemd " + std::string(kVersion) + " speaks version " +
                   std::to_string(kFleetProtocol) +
                   " of the protocol between nodes, and the leader speaks version " +
                   std::to_string(begin.protocol()) + ". Upgrade the older amemd"};
  else if (begin.transaction().size() != sizeof(Token))
    refused = {Code::kInvalidArgument, "the name of a transaction must have 16 bytes"};
  else
    refused = transactions_.refuses(begin);
  if (!refused.ok()) {
    participant->finished(refused);
    return participant;
  }
  v1::FleetReport joined;
  joined.set_node(begin.number());
  joined.mutable_joined()->set_name(name_);
  joined.mutable_joined()->set_instance(instance_);
  joined.mutable_joined()->set_version(kVersion);
  joined.mutable_joined()->set_silence_us(to_us(deadlines_.longest()));
  report(std::move(joined), false);
  transactions_.add(begin.transaction(), participant);
  participant->begin(caller, transaction);
  return participant;
}

std::shared_ptr<Relay> Fleet::relay(Relay::Report report, std::function<void()> idle) {
  return std::make_shared<Relay>(links_, loop_, std::move(report), std::move(idle));
}

v1::FleetStanding Fleet::standing(const std::string& transaction) {
  return transactions_.standing(transaction, led_.contains(transaction));
}

}  // namespace amem
