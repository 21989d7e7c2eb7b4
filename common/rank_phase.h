// RankPhase: what the broker asks of a rank in a phase of a pause or a resume, and what the rank's
// PhaseDone answers.
//
// The one table of these. The session protocol has their numbers, the views their names. Plain
// values; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace amem {

enum class RankPhase : std::uint8_t {
  kNone = 0,   // nothing
  kQuiet = 1,  // its CutStatus says so; PhaseDone says only that it cannot be
  kSave = 2,
  kRelease = 3,
  kMap = 4,
  kLoad = 5,
  kMeasure = 6,
  kOpen = 7,
  kDetach = 8,      // nothing of the pool that a checkpoint does not support is mapped
  kAllowFrees = 9,  // no command follows before the group is resumed: frees pass
#ifdef AMEM_TEST_SEAMS
  kTest = 100,
#endif
};

struct RankPhaseRule {
  RankPhase phase;
  std::string_view name;
};

inline constexpr std::array kRankPhases = {
    RankPhaseRule{RankPhase::kNone, ""},           RankPhaseRule{RankPhase::kQuiet, "quiesce"},
    RankPhaseRule{RankPhase::kSave, "save"},       RankPhaseRule{RankPhase::kRelease, "release"},
    RankPhaseRule{RankPhase::kMap, "map"},         RankPhaseRule{RankPhase::kLoad, "load"},
    RankPhaseRule{RankPhase::kMeasure, "measure"}, RankPhaseRule{RankPhase::kOpen, "open"},
    RankPhaseRule{RankPhase::kDetach, "detach"},   RankPhaseRule{RankPhase::kAllowFrees, "rest"},
#ifdef AMEM_TEST_SEAMS
    RankPhaseRule{RankPhase::kTest, "test"},
#endif
};

/// As on the wire.
constexpr std::uint32_t number_of(RankPhase phase) { return static_cast<std::uint32_t>(phase); }

/// By its number, as on the wire. Nothing: a rank answers no such phase.
constexpr std::optional<RankPhase> rank_phase_of(std::uint32_t number) {
  for (const RankPhaseRule& each : kRankPhases)
    if (number != 0 && number_of(each.phase) == number) return each.phase;
  return std::nullopt;
}

constexpr std::string_view to_string(RankPhase phase) {
  for (const RankPhaseRule& each : kRankPhases)
    if (each.phase == phase) return each.name;
  return {};
}

}  // namespace amem
