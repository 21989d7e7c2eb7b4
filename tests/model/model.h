// Model: one state of a small node, the machines of daemon/phases in it, and what the parts of the
// model have in common: the choices of the event that is being carried out, and the first promise
// that was broken.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>

#include "daemon/phases/group.h"
#include "daemon/transactions/transaction.h"
#include "tests/model/explorer/choices.h"
#include "tests/model/scenario.h"
#include "tests/model/state.h"

namespace amem::model {

struct Model {
  Model(const Scenario& what, Bug wrong) : scenario(what), bug(wrong) {}

  const Scenario& scenario;
  const Bug bug;
  State state;
  std::array<std::unique_ptr<Group>, kMostGroups> groups;
  std::optional<Transaction> transaction;  // of the operator's transaction under way
  Choices* choices = nullptr;
  std::string broken;  // empty: no promise
  // The broker has died in the event that is being carried out: what else it does nobody sees.
  bool dead = false;
  State at_death;

  /// Whether this goes wrong now; costs one of the faults that a history may have.
  bool fault(const char* what) {
    if (dead || state.faults == 0 || choices->choose(2) == 0) return false;
    --state.faults;
    choices->note(what);
    return true;
  }
  void breaks(const std::string& promise) {
    if (broken.empty() && !dead) broken = promise;
  }
  int first_rank(int group) const { return group * kRanksEach; }
  int end_rank(int group) const { return (group + 1) * kRanksEach; }
  int first_piece(int group) const { return group * kPiecesEach; }
  int end_piece(int group) const { return (group + 1) * kPiecesEach; }
};

std::string rank_name(int rank);  // "rank 0 of a"

}  // namespace amem::model
