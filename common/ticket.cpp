#include "common/ticket.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace amem {
namespace {

constexpr std::array<std::uint8_t, 8> kMagic = {'a', 'm', 'e', 'm', 't', 'k', 't', '\n'};
constexpr std::array<std::uint8_t, 8> kIpcMagic = {'a', 'm', 'e', 'm', 'i', 'p', 'c', '\n'};
constexpr std::uint32_t kVersion = 1;
constexpr int kSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

// Byte offsets of the fields.
constexpr std::size_t kVersionAt = 8;
constexpr std::size_t kPidAt = 12;  // of an IPC handle
constexpr std::size_t kIdAt = 16;
constexpr std::size_t kOffsetAt = 24;
constexpr std::size_t kSizeAt = 32;
constexpr std::size_t kTokenAt = 40;
constexpr std::size_t kOwnerRankAt = 56;
constexpr std::size_t kOwnerNumberAt = 60;

template <class T>
void put(TicketBytes& bytes, std::size_t at, T value) {
  for (std::size_t i = 0; i < sizeof value; ++i)
    bytes[at + i] = static_cast<std::uint8_t>(value >> (8 * i));
}

template <class T>
T get(const TicketBytes& bytes, std::size_t at) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof value; ++i) value |= static_cast<T>(bytes[at + i]) << (8 * i);
  return value;
}

}  // namespace

TicketBytes pack(const Ticket& ticket) {
  TicketBytes bytes{};
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  put(bytes, kVersionAt, kVersion);
  put(bytes, kIdAt, ticket.id);
  put(bytes, kOffsetAt, ticket.offset);
  put(bytes, kSizeAt, ticket.size);
  std::memcpy(&bytes[kTokenAt], ticket.token.data(), ticket.token.size());
  put(bytes, kOwnerRankAt, static_cast<std::uint32_t>(ticket.owner_rank));
  put(bytes, kOwnerNumberAt, ticket.owner_number);
  return bytes;
}

std::optional<Ticket> unpack(const TicketBytes& bytes) {
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) return std::nullopt;
  if (get<std::uint32_t>(bytes, kVersionAt) != kVersion) return std::nullopt;
  Ticket ticket;
  ticket.id = get<std::uint64_t>(bytes, kIdAt);
  ticket.offset = get<std::uint64_t>(bytes, kOffsetAt);
  ticket.size = get<std::uint64_t>(bytes, kSizeAt);
  std::memcpy(ticket.token.data(), &bytes[kTokenAt], ticket.token.size());
  ticket.owner_rank = static_cast<std::int32_t>(get<std::uint32_t>(bytes, kOwnerRankAt));
  ticket.owner_number = get<std::uint32_t>(bytes, kOwnerNumberAt);
  if (ticket.id == 0) return std::nullopt;
  return ticket;
}

Result<Fd> make_ticket(const Ticket& ticket) {
  Fd fd(::memfd_create("amem-ticket", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return errno_status(Code::kResourceExhausted, "memfd_create for a ticket", errno);
  const TicketBytes bytes = pack(ticket);
  if (::write(fd.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()) ||
      ::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0)
    return errno_status(Code::kInternal, "writing a ticket", errno);
  return fd;
}

std::optional<Ticket> read_ticket(int fd) {
  // F_GET_SEALS fails on everything but a memfd, so a stranger's descriptor is not even read.
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) return std::nullopt;
  TicketBytes bytes{};
  struct stat st {};
  if (::fstat(fd, &st) != 0 || st.st_size != static_cast<off_t>(bytes.size())) return std::nullopt;
  if (::pread(fd, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    return std::nullopt;
  return unpack(bytes);
}

IpcHandleBytes pack(const IpcHandle& handle) {
  IpcHandleBytes bytes = pack(handle.ticket);
  std::copy(kIpcMagic.begin(), kIpcMagic.end(), bytes.begin());
  put(bytes, kPidAt, static_cast<std::uint32_t>(handle.owner_pid));
  return bytes;
}

std::optional<IpcHandle> unpack_ipc_handle(const IpcHandleBytes& bytes) {
  if (!std::equal(kIpcMagic.begin(), kIpcMagic.end(), bytes.begin())) return std::nullopt;
  // The rest is read as a ticket: under a ticket's magic.
  TicketBytes as_ticket = bytes;
  const TicketBytes empty = pack(Ticket{});
  std::copy_n(empty.begin(), kIpcMagic.size(), as_ticket.begin());
  const std::optional<Ticket> ticket = unpack(as_ticket);
  if (!ticket) return std::nullopt;
  return IpcHandle{*ticket, static_cast<std::int32_t>(get<std::uint32_t>(bytes, kPidAt))};
}

}  // namespace amem
