#include "tests/sim/work/checkpoint_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/sim/memory/physical.h"
#include "tests/sim/node/node.h"
#include "tests/sim/work/thread.h"

namespace sim {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

// Where a process listens. By a descriptor of the directory, for its path may be longer than the
// address of a socket.
class Place {
 public:
  explicit Place(int pid)
      : directory_(open(Node().dir.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)),
        path_("/proc/self/fd/" + std::to_string(directory_.get()) + "/" + Name(pid)) {
    address_.sun_family = AF_UNIX;
    memcpy(address_.sun_path, path_.c_str(), path_.size() + 1);
  }

  static std::string Name(int pid) { return "checkpoint." + std::to_string(pid); }
  const char* path() const { return path_.c_str(); }
  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&address_); }

 private:
  const Descriptor directory_;
  const std::string path_;
  sockaddr_un address_{};
};

template <typename Message>
bool Receive(int fd, Message* message) {
  ssize_t n = -1;
  do {
    n = recv(fd, message, sizeof *message, 0);
  } while (n < 0 && errno == EINTR);
  return n == sizeof *message;
}

template <typename Message>
bool Send(int fd, const Message& message) {
  return send(fd, &message, sizeof message, MSG_NOSIGNAL) == sizeof message;
}

// Why nobody answers there.
CUresult Refusal(int pid, int error) {
  const std::string program = "/proc/" + std::to_string(pid) + "/exe";
  char link[1];
  const bool seen = readlink(program.c_str(), link, sizeof link) >= 0;
  if (!seen && errno == ENOENT) return CUDA_ERROR_INVALID_VALUE;  // ended, even if not yet reaped
  return error == EACCES || !seen ? CUDA_ERROR_NOT_PERMITTED : CUDA_ERROR_NOT_SUPPORTED;
}

// Its own user's, and root's, as for a debugger.
bool MayAsk(int connection) {
  ucred caller{};
  socklen_t size = sizeof caller;
  return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &caller, &size) == 0 &&
         (caller.uid == 0 || caller.uid == geteuid());
}

void AnswerOne(int connection, StepReply (*answer)(const StepRequest&)) {
  StepRequest request;
  if (Receive(connection, &request)) {
    Send(connection, MayAsk(connection) ? answer(request) : StepReply{CUDA_ERROR_NOT_PERMITTED, 0});
  }
  HeldDescriptors::Close(connection);
}

}  // namespace

StepReply AskForStep(int pid, const StepRequest& request) {
  if (pid <= 0) return {CUDA_ERROR_INVALID_VALUE, 0};
  const Place place(pid);
  const Descriptor connection(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (connect(connection.get(), place.address(), sizeof(sockaddr_un)) != 0) {
    return {Refusal(pid, errno), 0};
  }
  StepReply reply;
  if (!Send(connection.get(), request) || !Receive(connection.get(), &reply)) {
    return {CUDA_ERROR_INVALID_VALUE, 0};
  }
  return reply;
}

int ListenForSteps() {
  const Place place(getpid());
  unlink(place.path());  // of an earlier process with this pid
  const int fd =
      HeldDescriptors::Keep([] { return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0); });
  // Any user may ask, and is told that it may not.
  if (fd < 0 || bind(fd, place.address(), sizeof(sockaddr_un)) != 0 ||
      chmod(place.path(), 0666) != 0 || listen(fd, SOMAXCONN) != 0) {
    Die("cannot listen in " + Node().dir + ": " + strerror(errno));
  }
  static const pid_t pid = getpid();
  std::atexit([] {
    if (getpid() == pid) unlink(Place(pid).path());  // not in a forked child
  });
  return fd;
}

void AnswerSteps(int listener, StepReply (*answer)(const StepRequest&)) {
  for (;;) {
    // Waits outside Keep, which holds up whoever makes descriptors.
    pollfd ready{listener, POLLIN, 0};
    if (poll(&ready, 1, -1) != 1) continue;
    const int connection =
        HeldDescriptors::Keep([&] { return accept4(listener, nullptr, nullptr, SOCK_CLOEXEC); });
    if (connection >= 0) StartThread(AnswerOne, connection, answer);
    if (connection < 0 && errno == EBADF) return;  // the program closes what it does not know
  }
}

}  // namespace sim
