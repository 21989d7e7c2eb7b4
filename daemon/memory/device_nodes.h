// DeviceNodes: who may open which device. A rank proves that it may by a descriptor of the device's
// node, open for reading and writing: the kernel has then asked the node's mode and the cgroup that
// the rank is in.
//
// Filled once by open(), read-only afterwards; any thread.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "common/fd.h"
#include "common/protocol.h"
#include "daemon/memory/devices.h"
#include "daemon/memory/nvml.h"

namespace amem {

class DeviceNodes {
 public:
  /// What is not guarded though it should be, a line for each device: which, why, and what to do.
  struct Gaps {
    bool simulated = true;  // there is no node of NVIDIA's at all, so none is missing
    std::vector<std::string> lines;
  };
  /// Looks up nvidia0, nvidia1, ... in `dir`. Devices without a node there need no proof; `dir`
  /// empty: none does.
  Gaps open(const std::string& dir, const Devices& devices, const Nvml& nvml);

  /// Whether memory of this device is served only to who has proved.
  bool guarded(const DeviceUuid& device) const { return nodes_.contains(device); }
  /// "/dev/nvidia0"; empty when it is not guarded.
  std::string path(const DeviceUuid& device) const;
  /// The guarded devices whose nodes these are.
  std::vector<DeviceUuid> proved(const std::vector<Fd>& fds) const;

 private:
  struct Node {
    std::string path;
    dev_t number = 0;
  };
  std::map<DeviceUuid, Node> nodes_;
};

}  // namespace amem
