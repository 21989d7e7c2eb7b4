// The simulated node: what the environment says about it, and its devices' identities.
//
// Read once, on first use, and never changed. Any thread. Shared by the simulated CUDA and NVML
// libraries, so it knows neither API.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace sim {

inline constexpr int kMaxDevices = 16;

/// Whether other processes may checkpoint this one, and what memory that it shares does then.
enum class Checkpoints {
  kNone,  // they may not
  kHang,  // the checkpoint does not end
  kLose,  // the restore fails, and the process is lost
  // Without such memory, too:
  kLoseAll,     // in the restore
  kLoseAtOnce,  // in the checkpoint
  kForget,      // device memory has zeros after the restore
};

/// Of a kind of call, of one handle.
struct DriverTime {
  double call_us = 0;
  double gib_ms = 0;
};

struct NodeConfig {
  std::string dir;             // AMEM_SIM_DIR, resolved
  std::string id;              // hash of dir: two directories are two nodes
  std::string name;            // the UUIDs are made from it
  int devices = 0;             // AMEM_SIM_DEVICES
  uint64_t memory = 0;         // AMEM_SIM_MEMORY, bytes per device
  uint64_t granularity = 0;    // AMEM_SIM_GRANULARITY
  uint64_t context_bytes = 0;  // AMEM_SIM_CONTEXT_BYTES
  double bandwidth = 0;        // AMEM_SIM_BANDWIDTH, GB/s per direction; 0: unlimited
  bool pageable = true;        // AMEM_SIM_PAGEABLE: asynchronous copies take pageable memory
  Checkpoints checkpoints = Checkpoints::kNone;  // AMEM_SIM_CHECKPOINT
  bool fresh_pattern = false;  // AMEM_SIM_FRESH: new device memory has kFreshByte, not zeros
  std::array<DriverTime, 4> driver_times = {};  // AMEM_SIM_DRIVER_TIMES, by MemoryCall
  bool decompresses = false;  // AMEM_SIM_DECOMPRESS: each device has an engine for that
};

inline constexpr unsigned char kFreshByte = 0xc7;

/// The node this process belongs to. A malformed variable ends the process with a message: a test
/// that misspells its set-up must not pass.
const NodeConfig& Node();

using Uuid = std::array<unsigned char, 16>;

Uuid DeviceUuid(int physical);
std::string DeviceUuidString(int physical);  // "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
std::string DevicePciBusId(int physical);
inline constexpr const char kDeviceName[] = "amem simulated GPU";

/// Physical ordinals in the order CUDA_VISIBLE_DEVICES gives them.
const std::vector<int>& VisibleDevices();

/// AMEM_SIM_DEV_DIR: the device's node there; empty: nobody asks for nodes.
std::string DeviceNode(int physical);

/// The ordinal this process has for a physical device; -1 if it is not visible.
int VisibleOrdinal(int physical);

/// Prints to stderr and aborts.
[[noreturn]] void Die(const std::string& message);

}  // namespace sim
