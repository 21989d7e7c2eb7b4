#include "common/trusted_broker.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string_view>

#include "common/numbers.h"

namespace amem {
namespace {

constexpr uid_t kOverflowUid = 65534;

std::optional<uid_t> named_uid() {
  const char* value = std::getenv("AMEM_BROKER_UID");
  return value != nullptr ? number_of_text<uid_t>(value) : std::nullopt;
}

}  // namespace

bool trusted_broker(uid_t broker, uid_t own, std::optional<uid_t> named) {
  return broker == 0 || (broker == own && broker != kOverflowUid) || broker == named;
}

Status check_broker(int socket, const std::string& path) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
    return errno_status(Code::kUnavailable, "SO_PEERCRED of " + path, errno);
  if (trusted_broker(peer.uid, ::geteuid(), named_uid())) return {};
  const std::string uid = std::to_string(peer.uid);
  return {Code::kPermissionDenied, "uid " + uid + " serves " + path +
                                       ". amem trusts brokers of root and of this user (uid " +
                                       std::to_string(::geteuid()) +
                                       ") only. If you trust it, set AMEM_BROKER_UID=" + uid};
}

}  // namespace amem
