// NodeWorld: one play of a small world: the real broker, ranks and an operator on the simulated
// node (tests/world). Whatever may come next is chosen by a guide. It is asked for a choice where
// nothing goes on by itself, and before each effect of a broker that may die.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/model/guide.h"
#include "tests/model/scenario.h"
#include "tests/world/digest.h"
#include "tests/world/node.h"
#include "tests/world/promises.h"
#include "tests/world/rank_process.h"

namespace amem::model {

class NodeWorld {
 public:
  /// `trace`: prints what happens, a line each. Everything passed in outlives this object.
  NodeWorld(const Scenario& scenario, int faults, Guide& guide, bool trace);
  ~NodeWorld();
  NodeWorld(const NodeWorld&) = delete;

  /// To its end, or to a state that is known. What was wrong; empty: nothing. Call once.
  std::string play();

 private:
  using Ms = std::chrono::milliseconds;
  struct Event {
    enum What : std::uint8_t {
      kHandles,
      kSavesLate,  // what it has begun, and nobody asks for any more
      kReturns,
      kDriver,
      kAsks,  // the operator, or the ranks, for the next thing of the script
      kTime,
      kEnds,  // a process whose session has ended
      kCloses,
      kJoins,
      kDies,
      kBreaks,  // a session
      kFrees,
      kFills,  // others take what there is of the device
    };
    What what = kTime;
    std::uint8_t faults = 0;
    std::size_t who = 0;
    world::Mood mood = world::Mood::kWell;
    world::Fate fate = world::Fate::kWell;
  };
  enum class Part : std::uint8_t { kBeginning, kScript, kEnd };

  // ---- where the broker would sleep ----
  void goes_on(std::optional<Ms> until_a_timer);
  /// Something has come that is taken in at once.
  bool take_in();
  /// Everybody does well what there is to do; false: there is nothing.
  bool do_well(std::optional<Ms> until_a_timer);
  void next_of_beginning();
  void next_of_end();
  void choose(std::optional<Ms> until_a_timer);
  void finish();

  // ---- what may come next ----
  std::vector<Event> events();
  void add_faults(std::vector<Event>& events);
  bool is_quiet() const;
  bool may_ask() const;
  void happen(const Event& event, std::optional<Ms> until_a_timer);
  void ask();
  void others_take_all_but(std::uint64_t left);
  void joins(int group);
  void create(const PieceOf& piece);
  bool broker_dies();
  void begin_life();
  void end_life();

  // ---- what must hold ----
  void write();
  void check();
  void check_swap();
  void check_answer();
  void check_rest();
  bool is_opened(std::uint64_t id) const;
  bool stays(std::uint64_t id) const;
  std::uint64_t digest() const;

  void say(const std::string& what);
  void breaks(const std::string& what) {
    if (broken_.empty()) broken_ = what;
  }
  std::shared_ptr<world::Observer> observe();
  bool answered() const { return !observer_ || observer_->ended; }
  static std::string group_name(int group) { return {static_cast<char>('a' + group)}; }
  static std::string address_of(int group) { return group_name(group) + "@1001"; }
  std::vector<std::string> addresses(const std::vector<int>& groups) const;

  const Scenario& scenario_;
  Guide& guide_;
  const bool trace_;
  int faults_;
  int restarts_;
  int joins_;
  std::string broken_;
  Part part_ = Part::kBeginning;
  std::size_t step_ = 0;  // of the beginning, or of the end
  std::size_t script_at_ = 0;
  bool over_ = false;
  bool dying_ = false;  // the broker may, before each effect
  bool full_ = false;
  std::uint8_t written_ = 0;
  int waits_ = 0;             // how long only time has passed
  bool time_passed_ = false;  // in the event before
  std::uint64_t before_ = 0;  // the state before that

  std::minstd_rand random_{1};
  world::Node node_{random_};
  world::Truths truths_;
  world::Ranks ranks_;
  std::vector<std::uint64_t> ids_;  // of the pieces
  std::shared_ptr<world::Observer> observer_;
  const Request* asked_ = nullptr;  // last
  bool looked_at_answer_ = true;
  world::GroupInfos groups_before_;
};

}  // namespace amem::model
