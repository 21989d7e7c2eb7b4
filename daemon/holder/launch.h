// How amemd finds its holder, or starts one that outlives it.
//
// For amemd's start, before the loop runs; forks.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "common/status.h"
#include "daemon/base/clock.h"
#include "daemon/holder/client.h"

namespace amem {

/// In the runtime directory.
inline constexpr char kHolderSocket[] = "holder.sock";

struct HolderLaunch {
  std::string path;       // of the holder's socket
  std::string program;    // empty: amem-holder, in the folder of this process's own executable
  std::string log_file;   // for what it logs; empty: this process's stderr
  std::string log_level;  // empty: its default; likewise
  std::string log_format;
  bool start = true;  // false: somebody else starts it, and it is waited for
  Duration limit = std::chrono::seconds(10);
};

/// Connected to the holder at `path`; where nobody listens, to one that it starts there: a process
/// in a session of its own, with none of our descriptors but those for its output. While it still
/// serves an amemd that is ending, waits for that. Within `limit`, or kDeadlineExceeded. kNotFound:
/// the program cannot be started, or nobody has; else as Holder::connect().
Result<std::unique_ptr<Holder>> ensure_holder(const HolderLaunch& launch);

}  // namespace amem
