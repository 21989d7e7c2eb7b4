// Devices for tests that need no more of them than that they differ.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/protocol.h"

namespace amem {

inline DeviceUuid some_device(std::size_t number) {
  DeviceUuid uuid;
  uuid.bytes[0] = static_cast<std::uint8_t>(number);
  return uuid;
}

}  // namespace amem
