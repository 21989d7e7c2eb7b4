#include "common/packet.h"

#include <pb_decode.h>
#include <pb_encode.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>

#include "common/protocol.h"

namespace amem {
namespace {

constexpr std::size_t kMaxFds = kMaxMapsPerMessage;

}  // namespace

Result<std::string> encode(const Message& message) {
  // Not in the string itself: it may wait in a queue, and would keep room for the largest message.
  pb_byte_t buffer[amem_v1_SessionMessage_size];
  pb_ostream_t stream = pb_ostream_from_buffer(buffer, sizeof buffer);
  if (!pb_encode(&stream, amem_v1_SessionMessage_fields, &message))
    return Status(Code::kInternal,
                  std::string("cannot encode a session message: ") + PB_GET_ERROR(&stream));
  return std::string(reinterpret_cast<const char*>(buffer), stream.bytes_written);
}

Status send_encoded(int socket, const std::string& bytes, const std::vector<int>& fds) {
  if (fds.size() > kMaxFds) return {Code::kInternal, "too many descriptors for one packet"};
  iovec iov{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr header{};
  header.msg_iov = &iov;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
  if (!fds.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
  }
  for (;;) {
    if (::sendmsg(socket, &header, MSG_NOSIGNAL) >= 0) return {};
    if (errno == EINTR) continue;
    // ETOOMANYREFS: more descriptors in flight than the user may have; receivers make room.
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ETOOMANYREFS)
      return {Code::kResourceExhausted, "the session socket is full"};
    if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN)
      return {Code::kUnavailable, "the session's peer has closed it"};
    return errno_status(Code::kInternal, "sendmsg on a session", errno);
  }
}

Status send_message(int socket, const Message& message, const std::vector<int>& fds) {
  Result<std::string> bytes = encode(message);
  if (!bytes.ok()) return bytes.status();
  return send_encoded(socket, bytes.value(), fds);
}

Status receive(int socket, int flags, Packet& packet) {
  packet.fds.clear();
  packet.message = amem_v1_SessionMessage_init_zero;
  alignas(8) pb_byte_t buffer[amem_v1_SessionMessage_size];
  iovec iov{buffer, sizeof buffer};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))];
  msghdr header{};
  header.msg_iov = &iov;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;

  ssize_t n = 0;
  do n = ::recvmsg(socket, &header, flags | MSG_CMSG_CLOEXEC);
  while (n < 0 && errno == EINTR);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
    return {Code::kResourceExhausted, "no packet is waiting"};
  if (n == 0 || (n < 0 && errno == ECONNRESET))
    return {Code::kUnavailable, "the session's peer has closed it"};
  if (n < 0) return errno_status(Code::kInternal, "recvmsg on a session", errno);

  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
      packet.fds.emplace_back(fd);
    }
  }
  // This process has no room for all the descriptors. Whoever needs them sees that they are
  // missing.
  if ((header.msg_flags & MSG_CTRUNC) != 0) packet.fds.clear();
  if ((header.msg_flags & MSG_TRUNC) != 0) {
    packet.fds.clear();
    return {Code::kInvalidArgument, "a session packet is larger than the protocol allows"};
  }
  pb_istream_t stream = pb_istream_from_buffer(buffer, static_cast<std::size_t>(n));
  if (!pb_decode(&stream, amem_v1_SessionMessage_fields, &packet.message)) {
    packet.fds.clear();
    return {Code::kInvalidArgument,
            std::string("a session packet does not decode: ") + PB_GET_ERROR(&stream)};
  }
  return {};
}

}  // namespace amem
