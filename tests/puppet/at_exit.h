// What a puppet does when exit() has begun. Each order prints one line of JSON, as a command does.
#pragma once

#include <functional>

#include "tests/workload/base/answer.h"

namespace amem::puppet {

using LastOrder = std::function<void(workload::Answer*)>;

/// As std::atexit: in the reverse order of the calls.
void AtExit(LastOrder order);

/// After everything that was registered since PrepareLast(), the driver's own end among it.
void AtLast(LastOrder order);
/// REQUIRES: the driver has not been initialised.
void PrepareLast();

}  // namespace amem::puppet
