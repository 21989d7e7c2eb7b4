#include "daemon/memory/allocations.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/fixtures/some_device.h"

namespace amem {
namespace {

constexpr GroupId kTrain = 1;
constexpr GroupId kRollout = 2;

Token token(std::uint8_t n) {
  Token t{};
  t.fill(n);
  return t;
}

SharedFd some_fd() {
  return std::make_shared<const Fd>(::memfd_create("allocations_test", MFD_CLOEXEC));
}

class AllocationsTest : public ::testing::Test {
 protected:
  Allocation& make(RankId owner, std::uint64_t size, GroupId group = kTrain,
                   const std::string& tag = "nccl", std::uint8_t dev = 0) {
    Allocation a;
    a.group = group;
    a.size = size;
    a.device = some_device(dev);
    a.tag = tag;
    a.token = token(static_cast<std::uint8_t>(owner));
    a.sharers = {owner};
    a.fd = some_fd();
    return table.add(std::move(a));
  }

  Allocations table;
};

TEST_F(AllocationsTest, IdsGrowAndAreNeverReused) {
  const AllocationId first = make(1, 10).id;
  EXPECT_NE(first, 0U);
  ASSERT_TRUE(table.free(first, 1).ok());
  EXPECT_GT(make(1, 10).id, first);
}

TEST_F(AllocationsTest, LookupsByGroupRankDeviceAndTag) {
  make(1, 10, kTrain, "nccl", 0);
  make(1, 20, kTrain, "weights", 1);
  make(2, 30, kTrain, "nccl", 1);
  make(3, 40, kRollout, "nccl", 1);
  auto count = [&](const Allocations::Filter& filter) { return table.select(filter).size(); };
  EXPECT_EQ(table.of_group(kTrain).size(), 3U);
  EXPECT_EQ(count([](const Allocation& a) { return a.shared_by(1); }), 2U);
  EXPECT_EQ(count([](const Allocation& a) { return a.device == some_device(1); }), 3U);
  EXPECT_EQ(count([](const Allocation& a) { return a.tag == "weights"; }), 1U);
  EXPECT_EQ(table.of_group(kTrain).front()->size, 10U) << "oldest first";
}

TEST_F(AllocationsTest, SumsFollowWhateverHappens) {
  const auto sums = [&](const std::string& tag, std::uint8_t dev = 0) {
    const SumsByDevice& all = table.sums(kTrain);
    const auto device = all.find(some_device(dev));
    if (device == all.end() || !device->second.contains(tag)) return TagSums();
    return device->second.find(tag)->second;
  };
  Allocation& a = make(1, 10, kTrain, "weights");
  make(1, 20, kTrain, "weights");
  make(1, 40, kTrain, "cache", 1);
  EXPECT_EQ(sums("weights"), (TagSums{30, 30, 30, 30}));
  EXPECT_EQ(sums("cache", 1), (TagSums{40, 40, 40, 40}));
  ASSERT_TRUE(table.pin(a.id, {1, PinReason::kNic}).ok());
  ASSERT_TRUE(table.pin(a.id, {1, PinReason::kNic}).ok()) << "once more is the same";
  EXPECT_EQ(sums("weights"), (TagSums{30, 30, 20, 20}));
  ASSERT_TRUE(table.unpin(a.id, {1, PinReason::kNic}).ok());
  ASSERT_TRUE(table.open(a.id, a.token, {9, kRollout, false}).ok());
  EXPECT_EQ(sums("weights"), (TagSums{30, 30, 30, 20}));
  table.move(a, [&] {
    a.paused = true;
    a.fd = nullptr;
  });
  EXPECT_EQ(sums("weights"), (TagSums{30, 20, 20, 20}));
  ASSERT_TRUE(table.free(a.id, 1).ok());
  EXPECT_EQ(sums("weights"), (TagSums{20, 20, 20, 20})) << "its guest has it, and it is nobody's";
  EXPECT_EQ(table.sums(kNoGroup).at(some_device(0)).at("weights").all, 10U);
  table.drop_rank(9);
  EXPECT_TRUE(table.sums(kNoGroup).empty());
  table.drop_rank(1);
  EXPECT_TRUE(table.sums(kTrain).empty());
}

TEST_F(AllocationsTest, SharersFollowEachOtherAsKeeper) {
  Allocation& a = make(1, 10);
  const AllocationId id = a.id;
  ASSERT_TRUE(table.redeem(id, token(1), kTrain, 5).ok());
  ASSERT_TRUE(table.redeem(id, token(1), kTrain, 3).ok());
  ASSERT_TRUE(table.redeem(id, token(1), kTrain, 5).ok()) << "once more is no second hold";
  EXPECT_EQ(a.sharers, (std::vector<RankId>{1, 5, 3}));
  EXPECT_EQ(a.keeper(), 1U);
  auto freed = table.free(id, 1);
  ASSERT_TRUE(freed.ok());
  EXPECT_FALSE(freed.value().has_value());
  EXPECT_EQ(a.keeper(), 5U);
  EXPECT_TRUE(table.drop_rank(5).empty());
  EXPECT_EQ(a.keeper(), 3U);
  freed = table.free(id, 3);
  ASSERT_TRUE(freed.ok());
  ASSERT_TRUE(freed.value().has_value());
  EXPECT_EQ(freed.value()->id, id);
  EXPECT_EQ(table.find(id), nullptr);
}

TEST_F(AllocationsTest, TheDescriptorClosesWithTheLastSharer) {
  const AllocationId id = make(1, 10).id;
  const int fd = table.find(id)->fd->get();
  EXPECT_GE(::fcntl(fd, F_GETFD), 0);
  { auto orphan = table.free(id, 1); }
  EXPECT_LT(::fcntl(fd, F_GETFD), 0);
}

TEST_F(AllocationsTest, RedeemChecksGroupAndToken) {
  const AllocationId id = make(1, 10).id;
  EXPECT_EQ(table.redeem(id, token(1), kRollout, 9).status().code(), Code::kPermissionDenied);
  EXPECT_EQ(table.redeem(id, token(2), kTrain, 2).status().code(), Code::kPermissionDenied);
  EXPECT_EQ(table.redeem(id + 1, token(1), kTrain, 2).status().code(), Code::kNotFound);
  EXPECT_EQ(table.find(id)->sharers.size(), 1U);
}

TEST_F(AllocationsTest, FreeOfWhatIsNotHeldIsAnError) {
  const AllocationId id = make(1, 10).id;
  EXPECT_EQ(table.free(id, 2).status().code(), Code::kNotFound);
  EXPECT_EQ(table.free(id + 7, 1).status().code(), Code::kNotFound);
  ASSERT_TRUE(table.free(id, 1).ok());
  EXPECT_EQ(table.free(id, 1).status().code(), Code::kNotFound);
}

TEST_F(AllocationsTest, PinsGoWithTheirRank) {
  Allocation& a = make(1, 10);
  ASSERT_TRUE(table.redeem(a.id, token(1), kTrain, 2).ok());
  EXPECT_EQ(table.pin(a.id, {3}).code(), Code::kNotFound);
  ASSERT_TRUE(table.pin(a.id, {2}).ok());
  ASSERT_TRUE(table.pin(a.id, {2}).ok());
  EXPECT_TRUE(a.pinned());
  EXPECT_TRUE(a.pinned_by(2));
  EXPECT_FALSE(a.pinned_by(1));
  table.drop_rank(2);
  EXPECT_FALSE(a.pinned());
}

TEST_F(AllocationsTest, EachReasonToPinGoesByItself) {
  Allocation& a = make(1, 10);
  ASSERT_TRUE(table.redeem(a.id, token(1), kTrain, 2).ok());
  ASSERT_TRUE(table.pin(a.id, {1, PinReason::kNic}).ok());
  ASSERT_TRUE(table.pin(a.id, {1, PinReason::kDmaBuf}).ok());
  ASSERT_TRUE(table.pin(a.id, {2, PinReason::kNic}).ok());
  EXPECT_EQ(table.unpin(a.id, {2, PinReason::kDmaBuf}).code(), Code::kNotFound);
  EXPECT_EQ(table.unpin(a.id, {3, PinReason::kNic}).code(), Code::kNotFound);
  ASSERT_TRUE(table.unpin(a.id, {1, PinReason::kNic}).ok());
  EXPECT_TRUE(a.pinned_by(1)) << "a dma-buf of it is still there";
  EXPECT_TRUE(a.pinned_by(2)) << "another rank's NIC";
  ASSERT_TRUE(table.unpin(a.id, {2, PinReason::kNic}).ok());
  EXPECT_FALSE(a.pinned_by(2));
  ASSERT_TRUE(table.unpin(a.id, {1, PinReason::kDmaBuf}).ok());
  EXPECT_FALSE(a.pinned());
}

TEST_F(AllocationsTest, DropRankReturnsWhatNobodyHolds) {
  make(1, 10);
  Allocation& shared = make(1, 20);
  make(2, 30);
  ASSERT_TRUE(table.redeem(shared.id, token(1), kTrain, 2).ok());
  const std::vector<Allocation> orphans = table.drop_rank(1);
  ASSERT_EQ(orphans.size(), 1U);
  EXPECT_EQ(orphans.front().size, 10U);
  EXPECT_EQ(table.size(), 2U);
}

TEST_F(AllocationsTest, Accounting) {
  make(1, 10);
  Allocation& saved = make(1, 20);
  saved.fd.reset();
  saved.saved.extents = {{0, 0, 32}};
  Allocation& dropped = make(2, 40);
  dropped.fd.reset();
  Allocation& pinned = make(2, 80);
  ASSERT_TRUE(table.pin(pinned.id, {2}).ok());
  make(3, 160, kRollout);
  const Usage usage = table.usage([](const Allocation& a) { return a.group == kTrain; });
  EXPECT_EQ(usage.count, 4U);
  EXPECT_EQ(usage.allocated, 150U);
  EXPECT_EQ(usage.resident, 90U);
  EXPECT_EQ(usage.saved, 20U);
  EXPECT_EQ(usage.pinned, 80U);
}

TEST_F(AllocationsTest, WhatComesBackIsRedeemedOnceItIsLoaded) {
  Allocation& a = make(1, 4096);
  a.paused = true;  // its descriptor is there already: a resume has created it
  EXPECT_EQ(table.redeem(a.id, token(1), kTrain, 2).status().code(), Code::kFailedPrecondition);
  EXPECT_FALSE(a.shared_by(2));
  EXPECT_TRUE(table.redeem(a.id, token(1), kTrain, 2, true).ok());
}

TEST_F(AllocationsTest, WhatStayedPausedDoesNotLeaveAgain) {
  Allocation& a = make(1, 4096);
  EXPECT_TRUE(a.can_leave());
  ASSERT_TRUE(table.pin(a.id, {1}).ok());
  EXPECT_FALSE(a.can_leave());
  a.paused = a.stayed = true;
  a.pinners.clear();  // who pinned it has gone
  EXPECT_FALSE(a.can_leave()) << "its keeper has let go of it and could not save it";
  EXPECT_TRUE(table.redeem(a.id, token(1), kTrain, 2).ok()) << "it is on its device";
}

TEST_F(AllocationsTest, WhatAPieceDoesNotNeedIsLeft) {
  constexpr std::uint64_t kChunk = 64;
  Allocation& a = make(1, 1000);
  a.saved.extents = {{0, 0, 512}, {1, 0, 512}};
  EXPECT_EQ(a.saved_bytes(), 1000U);
  Extents left;
  ASSERT_TRUE(a.store({512, 65, Form::kSparse, 0}, kChunk, left));
  EXPECT_EQ(left, (Extents{{1, 128, 384}}));
  EXPECT_EQ(a.saved.extents, (Extents{{0, 0, 512}, {1, 0, 128}}));
  EXPECT_EQ(a.saved_bytes(), 512 + 65U);
  ASSERT_TRUE(a.store({0, 512, Form::kDense, 9}, kChunk, left)) << "only a checksum";
  EXPECT_EQ(left.size(), 1U);
  const std::vector<Stored> pieces = a.pieces();
  ASSERT_EQ(pieces.size(), 2U);
  EXPECT_EQ(pieces[0].checksum, 9U);
  EXPECT_EQ(pieces[1].length, 488U);
  EXPECT_EQ(pieces[1].form, Form::kSparse);
}

TEST_F(AllocationsTest, APieceWithAShortPlaceFitsOnceItIsSparse) {
  constexpr std::uint64_t kChunk = 64;
  Allocation& a = make(1, 1000);
  EXPECT_TRUE(a.fits());
  a.saved.extents = {{0, 0, 128}, {1, 0, 256}};
  a.saved.pieces = {{800, 128, Form::kDense, 0}, {200, 200, Form::kDense, 0}};
  EXPECT_EQ(a.saved_bytes(), 328U);
  EXPECT_FALSE(a.fits());
  Extents left;
  EXPECT_FALSE(a.store({0, 800, Form::kDense, 5}, kChunk, left)) << "there is no space for that";
  EXPECT_FALSE(a.store({0, 129, Form::kSparse, 0}, kChunk, left)) << "nor for that";
  ASSERT_TRUE(a.store({0, 60, Form::kSparse, 0}, kChunk, left));
  EXPECT_EQ(left, (Extents{{0, 64, 64}})) << "it has become less";
  EXPECT_TRUE(a.fits());
  ASSERT_TRUE(a.store({800, 200, Form::kDense, 7}, kChunk, left));
  EXPECT_EQ(a.saved_bytes(), 260U);
}

TEST_F(AllocationsTest, PiecesThatCannotBe) {
  Allocation& a = make(1, 1000);
  a.saved.extents = {{0, 0, 512}, {1, 0, 512}};
  Extents left;
  EXPECT_FALSE(a.store({100, 64, Form::kSparse, 0}, 64, left)) << "no piece begins there";
  EXPECT_FALSE(a.store({1000, 64, Form::kSparse, 0}, 64, left)) << "behind the end";
  EXPECT_FALSE(a.store({0, 512, Form::kSparse, 0}, 64, left)) << "not shorter";
  EXPECT_FALSE(a.store({0, 0, Form::kSparse, 0}, 64, left)) << "not even an index";
  EXPECT_FALSE(a.store({512, 480, Form::kDense, 0}, 64, left)) << "not all of it";
  ASSERT_TRUE(a.store({0, 64, Form::kSparse, 0}, 64, left));
  EXPECT_FALSE(a.store({0, 64, Form::kSparse, 0}, 64, left)) << "told before";
  EXPECT_EQ(left.size(), 1U);
}

// ---- guests -------------------------------------------------------------------------------------

TEST_F(AllocationsTest, AGuestKeepsItOnItsDeviceUntilItCloses) {
  Allocation& a = make(1, 10);
  ASSERT_TRUE(table.open(a.id, token(1), {7, kRollout}).ok());
  ASSERT_TRUE(table.open(a.id, token(1), {7, kRollout}).ok()) << "once more is no second guest";
  EXPECT_EQ(a.guests, (std::vector<Guest>{{7, kRollout, false}}));
  EXPECT_EQ(a.sharers, (std::vector<RankId>{1})) << "a guest holds nothing";
  EXPECT_FALSE(a.can_leave());
  EXPECT_TRUE(a.may_leave());
  EXPECT_EQ(table.usage(kRollout, [](const Allocation&) { return true; }).allocated, 0U);
  EXPECT_EQ(table.opened_by(7), (std::vector<Allocation*>{&a}));
  table.set_paused(7, true);
  EXPECT_TRUE(a.guests.front().paused);
  EXPECT_FALSE(a.can_leave()) << "a guest that is paused keeps it, too";
  const auto freed = table.free(a.id, 7);
  ASSERT_TRUE(freed.ok());
  EXPECT_FALSE(freed.value().has_value());
  EXPECT_TRUE(a.can_leave());
  EXPECT_TRUE(table.opened_by(7).empty());
  EXPECT_EQ(table.free(a.id, 7).status().code(), Code::kNotFound);
}

TEST_F(AllocationsTest, ATicketOfAGuestIsChecked) {
  Allocation& a = make(1, 10);
  EXPECT_EQ(table.open(a.id, token(9), {7, kRollout}).status().code(), Code::kPermissionDenied);
  EXPECT_EQ(table.open(a.id + 1, token(1), {7, kRollout}).status().code(), Code::kNotFound);
  a.paused = true;
  EXPECT_EQ(table.open(a.id, token(1), {7, kRollout}).status().code(), Code::kFailedPrecondition)
      << "it is coming back without its bytes";
  EXPECT_TRUE(table.open(a.id, token(1), {7, kRollout}, true).ok());
  a.stayed = true;
  EXPECT_TRUE(table.open(a.id, token(1), {8, kRollout}).ok()) << "its bytes are in place";
  a.fd.reset();
  EXPECT_EQ(table.open(a.id, token(1), {9, kRollout}).status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(a.guests.size(), 2U);
}

TEST_F(AllocationsTest, WhatItsGroupHasFreedIsNobodysUntilTheLastGuestCloses) {
  const AllocationId id = make(1, 10).id;
  const Allocation* a = table.find(id);
  make(1, 10);
  ASSERT_TRUE(table.redeem(id, token(1), kTrain, 2).ok());
  ASSERT_TRUE(table.open(id, token(1), {7, kRollout}).ok());
  ASSERT_TRUE(table.open(id, token(1), {8, kRollout}).ok());
  const int fd = a->fd->get();
  ASSERT_TRUE(table.free(id, 1).ok());
  EXPECT_EQ(a->group, kTrain) << "the other sharer has it";
  EXPECT_TRUE(table.drop_rank(2).empty());
  EXPECT_EQ(table.find(id), a) << "references stay valid";
  EXPECT_EQ(a->group, kNoGroup);
  EXPECT_EQ(table.of_group(kTrain).size(), 1U);
  EXPECT_EQ(table.redeem(id, token(1), kTrain, 3).status().code(), Code::kPermissionDenied);
  EXPECT_EQ(table.open(id, token(1), {9, kRollout}).status().code(), Code::kNotFound)
      << "to newcomers it is freed";
  EXPECT_TRUE(table.open(id, token(1), {8, kRollout}).ok()) << "not to who has it open";
  auto freed = table.free(id, 8);
  ASSERT_TRUE(freed.ok());
  EXPECT_FALSE(freed.value().has_value());
  EXPECT_GE(::fcntl(fd, F_GETFD), 0);
  EXPECT_EQ(table.drop_rank(7).size(), 1U) << "the last one; it closes as it goes";
  EXPECT_LT(::fcntl(fd, F_GETFD), 0);
  EXPECT_EQ(table.find(id), nullptr);
  EXPECT_EQ(table.size(), 1U);
}

TEST_F(AllocationsTest, ARankThatEndsLetsGoOfAllThatItHasOpened) {
  Allocation& a = make(1, 10);
  Allocation& b = make(2, 10, kTrain);
  for (const Allocation* each : {&a, &b})
    ASSERT_TRUE(table.open(each->id, each->token, {7, kRollout}).ok());
  make(7, 10, kRollout);
  EXPECT_EQ(table.drop_rank(7).size(), 1U) << "its own";
  EXPECT_FALSE(a.opened() || b.opened());
  EXPECT_EQ(table.size(), 2U);
}

TEST_F(AllocationsTest, TheLastRankOfAGroupEndsWhileOthersHaveItsMemoryOpen) {
  Allocation& a = make(1, 10);
  make(1, 20);
  ASSERT_TRUE(table.open(a.id, token(1), {7, kRollout}).ok());
  EXPECT_EQ(table.drop_rank(1).size(), 1U) << "what nobody has open";
  EXPECT_TRUE(table.of_group(kTrain).empty());
  EXPECT_EQ(a.group, kNoGroup);
  EXPECT_EQ(table.opened_by(7).size(), 1U);
  EXPECT_EQ(table.drop_rank(7).size(), 1U);
  EXPECT_EQ(table.size(), 0U);
}

TEST_F(AllocationsTest, SomeAreTheOldestFromAnIdOn) {
  for (RankId rank = 1; rank <= 3; ++rank)
    for (int i = 0; i < 4; ++i) make(rank, 10, rank);
  const auto but_two = [](GroupId group) { return group != 2; };
  std::vector<AllocationId> seen;
  for (AllocationId next = 0;;) {
    const auto part = table.some(but_two, next, 3);
    if (part.empty()) break;
    EXPECT_LE(part.size(), 3U);
    for (const Allocation* a : part) seen.push_back(a->id);
    next = seen.back() + 1;
  }
  EXPECT_EQ(seen, (std::vector<AllocationId>{1, 2, 3, 4, 9, 10, 11, 12}));
}

TEST_F(AllocationsTest, ARankThatGoesIsLookedForInItsOwnOnly) {
  constexpr RankId kRanks = 500;
  constexpr int kEach = 100;
  for (RankId rank = 1; rank <= kRanks; ++rank)
    for (int i = 0; i < kEach; ++i) {
      Allocation a;
      a.group = kTrain;
      a.size = 10;
      a.sharers = {rank};
      table.add(std::move(a));
    }
  const auto begun = std::chrono::steady_clock::now();
  for (RankId rank = 1; rank <= kRanks; ++rank) EXPECT_EQ(table.drop_rank(rank).size(), kEach);
  // A walk over everything for each takes a minute.
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(5));
  EXPECT_EQ(table.size(), 0U);
}

TEST_F(AllocationsTest, HeldByIsWhatARankHolds) {
  const AllocationId own = make(1, 10).id;
  const AllocationId other = make(2, 10).id;
  ASSERT_TRUE(table.redeem(other, token(2), kTrain, 1).ok());
  EXPECT_EQ(std::as_const(table).shared_by(1).size(), 2U);
  ASSERT_TRUE(table.free(own, 1).ok());
  ASSERT_EQ(std::as_const(table).shared_by(1).size(), 1U);
  EXPECT_EQ(std::as_const(table).shared_by(1).front()->id, other);
  EXPECT_TRUE(table.drop_rank(2).empty());
  EXPECT_EQ(table.drop_rank(1).size(), 1U);
  EXPECT_TRUE(std::as_const(table).shared_by(1).empty());
}

TEST_F(AllocationsTest, AGroupsMemoryHasSoManyTags) {
  std::vector<AllocationId> ids;
  for (std::size_t i = 0; i < Allocations::kMostTags; ++i) {
    EXPECT_FALSE(table.too_many_tags(kTrain, "new"));
    ids.push_back(make(1, 10, kTrain, "kv_" + std::to_string(i)).id);
  }
  EXPECT_TRUE(table.too_many_tags(kTrain, "new"));
  EXPECT_FALSE(table.too_many_tags(kTrain, "kv_7")) << "it is there";
  EXPECT_FALSE(table.too_many_tags(kRollout, "new"));
  make(1, 10, kTrain, "kv_0");
  ASSERT_TRUE(table.free(ids[0], 1).ok());
  EXPECT_TRUE(table.too_many_tags(kTrain, "new")) << "one is left of that tag";
  ASSERT_TRUE(table.free(ids[1], 1).ok());
  EXPECT_FALSE(table.too_many_tags(kTrain, "new"));
}

}  // namespace
}  // namespace amem
