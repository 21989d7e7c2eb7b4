// RuntimeDir: the directory of the sockets, and the lock that lets one broker serve it.
//
// The lock is the kernel's (flock): it goes with the process, so a crashed broker leaves nothing
// that needs cleaning up. Sockets that it left are replaced by whoever has the lock.
#pragma once

#include <sys/types.h>

#include <string>

#include "common/fd.h"
#include "common/status.h"

namespace amem {

class RuntimeDir {
 public:
  /// Creates the directory with `mode` if it is missing (not its parents) and takes the lock.
  /// kAlreadyExists: another amemd has it; the text names its pid. kFailedPrecondition: it is not a
  /// directory, not this user's or root's, or others may write to it.
  Status open(const std::string& path, mode_t mode);

 private:
  Fd lock_;
};

}  // namespace amem
