// What the workload's memory holds, as pure functions: any rank can compute what any other rank's
// memory must hold.
#pragma once

#include <cstddef>
#include <cstdint>

namespace amem::workload {

/// Names an allocation among all ranks: the owner's rank number and the owner's number for it.
struct AllocationKey {
  int owner = 0;
  std::uint64_t id = 0;

  friend bool operator==(const AllocationKey&, const AllocationKey&) = default;
  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 sees a 0 in it
  friend auto operator<=>(const AllocationKey&, const AllocationKey&) = default;
};

/// What an allocation is for, told by its number.
enum class Content {
  kStamped,  // a buffer of the job: a body that stays, a stamp that every collective round rewrites
  kPlain,    // allocated by command: a body only
  kCommunicator,  // flags and contributions of a communicator's collectives
};

inline constexpr std::uint64_t kFirstPlainId = std::uint64_t{1} << 32U;
inline constexpr std::uint64_t kFirstCommunicatorId = std::uint64_t{1} << 33U;

constexpr Content ContentOf(std::uint64_t id) {
  if (id >= kFirstCommunicatorId) return Content::kCommunicator;
  return id >= kFirstPlainId ? Content::kPlain : Content::kStamped;
}

/// Which of `communicators` uses the allocation.
constexpr unsigned CommunicatorOf(std::uint64_t id, unsigned communicators) {
  return static_cast<unsigned>(
      (ContentOf(id) == Content::kCommunicator ? id - kFirstCommunicatorId : id) % communicators);
}

/// The first words of a stamped allocation, rewritten by each collective round, checked by every
/// peer in the next.
inline constexpr std::size_t kStampWords = 8;

/// splitmix64's finaliser: every input bit reaches every output bit.
constexpr std::uint64_t Mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31U);
}

constexpr std::uint64_t Seed(const AllocationKey& key, std::uint64_t generation) {
  return Mix(Mix(static_cast<std::uint64_t>(key.owner) + 1) ^ Mix(key.id ^ 0x5eedU) ^
             Mix(generation));
}

/// Word `index` of an allocation's body.
constexpr std::uint64_t BodyWord(std::uint64_t seed, std::size_t index) {
  return Mix(seed + index);
}

/// Whether word `index` lies in one of the blocks of 64 KiB that are zero, `percent` of them.
constexpr bool IsZeroBlock(std::uint64_t seed, std::size_t index, unsigned percent) {
  constexpr std::size_t kBlockWords = std::size_t{64} * 1024 / sizeof(std::uint64_t);
  return percent > 0 && Mix(seed ^ Mix(index / kBlockWords)) % 100 < percent;
}

/// Word `index` of the stamp that round `round` leaves.
constexpr std::uint64_t StampWord(const AllocationKey& key, std::uint64_t round,
                                  std::size_t index) {
  return Mix(Seed(key, ~std::uint64_t{0}) ^ Mix(round) ^ index);
}

/// Word `index` of a rank's contribution to a communicator's collectives before the first round.
constexpr std::uint64_t InitialWord(int rank, unsigned communicator, std::size_t index) {
  return Mix((static_cast<std::uint64_t>(rank) << 40U) ^
             (static_cast<std::uint64_t>(communicator) << 20U) ^ index ^ 0xc0117ec7U);
}

/// What a rank makes of the sum of all ranks' words: the next round's contribution.
constexpr std::uint64_t ReducedWord(std::uint64_t sum, int rank, std::size_t index) {
  return Mix(sum + static_cast<std::uint64_t>(rank) * 0x100000001b3U + index);
}

}  // namespace amem::workload
