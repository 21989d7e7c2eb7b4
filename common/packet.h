// Packets of the session protocol: one SessionMessage and its descriptors, on a SOCK_SEQPACKET Unix
// socket.
//
// Stateless functions over a descriptor that the caller owns. Sending from several threads at once
// is fine (the kernel keeps packets whole); receiving is for one thread at a time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "amem/v1/session.pb.h"
#include "common/fd.h"
#include "common/status.h"

namespace amem {

using Message = amem_v1_SessionMessage;

struct Packet {
  Message message = amem_v1_SessionMessage_init_zero;
  std::vector<Fd> fds;  // owned by the receiver
};

/// A message of this kind with nothing in it. Not on the stack: it has 20 KiB, and a rank sends
/// from threads of its program, which may have little.
std::unique_ptr<Message> new_message(pb_size_t body);

/// Encodes for sending later; takes no more memory than the bytes need. Fails only on a message
/// that breaks session.options.
Result<std::string> encode(const Message& message);

/// Sends an encoded message with descriptors, which stay the caller's.
/// kUnavailable: the peer is gone. kResourceExhausted: the socket is full and non-blocking; try
/// again when writable.
Status send_encoded(int socket, const std::string& bytes, const std::vector<int>& fds);

/// encode, then send_encoded.
Status send_message(int socket, const Message& message, const std::vector<int>& fds = {});

/// Receives one packet. `flags` as for recvmsg, e.g. MSG_DONTWAIT.
/// kUnavailable: the peer is gone. kResourceExhausted: nothing there (non-blocking).
/// kInvalidArgument: the packet is not a SessionMessage, or is too large; its descriptors are
/// closed and the next packet can be read. An enum with an unknown number becomes its zero.
Status receive(int socket, int flags, Packet& packet);

/// Copies text into one of nanopb's fixed char arrays, cut to fit (at a character border of UTF-8),
/// terminated.
template <std::size_t N>
void set_text(char (&field)[N], const std::string& text) {
  std::size_t n = text.size() < N ? text.size() : N - 1;
  while (n > 0 && n < text.size() && (static_cast<unsigned char>(text[n]) & 0xc0U) == 0x80U) --n;
  text.copy(field, n);
  field[n] = '\0';
}

}  // namespace amem
