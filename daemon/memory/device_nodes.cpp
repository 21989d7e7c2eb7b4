#include "daemon/memory/device_nodes.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

namespace amem {
namespace {

/// A driver of NVIDIA's has made its nodes there.
bool has_nodes(const std::string& dir) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(dir, ignored))
    if (entry.path().filename().string().starts_with("nvidia")) return true;
  return false;
}

/// O_PATH opens what one may neither read nor write.
bool may_use(const Fd& fd) {
  const int flags = ::fcntl(fd.get(), F_GETFL);
  return flags >= 0 && (flags & O_PATH) == 0 && (flags & O_ACCMODE) == O_RDWR;
}

}  // namespace

DeviceNodes::Gaps DeviceNodes::open(const std::string& dir, const Devices& devices,
                                    const Nvml& nvml) {
  nodes_.clear();
  Gaps gaps;
  if (dir.empty()) return gaps;
  gaps.simulated = !has_nodes(dir);
  for (const Device& device : devices.all()) {
    const auto unguarded = [&](const std::string& why) {
      gaps.lines.push_back("device " + std::to_string(device.ordinal) + " (" +
                           to_string(device.uuid) +
                           ") would be served to every user who may join: " + why +
                           ", and restart amemd. Or set isolation.device_nodes to \"\" " +
                           "if every user may use every device");
    };
    const std::optional<unsigned> minor = nvml.minor(device.uuid);
    if (!minor) {
      unguarded(
          "libnvidia-ml.so.1 does not report which node in " + dir +
          " belongs to it. Install the driver's management library in the version of the driver");
      continue;
    }
    const std::string path = dir + "/nvidia" + std::to_string(*minor);
    struct stat st {};
    if (::stat(path.c_str(), &st) != 0)
      unguarded(path + ": " + std::strerror(errno) + ". Make the node (nvidia-modprobe -c " +
                std::to_string(*minor) + ", or nvidia-persistenced)");
    else if (!S_ISCHR(st.st_mode))
      unguarded(path + " is not a device. Remove it and make the node (nvidia-modprobe -c " +
                std::to_string(*minor) + ")");
    else
      nodes_[device.uuid] = {path, st.st_rdev};
  }
  return gaps;
}

std::string DeviceNodes::path(const DeviceUuid& device) const {
  const auto it = nodes_.find(device);
  return it != nodes_.end() ? it->second.path : "";
}

std::vector<DeviceUuid> DeviceNodes::proved(const std::vector<Fd>& fds) const {
  std::vector<DeviceUuid> proved;
  for (const auto& [device, node] : nodes_) {
    const auto is_its = [&number = node.number](const Fd& fd) {
      struct stat st {};
      return ::fstat(fd.get(), &st) == 0 && S_ISCHR(st.st_mode) && st.st_rdev == number &&
             may_use(fd);
    };
    if (std::any_of(fds.begin(), fds.end(), is_its)) proved.push_back(device);
  }
  return proved;
}

}  // namespace amem
