// RankState: where this rank is between running and paused, and the broker's commands that are
// allowed there: one table. Pure values.
//
// A rank that reconnects to another broker may be told what it has done already. Such a command is
// allowed, and keeps the state.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "shim/gate/gate.h"

namespace amem::shim {

enum class RankState : std::uint8_t {
  kRuns,      // the gate is open. Memory of some tags may be away, or on its way back
  kCuts,      // the gate is shut, and the broker takes the cut
  kSaves,     // bytes are measured or saved; the pause may still be called off
  kLeaves,    // some memory has left for this pause, and more is to follow (waves)
  kPaused,    // nothing is under way
  kReturns,   // memory returns for a resume
  kDetached,  // the driver may put the process away, or has: nothing here calls it
  kFailed,    // for good: bytes are lost, or memory could not be mapped again
};
inline constexpr std::size_t kRankStates = 8;

enum class RankCommand : std::uint8_t {
  kQuiesce,
  kSave,         // Measure, Save
  kReleaseWave,  // a Release after which more waves follow
  kReleaseAll,   // of everything
  kReleaseList,  // of what is listed: the last that leaves, or what an earlier pause has left
  kReleaseTags,
  kUndo,    // a Release of what a resume has brought back
  kReturn,  // Make, Map, Load
  kOpen,
  kDetach,
  kAllowFrees,  // no command follows before the resume; also after the restore of a checkpoint
};
inline constexpr std::size_t kRankCommands = 11;

/// The state after the command; nothing: it is not allowed, and changes nothing.
constexpr std::optional<RankState> after(RankState state, RankCommand command) {
  constexpr std::optional<RankState> runs = RankState::kRuns, cuts = RankState::kCuts,
                                     saves = RankState::kSaves, leaves = RankState::kLeaves,
                                     paused = RankState::kPaused, returns = RankState::kReturns,
                                     detached = RankState::kDetached, no = std::nullopt;
  // clang-format off
  constexpr std::array<std::array<std::optional<RankState>, kRankCommands>, kRankStates> kTable = {{
      // quiesce save    wave    all     list    tags     undo    return   open  detach    rest
      {cuts,     no,     no,     no,     runs,   runs,    runs,   runs,    runs, no,       runs},    // runs
      {cuts,     saves,  leaves, paused, paused, saves,   paused, returns, runs, no,       cuts},    // cuts
      {cuts,     saves,  leaves, paused, paused, saves,   paused, returns, runs, no,       saves},   // saves
      {cuts,     leaves, leaves, paused, paused, leaves,  paused, returns, runs, no,       paused},  // leaves
      {cuts,     no,     leaves, paused, paused, paused,  paused, returns, runs, detached, paused},  // paused
      {cuts,     no,     leaves, paused, paused, returns, paused, returns, runs, no,       paused},  // returns
      // The process has been restored, or the driver has refused to checkpoint it.
      {no,       no,     leaves, paused, paused, paused,  paused, returns, runs, detached, paused},  // detached
      {no,       no,     no,     no,     no,     no,      no,     no,      no,   no,       no},      // failed
  }};
  // clang-format on
  return kTable[static_cast<std::size_t>(state)][static_cast<std::size_t>(command)];
}

/// A step of a pause or a resume, which frees wait for.
constexpr bool frees_wait_for(RankCommand command) {
  return command != RankCommand::kQuiesce && command != RankCommand::kOpen &&
         command != RankCommand::kDetach && command != RankCommand::kAllowFrees;
}

/// It is about memory on its way back.
constexpr bool brings_back(RankCommand command) {
  return command == RankCommand::kReturn || command == RankCommand::kUndo;
}

/// Who passes the gate in this state.
constexpr Gate::Mode gate_of(RankState state) {
  switch (state) {
    case RankState::kRuns:
      return Gate::Mode::kOpen;
    case RankState::kCuts:
    case RankState::kSaves:
      return Gate::Mode::kShut;
    case RankState::kLeaves:
    case RankState::kReturns:
      return Gate::Mode::kMemoryLeft;
    case RankState::kPaused:
      return Gate::Mode::kFreesPass;
    case RankState::kDetached:
      return Gate::Mode::kAway;
    case RankState::kFailed:
      break;
  }
  return Gate::Mode::kFailed;
}

/// A pause has taken memory of all tags away, or may have.
constexpr bool has_left(RankState state) {
  return state == RankState::kLeaves || state == RankState::kPaused ||
         state == RankState::kDetached || state == RankState::kReturns;
}

/// For errors: "this process ..., so ...".
constexpr const char* describe(RankState state) {
  switch (state) {
    case RankState::kRuns:
      return "runs";
    case RankState::kCuts:
      return "is stopping for a pause";
    case RankState::kSaves:
      return "is saving for a pause";
    case RankState::kLeaves:
      return "is in the middle of a pause";
    case RankState::kPaused:
      return "is paused";
    case RankState::kDetached:
      return "may be checkpointed";
    case RankState::kReturns:
      return "is in the middle of a resume";
    case RankState::kFailed:
      break;
  }
  return "cannot go on";
}

/// For errors: "it cannot ...".
constexpr const char* describe(RankCommand command) {
  switch (command) {
    case RankCommand::kQuiesce:
      return "begin a pause";
    case RankCommand::kSave:
      return "save";
    case RankCommand::kReleaseWave:
    case RankCommand::kReleaseAll:
    case RankCommand::kReleaseList:
    case RankCommand::kReleaseTags:
      return "release its memory";
    case RankCommand::kUndo:
      return "undo a resume";
    case RankCommand::kReturn:
      return "restore memory";
    case RankCommand::kOpen:
      return "run";
    case RankCommand::kDetach:
      return "be checkpointed";
    case RankCommand::kAllowFrees:
      break;
  }
  return "rest";
}

}  // namespace amem::shim
