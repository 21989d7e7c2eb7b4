#include "daemon/plans/guests.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

namespace amem {
namespace {

constexpr GroupId kTrain = 1;
constexpr GroupId kRollout = 2;

class GuestsPlanTest : public ::testing::Test {
 protected:
  Allocation& make(const std::vector<RankId>& guests, std::uint64_t size,
                   const std::string& tag = "weights") {
    Allocation a;
    a.group = kTrain;
    a.size = size;
    a.tag = tag;
    a.sharers = {1};
    a.fd = std::make_shared<const Fd>(::memfd_create("guests_test", MFD_CLOEXEC));
    Allocation& added = table.add(std::move(a));
    for (const RankId guest : guests) EXPECT_TRUE(table.open(added.id, {}, {guest, kRollout}).ok());
    return added;
  }
  static std::vector<std::tuple<RankId, std::string, std::uint64_t, std::uint64_t>> sums(
      const std::vector<GuestUse>& uses) {
    std::vector<std::tuple<RankId, std::string, std::uint64_t, std::uint64_t>> list;
    for (const GuestUse& use : uses)
      list.emplace_back(use.guest.rank, use.tag, use.count, use.bytes);
    return list;
  }

  Allocations table;
};

TEST_F(GuestsPlanTest, UsesAreAddedUpByGuestAndTag) {
  make({8, 9}, 100);
  make({8}, 20);
  make({8}, 3, "kv_cache");
  make({}, 1000);
  using Sums = std::vector<std::tuple<RankId, std::string, std::uint64_t, std::uint64_t>>;
  EXPECT_EQ(sums(guests_of(table, kTrain)),
            (Sums{{8, "kv_cache", 1, 3}, {8, "weights", 2, 120}, {9, "weights", 1, 100}}));
  EXPECT_EQ(sums(guests_of(table, kTrain, [](const Allocation& a) { return a.tag == "kv_cache"; })),
            (Sums{{8, "kv_cache", 1, 3}}));
  EXPECT_TRUE(guests_of(table, kRollout).empty());
  EXPECT_EQ(sums(opened_by(table, 9)), (Sums{{9, "weights", 1, 100}}));
  EXPECT_TRUE(opened_by(table, 1).empty()) << "a sharer is no guest";
}

TEST_F(GuestsPlanTest, NothingOfWhatIsOpenedIsSavedOrCountedAsNeeded) {
  make({8}, 100);
  const Allocation& free = make({}, 50);
  const auto saved = to_save(table, kTrain, {}, [](const Allocation&) { return true; });
  ASSERT_EQ(saved.size(), 1U);
  EXPECT_EQ(saved.front(), &free);
  EXPECT_TRUE(needs(table, {kRollout}, {}).empty());
  EXPECT_TRUE(to_bring_back(table, kRollout, {}).empty());
}

TEST_F(GuestsPlanTest, AResumeMapsWhatItsRanksHaveLetGoOf) {
  const Allocation& both = make({8, 9}, 100);
  table.set_paused(8, true);
  const Allocation& later = make({8}, 20);  // after the pause
  Plan plan;
  add_opened(table, {8, 9}, plan);
  ASSERT_EQ(plan.size(), 1U) << "9 has let go of nothing";
  EXPECT_EQ(plan.at(8).maps, (std::vector<const Allocation*>{&both}));
  EXPECT_TRUE(plan.at(8).copies.empty()) << "nothing is loaded";
  table.set_paused(8, false);
  plan.clear();
  add_opened(table, {8, 9}, plan);
  EXPECT_TRUE(plan.empty());
  EXPECT_EQ(later.guests.size(), 1U);
}

TEST_F(GuestsPlanTest, AResumeHasNoPolicyForThem) {
  make({8}, 100);
  EXPECT_TRUE(check_tags(table, kTrain, {Operation::kPause, {}, {}, GuestPolicy::kRefuse}).ok());
  EXPECT_EQ(check_tags(table, kTrain, {Operation::kResume, {}, {}, GuestPolicy::kPin}).code(),
            Code::kInvalidArgument);
}

TEST_F(GuestsPlanTest, TheOwnersResumeAsksNothingOfGuests) {
  Allocation& a = make({8}, 100);
  a.paused = a.stayed = true;
  std::vector<const Allocation*> slice;
  for (const Creation::Item& item : to_bring_back(table, kTrain, {})) {
    EXPECT_EQ(item.needed, 0U) << "it never left";
    slice.push_back(table.find(item.id));
  }
  const Plan plan = plan_load(slice);
  ASSERT_EQ(plan.size(), 1U);
  EXPECT_EQ(plan.at(1).maps.size(), 1U);
  EXPECT_TRUE(plan.at(1).copies.empty()) << "its bytes are in place";
  EXPECT_TRUE(plan_peers(table, kTrain, {}, {{a.id, 1}}).empty());
}

}  // namespace
}  // namespace amem
