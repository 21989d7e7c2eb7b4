// NodeWorld: a small node as an explorer needs it: which events may come next, what each leads to,
// and which promise that breaks.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/model/broker_side.h"
#include "tests/model/insight.h"
#include "tests/model/model.h"
#include "tests/model/processes.h"
#include "tests/model/promises.h"

namespace amem::model {

class NodeWorld {
 public:
  struct Event {
    enum What : std::uint8_t {
      kTransaction,  // or ranks ask, from inside
      kHandle,
      kRead,
      kGone,
      kSeesEnd,
      kSlice,
      kTick,
      kGuestCloses,
      kEnds,
      kJoins,
      kDies,
      kDisconnects,
      kFrees,
      kFreesAtRest,
      kRestart,  // the broker dies, and another begins
      kComesBack,
    };
    What what = kTransaction;
    std::uint8_t who = 0;
  };
  struct Snapshot {
    State state;
    std::array<std::shared_ptr<const Insight::GroupCopy>, kMostGroups> groups;
    std::optional<Transaction> transaction;
  };

  NodeWorld(const Scenario& scenario, int faults, Bug bug);

  Snapshot save() const;
  void restore(const Snapshot& snapshot);
  std::uint64_t hash() const;

  /// Those that come by themselves: somebody reads, a deadline passes when nothing else can happen.
  std::vector<Event> due() const;
  /// Those that may come besides, or not.
  std::vector<Event> possible() const;
  /// The promise that it breaks; empty: none.
  std::string apply(Event event, Choices& choices);
  /// How many faults may still happen: fewer after an event in which one did.
  int faults_left() const { return m_.state.faults + m_.state.restarts; }
  /// REQUIRES: nothing is due.
  std::string at_rest();
  std::string text(Event event) const;

 private:
  void add_piece(const PieceOf& of);
  void pause_first();
  void carry_out(Event event);
  void ask(const Request& request);
  void frees(Process& p, std::uint8_t of);
  void tidy();
  bool quiet() const;
  bool asked() const;
  bool taken_up() const;
  /// It wakes up now, whatever else happens.
  bool wakes(int group) const { return wakeup(group) <= m_.state.now[at(group)]; }
  /// A group ends with its last rank.
  Time wakeup(int group) const {
    const Group& machine = *m_.groups[at(group)];
    return machine.members().empty() ? kNever : machine.wakeup();
  }

  Model m_;
  Promises promises_;
  Processes processes_;
  BrokerSide broker_;
};

}  // namespace amem::model
