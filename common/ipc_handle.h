// IpcHandle: what a rank passes to a peer as the CUipcMemHandle of brokered memory.
//
// The driver gives no such handle for mapped memory; ours holds a ticket in the same 64 bytes. Its
// offset and size are those of the program's own piece of memory within the allocation. Nothing
// protects the bytes from change: the broker checks the token, the importer the bounds. Pure; any
// thread.
#pragma once

#include <cstdint>
#include <optional>

#include "common/ticket.h"

namespace amem {

struct IpcHandle {
  Ticket ticket;
  std::int32_t owner_pid = 0;  // for messages only

  friend bool operator==(const IpcHandle&, const IpcHandle&) = default;
};

using IpcHandleBytes = TicketBytes;

/// A ticket's bytes, but for the magic, with the pid where a ticket has zeros.
IpcHandleBytes pack(const IpcHandle& handle);
/// Nothing when the bytes are another handle, the driver's for example.
std::optional<IpcHandle> unpack_ipc_handle(const IpcHandleBytes& bytes);

}  // namespace amem
