// Bytes with descriptors over a Unix socket. They answer as the system calls do, with a count of
// bytes or -1 and errno, but go on after a signal.
//
// Stateless functions over a socket that the caller owns; any thread.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "common/fd.h"

namespace amem {

/// The descriptors stay the caller's. REQUIRES: count <= kMost.
template <std::size_t kMost = 1>
ssize_t send_with(int socket, const void* data, std::size_t bytes, const int* fds,
                  std::size_t count) {
  iovec part{const_cast<void*>(data), bytes};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMost * sizeof(int))] = {};
  if (count > 0) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(count * sizeof(int));
    std::memcpy(CMSG_DATA(c), fds, count * sizeof(int));
  }
  ssize_t sent = 0;
  do sent = ::sendmsg(socket, &header, MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  return sent;
}

struct Received {
  ssize_t bytes = 0;  // 0: the other end has closed it; -1: errno says why
  int flags = 0;      // MSG_TRUNC, MSG_CTRUNC
};

/// Gives each descriptor that comes along to `take`, an Fd at a time. `flags` as for recvmsg.
template <std::size_t kMost = 1, class Take>
Received receive_with(int socket, void* data, std::size_t bytes, int flags, const Take& take) {
  iovec part{data, bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(kMost * sizeof(int))];
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  ssize_t received = 0;
  do received = ::recvmsg(socket, &header, flags | MSG_CMSG_CLOEXEC);
  while (received < 0 && errno == EINTR);
  if (received < 0) return {received, 0};
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
      take(Fd(fd));
    }
  }
  return {received, header.msg_flags};
}

}  // namespace amem
