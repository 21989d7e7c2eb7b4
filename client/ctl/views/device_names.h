// How a list names its devices. Plain values; any thread.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <string_view>

namespace amem::ctl {

/// Names of devices in a list: the first characters of the UUID when they tell the devices apart.
class DeviceNames {
 public:
  void add(const std::string& uuid) { uuids_.insert(uuid); }
  std::string operator()(const std::string& uuid) const {
    std::set<std::string_view> heads;
    for (const std::string& u : uuids_) heads.insert(std::string_view(u).substr(0, kHead));
    return heads.size() == uuids_.size() ? uuid.substr(0, kHead) : uuid;
  }

 private:
  static constexpr std::size_t kHead = 12;  // "GPU-01234567"
  std::set<std::string> uuids_;
};

}  // namespace amem::ctl
