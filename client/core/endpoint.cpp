#include "client/core/endpoint.h"

#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string_view>

#include "common/fd.h"
#include "common/protocol.h"
#include "common/trusted_broker.h"

namespace amem::client {
namespace {

constexpr std::size_t kLongestPath = sizeof(sockaddr_un::sun_path) - 1;

constexpr std::string_view kHowToStart =
    "Start it with `systemctl start amemd` or `amemd --runtime-dir DIR`, or set AMEM_RUNTIME_DIR "
    "or --runtime-dir to its directory.";

Status check_length(const std::string& path, const std::string& whose) {
  if (path.size() <= kLongestPath) return {};
  return {Code::kInvalidArgument, "the path of the " + whose + " socket has " +
                                      std::to_string(path.size()) + " characters, but only " +
                                      std::to_string(kLongestPath) +
                                      " are supported for a Unix socket: " + path};
}

}  // namespace

Result<std::string> control_socket(const std::string& runtime_dir, const std::string& socket) {
  std::string path = socket;
  if (path.empty()) {
    path = runtime_dir.empty() ? default_runtime_dir() : runtime_dir;
    path += '/';
    path += kControlSocket;
  }
  if (Status status = check_length(path, "control"); !status.ok()) return status;
  return path;
}

std::string grpc_target(const std::string& path) {
  static constexpr std::string_view kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/";
  std::string target = "unix:";
  for (const char c : path) {
    if (kPlain.find(c) != std::string_view::npos) {
      target += c;
    } else {
      char escape[4];
      std::snprintf(escape, sizeof escape, "%%%02X",
                    static_cast<unsigned>(static_cast<unsigned char>(c)));
      target += escape;
    }
  }
  return target;
}

Status probe(const std::string& path, int type) {
  if (Status status = check_length(path, "broker's"); !status.ok()) return status;
  const Fd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return errno_status(Code::kUnavailable, "cannot create a socket to reach amemd", errno);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, kLongestPath);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)
    return check_broker(fd.get(), path);
  if (errno == EAGAIN) return {};  // somebody listens, whose queue is full
  switch (errno) {
    case ENOENT:
    case ENOTDIR:
      return {Code::kUnavailable, "amemd does not run here: there is no socket " + path + ". " +
                                      std::string(kHowToStart)};
    case ECONNREFUSED:
      return {Code::kUnavailable, "amemd does not run. It left the socket " + path +
                                      " behind when it ended. " + std::string(kHowToStart)};
    case EACCES:
    case EPERM:
      return {Code::kPermissionDenied, "this user may not open " + path +
                                           ". Ask to join the group of the socket (`ls -l` shows "
                                           "it), or run as the user who started amemd."};
    default:
      return errno_status(Code::kUnavailable, "cannot reach amemd at " + path, errno);
  }
}

}  // namespace amem::client
