// Scenario: a small world to be explored: who is there, what is asked for, what may go wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace amem::model {

/// What somebody asks for.
struct Request {
  enum What : std::uint8_t { kPause, kResume, kSwap, kInsidePause, kInsideResume };
  What what = kPause;
  std::vector<int> groups;   // that go out, or are paused or resumed
  std::vector<int> in = {};  // of a swap
  char tag = 0;              // of this alone; 0: of all
  bool deep = false;         // of a pause: the processes are checkpointed
  bool partial = false;      // of a pause of a tag: the group does not run on
};

struct PieceOf {
  int group;
  std::vector<int> sharers;  // of its group's ranks, from 0 on, the keeper first
  char tag = 'a';
  bool keep = true;
  bool opened = false;  // a guest has it open
  bool made = false;    // the keeper has made it itself
};

struct Scenario {
  std::string_view name;
  std::string_view about;
  int groups = 1;
  int ranks = 2;  // of each group
  std::vector<PieceOf> pieces;
  std::vector<int> paused = {};  // groups that are, when it begins
  std::vector<Request> script;   // one after another; what is refused is passed over
  int chunks = 0;                // of the pool, each for one piece; 0: one for each
  bool retain = false;           // a resume leaves saved bytes in free space of the pool
  bool duplex = true;
  bool waves = false;     // a swap leaves in waves, a piece of each keeper at a time
  int space = -1;         // pieces that may come in before the others have left; -1: all
  bool spares = false;    // what a pause frees waits for a resume
  bool hands_on = false;  // without a fault, what comes in takes memory that has left
  int joins = 0;          // ranks that may join at any time
  int faults = 0;         // that happen in one history, in CI
  int restarts = 0;       // of the broker, likewise
  bool in_ci = true;      // else it takes too long there
};

const std::vector<Scenario>& scenarios();

/// Two ranks at the moment when their gates shut, with threads that launch collectives.
struct CutScenario {
  std::string_view name;
  std::size_t threads;  // of each rank
  std::uint8_t calls;   // of each thread
  int early = 1;        // times at which the broker looks again before all have spoken
};

const std::vector<CutScenario>& cut_scenarios();

/// What is made wrong on purpose, so that the explorer is seen to find it.
enum class Bug : std::uint8_t { kNone, kSaysThatItIsIdle, kForgetsPermits, kForgetsTransactions };

struct Mutation {
  Bug bug;
  std::string_view name;
  std::string_view scenario;
  std::string_view found;  // part of the promise that is broken
};

const std::vector<Mutation>& mutations();

}  // namespace amem::model
