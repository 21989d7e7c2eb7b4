#include <gtest/gtest.h>

#include "shim/memory/allocation_table.h"
#include "tests/unit/fixtures/texts_and_sizes.h"

namespace amem::shim {
namespace {

BrokeredAllocation allocation(std::uint64_t id, std::uint64_t size = 2 * kMiB) {
  BrokeredAllocation a;
  a.id = id;
  a.size = size;
  return a;
}

TEST(ShimTable, HandlesAreToldFromTheDrivers) {
  EXPECT_TRUE(AllocationTable::is_virtual(AllocationTable::handle_of(1)));
  EXPECT_EQ(AllocationTable::id_of(AllocationTable::handle_of(77)), 77U);
  EXPECT_FALSE(AllocationTable::is_virtual(0x7f05d5e00000));
  EXPECT_FALSE(AllocationTable::is_virtual(0));
}

TEST(ShimTable, AddingAgainCountsAReference) {
  AllocationTable t;
  EXPECT_EQ(t.add(allocation(1)).refs, 1U);
  EXPECT_EQ(t.add(allocation(1)).refs, 2U);
  EXPECT_EQ(t.find(2), nullptr);
}

TEST(ShimTable, CountsWhatTheProgramCannotUseAndWhatHasComeBack) {
  AllocationTable t;
  BrokeredAllocation& a = t.add(allocation(1));
  BrokeredAllocation& b = t.add(allocation(2));
  EXPECT_EQ(t.paused(), 0U);
  for (const Where where : {Where::kUnmapped, Where::kAway, Where::kArriving}) {
    t.move(a, where);
    EXPECT_EQ(t.paused(), 1U);
    t.move(a, where);
    EXPECT_EQ(t.paused(), 1U) << "it was there already";
  }
  t.move(b, Where::kUnmapped);
  EXPECT_EQ(t.paused(), 2U);
  t.move(b, Where::kHere);
  EXPECT_EQ(t.returns(), 0U) << "the pause was called off";
  t.move(a, Where::kHere);
  EXPECT_EQ(t.paused(), 0U);
  EXPECT_EQ(t.returns(), 1U);
  t.move(a, Where::kAway);
  t.forget(1);
  EXPECT_EQ(t.paused(), 0U);
}

TEST(ShimTable, ABindingKeepsMemoryAndTheDriversHandle) {
  AllocationTable t;
  BrokeredAllocation& a = t.add(allocation(1));
  a.refs = 0;
  a.bindings = 1;
  EXPECT_FALSE(AllocationTable::unused(a));
  EXPECT_TRUE(AllocationTable::needs_real(a));
  a.bindings = 0;
  t.add_mapping(1, 0x10000000);
  EXPECT_FALSE(AllocationTable::unused(a));
  EXPECT_FALSE(AllocationTable::needs_real(a));
}

TEST(ShimTable, OneAllocationAtTwoAddresses) {
  AllocationTable t;
  BrokeredAllocation& a = t.add(allocation(1));
  t.add_mapping(1, 0x10000000);
  t.add_mapping(1, 0x20000000);
  EXPECT_EQ(a.mapped_at.size(), 2U);
  a.refs = 0;
  EXPECT_FALSE(AllocationTable::unused(a));
  t.remove_mapping(0x10000000);
  EXPECT_FALSE(AllocationTable::unused(a));
  t.remove_mapping(0x20000000);
  EXPECT_TRUE(AllocationTable::unused(a));
}

TEST(ShimTable, LookupByAddress) {
  AllocationTable t;
  t.add(allocation(1));
  t.add(allocation(2, 4 * kMiB));
  t.add_mapping(1, 0x10000000);
  t.add_mapping(2, 0x10000000 + 2 * kMiB);
  EXPECT_EQ(t.mapping_at(0x10000000 - 1), nullptr);
  EXPECT_EQ(t.mapping_at(0x10000000)->id, 1U);
  EXPECT_EQ(t.mapping_at(0x10000000 + 2 * kMiB - 1)->id, 1U);
  EXPECT_EQ(t.mapping_at(0x10000000 + 2 * kMiB)->id, 2U);
  EXPECT_EQ(t.mapping_at(0x10000000 + 6 * kMiB), nullptr);

  EXPECT_EQ(t.overlapping(0x10000000, 6 * kMiB).size(), 2U);
  EXPECT_EQ(t.overlapping(0x10000000 + kMiB, 1).size(), 1U);
  EXPECT_EQ(t.overlapping(0x10000000 - kMiB, kMiB).size(), 0U);
  EXPECT_EQ(t.overlapping(0x10000000 + 6 * kMiB, kMiB).size(), 0U);
}

TEST(ShimTable, AGrantReplacesTheOneForTheSameDevice) {
  Mapping m;
  AllocationTable::grant(m, {1, 0, 3});
  AllocationTable::grant(m, {1, 1, 3});
  AllocationTable::grant(m, {1, 0, 1});
  ASSERT_EQ(m.access.size(), 2U);
  EXPECT_EQ(m.access[0], (Access{1, 0, 1}));
}

TEST(ShimTable, NeighboursWithEqualAccessAreOneRun) {
  AllocationTable t;
  std::vector<Mapping*> mapped;
  for (std::uint64_t id = 1; id <= 4; ++id) {
    t.add(allocation(id));
    // 1, 2 and 3 touch; 4 stands apart. 3 has another grant.
    const Address at = 0x10000000 + (id == 4 ? 100 : id) * 2 * kMiB;
    Mapping& m = t.add_mapping(id, at);
    AllocationTable::grant(m, {1, id == 3 ? 1 : 0, 3});
    mapped.push_back(&m);
  }
  const auto with_access = AllocationTable::runs(mapped, true);
  ASSERT_EQ(with_access.size(), 3U);
  EXPECT_EQ(with_access[0].size, 4 * kMiB);
  const auto plain = AllocationTable::runs(mapped, false);
  ASSERT_EQ(plain.size(), 2U);
  EXPECT_EQ(plain[0].size, 6 * kMiB);
  EXPECT_TRUE(plain[0].access.empty());
}

TEST(ShimTable, ARunEndsBeforeItHoldsTheDriversLockForLong) {
  constexpr std::uint64_t kHalf = AllocationTable::kLongestRun / 2;
  AllocationTable t;
  std::vector<Mapping*> mapped;
  Address at = 0x10000000;
  for (const std::uint64_t size : {kHalf, kHalf, 2 * kMiB, 3 * kHalf, 2 * kMiB}) {
    const std::uint64_t id = mapped.size() + 1;
    t.add(allocation(id, size));
    mapped.push_back(&t.add_mapping(id, at));
    at += size;
  }
  std::vector<std::uint64_t> sizes;
  for (const AllocationTable::Run& run : AllocationTable::runs(mapped, false))
    sizes.push_back(run.size);
  EXPECT_EQ(sizes, (std::vector<std::uint64_t>{2 * kHalf, 2 * kMiB, 3 * kHalf, 2 * kMiB}));
}

}  // namespace
}  // namespace amem::shim
