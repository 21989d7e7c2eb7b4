// Abroad: the other nodes of a transaction that spans several, as this node's part of it sees them.
//
// Their cut is one, taken elsewhere; and nothing of the transaction is released, or opened, before
// all nodes are as far. Who implements it answers by the calls of Operations that take a
// transaction's number. For the loop's thread; must not block.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "daemon/base/ids.h"
#include "daemon/phases/cut.h"
#include "daemon/phases/stage.h"

namespace amem {

class Abroad {
 public:
  virtual ~Abroad() = default;
  /// What the transaction is called on all nodes.
  virtual const std::string& transaction() const = 0;
  /// These ranks of a group that goes out are told to be quiet. Answered by step() and cut_taken().
  virtual void quiesces(const std::string& group, const std::vector<RankId>& ranks) = 0;
  /// One of them has reported; nothing: it has gone.
  virtual void reported(const std::string& group, RankId rank,
                        const std::optional<CutReport>& report) = 0;
  /// All that go out here have saved, or all that come in have loaded and may open as far as this
  /// node is concerned. Answered by may_go_on() or give_up().
  virtual void asks(Stage stage) = 0;
  /// One of them is on its way back: what was asked does not hold any more, and the transaction
  /// will end with an error here.
  virtual void withdraws(Stage stage) = 0;
};

}  // namespace amem
