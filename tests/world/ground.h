// Ground: what every world stands on, made once: a simulated node in a folder of its own, and its
// devices. It switches the broker's log off.
#pragma once

#include <cstdint>
#include <string>

#include "daemon/memory/devices.h"
#include "daemon/memory/nvml.h"

namespace amem::world {

class Ground {
 public:
  struct Shape {
    int devices = 2;
    std::uint64_t memory = 262144;  // bytes of each: small, so that a page is much
  };
  /// Before the first get().
  static void shape(const Shape& shape);
  static const Ground& get();
  const std::string& dir() const { return dir_; }
  const Devices& devices() const { return devices_; }
  const Nvml& nvml() const { return nvml_; }
  ~Ground();

 private:
  Ground();
  std::string dir_;
  Devices devices_;
  Nvml nvml_;
};

/// Memory of one of its devices. kResourceExhausted: there is no space.
Result<CreatedMemory> made_on(const DeviceUuid& device, std::uint64_t size);

}  // namespace amem::world
