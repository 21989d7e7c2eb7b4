#include "shim/session/connection.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "common/trusted_broker.h"
#include "common/version.h"

namespace amem::shim {
namespace {

constexpr std::chrono::seconds kHelloDeadline{10};

void set_timeout(int socket, int option, std::chrono::microseconds timeout) {
  const timeval value{timeout.count() / 1'000'000, timeout.count() % 1'000'000};
  ::setsockopt(socket, SOL_SOCKET, option, &value, sizeof value);
}

std::unique_ptr<Message> hello_of(const RankIdentity& identity, const Comeback* comeback) {
  auto hello = new_message(amem_v1_SessionMessage_hello_tag);
  hello->seq = 1;
  amem_v1_Hello& h = hello->body.hello;
  h.protocol = kProtocolVersion;
  set_text(h.version, kVersion);
  set_text(h.group, identity.group);
  set_text(h.job, identity.job);
  set_text(h.program, identity.program);
  set_text(h.stage, identity.stage);
  h.unmaps_segments = true;
  h.rank = identity.rank;
  h.pid = ::getpid();
  // LocalDevices has no more than that.
  for (const DeviceUuid& device :
       std::span(identity.devices).first(std::min(identity.devices.size(), kMaxDevices)))
    std::memcpy(h.devices[h.devices_count++], device.bytes.data(), device.bytes.size());
  if (comeback != nullptr) {
    std::memcpy(h.session, comeback->key.data(), comeback->key.size());
    h.gate_shut = comeback->gate_shut;
  }
  return hello;
}

Status send_items(int socket, std::span<const amem_v1_Inventory_Item> items) {
  const auto message = new_message(amem_v1_SessionMessage_inventory_tag);
  amem_v1_Inventory& inventory = message->body.inventory;
  do {
    const auto part = items.first(std::min(items.size(), kMaxItemsPerInventory));
    std::copy(part.begin(), part.end(), inventory.items);
    inventory.items_count = static_cast<pb_size_t>(part.size());
    items = items.subspan(part.size());
    inventory.last = items.empty();
    if (Status s = send_message(socket, *message); !s.ok()) return s;
  } while (!items.empty());
  return {};
}

}  // namespace

Status NewSocket::connect(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return {Code::kInvalidArgument, "the socket path " + path + " is too long"};
  path.copy(address.sun_path, path.size());
  fd_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd_) return errno_status(Code::kUnavailable, "socket", errno);
  number_.store(fd_.get());
  set_timeout(get(), SO_SNDTIMEO, kHelloDeadline);  // also where too many wait to connect
  int connected = 0;
  do connected = ::connect(get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  while (connected != 0 && errno == EINTR);
  if (connected != 0)
    return errno_status(Code::kUnavailable, "connecting to the broker at " + path, errno);
  return check_broker(get(), path);
}

Fd NewSocket::take() {
  number_.store(-1);
  return std::move(fd_);
}

Result<amem_v1_Welcome> say_hello(int socket, const std::string& path, const RankIdentity& identity,
                                  const Comeback* comeback) {
  const std::string where = "the broker at " + path;
  set_timeout(socket, SO_RCVTIMEO, kHelloDeadline);
  Status sent = send_message(socket, *hello_of(identity, comeback));
  if (sent.ok() && comeback != nullptr) sent = send_items(socket, comeback->items);
  // One that refuses may have closed its end with some of that unread. Its answer is here even so,
  // behind the error that the kernel makes of it.
  const auto answer = std::make_unique<Packet>();  // as new_message()
  Status received = receive(socket, 0, *answer);
  if (received.code() == Code::kUnavailable) received = receive(socket, 0, *answer);
  if (!received.ok() && !sent.ok() && sent.code() != Code::kUnavailable) return sent;
  if (received.code() == Code::kUnavailable)
    return Status(Code::kAborted, where + " ended before it answered");
  if (received.code() == Code::kResourceExhausted)
    return Status(Code::kDeadlineExceeded, where + " did not answer in 10 s");
  if (!received.ok()) return received;
  if (::fcntl(socket, F_SETFL, O_NONBLOCK) != 0)
    return errno_status(Code::kUnavailable, "fcntl on a session", errno);
  if (answer->message.which_body != amem_v1_SessionMessage_reply_tag)
    return Status(Code::kInternal, where + " answered Hello with another message");
  const amem_v1_Reply& reply = answer->message.body.reply;
  if (reply.code != 0) return Status(static_cast<Code>(reply.code), reply.text);
  if (reply.which_result != amem_v1_Reply_welcome_tag)
    return Status(Code::kInternal, where + " sent no Welcome");
  return reply.result.welcome;
}

}  // namespace amem::shim
