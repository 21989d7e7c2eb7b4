#include "tests/sim/node/driver_times.h"

#include <chrono>
#include <thread>

#include "tests/sim/node/file_lock.h"
#include "tests/sim/node/node.h"

namespace sim {

void TakeDriverTime(MemoryCall call, size_t bytes) {
  const DriverTime& takes = Node().driver_times[static_cast<size_t>(call)];
  const double us =
      takes.call_us + takes.gib_ms * 1000 * static_cast<double>(bytes) / (uint64_t{1} << 30);
  if (us <= 0) return;
  const FileLock lock("driver");
  std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(us));
}

}  // namespace sim
