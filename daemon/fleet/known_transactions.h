// KnownTransactions: the transactions that this node has, or has had, a part of, for nodes that
// have lost their leader; those of amemds before this one by the record.
//
// For the loop's thread.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "amem/v1/fleet.pb.h"
#include "common/status.h"
#include "daemon/fleet/participant.h"
#include "daemon/node/node.h"

namespace amem {

class KnownTransactions {
 public:
  /// What the record says of groups. `complete`: there is one, so what it does not say has not
  /// been.
  KnownTransactions(const std::vector<FleetShare>& shares, bool complete);

  /// Why this node takes no part of that transaction.
  Status refuses(const v1::FleetBegin& begin) const;
  void add(const std::string& transaction, std::shared_ptr<Participant> participant);
  /// How far this node is. What it does not know it never will. `leads`: it leads the transaction.
  v1::FleetStanding standing(const std::string& transaction, bool leads);
  /// Ends all participants, and vouches for nothing any more.
  void shut();

 private:
  struct Known {
    std::string transaction;
    std::shared_ptr<Participant> participant;  // null: it has ended, with this:
    v1::FleetStanding standing;
  };

  std::deque<Known> known_;        // the last ones
  std::deque<std::string> never_;  // transactions that it no longer takes part in
  bool complete_;
};

}  // namespace amem
