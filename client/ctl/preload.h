// LD_PRELOAD as the loader reads it, and the shim's place in it. Plain functions; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace amem::ctl {

inline constexpr const char* kShimName = "libamem_shim.so";

/// The entries of LD_PRELOAD, which spaces and colons separate.
std::vector<std::string> preload_entries(std::string_view list);

/// Whether an entry is a shim: by its file name, or because it is the file `shim`.
bool is_shim(const std::string& entry, const std::string& shim);

/// The shim first, then the entries of `before` in their order. No second shim, wherever it lies (a
/// run within a run, another installation's): each would have a session and a table of its own.
std::string with_shim(const std::string& shim, std::string_view before);

}  // namespace amem::ctl
