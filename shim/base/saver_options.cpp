#include "shim/base/saver_options.h"

#include <algorithm>
#include <charconv>
#include <iterator>

namespace amem::shim {
namespace {

/// As that package reads its switches.
bool flag(Options::Getenv getenv, const char* name, std::vector<std::string>& complaints) {
  const std::string_view value = value_of(getenv, name);
  constexpr std::string_view kOn[] = {"1", "true", "TRUE", "yes", "YES"};
  constexpr std::string_view kOff[] = {"", "0", "false", "FALSE", "no", "NO"};
  if (std::find(std::begin(kOn), std::end(kOn), value) != std::end(kOn)) return true;
  if (std::find(std::begin(kOff), std::end(kOff), value) == std::end(kOff))
    complaints.push_back(std::string(name) + "=" + std::string(value) +
                         " is not 0 or 1; taken for 0");
  return false;
}

}  // namespace

bool is_saver_hook(std::string_view library) {
  return library.starts_with("torch_memory_saver_hook_mode_");
}

void read_saver_options(Options::Getenv getenv, std::string_view library, Options& options,
                        std::vector<std::string>& complaints) {
  const bool hook = is_saver_hook(library);
  const bool whole = flag(getenv, "TMS_INIT_ENABLE", complaints);
  if (hook && value_of(getenv, "AMEM_SCOPE").empty()) {
    options.scope = whole ? Scope::kHeap : Scope::kRegions;
    if (whole)
      options.heap_policy = flag(getenv, "TMS_INIT_ENABLE_CPU_BACKUP", complaints)
                                ? amem_v1_RegionPolicy_REGION_POLICY_KEEP
                                : amem_v1_RegionPolicy_REGION_POLICY_DISCARD;
  }
  options.whole_process = whole && options.scope == Scope::kHeap;
  options.alone =
      hook && value_of(getenv, "AMEM_GROUP").empty() && value_of(getenv, "AMEM_GROUPID").empty();
  if (!hook) return;
  if (flag(getenv, "TMS_INIT_ENABLE_DISK_BACKUP", complaints)) {
    complaints.push_back(
        "TMS_INIT_ENABLE_DISK_BACKUP is set, and amem saves nothing to disks: the bytes are kept "
        "in the broker's pool");
    options.heap_policy = amem_v1_RegionPolicy_REGION_POLICY_KEEP;
  }
  const std::string_view margin = value_of(getenv, "TMS_MEMORY_MARGIN_BYTES");
  const auto [end, error] =
      std::from_chars(margin.data(), margin.data() + margin.size(), options.memory_margin);
  if (!margin.empty() && (error != std::errc() || end != margin.data() + margin.size())) {
    options.memory_margin = 0;
    complaints.push_back("TMS_MEMORY_MARGIN_BYTES=" + std::string(margin) +
                         " is not a number of bytes; taken for 0");
  }
}

}  // namespace amem::shim
