// Unix sockets of the rendezvous directory: names shorter than the paths they stand for, packets
// with one descriptor.
//
// Stateless functions; descriptors are owned by the caller (common/fd.h). All throw Failure.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "common/fd.h"

namespace amem::workload {

using Clock = std::chrono::steady_clock;

/// Listens on DIRECTORY/name. SOCK_SEQPACKET: a packet is a message.
Fd ListenAt(const std::string& directory, const std::string& name);

/// Connects to DIRECTORY/name; keeps trying until the deadline when nobody listens there yet.
Fd ConnectTo(const std::string& directory, const std::string& name, Clock::time_point deadline);

/// Sends one packet, with a descriptor unless it is negative. False: the peer is gone.
bool SendPacket(int socket, const void* data, std::size_t bytes, int descriptor);

/// Receives one packet of exactly this size and the descriptor that came with it. False: the peer
/// is gone. Throws when the packet has another size or the deadline (none when null) passes.
bool ReceivePacket(int socket, void* data, std::size_t bytes, Fd* descriptor,
                   const Clock::time_point* deadline);

}  // namespace amem::workload
