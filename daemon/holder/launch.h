// How amemd finds its holder, or starts one that outlives it.
//
// Forks. Any thread: between fork and exec the child only makes system calls.
#pragma once

#include <chrono>
#include <memory>
#include <stop_token>
#include <string>

#include "common/status.h"
#include "daemon/base/clock.h"
#include "daemon/holder/client.h"

namespace amem {

/// Where a holder listens unless somebody says otherwise: in a folder beside the runtime directory,
/// because jobs mount that one.
std::string default_holder_socket(const std::string& runtime_dir);
/// Where holders of amem 0.1.0 listen.
std::string former_holder_socket(const std::string& runtime_dir);

struct HolderLaunch {
  std::string path;       // of the holder's socket
  std::string former;     // of a holder that is used if nobody listens there; empty: none
  std::string program;    // empty: amem-holder, in the folder of this process's own executable
  std::string log_file;   // for what it logs; empty: this process's stderr
  std::string log_level;  // for what it logs; empty: its default
  std::string log_format;
  bool start = true;  // false: somebody else starts it, and it is waited for
  Duration limit = std::chrono::seconds(10);
  Duration welcome = HolderClient::kWelcomeLimit;  // for each connection's hello
};

/// Connected to the holder at `path`; where nobody listens, to the one at `former`; where there is
/// none either, to one that it starts at `path`: a process in a session of its own, with none of
/// our descriptors but those for its output. While it still
/// serves an amemd that is ending, waits for that. Within `limit`, or kDeadlineExceeded. kNotFound:
/// the program cannot be started, or nobody has; else as HolderClient::connect(). A stop is noticed
/// within `welcome`, and ends it with kCancelled.
Result<std::unique_ptr<HolderClient>> ensure_holder(const HolderLaunch& launch,
                                                    const std::stop_token& stop = {});

}  // namespace amem
