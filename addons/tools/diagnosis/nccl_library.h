// Which libnccl a command would load, and its version, without loading it. Plain functions; any
// thread.
#pragma once

#include <compare>
#include <optional>
#include <string>

#include "client/ctl/preload.h"

namespace amem::ctl {

struct NcclVersion {
  int major = 0;
  int minor = 0;

  friend auto operator<=>(const NcclVersion&, const NcclVersion&) = default;
};

/// The first of: LD_LIBRARY_PATH, the program's `runpath`, the Python or the prefix that `program`
/// belongs to, the system's library directories. Empty: none there. This is not a fault, because
/// not every program has one of its own.
std::string find_nccl(const std::string& program, const std::string& runpath,
                      const Environment& environment);

/// Returns the library's version. Returns nothing if it is not there, or does not say it.
std::optional<NcclVersion> nccl_version(const std::string& library);

}  // namespace amem::ctl
