// FleetWorld: nodes that take part in one operation, as an explorer needs them, or somebody who
// draws what comes next. The Conductor, the Participants, what nodes know of transactions and what
// they make of each other's answers are the real ones. What lies between them is a model: ways,
// questions, the record, and what a participant has its node do.
//
// A leader that dies takes back what it has said last, as much of it as the world chooses; so does
// a way that breaks. A broker that dies leaves its record, and another begins.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/fleet/conductor.h"
#include "daemon/fleet/known_transactions.h"
#include "daemon/fleet/participant.h"
#include "tests/model/explorer/choices.h"
#include "tests/model/scenario.h"
#include "tests/world/digest.h"

namespace amem::model {

struct FleetScenario {
  std::string_view name;
  std::string_view about;
  std::size_t nodes;
  bool out;           // something goes out
  bool in;            // or comes in
  bool takes_part;    // the leader, as node 0
  int faults = 1;     // that happen in one history, in CI
  bool fails = true;  // nodes may fail by themselves
};

const std::vector<FleetScenario>& fleet_scenarios();

class FleetWorld {
 public:
  struct Event {
    enum What : std::uint8_t {
      kCommand,   // a node hears what the leader has said
      kReport,    // the leader hears what a node has said
      kDone,      // a node has done its part of a stage
      kQuestion,  // a node is asked
      kAnswer,    // and its answer comes
      kRestarts,  // the broker of a node that has died begins again
      kTimer,     // time passes: a round of questions begins
      kDeadline,  // and a phase in which a node waits has lasted too long
      kFails,     // a node does, by itself
      kLeaderDies,
      kDies,     // the broker of a node
      kBreaks,   // the way between the leader and a node
      kUnheard,  // a question, or its answer
    };
    What what = kCommand;
    std::uint32_t who = 0;
    friend bool operator==(const Event&, const Event&) = default;
  };
  /// Events that have led here, and what was chosen in them: the objects cannot be copied.
  using Snapshot = std::vector<std::pair<Event, std::vector<std::uint8_t>>>;

  FleetWorld(const FleetScenario& scenario, int faults, Bug bug);
  ~FleetWorld();
  FleetWorld(const FleetWorld&) = delete;
  FleetWorld& operator=(const FleetWorld&) = delete;

  Snapshot save() const { return history_; }
  void restore(const Snapshot& snapshot);
  std::uint64_t hash() const;
  std::vector<Event> due() const;
  std::vector<Event> possible() const;
  std::string apply(Event event, Choices& choices);
  int faults_left() const { return faults_; }
  std::string at_rest() const;
  std::string text(Event event) const;

  /// For those who draw: what is on its way, one of them; nothing: only time passes.
  std::optional<Event> draw(const std::function<std::size_t(std::size_t)>& below) const;
  /// The leader has decided so much: 0 nothing, 1 on what goes out, 2 on what comes in.
  int committed() const { return committed_; }
  std::size_t gone_on(Side side) const;
  std::size_t timed_out() const;
  std::size_t questions() const { return asked_; }
  std::uint64_t events() const { return events_; }
  /// Nothing is remembered, so nothing can be restored.
  void forget_history() { remembers_ = false; }

 private:
  class Links;
  class Asking;
  class Doing;
  struct Node;
  struct Question;

  void begin();
  void carry_out_commands();
  void lead_ends();
  void deliver(std::size_t node);
  void report(std::size_t node);
  void question(std::size_t number);
  void answer(std::size_t number);
  void leader_dies(Choices& choices);
  void dies(std::size_t node);
  void restarts(std::size_t node);
  void breaks(std::size_t node, Choices& choices);
  void fails(std::size_t node);
  void lose_some(std::deque<v1::FleetReport>& said, std::size_t node, Choices& choices);
  void lose_some(std::deque<v1::FleetCommand>& said, std::size_t node, Choices& choices);
  void push(Event::What what, std::size_t who);
  void take(const Event& event);
  std::string promise() const;
  bool waits(std::size_t node) const;

  const FleetScenario& scenario_;
  const int most_faults_;
  const Bug bug_;
  int faults_ = 0;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::unique_ptr<Conductor> conductor_;  // null: the leader has died, or has ended
  std::vector<Event> ready_;              // as often as there is something of it
  std::vector<std::unique_ptr<Question>> questions_;
  std::size_t asked_ = 0;
  std::uint64_t events_ = 0;
  int committed_ = 0;
  bool remembers_ = true;
  Snapshot history_;
  std::string broken_;
};

}  // namespace amem::model
