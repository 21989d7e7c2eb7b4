// Whether what `amemctl wait` waits for is there, and what is there instead. Pure functions; any
// thread.
#pragma once

#include <chrono>
#include <string>

#include "amem/v1/broker.pb.h"
#include "client/ctl/command_line.h"
#include "common/status.h"

namespace amem::ctl {

/// One look at the node.
struct Sight {
  bool met = false;
  Status hopeless;    // not OK: waiting longer is of no use; its text is as `found`
  std::string found;  // met: a sentence. Else what there is, and what to do about it
  std::string json;   // met: an object on a line
};

Sight see_group(const v1::ListGroupsResponse& groups, const WaitTarget& awaited);
Sight see_idle(const v1::ListGroupsResponse& groups);
Sight see_pool(const v1::PoolStatus& pool);

/// How long to wait when nobody has said it.
std::chrono::milliseconds default_patience(WaitFor what);

/// "waited 30 s for group train to run: there is no such group; ...".
std::string waited_in_vain(const WaitTarget& awaited, std::chrono::milliseconds time,
                           const std::string& found);

}  // namespace amem::ctl
