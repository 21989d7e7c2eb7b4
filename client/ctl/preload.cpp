#include "client/ctl/preload.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

namespace amem::ctl {

std::vector<std::string> preload_entries(std::string_view list) {
  std::vector<std::string> entries;
  std::size_t begin = 0;
  while ((begin = list.find_first_not_of(" :", begin)) != std::string_view::npos) {
    const std::size_t end = std::min(list.find_first_of(" :", begin), list.size());
    entries.emplace_back(list.substr(begin, end - begin));
    begin = end;
  }
  return entries;
}

bool is_hook(const std::string& entry) {
  if (!std::filesystem::path(entry).filename().string().starts_with(kHookName)) return false;
  std::ifstream file(entry, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  return bytes.find("amem_shim_active") != std::string::npos;
}

bool is_shim(const std::string& entry, const std::string& shim) {
  std::error_code ignored;  // a file that is not there is not the same
  return std::filesystem::path(entry).filename() == kShimName ||
         std::filesystem::equivalent(entry, shim, ignored) || is_hook(entry);
}

std::string with_shim(const std::string& shim, std::string_view before) {
  std::string list = shim;
  for (const std::string& entry : preload_entries(before)) {
    if (!is_shim(entry, shim)) list += ":" + entry;
  }
  return list;
}

}  // namespace amem::ctl
