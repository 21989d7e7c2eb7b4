// Accounts: what is taken is given back, whichever way, and nobody gets more than its quota.
#include "daemon/owners/account.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <optional>
#include <vector>

namespace amem {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr uid_t kSomebody = 4711;

class AccountTest : public testing::Test {
 protected:
  AccountTest() {
    quotas.most[Resource::kAllocations] = 3;
    quotas.most[Resource::kDeviceBytes] = 8 << 20;
  }

  EventLoop loop;
  Quotas quotas;
};

TEST_F(AccountTest, WhatIsTakenIsGivenBackAtTheEndOfTheCharge) {
  Accounts accounts(loop, quotas);
  const auto account = accounts.of({kSomebody, {}});
  std::vector<Charge> charges;
  for (int i = 0; i < 3; ++i) {
    auto charge = account->take(Resource::kAllocations, 1);
    ASSERT_TRUE(charge.ok());
    charges.push_back(std::move(charge).value());  // which moves all when it grows
  }
  EXPECT_EQ(account->used(Resource::kAllocations), 3U);
  const auto refused = account->take(Resource::kAllocations, 1);
  EXPECT_EQ(refused.status().code(), Code::kResourceExhausted);
  EXPECT_THAT(
      refused.status().text(),
      AllOf(HasSubstr("uid 4711 has 3 of at most 3 (quotas.allocations) and requests 1 more"),
            HasSubstr("quotas.allocations")));
  charges[0] = Charge();
  EXPECT_EQ(account->used(Resource::kAllocations), 2U);
  charges[1] = std::move(charges[2]);
  charges.pop_back();
  EXPECT_EQ(account->used(Resource::kAllocations), 1U);
  charges.clear();
  EXPECT_EQ(account->used(Resource::kAllocations), 0U);
}

TEST_F(AccountTest, AllOrNone) {
  Accounts accounts(loop, quotas);
  const auto account = accounts.of({kSomebody, {}});
  Amounts amounts;
  amounts[Resource::kAllocations] = 1;
  amounts[Resource::kDeviceBytes] = (8 << 20) + 1;
  EXPECT_FALSE(account->take(amounts).ok());
  EXPECT_EQ(account->used(Resource::kAllocations), 0U);
  amounts[Resource::kDeviceBytes] = ~std::uint64_t{0};  // must not wrap around
  const auto most = account->take(Resource::kDeviceBytes, 8 << 20);
  EXPECT_FALSE(account->take(amounts).ok());
  EXPECT_EQ(account->used(Resource::kDeviceBytes), 8U << 20);
}

TEST_F(AccountTest, ADescriptorIsChargedAsLongAsAnybodyHasIt) {
  Accounts accounts(loop, quotas);
  const auto account = accounts.of({kSomebody, {}});
  SharedFd table = charged(std::make_shared<const Fd>(::dup(0)),
                           account->take(of_device_memory(1 << 20)).value());
  SharedFd queue = table;
  table.reset();
  EXPECT_EQ(account->used(Resource::kDeviceBytes), 1U << 20);
  EXPECT_EQ(account->used(Resource::kDescriptors), 1U);
  queue.reset();
  EXPECT_EQ(account->used(Resource::kDeviceBytes), 0U);
  EXPECT_EQ(account->used(Resource::kDescriptors), 0U);
}

TEST_F(AccountTest, OwnersDoNotShareAnAccount) {
  Accounts accounts(loop, quotas);
  const auto a = accounts.of({kSomebody, {}});
  const auto b = accounts.of({kSomebody, "/kubepods/pod1"});
  EXPECT_EQ(accounts.of({kSomebody, {}}), a);
  EXPECT_NE(a, b);
  const auto all_of_a = a->take(Resource::kAllocations, 3);
  EXPECT_TRUE(b->take(Resource::kAllocations, 3).ok());
}

TEST_F(AccountTest, TheBrokersOwnUserHasNoQuotasButACompartmentHas) {
  Accounts accounts(loop, quotas);
  EXPECT_TRUE(accounts.of({::geteuid(), {}})->take(Resource::kAllocations, 1000).ok());
  EXPECT_TRUE(accounts.of({0, {}})->take(Resource::kAllocations, 1000).ok());
  EXPECT_FALSE(accounts.of({0, "/kubepods/pod1"})->take(Resource::kAllocations, 4).ok());
}

TEST_F(AccountTest, AnAccountIsForgottenWhenItHasNothingAndNoRecentLine) {
  ASSERT_TRUE(loop.open().ok());
  Accounts accounts(loop, quotas);
  auto holds = accounts.of({kSomebody, {}});
  accounts.of({kSomebody + 1, {}})->log().warn("a line of the test");
  accounts.of({kSomebody + 2, {}});
  accounts.of({kSomebody + 3, {}});
  std::vector<uid_t> uids;
  for (const auto& account : accounts.all()) uids.push_back(account->owner().uid);
  // One that comes again and again has the lines that it has left.
  EXPECT_THAT(uids, testing::ElementsAre(kSomebody, kSomebody + 1, kSomebody + 3));
}

TEST(LeavesAShare, WhoComesLaterGetsSomeToo) {
  constexpr std::size_t kMost = 4096;
  std::size_t all = 0;
  std::vector<std::size_t> got;
  for (int owner = 0; owner < 6; ++owner) {
    std::size_t has = 0;
    for (; has < 1024 && leaves_a_share(has, all, kMost); ++all) ++has;
    got.push_back(has);
  }
  EXPECT_EQ(got, (std::vector<std::size_t>{1024, 1024, 1024, 512, 256, 128}));
  EXPECT_TRUE(leaves_a_share(0, kMost - 1, kMost));
  EXPECT_FALSE(leaves_a_share(0, kMost, kMost));
}

}  // namespace
}  // namespace amem
