// Where the time of a pause or resume went (`--explain`), for people: a line per phase, under it a
// line per rank. Makes text and does no I/O; any thread.
#pragma once

#include <string>

#include "amem/v1/broker.pb.h"

namespace amem::ctl {

/// `done`: the message with which the broker ended an operation. Lines like
///   map+load 310 ms: broker's CPU 1.20 ms
///     rank 1: 308 ms: import 12.0 ms, map 9.00 ms, access 14.0 ms, 840 handles; copy 282 ms (15.67
///     GB, 55.5 GB/s)
std::string explain(const v1::Progress& done);

}  // namespace amem::ctl
