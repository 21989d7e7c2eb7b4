// For the tests of the simulated driver: other processes of the same node.
//
// A child is this program executed anew with a role, so that it reads its environment and
// initialises the driver for itself. Parent and child talk over one socket, a byte and perhaps a
// descriptor at a time.
#pragma once

#include <signal.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace sim_test {

inline constexpr int kChildSocket = 3;

inline void SendByte(int socket, char byte, int fd = -1) {
  iovec data{&byte, 1};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  if (sendmsg(socket, &message, MSG_NOSIGNAL) != 1) abort();
}

/// The next byte, or 0 at the end; a descriptor that came along goes to `fd`.
inline char ReceiveByte(int socket, int* fd = nullptr) {
  char byte = 0;
  iovec data{&byte, 1};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) return 0;
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && fd != nullptr) memcpy(fd, CMSG_DATA(header), sizeof *fd);
  return byte;
}

using Role = std::function<int()>;

inline std::map<std::string, Role>& Roles() {
  static std::map<std::string, Role> roles;
  return roles;
}

/// At namespace scope: `const RegisterRole kHold("hold", [] { ... return 0; });`
struct RegisterRole {
  RegisterRole(const std::string& name, Role role) { Roles()[name] = std::move(role); }
};

class Child {
 public:
  using Environment = std::vector<std::pair<std::string, std::string>>;

  explicit Child(const std::string& role, const Environment& environment = {}) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) abort();
    pid_ = fork();
    if (pid_ == 0) {
      for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
      if (ends[1] == kChildSocket) {
        const int copy = dup(ends[1]);
        close(ends[1]);
        ends[1] = copy;
      }
      dup2(ends[1], kChildSocket);  // without close-on-exec
      execl("/proc/self/exe", "sim_driver_test", "--role", role.c_str(), nullptr);
      _exit(127);
    }
    close(ends[1]);
    socket_ = ends[0];
  }
  ~Child() {
    close(socket_);
    if (pid_ > 0) Kill();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  int socket() const { return socket_; }
  void Send(char byte, int fd = -1) const { SendByte(socket_, byte, fd); }
  char Receive(int* fd = nullptr) const { return ReceiveByte(socket_, fd); }

  /// The exit status, or minus the signal.
  int Wait() {
    int status = 0;
    if (waitpid(pid_, &status, 0) != pid_) abort();
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  void Kill() {
    kill(pid_, SIGKILL);
    Wait();
  }

 private:
  pid_t pid_ = -1;
  int socket_ = -1;
};

/// Runs a role to its end.
inline int RunRole(const std::string& role, const Child::Environment& environment = {}) {
  return Child(role, environment).Wait();
}

}  // namespace sim_test

// In a role: ends the process with a message unless the condition holds.
#define ROLE_CHECK(condition)                                                 \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      _exit(1);                                                               \
    }                                                                         \
  } while (false)
