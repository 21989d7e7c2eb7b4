#include "shim/scratch/fifos.h"

#include <algorithm>
#include <cstring>
#include <optional>

namespace amem::shim {
namespace {

constexpr std::size_t kConnection = 152;  // sizeof(ncclConnInfo)
constexpr std::size_t kPeer = 4 * kConnection;
constexpr std::size_t kReceives[] = {2 * kConnection, 3 * kConnection};
constexpr std::uint64_t kHeader = 4096;  // sizeof(ncclRecvMem)
constexpr std::uint64_t kLlLine = 16;
constexpr std::uint64_t kLl128Line = 128;
constexpr std::uint64_t kLl128Flag = 120;        // of a line
constexpr std::uint64_t kGranularity = 2 << 20;  // the driver's: a buffer may end so much later

template <class T>
T read(std::span<const std::byte> connection, std::size_t at) {
  T value{};
  std::memcpy(&value, connection.data() + at, sizeof value);
  return value;
}

std::optional<Fifo> fifo_of(std::span<const OwnBuffer> buffers,
                            std::span<const std::byte> connection) {
  const auto tail = read<std::uint64_t>(connection, 48);
  const auto found = std::lower_bound(
      buffers.begin(), buffers.end(), tail,
      [](const OwnBuffer& buffer, Address address) { return buffer.address < address; });
  if (tail == 0 || found == buffers.end() || found->address != tail) return std::nullopt;
  const auto ll = read<std::uint64_t>(connection, 0);
  const auto ll128 = read<std::uint64_t>(connection, 8);
  const auto simple = read<std::uint64_t>(connection, 16);
  const auto step_size = read<std::int32_t>(connection, 72);
  const std::uint64_t end = tail + found->size;
  if (ll != tail + kHeader || ll128 <= ll || simple <= ll128 || simple >= end || step_size <= 0)
    return std::nullopt;
  const std::uint64_t used = simple + Fifo::kSlots * static_cast<std::uint64_t>(step_size);
  if ((ll128 - ll) % (Fifo::kSlots * kLlLine) != 0 ||
      (simple - ll128) % (Fifo::kSlots * kLl128Line) != 0 || used > end ||
      end - used >= kGranularity)
    return std::nullopt;
  Fifo fifo;
  fifo.buffer = *found;
  fifo.ll = kHeader;
  fifo.ll_slot = (ll128 - ll) / Fifo::kSlots;
  fifo.ll128 = ll128 - tail;
  fifo.ll128_slot = (simple - ll128) / Fifo::kSlots;
  fifo.step = read<std::uint64_t>(connection, 104);
  return fifo;
}

}  // namespace

std::array<std::uint64_t, Fifo::kWords> Fifo::looks() const {
  std::array<std::uint64_t, kWords> at{};  // the first word of all is Simple's
  for (std::uint64_t i = 0; i < kSlots; ++i) {
    const std::uint64_t slot = (step + i) % kSlots;
    at[1 + i] = ll + slot * ll_slot;
    at[1 + kSlots + i] = ll128 + slot * ll128_slot + kLl128Flag;
  }
  return at;
}

bool Fifo::empty(std::span<const std::uint64_t> words) const {
  if (words[0] > step) return false;
  for (std::uint64_t i = 0; i < kSlots; ++i) {
    // Half of LL's line: data, and then the flag.
    const std::uint64_t flag = step + i + 1;
    if (words[1 + i] >> 32U == static_cast<std::uint32_t>(flag)) return false;
    if (words[1 + kSlots + i] == flag) return false;
  }
  return true;
}

std::vector<Fifo> find_fifos(std::span<const OwnBuffer> buffers, std::span<const std::byte> bytes) {
  std::vector<Fifo> fifos;
  for (; bytes.size() >= kPeer; bytes = bytes.subspan(kPeer))
    for (const std::size_t at : kReceives)
      if (auto fifo = fifo_of(buffers, bytes.subspan(at, kConnection))) fifos.push_back(*fifo);
  return fifos;
}

}  // namespace amem::shim
