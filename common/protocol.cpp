#include "common/protocol.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "common/job.h"

namespace amem {

std::string to_string(const DeviceUuid& uuid) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string text = "GPU-";
  for (std::size_t i = 0; i < uuid.bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kHex[uuid.bytes[i] >> 4];
    text += kHex[uuid.bytes[i] & 15];
  }
  return text;
}

bool valid_group_name(std::string_view name) {
  auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= 63 && name.front() != '.' && name.front() != '-' &&
         std::all_of(name.begin(), name.end(), allowed);
}

bool valid_whole_name(std::string_view whole) {
  const std::string_view name = name_of_group(whole);
  return valid_group_name(name) && (name == whole || valid_group_name(job_of_group(whole)));
}

bool valid_group_address(std::string_view address) {
  constexpr std::size_t kLongestOwner = 300;
  const std::size_t at = std::min(address.find('@'), address.size());
  if (!valid_whole_name(address.substr(0, at))) return false;
  if (at == address.size()) return true;
  const std::string_view owner = address.substr(at + 1);
  return !owner.empty() && owner.size() <= kLongestOwner &&
         std::all_of(owner.begin(), owner.end(), [](char c) { return c > ' ' && c <= '~'; });
}

std::string default_runtime_dir() {
  auto from_environment = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value != nullptr ? value : "";
  };
  if (std::string dir = from_environment("AMEM_RUNTIME_DIR"); !dir.empty()) return dir;
  struct stat st {};
  const bool system_dir = ::stat("/run/amem", &st) == 0 && S_ISDIR(st.st_mode);
  if (system_dir || ::geteuid() == 0) return "/run/amem";
  if (std::string dir = from_environment("XDG_RUNTIME_DIR"); !dir.empty()) return dir + "/amem";
  return "/tmp/amem-" + std::to_string(::geteuid());
}

}  // namespace amem
