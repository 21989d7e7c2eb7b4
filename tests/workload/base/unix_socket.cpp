#include "tests/workload/base/unix_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "common/descriptors.h"
#include "tests/workload/base/failure.h"

namespace amem::workload {
namespace {

[[noreturn]] void FailErrno(const std::string& what) {
  throw Failure(what + ": " + std::strerror(errno));
}

// A socket's path must fit into 108 bytes, a temporary directory's need not: the directory is named
// by a descriptor.
struct ShortAddress {
  ShortAddress(const std::string& directory, const std::string& name)
      : folder(open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)) {
    if (!folder) FailErrno("open " + directory);
    const std::string path = "/proc/self/fd/" + std::to_string(folder.get()) + "/" + name;
    if (path.size() >= sizeof address.sun_path) throw Failure("socket name too long: " + name);
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, path.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }

  Fd folder;
  sockaddr_un address{};
};

Fd NewSocket() {
  Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) FailErrno("socket");
  return fd;
}

}  // namespace

Fd ListenAt(const std::string& directory, const std::string& name) {
  const ShortAddress address(directory, name);
  Fd fd = NewSocket();
  if (bind(fd.get(), address.get(), sizeof(sockaddr_un)) != 0) {
    FailErrno("bind " + directory + "/" + name);
  }
  if (listen(fd.get(), 64) != 0) FailErrno("listen " + directory + "/" + name);
  return fd;
}

Fd ConnectTo(const std::string& directory, const std::string& name, Clock::time_point deadline) {
  const ShortAddress address(directory, name);
  const std::string where = "connect to " + directory + "/" + name;
  for (;;) {
    Fd fd = NewSocket();
    if (connect(fd.get(), address.get(), sizeof(sockaddr_un)) == 0) return fd;
    if ((errno != ENOENT && errno != ECONNREFUSED) || Clock::now() >= deadline) {
      FailErrno(where);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

bool SendPacket(int socket, const void* data, std::size_t bytes, int descriptor) {
  const ssize_t sent = send_with(socket, data, bytes, &descriptor, descriptor >= 0 ? 1 : 0);
  if (sent < 0 && errno != EPIPE && errno != ECONNRESET) FailErrno("sendmsg");
  return sent >= 0;
}

bool ReceivePacket(int socket, void* data, std::size_t bytes, Fd* descriptor,
                   const Clock::time_point* deadline) {
  if (deadline != nullptr) {
    pollfd waiting{socket, POLLIN, 0};
    for (;;) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now());
      if (left.count() <= 0) throw Failure("no answer before the deadline");
      const int ready = poll(&waiting, 1, static_cast<int>(left.count()));
      if (ready > 0) break;
      if (ready < 0 && errno != EINTR) FailErrno("poll");
    }
  }
  const ssize_t received = receive_with(socket, data, bytes, 0, [&](Fd passed) {
                             *descriptor = std::move(passed);
                           }).bytes;
  if (received == 0 || (received < 0 && errno == ECONNRESET)) return false;
  if (received < 0) FailErrno("recvmsg");
  if (static_cast<std::size_t>(received) != bytes) throw Failure("a packet of the wrong size");
  return true;
}

}  // namespace amem::workload
