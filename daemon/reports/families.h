// Metric families: the node's figures for Prometheus (docs/metrics.md). Reads only.
//
// Names and units follow Prometheus' conventions: bytes, seconds, counters that end in _total. A
// device has the labels `device`, its number here, and `UUID`, by which DCGM's exporter calls it
// too. A group has `group` and `owner`: two owners may use one name.
//
// For the loop's thread.
#pragma once

#include <chrono>

#include "daemon/memory/devices.h"
#include "daemon/memory/workers.h"
#include "daemon/node/node.h"
#include "daemon/owners/account.h"
#include "daemon/owners/caller.h"
#include "daemon/reports/book.h"
#include "daemon/reports/events.h"

namespace amem {

/// What is measured; all of it outlives the call.
struct Measured {
  const Node& node;
  const Devices& devices;
  const Workers& workers;
  const Accounts& accounts;
  const EventHub& events;
  std::chrono::system_clock::time_point began;
};

/// Returns the families with the groups that the caller may see. Totals of operations are only for
/// a caller who sees all. Use of devices is as last seen. Without empty families.
Families metric_families(const Measured& measured, const Caller& caller);

}  // namespace amem
