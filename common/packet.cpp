#include "common/packet.h"

#include <pb_decode.h>
#include <pb_encode.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "common/descriptors.h"
#include "common/protocol.h"

namespace amem {
namespace {

constexpr std::size_t kMaxFds = kMaxMapsPerMessage;
constexpr std::size_t kMaxBytes = amem_v1_SessionMessage_size;

/// For the bytes of any message. Not on the stack, for the same reason as new_message().
using Buffer = std::unique_ptr<pb_byte_t[]>;
Buffer new_buffer() { return std::make_unique_for_overwrite<pb_byte_t[]>(kMaxBytes); }

/// The decoder writes whatever number has come, and to read one that the enum cannot have is
/// undefined: it becomes the enum's zero.
template <typename Enum>
void zero_unknown(Enum& value, Enum largest) {
  std::uint32_t number = 0;
  static_assert(sizeof number == sizeof value);
  std::memcpy(&number, &value, sizeof number);
  if (number > static_cast<std::uint32_t>(largest)) value = Enum{};
}

/// All enums that a rank sends.
void zero_unknown_enums(Message& message) {
  switch (message.which_body) {
    case amem_v1_SessionMessage_create_tag:
      return zero_unknown(message.body.create.policy, _amem_v1_RegionPolicy_MAX);
    case amem_v1_SessionMessage_set_policy_tag:
      return zero_unknown(message.body.set_policy.policy, _amem_v1_RegionPolicy_MAX);
    case amem_v1_SessionMessage_pin_tag:
      return zero_unknown(message.body.pin.reason, _amem_v1_PinReason_MAX);
    case amem_v1_SessionMessage_unpin_tag:
      return zero_unknown(message.body.unpin.reason, _amem_v1_PinReason_MAX);
    case amem_v1_SessionMessage_group_request_tag:
      zero_unknown(message.body.group_request.guests, _amem_v1_GuestRule_MAX);
      return zero_unknown(message.body.group_request.op, _amem_v1_GroupOp_MAX);
    case amem_v1_SessionMessage_unknown_calls_tag:
      for (amem_v1_UnknownCalls_Call& call : message.body.unknown_calls.calls)
        zero_unknown(call.fate, _amem_v1_UnknownCalls_Fate_MAX);
      return;
    default:
      return;
  }
}

}  // namespace

std::unique_ptr<Message> new_message(pb_size_t body) {
  auto message = std::make_unique<Message>();
  message->which_body = body;
  return message;
}

Result<std::string> encode(const Message& message) {
  // Not in the string itself: it may wait in a queue, and would keep space for the largest message.
  const Buffer buffer = new_buffer();
  pb_ostream_t stream = pb_ostream_from_buffer(buffer.get(), kMaxBytes);
  if (!pb_encode(&stream, amem_v1_SessionMessage_fields, &message))
    return Status(Code::kInternal,
                  std::string("cannot encode a session message: ") + PB_GET_ERROR(&stream));
  return std::string(reinterpret_cast<const char*>(buffer.get()), stream.bytes_written);
}

Status send_encoded(int socket, const std::string& bytes, const std::vector<int>& fds) {
  if (fds.size() > kMaxFds) return {Code::kInternal, "too many descriptors for one packet"};
  if (send_with<kMaxFds>(socket, bytes.data(), bytes.size(), fds.data(), fds.size()) >= 0)
    return {};
  // ETOOMANYREFS: more descriptors in flight than the user may have; receivers make space.
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ETOOMANYREFS)
    return {Code::kResourceExhausted, "the session socket is full"};
  if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN)
    return {Code::kUnavailable, "the session's peer has closed it"};
  return errno_status(Code::kInternal, "sendmsg on a session", errno);
}

Status send_message(int socket, const Message& message, const std::vector<int>& fds) {
  Result<std::string> bytes = encode(message);
  if (!bytes.ok()) return bytes.status();
  return send_encoded(socket, bytes.value(), fds);
}

Status receive(int socket, int flags, Packet& packet) {
  packet.fds.clear();
  const Buffer buffer = new_buffer();
  const auto [n, seen] = receive_with<kMaxFds>(socket, buffer.get(), kMaxBytes, flags,
                                               [&](Fd fd) { packet.fds.push_back(std::move(fd)); });
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
    return {Code::kResourceExhausted, "no packet is waiting"};
  if (n == 0 || (n < 0 && errno == ECONNRESET))
    return {Code::kUnavailable, "the session's peer has closed it"};
  if (n < 0) return errno_status(Code::kInternal, "recvmsg on a session", errno);

  // This process has no space for all the descriptors. Whoever needs them sees that they are
  // missing.
  if ((seen & MSG_CTRUNC) != 0) packet.fds.clear();
  if ((seen & MSG_TRUNC) != 0) {
    packet.fds.clear();
    return {Code::kInvalidArgument, "a session packet is larger than the protocol allows"};
  }
  pb_istream_t stream = pb_istream_from_buffer(buffer.get(), static_cast<std::size_t>(n));
  if (!pb_decode(&stream, amem_v1_SessionMessage_fields, &packet.message)) {
    packet.fds.clear();
    return {Code::kInvalidArgument,
            std::string("a session packet does not decode: ") + PB_GET_ERROR(&stream)};
  }
  zero_unknown_enums(packet.message);
  return {};
}

}  // namespace amem
