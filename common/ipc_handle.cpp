#include "common/ipc_handle.h"

#include <algorithm>

namespace amem {
namespace {

constexpr std::array<std::uint8_t, 8> kMagic = {'a', 'm', 'e', 'm', 'i', 'p', 'c', '\n'};
constexpr std::size_t kPidAt = 12;

}  // namespace

IpcHandleBytes pack(const IpcHandle& handle) {
  IpcHandleBytes bytes = pack(handle.ticket);
  std::copy(kMagic.begin(), kMagic.end(), bytes.begin());
  const auto pid = static_cast<std::uint32_t>(handle.owner_pid);
  for (std::size_t i = 0; i < sizeof pid; ++i)
    bytes[kPidAt + i] = static_cast<std::uint8_t>(pid >> (8 * i));
  return bytes;
}

std::optional<IpcHandle> unpack_ipc_handle(const IpcHandleBytes& bytes) {
  if (!std::equal(kMagic.begin(), kMagic.end(), bytes.begin())) return std::nullopt;
  // The rest is read as a ticket: under a ticket's magic.
  TicketBytes as_ticket = bytes;
  const TicketBytes empty = pack(Ticket{});
  std::copy_n(empty.begin(), kMagic.size(), as_ticket.begin());
  const std::optional<Ticket> ticket = unpack(as_ticket);
  if (!ticket) return std::nullopt;
  IpcHandle handle{*ticket, 0};
  std::uint32_t pid = 0;
  for (std::size_t i = 0; i < sizeof pid; ++i)
    pid |= static_cast<std::uint32_t>(bytes[kPidAt + i]) << (8 * i);
  handle.owner_pid = static_cast<std::int32_t>(pid);
  return handle;
}

}  // namespace amem
