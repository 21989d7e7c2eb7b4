#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "shim/copies/block_hashes.h"

namespace amem::shim {
namespace {

using block_hash::Hash;
constexpr std::uint64_t kBlock = sparse::kBlock;

Hash taken(std::uint64_t value) { return {value, 1ULL << 63}; }

SavedPlace place(std::uint64_t id, std::uint64_t offset = 0) {
  return {id, offset, 2 * kBlock, 3, offset};
}

TEST(ChangedTest, RunsAreAsLongAsTheyCanBe) {
  const std::vector<Hash> before = {taken(1), taken(2), taken(3), taken(4), taken(5)};
  EXPECT_TRUE(changed(before, before, 5 * kBlock).empty());
  std::vector<Hash> now = before;
  now[1] = now[2] = taken(9);
  now[4] = taken(9);
  EXPECT_EQ(changed(before, now, 4 * kBlock + 16),
            (std::vector<ByteRun>{{kBlock, 2 * kBlock}, {4 * kBlock, 16}}));
}

TEST(ChangedTest, AHashThatWasNotTakenIsEqualToNone) {
  const std::vector<Hash> none = {Hash{0, 0}};
  EXPECT_EQ(changed(none, none, kBlock), (std::vector<ByteRun>{{0, kBlock}}));
  EXPECT_EQ(changed({taken(1)}, none, kBlock), (std::vector<ByteRun>{{0, kBlock}}));
}

TEST(BlockHashesTest, AreOfOneSaveAndOnePlace) {
  BlockHashes hashes;
  hashes.set(place(1), 5, {taken(1), taken(2)});
  ASSERT_NE(hashes.find(place(1), 5), nullptr);
  EXPECT_EQ(hashes.find(place(1), 4), nullptr) << "another save's bytes are there";
  EXPECT_EQ(hashes.find(place(2), 5), nullptr);
  for (const auto& change : std::vector<std::function<void(SavedPlace&)>>{
           [](SavedPlace& at) { at.segment = 4; }, [](SavedPlace& at) { at.segment_offset = 8; },
           [](SavedPlace& at) { at.length = kBlock; }, [](SavedPlace& at) { at.offset = 8; }}) {
    SavedPlace other = place(1);
    change(other);
    EXPECT_EQ(hashes.find(other, 5), nullptr);
  }
}

TEST(BlockHashesTest, WhatMayBeOverwrittenHasNone) {
  BlockHashes hashes;
  hashes.set(place(1), 5, {taken(1)});
  hashes.set(place(1, 2 * kBlock), 5, {taken(2)});
  hashes.drop(1, 0);
  hashes.drop(7, 0);
  EXPECT_EQ(hashes.find(place(1), 5), nullptr);
  EXPECT_NE(hashes.find(place(1, 2 * kBlock), 5), nullptr);
}

TEST(BlockHashesTest, ALaterSaveEndsThoseOfAnEarlierOne) {
  BlockHashes hashes;
  hashes.set(place(1), 5, {taken(1)});
  hashes.set(place(1, 2 * kBlock), 5, {taken(2)});
  hashes.set(place(1), 6, {taken(3)});
  EXPECT_EQ(hashes.find(place(1), 5), nullptr);
  EXPECT_EQ(hashes.find(place(1, 2 * kBlock), 5), nullptr);
  EXPECT_EQ(hashes.of(place(1, 2 * kBlock)), nullptr);
  EXPECT_EQ(*hashes.find(place(1), 6), (std::vector<Hash>{taken(3)}));
}

TEST(BlockHashesTest, OfAllocationsThatHaveGoneNothingIsKept) {
  BlockHashes hashes;
  for (const std::uint64_t id : {1U, 2U, 3U}) hashes.set(place(id), 5, {taken(id)});
  hashes.drop_others([](std::uint64_t id) { return id != 2; });
  EXPECT_NE(hashes.find(place(1), 5), nullptr);
  EXPECT_EQ(hashes.find(place(2), 5), nullptr);
  hashes.clear();
  EXPECT_EQ(hashes.find(place(1), 5), nullptr);
}

}  // namespace
}  // namespace amem::shim
