// How NCCL's buffers fill slabs: the rows are those that NCCL 2.28.9 was seen to make on H200s.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

#include "shim/blocks/slab_sizes.h"
#include "tests/unit/fixtures/texts_and_sizes.h"

namespace amem::shim {
namespace {

constexpr std::uint64_t kUnit = 2 * kMiB;
constexpr std::uint64_t kMost = 384 * kMiB;
constexpr std::uint64_t kReceive = 10 * kMiB;
constexpr std::uint64_t kSend = 1944ULL << 10U;

SlabSizes::Pool pool_for(std::uint64_t size) {
  return {0, {"nccl", {}}, true, SlabSizes::buffer_of(size)};
}

/// Slabs that are filled first fit, and of each who maps it.
class Filled {
 public:
  void row(int thread, std::uint64_t buffers, std::uint64_t size, int peer) {
    for (std::uint64_t i = 0; i < buffers; ++i) buffer(thread, size, peer);
  }

  void buffer(int thread, std::uint64_t size, int peer) {
    const SlabSizes::Pool pool = pool_for(size);
    sizes_.count(pool, rows_[thread]);
    asked_ += size;
    std::vector<Slab>& slabs = slabs_[pool];
    for (Slab& slab : slabs)
      if (slab.space >= size) return take(slab, size, peer);
    const std::uint64_t bytes = sizes_.next(pool, rows_[thread], size, kUnit, kMost);
    EXPECT_EQ(bytes % kUnit, 0U);
    EXPECT_GE(bytes, size);
    sizes_.added(pool, bytes);
    made_ += bytes;
    take(slabs.emplace_back(Slab{bytes, {}}), size, peer);
  }

  std::size_t slabs() const {
    std::size_t count = 0;
    for (const auto& [pool, slabs] : slabs_) count += slabs.size();
    return count;
  }
  std::size_t mapped_by_peers() const {
    std::size_t count = 0;
    for (const auto& [pool, slabs] : slabs_)
      for (const Slab& slab : slabs) count += slab.peers.size();
    return count;
  }
  std::uint64_t left_over() const { return made_ - asked_; }

 private:
  struct Slab {
    std::uint64_t space;
    std::set<int> peers;
  };
  static void take(Slab& slab, std::uint64_t size, int peer) {
    slab.space -= size;
    slab.peers.insert(peer);
  }

  SlabSizes sizes_;
  std::map<int, SlabSizes::Row> rows_;  // by thread
  std::map<SlabSizes::Pool, std::vector<Slab>> slabs_;
  std::uint64_t asked_ = 0;
  std::uint64_t made_ = 0;
};

/// What one rank of `ranks` makes for its communicators, each of which has a thread: rings first,
/// then a connection to each peer.
void communicators(Filled& filled, int ranks, int count) {
  for (int comm = 0; comm < count; ++comm) {
    filled.row(comm, 24, kReceive, 3);
    filled.row(comm, 24, kSend, 1);
  }
  for (int comm = 0; comm < count; ++comm)
    for (int away = 1; away < ranks; ++away) {
      filled.row(comm, 32, kReceive, ranks - away);
      filled.row(comm, 32, kSend, away);
    }
}

TEST(SlabSizes, RowsOfTwoRanksFillTheirSlabs) {
  Filled filled;
  communicators(filled, 2, 4);
  EXPECT_LE(filled.left_over(), 24 * kMiB);
  EXPECT_LE(filled.slabs(), 20U);
}

TEST(SlabSizes, APeerMapsFewSlabsThatAreForOthersToo) {
  for (const int count : {4, 20}) {
    Filled filled;
    communicators(filled, 4, count);
    EXPECT_LE(filled.left_over(), 48 * kMiB) << count;
    EXPECT_LE(filled.slabs(), count == 4 ? 33U : 140U) << count;
    EXPECT_LE(filled.mapped_by_peers(), filled.slabs() * 4 / 3) << count;
  }
}

TEST(SlabSizes, WithoutRowsAQuarterOfWhatIsThere) {
  Filled filled;
  for (int i = 0; i < 200; ++i) {
    filled.buffer(0, 10 * kMiB, 0);
    filled.buffer(0, 2 * kMiB, 0);
  }
  EXPECT_LE(filled.left_over(), 600 * kMiB);
  EXPECT_LE(filled.slabs(), 50U);
}

TEST(SlabSizes, SmallBuffersShareSlabsWhateverTheirSize) {
  Filled filled;
  for (int i = 0; i < 100; ++i) {
    filled.buffer(0, 4096, 0);
    filled.buffer(0, 24576, 0);
  }
  EXPECT_LE(filled.slabs(), 2U);
}

TEST(SlabSizes, ARowThatIsTooLongForOneSlabIsCutEvenly) {
  SlabSizes sizes;
  SlabSizes::Row row;
  const auto pool = pool_for(10 * kMiB);
  SlabSizes::Row another;
  for (int i = 0; i < 33; ++i) sizes.count(pool, row);
  sizes.added(pool, 10 * kMiB);
  sizes.count(pool, another);
  EXPECT_EQ(sizes.next(pool, another, 10 * kMiB, kUnit, 256 * kMiB), 160 * kMiB);
  EXPECT_EQ(sizes.next(pool, another, 10 * kMiB, kUnit, 8 * kMiB), 10 * kMiB);
}

TEST(SlabSizes, ABufferThatIsNoMultipleOfTheUnit) {
  SlabSizes sizes;
  SlabSizes::Row row;
  const auto pool = pool_for(3 * kMiB);
  sizes.count(pool, row);
  EXPECT_EQ(sizes.next(pool, row, 3 * kMiB, kUnit, 8 * kMiB), 4 * kMiB);
}

TEST(SlabSizes, TheFirstSlabOfAKindIsAThirdOfTheLargestAtMost) {
  const std::map<std::uint64_t, std::uint64_t> kFirst = {{1, 8},    {10, 80},   {30, 120},
                                                         {64, 128}, {100, 100}, {500, 500}};
  for (const auto& [buffer, first] : kFirst) {
    SlabSizes sizes;
    SlabSizes::Row row;
    const auto pool = pool_for(buffer * kMiB);
    sizes.count(pool, row);
    EXPECT_EQ(sizes.next(pool, row, buffer * kMiB, kUnit, kMost), first * kMiB);
  }
}

TEST(SlabSizes, ShortRowsShareASlabAndLongOnesDoNot) {
  const std::map<std::uint64_t, std::uint64_t> kAfterMany = {{2, 96}, {4, 96}, {10, 240}};
  for (const auto& [buffer, slab] : kAfterMany) {
    SlabSizes sizes;
    SlabSizes::Row row;
    SlabSizes::Row another;
    const auto pool = pool_for(buffer * kMiB);
    for (int i = 0; i < 25; ++i) sizes.count(pool, row);
    sizes.added(pool, 1024 * kMiB);
    sizes.count(pool, another);
    EXPECT_EQ(sizes.next(pool, another, buffer * kMiB, kUnit, kMost), slab * kMiB);
  }
}

TEST(SlabSizes, ARowThatHasBegunGetsTheRestOfIt) {
  SlabSizes sizes;
  SlabSizes::Row row;
  SlabSizes::Row another;
  const auto pool = pool_for(kReceive);
  for (int i = 0; i < 25; ++i) sizes.count(pool, row);
  sizes.added(pool, 240 * kMiB);
  for (int i = 0; i < 9; ++i) sizes.count(pool, another);
  EXPECT_EQ(sizes.next(pool, another, kReceive, kUnit, kMost), 160 * kMiB);
}

}  // namespace
}  // namespace amem::shim
