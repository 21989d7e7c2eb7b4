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
       .faults = 2},
      {.name = "deep",
       .about = "its processes are checkpointed, at once and once it is paused",
       .pieces = two_of(0),
       .script = {{kPause, {0}, {}, 0, true},
                  {kResume, {0}},
                  {kPause, {0}},
                  {kPause, {0}, {}, 0, true},
                  {kResume, {0}}},
       .faults = 2},
      {.name = "makes",
       .about = "ranks make some of the memory themselves",
       .pieces = {{0, {0, 1}, 'a', true, false, true},
                  {0, {1, 0}},
                  {0, {1}, 'a', true, false, true}},
       .script = {{kPause, {0}}, {kResume, {0}}, {kPause, {0}}, {kResume, {0}}},
       .faults = 2},
      {.name = "makes-tag",
       .about = "likewise, while the group runs",
       .pieces = {{0, {0, 1}, 'a', true, false, true}, {0, {1, 0}, 'b'}},
       .script = {{kPause, {0}, {}, 'a'}, {kResume, {0}, {}, 'a'}},
       .faults = 2},
      {.name = "makes-open",
       .about = "likewise, and a guest has it open, and may close it",
       .pieces = {{0, {0, 1}, 'a', true, true, true}, {0, {1}}},
       .script = {{kPause, {0}}, {kResume, {0}}, {kPause, {0}}, {kResume, {0}}}},
      {.name = "inside",
       .about = "its ranks ask for it themselves",
       .pieces = two_of(0),
       .script =
           {{kInsidePause, {0}}, {kInsideResume, {0}}, {kInsidePause, {0}}, {kInsideResume, {0}}},
       .faults = 2},
      {.name = "joins",
       .about = "a rank joins at some time",
       .pieces = two_of(0),
       .script = {{kPause, {0}}, {kResume, {0}}, {kPause, {0}}, {kResume, {0}}},
       .joins = 1},
      {.name = "discard",
       .about = "the bytes of one piece are dropped",
       .pieces = {{0, {0, 1}, 'a', false}, {0, {1, 0}}},
       .script = {{kPause, {0}}, {kResume, {0}}},
       .faults = 2},
      {.name = "tags",
       .about = "one tag leaves and comes back while the group runs, and first of a paused group",
       .pieces = {{0, {0, 1}, 'a'}, {0, {1, 0}, 'b'}},
       .script = {{kPause, {0}, {}, 'a'},
                  {kResume, {0}, {}, 'a'},
                  {kPause, {0}, {}, 'b'},
                  {kPause, {0}},
                  {kResume, {0}, {}, 'a'},
                  {kResume, {0}}},
       .faults = 2},
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
       .faults = 2},
      {.name = "swap-set",
       .about = "one group leaves in waves, two come in",
       .groups = 3,
       .ranks = 1,
       .pieces = {{0, {0}}, {0, {0}}, {1, {0}}, {2, {0}}},
       .paused = {1, 2},
       .script = {{kSwap, {0}, {1, 2}}},
       .waves = true,
       .space = 1},
      {.name = "in-turn",
       .about = "two groups change places, one after the other",
       .groups = 2,
       .pieces = {{0, {0, 1}}, {1, {0, 1}}},
       .paused = {1},
       .script = {{kSwap, {0}, {1}}, {kSwap, {1}, {0}}},
       .duplex = false,
       .faults = 2},
      {.name = "retain",
       .about = "what is saved stays in the pool, and is compared in the next pause",
       .pieces = two_of(0),
       .paused = {0},
       .script = {{kResume, {0}}, {kPause, {0}}, {kResume, {0}}, {kPause, {0}}, {kResume, {0}}},
       .retain = true,
       .faults = 2},
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
       .faults = 2},
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
       .faults = 2},
  };
  return all;
}

/// The same worlds, in which the broker dies and another begins.
std::vector<Scenario> with_restarts(std::vector<Scenario> all) {
  struct Again {
    std::string_view name;
    std::string_view of;
    int faults;
  };
  static constexpr Again kAgain[] = {{"restart-pause", "pause", 1},
                                     {"restart-inside", "inside", 1},
                                     {"restart-deep", "deep", 1},
                                     {"restart-makes", "makes", 1},
                                     {"restart-makes-open", "makes-open", 1},
                                     {"restart-joins", "joins", 0},
                                     {"restart-discard", "discard", 1},
                                     {"restart-tags", "tags", 1},
                                     {"restart-guests", "guests", 1},
                                     {"restart-turns", "turns", 0},
                                     {"restart-set", "set", 0},
                                     {"restart-swap", "swap", 0},
                                     {"restart-waves", "waves", 0},
                                     {"restart-swap-set", "swap-set", 0},
                                     {"restart-in-turn", "in-turn", 1},
                                     {"restart-retain", "retain", 1},
                                     {"restart-retain-turns", "retain-turns", 0}};
  for (const Again& again : kAgain) {
    const auto is_it = [&](const Scenario& each) { return each.name == again.of; };
    Scenario copy = *std::find_if(all.begin(), all.end(), is_it);
    copy.name = again.name;
    copy.faults = again.faults;
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
      {Bug::kAnswersBeforeItSaves, "a rank says that it has saved before it has", "pause",
       "nothing is released before"},
      {Bug::kOpensWhenItHasLoaded, "a rank opens when it has loaded itself", "pause",
       "before every rank has"},
      {Bug::kGivesChunksBackAtOnce, "places in the pool come back while a rank may write to them",
       "turns", "has become another's"},
      {Bug::kTakesAnyAnswer, "late answers count", "pause", "nothing is released before"},
      {Bug::kTicksNever, "deadlines never pass", "pause", "leads to rest"},
      {Bug::kForgetsWhatIsUnloaded, "a rank dies, and what it was to load is forgotten", "pause",
       "before every rank has loaded its bytes"},
      {Bug::kGoesOnAlone, "no group of a set waits for the others", "set",
       "nothing is released before"},
      {Bug::kGoesOnAlone, "what comes in does not wait for what goes out", "swap",
       "only one side runs"},
      {Bug::kEndsTwice, "a transaction is answered twice", "pause", "answered once"},
      {Bug::kLosesAnAnswer, "a request from inside is not answered", "inside", "is answered"},
      {Bug::kKeepsADescriptor, "a descriptor stays open", "pause", "left its device"},
      {Bug::kKeepsChunks, "places in the pool are not given back", "pause", "no place in the pool"},
      {Bug::kOpensAllButOne, "one rank is not told to open", "pause", "gates of a group"},
      {Bug::kDropsAllInAWave, "a wave drops what has not been saved", "waves",
       "no byte is dropped"},
      {Bug::kForgetsToUndo, "a rank keeps what a resume brought that is rolled back", "pause",
       "nothing that is paused"},
      {Bug::kGivesUpWhatIsSaved, "saved bytes are given up", "pause", "no byte is dropped"},
      {Bug::kStaysReady, "a group of a set that rolls back counts as ready", "swap-set",
       "a set ends for all"},
      {Bug::kGivesBackWhatComesBack, "a rank that dies takes with it what it saved before", "tags",
       "no byte is dropped"},
      {Bug::kGivesBackWhatComesBack,
       "a rank that dies takes with it what it saved in a wave before", "waves",
       "no byte is dropped"},
      {Bug::kSaysThatItIsIdle, "a rank says that it is idle and is not", "cut",
       "when every device is idle"},
      {Bug::kForgetsSteps, "a rank says nothing of a Step that it has used", "cut",
       "all can come to rest"},
      {Bug::kWritesWhenItHasSent, "the record says that ranks release when they have been told",
       "restart-pause", "before every rank has its memory"},
      {Bug::kCheckpointsUnrecorded, "the record does not say that processes may be locked",
       "restart-deep", "nothing is asked of a process"},
      {Bug::kKeepsNothingOfAResume, "the holder is not given what a resume has made",
       "restart-pause", "finds everything that was on a device"},
      {Bug::kTakesWhatIsUnloaded, "the next broker takes what a resume had not loaded",
       "restart-pause", "has let go of everything"},
      {Bug::kLeavesWhatIsPaused, "a rank that comes back keeps what is paused", "restart-pause",
       "nothing that is paused"},
      {Bug::kForgetsTransactions, "the next broker knows nothing of what the one before has asked",
       "nodes-resume", "no node gives up what another"},
      {Bug::kForgetsTransactions, "the next broker knows nothing of what the one before has asked",
       "orders", "no node gives up what another"},
      {Bug::kKeepsHashesOfAFailedSave, "a rank keeps its hashes when it fails to save", "retain",
       "what it has overwritten"},
      {Bug::kKeepsSince, "a place counts as it was when a rank has been told to save to it",
       "retain", "what is retained is what"},
      {Bug::kRetainsWhatIsNotSaved, "a save that failed is retained", "retain",
       "what is retained is what"},
      {Bug::kRetainsWhatWasTorn,
       "what is saved while a rank that has lost its session may write is retained", "retain",
       "may have changed while"},
      {Bug::kRetainsWhatNobodyKnows, "what a rank has saved is retained when it dies", "retain",
       "a rank that has gone"},
      {Bug::kTakesRetainedSpace, "what is retained counts as retained when its place is taken",
       "retain-turns", "is nobody's"},
      {Bug::kComparesWithAnotherPlace, "a rank compares with what has been overwritten since",
       "retain-turns", "has saved"},
  };
  return all;
}

}  // namespace amem::model
