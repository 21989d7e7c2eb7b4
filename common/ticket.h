// Ticket: what a rank passes to a peer instead of a CUDA file descriptor (docs/memory.md,
// "Tickets").
//
// A ticket is a sealed memfd of kTicketBytes: nobody can change it once made, and nothing else
// looks like it. It names an allocation and carries the token that the broker gave the owner; the
// broker checks both when it is redeemed. Stateless; any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "common/fd.h"
#include "common/protocol.h"
#include "common/status.h"

namespace amem {

struct Ticket {
  std::uint64_t id = 0;      // allocation
  std::uint64_t offset = 0;  // bytes into the allocation
  std::uint64_t size = 0;    // bytes
  Token token{};
  // For traces only: whose it is, and the owner's number for it (shim/base/log.h).
  std::int32_t owner_rank = -1;
  std::uint32_t owner_number = 0;

  /// It names a part of an allocation of so many bytes.
  bool within(std::uint64_t allocation) const {
    return size > 0 && offset <= allocation && size <= allocation - offset;
  }
  friend bool operator==(const Ticket&, const Ticket&) = default;
};

inline constexpr std::size_t kTicketBytes = 64;

using TicketBytes = std::array<std::uint8_t, kTicketBytes>;

/// The file's contents: magic, version, then the fields, little-endian, zero-padded.
TicketBytes pack(const Ticket& ticket);
/// Returns nothing if the bytes are not a ticket of a known version.
std::optional<Ticket> unpack(const TicketBytes& bytes);

/// A new sealed memfd that holds the ticket; close-on-exec.
Result<Fd> make_ticket(const Ticket& ticket);

/// The ticket that `fd` holds; nothing when it is any other kind of file. Neither moves nor changes
/// `fd`.
std::optional<Ticket> read_ticket(int fd);

/// The bytes that a rank passes to a peer as the CUipcMemHandle of brokered memory.
///
/// The driver gives no such handle for mapped memory; ours holds a ticket in the same 64 bytes. Its
/// offset and size are those of the program's own piece of memory within the allocation. Nothing
/// protects the bytes from change: the broker checks the token, the importer the bounds. Pure; any
/// thread.
struct IpcHandle {
  Ticket ticket;
  std::int32_t owner_pid = 0;  // for messages only

  friend bool operator==(const IpcHandle&, const IpcHandle&) = default;
};

using IpcHandleBytes = TicketBytes;

/// The same layout as a ticket, except for the magic, and with the pid in place of the zeros.
IpcHandleBytes pack(const IpcHandle& handle);
/// Returns nothing if the bytes are another handle, for example the driver's.
std::optional<IpcHandle> unpack_ipc_handle(const IpcHandleBytes& bytes);

}  // namespace amem
