// Exchange: what the operations of one transaction share beyond what
// daemon/transactions/transaction.h decides: whose memory leaves, whose comes in, and how much of
// it may come before all that leaves has left.
//
// Plain data, for the loop's thread. Outlives the operations that refer to it.
#pragma once

#include <vector>

#include "daemon/base/ids.h"
#include "daemon/transactions/headroom.h"

namespace amem {

class ResumeOperation;

struct Exchange {
  std::vector<GroupId> leaving;                // that have not left yet
  std::vector<GroupId> arriving;               // all of them
  std::vector<ResumeOperation*> resumes = {};  // under way
  BytesByDevice closing = {};                  // have left their group, and not their device yet
  Headroom headroom = {};  // of all that arrive together; without limit once nobody leaves
};

}  // namespace amem
