// What a slab may be used by, and which space in it nothing is in.
#include <gtest/gtest.h>

#include <vector>

#include "shim/blocks/slab_book.h"
#include "tests/unit/fixtures/texts_and_sizes.h"

namespace amem::shim {
namespace {

constexpr Address kSlab = 0x7f00'0000'0000;

Slab slab_of(std::uint64_t size) {
  Slab slab;
  slab.address = kSlab;
  slab.size = size;
  slab.id = 7;
  return slab;
}

CUmemAccessDesc desc(int device, CUmemAccess_flags flags) {
  return {{CU_MEM_LOCATION_TYPE_DEVICE, {device}}, flags};
}

constexpr auto kNone = CU_MEM_ACCESS_FLAGS_PROT_NONE;
constexpr auto kRead = CU_MEM_ACCESS_FLAGS_PROT_READ;
constexpr auto kReadWrite = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

TEST(ShimSlabBook, ASlabGetsWhatIsMoreThanItHas) {
  SlabBook book;
  book.add(slab_of(kMiB));
  const auto grant = [&](int device, CUmemAccess_flags flags) {
    const CUmemAccessDesc asked = desc(device, flags);
    const auto fresh = SlabBook::fresh(*book.slab_at(kSlab), &asked, 1);
    book.grant(kSlab, fresh);
    return !fresh.empty();
  };
  EXPECT_FALSE(grant(0, kNone));
  EXPECT_TRUE(grant(0, kReadWrite));
  EXPECT_FALSE(grant(0, kReadWrite));
  EXPECT_FALSE(grant(0, kRead)) << "other buffers are written to";
  EXPECT_TRUE(grant(1, kRead));
  EXPECT_FALSE(grant(1, kRead));
  EXPECT_TRUE(grant(1, kReadWrite));
  EXPECT_FALSE(grant(1, kRead));
  EXPECT_FALSE(grant(1, kNone));
  EXPECT_EQ(book.slab_at(kSlab)->access.size(), 2U);
}

TEST(ShimSlabBook, SpaceThatNoBufferIsInOfOurOwnSlabs) {
  SlabBook book;
  Slab own = slab_of(4 * kMiB);
  book.add(own);
  Slab imported = slab_of(4 * kMiB);
  imported.address += 4 * kMiB;
  imported.id = 8;
  imported.imported = true;
  book.add(imported);
  std::vector<Address> buffers;
  for (int i = 0; i < 4; ++i)
    buffers.push_back(*book.take(own.pool, kMiB, [](const Slab&) { return true; }));
  EXPECT_TRUE(book.unused(1).empty());
  EXPECT_FALSE(book.give(buffers[0], true));
  EXPECT_FALSE(book.give(buffers[2], false));
  EXPECT_FALSE(book.give(buffers[3], false));
  const Gaps unused = book.unused(1);
  ASSERT_EQ(unused.size(), 1U);
  const std::vector<Gap>& gaps = unused.at(7);
  ASSERT_EQ(gaps.size(), 2U);
  EXPECT_EQ(gaps[0].offset, 0U);
  EXPECT_EQ(gaps[0].size, kMiB);
  EXPECT_EQ(gaps[1].offset, 2 * kMiB);
  EXPECT_EQ(gaps[1].size, 2 * kMiB);
}

}  // namespace
}  // namespace amem::shim
