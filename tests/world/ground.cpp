#include "tests/world/ground.h"

#include <google/protobuf/stubs/logging.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "tests/world/check.h"
#include "tests/world/device_memory.h"

namespace amem::world {
namespace {
Ground::Shape ground_shape;
}  // namespace

void Ground::shape(const Shape& shape) { ground_shape = shape; }

const Ground& Ground::get() {
  static const Ground ground;
  return ground;
}

Ground::Ground() {
  spdlog::set_level(spdlog::level::off);
  google::protobuf::SetLogHandler(nullptr);  // of requests that are none
  dir_ = (std::filesystem::temp_directory_path() / "amem-fuzz-XXXXXX").string();
  require(::mkdtemp(dir_.data()) != nullptr, "a folder is made");
  const std::pair<const char*, std::string> settings[] = {
      {"AMEM_SIM_DIR", dir_ + "/sim"},
      {"AMEM_SIM_NAME",
       "ground"},  // the UUIDs, by which amemd sorts devices, are the same each time
      {"AMEM_SIM_DEVICES", std::to_string(ground_shape.devices)},
      {"AMEM_SIM_MEMORY", std::to_string(ground_shape.memory)},
      {"AMEM_SIM_FRESH", "pattern"},
      {"AMEM_SIM_GRANULARITY", "4096"},
  };
  std::filesystem::create_directory(dir_ + "/sim");
  for (const auto& [name, value] : settings) ::setenv(name, value.c_str(), 1);
  require(devices_.open().ok(), "the simulated driver is there");
  require(nvml_.open(devices_).ok(), "so is its management library");
}

Ground::~Ground() {
  std::error_code ignored;
  std::filesystem::remove_all(dir_, ignored);
}

Result<CreatedMemory> made_on(const DeviceUuid& device, std::uint64_t size) {
  return made_on(Ground::get().devices(), device, size);
}

}  // namespace amem::world
