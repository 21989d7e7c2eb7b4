#include <algorithm>

#include "tests/model/scenario.h"

namespace amem::model {
namespace {

const std::vector<Scenario>& worlds() {
  using enum Request::What;
  // A piece that both ranks have, and one that only the second has: both keep something.
  const auto two_of = [](int group) { return std::vector<PieceOf>{{group, {0, 1}}, {group, {1}}}; };
  const auto both = [&](int one, int other) {
    std::vector<PieceOf> pieces = two_of(one);
    for (const PieceOf& piece : two_of(other)) pieces.push_back(piece);
    return pieces;
  };
  static const std::vector<Scenario> all = {
      {.name = "pause",
       .about = "a group is paused and resumed, twice",
       .pieces = two_of(0),
       .script = {{kPause, {0}}, {kResume, {0}}, {kPause, {0}}, {kResume, {0}}},
       .faults = 1},
      {.name = "deep",
       .about = "its processes are checkpointed, at once and once it is paused",
       .pieces = two_of(0),
       .script = {{kPause, {0}, {}, 0, true},
                  {kResume, {0}},
                  {kPause, {0}},
                  {kPause, {0}, {}, 0, true},
                  {kResume, {0}}}},
      {.name = "deep-inside",
       .about = "its ranks ask for it themselves, at once and once it is paused",
       .pieces = two_of(0),
       .script = {{kInsidePause, {0}, {}, 0, true},
                  {kInsideResume, {0}},
                  {kPause, {0}},
                  {kInsidePause, {0}, {}, 0, true},
                  {kInsideResume, {0}}},
       .faults = 1},
      {.name = "deep-set",
       .about = "two groups are made deep together; one is paused already",
       .groups = 2,
       .ranks = 1,
       .pieces = {{0, {0}}, {1, {0}}},
       .paused = {1},
       .script = {{kPause, {0, 1}, {}, 0, true}, {kResume, {0, 1}}},
       .faults = 1},
      {.name = "deep-swap",
       .about = "two groups change places, and what leaves becomes deep",
       .groups = 2,
       .ranks = 1,
       .pieces = {{0, {0}}, {1, {0}}},
       .paused = {1},
       .script = {{kSwap, {0}, {1}, 0, true}, {kSwap, {1}, {0}, 0, true}},
       .faults = 1},
      {.name = "deep-in-turn",
       .about = "likewise, one after the other",
       .groups = 2,
       .ranks = 1,
       .pieces = {{0, {0}}, {1, {0}}},
       .paused = {1},
       .script = {{kSwap, {0}, {1}, 0, true}, {kSwap, {1}, {0}, 0, true}},
       .duplex = false,
       .faults = 1},
      {.name = "makes",
       .about = "ranks make some of the memory themselves",
       .pieces = {{0, {0, 1}, 'a', true, false, true},
                  {0, {1, 0}},
                  {0, {1}, 'a', true, false, true}},
       .script = {{kPause, {0}}, {kResume, {0}}, {kPause, {0}}, {kResume, {0}}},
       .faults = 1},
      {.name = "makes-tag",
       .about = "likewise, while the group runs",
       .pieces = {{0, {0, 1}, 'a', true, false, true}, {0, {1, 0}, 'b'}},
       .script = {{kPause, {0}, {}, 'a'}, {kResume, {0}, {}, 'a'}},
       .faults = 1},
      {.name = "makes-open",
       .about = "likewise, and a guest has it open, and may close it",
       .pieces = {{0, {0, 1}, 'a', true, true, true}, {0, {1}}},
       .script = {{kPause, {0}}, {kResume, {0}}, {kPause, {0}}, {kResume, {0}}}},
      {.name = "inside",
       .about = "its ranks ask for it themselves",
       .pieces = two_of(0),
       .script =
           {{kInsidePause, {0}}, {kInsideResume, {0}}, {kInsidePause, {0}}, {kInsideResume, {0}}},
       .faults = 1},
      {.name = "joins",
       .about = "a rank joins at some time",
       .pieces = two_of(0),
       .script = {{kPause, {0}}, {kResume, {0}}, {kPause, {0}}, {kResume, {0}}},
       .joins = 1},
      {.name = "discard",
       .about = "the bytes of one piece are dropped",
       .pieces = {{0, {0, 1}, 'a', false}, {0, {1, 0}, 'b'}},
       .script = {{kPause, {0}}, {kResume, {0}}},
       .faults = 1},
      {.name = "tags",
       .about = "one tag leaves and comes back while the group runs, and first of a paused group",
       .pieces = {{0, {0, 1}, 'a'}, {0, {1, 0}, 'b'}},
       .script = {{kPause, {0}, {}, 'a'},
                  {kResume, {0}, {}, 'a'},
                  {kPause, {0}, {}, 'b'},
                  {kPause, {0}},
                  {kResume, {0}, {}, 'a'},
                  {kResume, {0}}},
       .faults = 1},
      {.name = "partial",
       .about = "one tag leaves of a group that does not run on, and then the rest",
       .pieces = {{0, {0, 1}, 'a'}, {0, {1, 0}, 'b'}},
       .script = {{kPause, {0}, {}, 'a', false, true},
                  {kResume, {0}},
                  {kPause, {0}, {}, 'a', false, true},
                  {kPause, {0}},
                  {kResume, {0}}},
       .faults = 1},
      {.name = "partial-open",
       .about = "likewise, and a guest has the rest open, and may close it",
       .pieces = {{0, {0, 1}, 'a'}, {0, {1, 0}, 'b', true, true}},
       .script = {{kPause, {0}, {}, 'a', false, true}, {kPause, {0}}, {kResume, {0}}}},
      {.name = "partial-deep",
       .about = "likewise, and the rest leaves in a deep pause",
       .pieces = {{0, {0, 1}, 'a'}, {0, {1, 0}, 'b'}},
       .script = {{kPause, {0}, {}, 'a', false, true}, {kPause, {0}, {}, 0, true}, {kResume, {0}}},
       .faults = 1},
      {.name = "partial-swap",
       .about =
           "one tag of a group leaves for another one; later the rest, and the other, together",
       .groups = 2,
       .pieces = {{0, {0, 1}, 'a'}, {0, {1, 0}, 'b'}, {1, {0, 1}}},
       .paused = {1},
       .script = {{kSwap, {0}, {1}, 'a', false, true}, {kPause, {0, 1}}, {kResume, {0}}}},
      {.name = "partial-waves",
       .about = "one tag of a group leaves; later the rest, in waves, for another one",
       .groups = 2,
       .ranks = 1,
       .pieces = {{0, {0}, 'a'}, {0, {0}, 'b'}, {0, {0}, 'b'}, {1, {0}}},
       .paused = {1},
       .script = {{kPause, {0}, {}, 'a', false, true},
                  {kSwap, {0}, {1}},
                  {kPause, {0}},
                  {kSwap, {1}, {0}}},
       .waves = true,
       .space = 0,
       .faults = 1},
      {.name = "guests",
       .about = "a guest has one piece open, and may close it",
       .pieces = {{0, {0, 1}, 'a', true, true}, {0, {1}}},
       .script = {{kPause, {0}}, {kResume, {0}}, {kPause, {0}}, {kResume, {0}}}},
      {.name = "turns",
       .about = "two groups, one after the other, in a pool for one",
       .groups = 2,
       .pieces = {{0, {0, 1}}, {1, {0, 1}}},
       .script = {{kPause, {0}}, {kPause, {1}}, {kResume, {0}}, {kPause, {1}}, {kResume, {1}}},
       .chunks = 1},
      {.name = "set",
       .about = "two groups are paused together, and resumed together",
       .groups = 2,
       .pieces = {{0, {0, 1}}, {1, {0, 1}}},
       .script = {{kPause, {0, 1}}, {kResume, {0, 1}}}},
      {.name = "swap",
       .about = "two groups change places, at the same time",
       .groups = 2,
       .pieces = both(0, 1),
       .paused = {1},
       .script = {{kSwap, {0}, {1}}, {kSwap, {1}, {0}}}},
      {.name = "waves",
       .about = "they leave in waves, since there is no space for both; then both run",
       .groups = 2,
       .pieces = {{0, {0, 1}}, {0, {0}}, {1, {0, 1}}, {1, {1}}},
       .paused = {1},
       .script = {{kSwap, {0}, {1}}, {kResume, {0}}},
       .waves = true,
       .space = 0,
       .faults = 1},
      {.name = "swap-set",
       .about = "one group leaves in waves, two come in",
       .groups = 3,
       .ranks = 1,
       .pieces = {{0, {0}}, {0, {0}}, {1, {0}}, {2, {0}}},
       .paused = {1, 2},
       .script = {{kSwap, {0}, {1, 2}}},
       .waves = true,
       .space = 1,
       .faults = 1},
      {.name = "in-turn",
       .about = "two groups change places, one after the other",
       .groups = 2,
       .pieces = {{0, {0, 1}}, {1, {0, 1}}},
       .paused = {1},
       .script = {{kSwap, {0}, {1}}, {kSwap, {1}, {0}}},
       .duplex = false,
       .faults = 1},
      {.name = "retain",
       .about = "what is saved stays in the pool, and is compared in the next pause",
       .pieces = two_of(0),
       .paused = {0},
       .script = {{kResume, {0}}, {kPause, {0}}, {kResume, {0}}, {kPause, {0}}, {kResume, {0}}},
       .retain = true,
       .faults = 1},
      {.name = "retain-turns",
       .about = "likewise, until another group needs the space",
       .groups = 2,
       .pieces = {{0, {0, 1}}, {1, {0, 1}}},
       .paused = {0},
       .script = {{kResume, {0}}, {kPause, {1}}, {kResume, {1}}, {kPause, {0}}, {kResume, {0}}},
       .chunks = 1,
       .retain = true},
      {.name = "retain-tags",
       .about = "the same; one tag is paused and resumed while the group runs",
       .pieces = {{0, {0, 1}, 'a'}, {0, {1, 0}, 'b'}},
       .paused = {0},
       .script = {{kResume, {0}},
                  {kPause, {0}, {}, 'a'},
                  {kResume, {0}, {}, 'a'},
                  {kPause, {0}},
                  {kResume, {0}}},
       .retain = true,
       .faults = 1},
      {.name = "retain-swap",
       .about = "likewise, of two groups that change places",
       .groups = 2,
       .pieces = {{0, {0, 1}}, {1, {0, 1}}},
       .paused = {1},
       .script = {{kSwap, {0}, {1}}, {kSwap, {1}, {0}}, {kSwap, {0}, {1}}},
       .retain = true},
      {.name = "retain-waves",
       .about = "likewise; what is saved in waves, and comes back before all of it has left",
       .groups = 2,
       .ranks = 1,
       .pieces = {{0, {0}}, {0, {0}}, {1, {0}}},
       .paused = {0, 1},
       .script = {{kResume, {0}}, {kSwap, {0}, {1}}, {kSwap, {1}, {0}}, {kPause, {0}}},
       .retain = true,
       .waves = true,
       .space = 0,
       .faults = 1},
  };
  return all;
}

/// The same worlds, in which the broker dies and another begins.
std::vector<Scenario> with_restarts(std::vector<Scenario> all) {
  struct Again {
    std::string_view name;
    std::string_view of;
    bool in_ci = false;
  };
  static constexpr Again kAgain[] = {{"restart-pause", "pause", true},
                                     {"restart-inside", "inside", true},
                                     {"restart-deep", "deep", true},
                                     {"restart-deep-swap", "deep-swap"},
                                     {"restart-makes", "makes", true},
                                     {"restart-makes-open", "makes-open"},
                                     {"restart-joins", "joins"},
                                     {"restart-discard", "discard", true},
                                     {"restart-tags", "tags", true},
                                     {"restart-guests", "guests"},
                                     {"restart-partial", "partial", true},
                                     {"restart-partial-swap", "partial-swap"},
                                     {"restart-partial-waves", "partial-waves", true},
                                     {"restart-turns", "turns"},
                                     {"restart-set", "set"},
                                     {"restart-swap", "swap"},
                                     {"restart-waves", "waves"},
                                     {"restart-swap-set", "swap-set"},
                                     {"restart-in-turn", "in-turn"},
                                     {"restart-retain", "retain", true},
                                     {"restart-retain-turns", "retain-turns"}};
  for (const Again& again : kAgain) {
    const auto is_it = [&](const Scenario& each) { return each.name == again.of; };
    Scenario copy = *std::find_if(all.begin(), all.end(), is_it);
    copy.name = again.name;
    copy.faults = 0;
    copy.in_ci = again.in_ci;
    copy.restarts = 1;
    all.push_back(copy);
  }
  return all;
}

}  // namespace

const std::vector<Scenario>& scenarios() {
  static const std::vector<Scenario> all = with_restarts(worlds());
  return all;
}

const std::vector<CutScenario>& cut_scenarios() {
  static const std::vector<CutScenario> all = {{"cut", 1, 3}, {"cut-two", 2, 2}};
  return all;
}

const std::vector<Mutation>& mutations() {
  static const std::vector<Mutation> all = {
      {Bug::kSaysThatItIsIdle, "a rank says that it is idle and is not", "cut",
       "when every device is idle"},
      {Bug::kForgetsSteps, "a rank says nothing of a Step that it has used", "cut",
       "all can come to rest"},
      {Bug::kForgetsTransactions, "the next broker knows nothing of what the one before has asked",
       "nodes-resume", "no node gives up what another"},
      {Bug::kForgetsTransactions, "the next broker knows nothing of what the one before has asked",
       "orders", "no node gives up what another"},
  };
  return all;
}

}  // namespace amem::model
