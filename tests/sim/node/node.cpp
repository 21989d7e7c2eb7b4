#include "tests/sim/node/node.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace sim {
namespace {

uint64_t Fnv1a(const std::string& text, uint64_t hash = 0xcbf29ce484222325ULL) {
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3ULL;
  }
  // FNV alone leaves neighbouring inputs with neighbouring high bits; UUIDs are matched by prefix.
  hash ^= hash >> 31;
  hash *= 0x9e3779b97f4a7c15ULL;
  return hash ^ (hash >> 29);
}

// "512MiB", "2GiB", "64KiB" or a number of bytes.
uint64_t Bytes(const char* name, uint64_t fallback) {
  const char* text = getenv(name);
  if (text == nullptr || *text == '\0') return fallback;
  char* end = nullptr;
  errno = 0;
  const uint64_t value = strtoull(text, &end, 10);
  unsigned shift = 0;
  const std::string unit = end;
  if (unit == "KiB") shift = 10;
  if (unit == "MiB") shift = 20;
  if (unit == "GiB") shift = 30;
  const bool digits = text[0] >= '0' && text[0] <= '9';
  const bool fits = errno == 0 && value <= (UINT64_MAX >> shift);
  if (!digits || !fits || (shift == 0 && !unit.empty())) {
    Die(std::string(name) + "=" + text + " is not a size (bytes, or a number with KiB, MiB, GiB)");
  }
  return value << shift;
}

int Devices() {
  const char* text = getenv("AMEM_SIM_DEVICES");
  if (text == nullptr || *text == '\0') return 2;
  char* end = nullptr;
  const long value = strtol(text, &end, 10);
  if (*end != '\0' || value < 0 || value > kMaxDevices) {
    Die(std::string("AMEM_SIM_DEVICES=") + text + " is not a number from 0 to 16");
  }
  return static_cast<int>(value);
}

double Bandwidth() {
  const char* text = getenv("AMEM_SIM_BANDWIDTH");
  if (text == nullptr || *text == '\0') return 0;
  char* end = nullptr;
  const double value = strtod(text, &end);
  if (end == text || *end != '\0' || !(value >= 0)) {
    Die(std::string("AMEM_SIM_BANDWIDTH=") + text + " is not a number of GB/s");
  }
  return value;
}

bool Pageable() {
  const char* text = getenv("AMEM_SIM_PAGEABLE");
  const std::string value = text != nullptr && *text != '\0' ? text : "copy";
  if (value != "copy" && value != "refuse") {
    Die("AMEM_SIM_PAGEABLE=" + value + " is neither copy nor refuse");
  }
  return value == "copy";
}

bool FreshPattern() {
  const char* text = getenv("AMEM_SIM_FRESH");
  if (text == nullptr) return false;
  if (strcmp(text, "pattern") != 0) Die(std::string("AMEM_SIM_FRESH=") + text + " is not pattern");
  return true;
}

// "create,map,unmap,free", each "MICROSECONDS" or "MICROSECONDS+MILLISECONDS_PER_GIB".
std::array<DriverTime, 4> DriverTimes() {
  std::array<DriverTime, 4> times = {};
  const char* text = getenv("AMEM_SIM_DRIVER_TIMES");
  if (text == nullptr || *text == '\0') return times;
  const char* at = text;
  const auto number = [&] {
    char* end = nullptr;
    const double value = strtod(at, &end);
    if (end == at || !(value >= 0))
      at = "-";  // no separator follows
    else
      at = end;
    return value;
  };
  for (size_t i = 0; i < times.size(); ++i) {
    times[i].call_us = number();
    if (*at == '+') {
      ++at;
      times[i].gib_ms = number();
    }
    const char separator = i + 1 < times.size() ? ',' : '\0';
    if (*at != separator) {
      Die(std::string("AMEM_SIM_DRIVER_TIMES=") + text +
          " is not create,map,unmap,free, each in microseconds, or with +milliseconds per GiB");
    }
    if (separator != '\0') ++at;
  }
  return times;
}

Checkpoints ReadCheckpoints() {
  const char* text = getenv("AMEM_SIM_CHECKPOINT");
  const std::string value = text != nullptr ? text : "";
  if (value.empty()) return Checkpoints::kNone;
  if (value == "hang") return Checkpoints::kHang;
  if (value == "lose") return Checkpoints::kLose;
  if (value == "lose_all") return Checkpoints::kLoseAll;
  if (value == "lose_at_once") return Checkpoints::kLoseAtOnce;
  if (value == "forget") return Checkpoints::kForget;
  Die("AMEM_SIM_CHECKPOINT=" + value + " is none of hang, lose, lose_all, lose_at_once and forget");
}

std::string Directory() {
  const char* text = getenv("AMEM_SIM_DIR");
  std::string dir =
      text != nullptr && *text != '\0' ? text : "/tmp/amem-sim-" + std::to_string(getuid());
  for (size_t slash = dir.find('/', 1);; slash = dir.find('/', slash + 1)) {
    const std::string part = dir.substr(0, slash);
    if (mkdir(part.c_str(), 0777) != 0 && errno != EEXIST) {
      Die("cannot make " + part + ": " + strerror(errno));
    }
    if (slash == std::string::npos) break;
  }
  char* resolved = realpath(dir.c_str(), nullptr);
  if (resolved == nullptr) Die("cannot resolve " + dir + ": " + strerror(errno));
  dir = resolved;
  free(resolved);
  return dir;
}

NodeConfig ReadConfig() {
  NodeConfig config;
  config.dir = Directory();
  char id[17];
  snprintf(id, sizeof id, "%016llx", static_cast<unsigned long long>(Fnv1a(config.dir)));
  config.id = id;
  const char* const name = getenv("AMEM_SIM_NAME");
  config.name = name != nullptr ? name : config.id;
  config.devices = Devices();
  config.memory = Bytes("AMEM_SIM_MEMORY", uint64_t{1} << 30);
  config.granularity = Bytes("AMEM_SIM_GRANULARITY", uint64_t{2} << 20);
  const uint64_t g = config.granularity;
  if (g < 4096 || (g & (g - 1)) != 0) {
    Die("AMEM_SIM_GRANULARITY must be a power of two and at least 4096");
  }
  config.context_bytes = Bytes("AMEM_SIM_CONTEXT_BYTES", uint64_t{8} << 20);
  config.bandwidth = Bandwidth();
  config.pageable = Pageable();
  config.checkpoints = ReadCheckpoints();
  config.fresh_pattern = FreshPattern();
  config.driver_times = DriverTimes();
  config.decompresses = getenv("AMEM_SIM_DECOMPRESS") != nullptr;
  return config;
}

// One entry of CUDA_VISIBLE_DEVICES: an ordinal, or the beginning of exactly one UUID.
int ParseVisible(const std::string& entry) {
  if (entry.rfind("GPU-", 0) == 0) {
    int found = -1;
    for (int i = 0; i < Node().devices; ++i) {
      if (DeviceUuidString(i).rfind(entry, 0) != 0) continue;
      if (found >= 0) return -1;
      found = i;
    }
    return found;
  }
  char* end = nullptr;
  const long value = strtol(entry.c_str(), &end, 10);
  if (entry.empty() || *end != '\0' || value < 0 || value >= Node().devices) return -1;
  return static_cast<int>(value);
}

std::vector<int> ReadVisible() {
  std::vector<int> visible;
  const char* text = getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr) {
    for (int i = 0; i < Node().devices; ++i) visible.push_back(i);
    return visible;
  }
  const std::string list = text;
  size_t begin = 0;
  while (begin <= list.size()) {
    const size_t comma = std::min(list.find(',', begin), list.size());
    const int device = ParseVisible(list.substr(begin, comma - begin));
    // As in the real driver: the list ends at the first entry that names no device, and naming one
    // twice leaves none.
    if (device < 0) break;
    if (std::find(visible.begin(), visible.end(), device) != visible.end()) return {};
    visible.push_back(device);
    begin = comma + 1;
  }
  return visible;
}

}  // namespace

void Die(const std::string& message) {
  fprintf(stderr, "amem-sim: %s\n", message.c_str());
  abort();
}

// Never destroyed, here and elsewhere in this library: stream workers may outlive static
// destructors.
const NodeConfig& Node() {
  static const NodeConfig* const config = new NodeConfig(ReadConfig());
  return *config;
}

Uuid DeviceUuid(int physical) {
  const std::string name = Node().name + "/gpu" + std::to_string(physical);
  const uint64_t high = Fnv1a(name);
  const uint64_t low = Fnv1a(name, high | 1);
  Uuid uuid{};
  memcpy(uuid.data(), &high, 8);
  memcpy(uuid.data() + 8, &low, 8);
  return uuid;
}

std::string DeviceUuidString(int physical) {
  const Uuid uuid = DeviceUuid(physical);
  std::string text = "GPU-";
  for (size_t i = 0; i < uuid.size(); ++i) {
    char byte[3];
    snprintf(byte, sizeof byte, "%02x", uuid[i]);
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += byte;
  }
  return text;
}

std::string DevicePciBusId(int physical) {
  char text[16];
  snprintf(text, sizeof text, "0000:%02X:00.0", static_cast<unsigned>(physical + 1) & 0xffU);
  return text;
}

const std::vector<int>& VisibleDevices() {
  static const std::vector<int>* const visible = new std::vector<int>(ReadVisible());
  return *visible;
}

std::string DeviceNode(int physical) {
  const char* dir = getenv("AMEM_SIM_DEV_DIR");
  return dir == nullptr ? "" : std::string(dir) + "/nvidia" + std::to_string(physical);
}

int VisibleOrdinal(int physical) {
  const std::vector<int>& visible = VisibleDevices();
  const auto it = std::find(visible.begin(), visible.end(), physical);
  return it == visible.end() ? -1 : static_cast<int>(it - visible.begin());
}

}  // namespace sim
