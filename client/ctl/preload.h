// The environment of a command: LD_PRELOAD as the loader reads it, and the shim's place in it.
// Plain functions; any thread.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace amem::ctl {

using Environment = std::map<std::string, std::string>;

/// The variable's value; empty when it is not set.
inline std::string value_in(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found != environment.end() ? found->second : std::string();
}

inline constexpr const char* kShimName = "libamem_shim.so";
/// How the file names of torch_memory_saver's hook libraries begin: the shim's too, when it is
/// preloaded in their place.
inline constexpr const char* kHookName = "torch_memory_saver_hook_mode_";

/// The entries of LD_PRELOAD, which spaces and colons separate.
std::vector<std::string> preload_entries(std::string_view list);

/// The shim under the name of a hook library, which the original has, too.
bool is_hook(const std::string& entry);

/// Whether an entry is a shim: by its file name, as a hook library, or because it is the file
/// `shim`.
bool is_shim(const std::string& entry, const std::string& shim);

/// The shim first, then the entries of `before` in their order. No second shim, wherever it lies (a
/// run within a run, another installation's): each would have a session and a table of its own.
std::string with_shim(const std::string& shim, std::string_view before);

}  // namespace amem::ctl
