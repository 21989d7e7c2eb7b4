// Memory: the parts that together know this process's device memory, brokered and not.
#pragma once

#include "shim/memory/brokered_memory.h"
#include "shim/memory/graph_copies.h"
#include "shim/memory/handles.h"
#include "shim/memory/mappings.h"
#include "shim/memory/multicast.h"
#include "shim/memory/pins.h"
#include "shim/memory/residency.h"
#include "shim/memory/unbrokered_memory.h"

namespace amem::shim {

struct Memory {
  Memory(const Driver& driver, LocalDevices& devices, Gate& gate, Session& session)
      : multicast(driver),
        brokered(driver, session),
        handles(driver, devices, session, brokered),
        mappings(driver, session, brokered),
        pins(gate, session, brokered),
        residency(driver, devices, multicast, brokered),
        graphs(driver) {}

  Multicast multicast;
  BrokeredMemory brokered;
  Handles handles;
  Mappings mappings;
  Pins pins;
  Residency residency;
  UnbrokeredMemory unbrokered;
  GraphCopies graphs;
};

}  // namespace amem::shim
