// Whether who serves a socket may be this user's broker.
//
// Whoever makes the directory of the sockets first could play the broker in it, and get hold of all
// memory. So a client asks the kernel who listens before it says anything. Stateless; any thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "common/status.h"

namespace amem {

/// The broker's uid is root's, this process's own, or the one that AMEM_BROKER_UID names. The uid
/// by which the kernel shows users that a namespace does not know is nobody's own: it must be
/// named.
bool trusted_broker(uid_t broker, uid_t own, std::optional<uid_t> named);

/// REQUIRES: `socket` is connected to `path`. kPermissionDenied: trusted_broker() says no; the text
/// has path and uid, and what to do.
Status check_broker(int socket, const std::string& path);

}  // namespace amem
