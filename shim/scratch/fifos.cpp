#include "shim/scratch/fifos.h"

#include <algorithm>
#include <cstring>
#include <optional>

namespace amem::shim {
namespace {

constexpr std::size_t kConnection = 152;  // sizeof(ncclConnInfo)
constexpr std::size_t kPeer = 4 * kConnection;
constexpr std::size_t kReceives[] = {2 * kConnection, 3 * kConnection};
constexpr std::uint64_t kHeader = 4096;          // sizeof(ncclRecvMem)
constexpr std::uint64_t kLine = 128;             // of LL128
constexpr std::uint64_t kGranularity = 2 << 20;  // the driver's: a buffer may end so much later

template <class T>
T read(std::span<const std::byte> connection, std::size_t at) {
  T value{};
  std::memcpy(&value, connection.data() + at, sizeof value);
  return value;
}

std::optional<Fifo> fifo_of(std::span<const OwnPiece> buffers,
                            std::span<const std::byte> connection) {
  const auto tail = read<std::uint64_t>(connection, 48);
  const auto found = std::lower_bound(
      buffers.begin(), buffers.end(), tail,
      [](const OwnPiece& buffer, Address address) { return buffer.address < address; });
  if (tail == 0 || found == buffers.end() || found->address != tail) return std::nullopt;
  const auto ll = read<std::uint64_t>(connection, 0);
  const auto ll128 = read<std::uint64_t>(connection, 8);
  const auto simple = read<std::uint64_t>(connection, 16);
  const auto step_size = read<std::int32_t>(connection, 72);
  const std::uint64_t end = tail + found->size;
  if (ll != tail + kHeader || ll128 <= ll || simple <= ll128 || simple >= end || step_size <= 0)
    return std::nullopt;
  const std::uint64_t slot = (simple - ll128) / Fifo::kSlots;
  const std::uint64_t used = simple + Fifo::kSlots * static_cast<std::uint64_t>(step_size);
  if ((simple - ll128) % Fifo::kSlots != 0 || slot % kLine != 0 || used > end ||
      end - used >= kGranularity)
    return std::nullopt;
  Fifo fifo;
  fifo.piece = *found;
  fifo.kept = ll128 - tail;
  fifo.slot = slot;
  fifo.step = read<std::uint64_t>(connection, 104);
  return fifo;
}

}  // namespace

std::vector<Fifo> find_fifos(std::span<const OwnPiece> buffers, std::span<const std::byte> bytes) {
  std::vector<Fifo> fifos;
  for (; bytes.size() >= kPeer; bytes = bytes.subspan(kPeer))
    for (const std::size_t at : kReceives)
      if (auto fifo = fifo_of(buffers, bytes.subspan(at, kConnection))) fifos.push_back(*fifo);
  return fifos;
}

}  // namespace amem::shim
