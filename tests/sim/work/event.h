// Events. All functions REQUIRE the driver mutex.
#pragma once

#include <cuda.h>

#include <memory>
#include <vector>

#include "tests/sim/work/stream.h"

namespace sim {

struct Event {
  unsigned flags = 0;
  const Context* context = nullptr;
  std::shared_ptr<Marker> marker;  // of the last record; null: never recorded
  // Of a record inside a capture: whoever waits for the event joins the capture after these nodes.
  std::shared_ptr<Capture> capture;
  std::vector<CUgraphNode> capture_tail;
};

CUevent AddEvent(const Context& context, unsigned flags);
std::shared_ptr<Event> FindEvent(CUevent handle);
bool EraseEvent(CUevent handle);

}  // namespace sim
