// What is wrong with values that are fine alone but not together. Plain function; any thread.
#pragma once

#include "daemon/settings/config.h"

namespace amem {

/// Adds a line to `errors` for each.
void check(const Config& config, ConfigErrors& errors);

}  // namespace amem
