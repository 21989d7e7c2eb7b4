#include <gtest/gtest.h>

#include "common/protocol.h"
#include "shim/blocks/parts.h"
#include "tests/unit/fixtures/texts_and_sizes.h"

namespace amem::shim {
namespace {

constexpr std::uint64_t kGiB = 1U << 30U, kH200 = 141 * kGiB;

TEST(PartsTest, LargeBlocksOfAllProgramsHavePartsOfOneSize) {
  for (const std::uint64_t size : {512 * kMiB, 700 * kMiB, 3 * kGiB, 32 * kGiB})
    EXPECT_EQ(part_of(size, kH200), 256 * kMiB) << size;
}

TEST(PartsTest, ASmallerBlockIsOneAllocation) {
  EXPECT_EQ(part_of(512 * kMiB - 1, kH200), 0);
  EXPECT_EQ(part_of(1, kH200), 0);
}

TEST(PartsTest, NoBlockHasMoreThanAnAnswerGives) {
  EXPECT_EQ(part_of(32 * kGiB + 1, kH200), 512 * kMiB);
  for (std::uint64_t size = kGiB; size < 140 * kGiB; size += 777 * kMiB) {
    const std::uint64_t part = part_of(size, kH200);
    EXPECT_LE((size + part - 1) / part, kMaxMapsPerMessage) << size;
  }
}

TEST(PartsTest, ASmallDeviceHasSmallParts) {
  EXPECT_EQ(part_of(10 * kGiB, 16 * kGiB), 256 * kMiB);
  EXPECT_EQ(part_of(4 * kGiB, 8 * kGiB), 128 * kMiB);
  EXPECT_EQ(part_of(8 * kMiB, 96 * kMiB), 2 * kMiB) << "the driver's unit";
  EXPECT_EQ(part_of(8 * kMiB, 0), 2 * kMiB) << "nobody knows how large it is";
}

}  // namespace
}  // namespace amem::shim
