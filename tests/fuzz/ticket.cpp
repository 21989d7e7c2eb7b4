// Tickets and IPC handles, as a peer gives them: a descriptor of any kind, and 64 bytes.
// Input: a byte that chooses the kind of file and its seals, then its bytes.
#include "common/ticket.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>

#include "tests/world/check.h"

namespace amem::fuzz {
namespace {

using world::require;

constexpr int kSeals[] = {F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE};
constexpr int kAllSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

/// Memory with the bytes, and with a seal for each of the lower bits of `choice`.
Fd sealed_file(std::uint8_t choice, const std::uint8_t* data, std::size_t size, int& seals) {
  Fd file(::memfd_create("fuzz-ticket", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  require(::write(file.get(), data, size) == static_cast<ssize_t>(size), "the file is written");
  seals = 0;
  for (std::size_t i = 0; i < std::size(kSeals); ++i)
    if ((unsigned{choice} >> i & 1U) != 0) seals |= kSeals[i];
  require(::fcntl(file.get(), F_ADD_SEALS, seals) == 0, "the file is sealed");
  return file;
}

void read_as_bytes(const std::uint8_t* data, std::size_t size) {
  TicketBytes bytes{};
  std::copy_n(data, std::min(size, bytes.size()), bytes.begin());
  const std::optional<Ticket> ticket = unpack(bytes);
  const std::optional<IpcHandle> handle = unpack_ipc_handle(bytes);
  require(!ticket || !handle, "nothing is a ticket and an IPC handle");
  if (ticket) require(ticket->id != 0 && unpack(pack(*ticket)) == ticket, "a ticket stays itself");
  if (handle) require(unpack_ipc_handle(pack(*handle)) == handle, "an IPC handle stays itself");
}

void read_as_file(std::uint8_t choice, const std::uint8_t* data, std::size_t size) {
  int seals = 0;
  const Fd file = sealed_file(choice, data, size, seals);
  const off_t place = ::lseek(file.get(), 0, SEEK_CUR);
  const std::optional<Ticket> ticket = read_ticket(file.get());
  require(::lseek(file.get(), 0, SEEK_CUR) == place, "reading does not move the file");
  if (!ticket) return;
  require(size == kTicketBytes && seals == kAllSeals,
          "a ticket has its size, and nobody can change it");
  Result<Fd> again = make_ticket(*ticket);
  require(again.ok() && read_ticket(again.value().get()) == ticket, "a ticket can be passed on");
}

void read_as_strange_file(std::uint8_t choice) {
  const Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  int ends[2] = {-1, -1};
  require(::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0, "a pipe is made");
  const Fd reader(ends[0]);
  const Fd writer(ends[1]);
  const int strange[] = {null.get(), reader.get(), writer.get(), -1};
  require(!read_ticket(strange[choice % std::size(strange)]), "only memory holds a ticket");
}

}  // namespace
}  // namespace amem::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::uint8_t choice = data[0];
  amem::fuzz::read_as_bytes(data + 1, size - 1);
  if ((choice & 0x80U) == 0)
    amem::fuzz::read_as_file(choice, data + 1, size - 1);
  else
    amem::fuzz::read_as_strange_file(choice);
  return 0;
}
