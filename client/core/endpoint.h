// Where the broker's control socket is, and why it cannot be reached.
//
// Functions without state; any thread.
#pragma once

#include <sys/socket.h>

#include <string>

#include "common/status.h"

namespace amem::client {

/// Returns the control socket's path: `socket` if given, else the one in `runtime_dir`, else the
/// one in default_runtime_dir(). kInvalidArgument: the path is too long for a Unix socket.
Result<std::string> control_socket(const std::string& runtime_dir, const std::string& socket);

/// gRPC's name for a Unix socket at `path`; characters that are special in a URI are escaped.
std::string grpc_target(const std::string& path);

/// Tries to connect, and says what stands in the way and what to do about it. `type`: SOCK_STREAM
/// for the control socket, SOCK_SEQPACKET for the ranks'. OK: a broker listens. kUnavailable: no
/// socket, or nobody listens. kPermissionDenied: the socket is not for this user.
/// kInvalidArgument: the path is longer than a Unix socket's may be.
Status probe(const std::string& path, int type = SOCK_STREAM);

}  // namespace amem::client
