#include "tests/world/process.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>

#include "common/packet.h"

namespace amem::world {

int connect_to(int socket, const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const auto* to = reinterpret_cast<const sockaddr*>(&address);
  return ::connect(socket, to, sizeof address) == 0 ? 0 : errno;
}

void Process::send(int socket, const std::string& bytes, const std::vector<int>& fds) {
  (void)send_encoded(socket, bytes, fds);
}

pid_t ThisProcess::pid() const { return ::getpid(); }

int ThisProcess::connect(int socket, const std::string& path) {
  lives_ = true;
  return connect_to(socket, path);
}

}  // namespace amem::world
