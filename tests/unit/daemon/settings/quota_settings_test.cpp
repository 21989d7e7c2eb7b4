// Quotas as they are configured.
#include "daemon/settings/quota_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace amem {
namespace {

constexpr std::uint64_t kQuotaGiB = std::uint64_t{1} << 30U;

TEST(QuotaSettings, ReadBackWhatTheyWrite) {
  QuotaSettings s;
  for (const Resource resource : kAllResources) EXPECT_EQ(s.get(resource), "none");
  EXPECT_TRUE(s.set(Resource::kSessions, "12").ok());
  EXPECT_TRUE(s.set(Resource::kDeviceBytes, "75%").ok());
  EXPECT_TRUE(s.set(Resource::kPoolBytes, "1.5 GiB").ok());
  EXPECT_EQ(s.get(Resource::kSessions), "12");
  EXPECT_EQ(s.get(Resource::kDeviceBytes), "75%");
  EXPECT_EQ(s.get(Resource::kPoolBytes), "1536MiB");
  const Quotas quotas = s.resolve(8 * kQuotaGiB, kQuotaGiB, 200 * kQuotaGiB);
  EXPECT_EQ(quotas.most[Resource::kSessions], 12U);
  EXPECT_NEAR(static_cast<double>(quotas.most[Resource::kDeviceBytes]), 150.0 * kQuotaGiB, 10000);
  EXPECT_EQ(quotas.most[Resource::kPoolBytes], 1536U << 20U);
  EXPECT_EQ(quotas.most[Resource::kAllocations], kNoQuota);
  EXPECT_TRUE(s.set(Resource::kSessions, "none").ok());
  EXPECT_EQ(s.resolve(0, 0, 0).most[Resource::kSessions], kNoQuota);
}

TEST(QuotaSettings, AShareOfThePoolIsASegmentAtLeast) {
  QuotaSettings s;
  const auto most = [&](const char* text, std::uint64_t pool, std::uint64_t segment) {
    EXPECT_TRUE(s.set(Resource::kPoolBytes, text).ok());
    return s.resolve(pool, segment, 0).most[Resource::kPoolBytes];
  };
  EXPECT_EQ(most("50%", kQuotaGiB, kQuotaGiB), kQuotaGiB) << "of a pool of one segment";
  EXPECT_EQ(most("10%", 4 * kQuotaGiB, kQuotaGiB), kQuotaGiB);
  EXPECT_EQ(most("50%", 4 * kQuotaGiB, kQuotaGiB), 2 * kQuotaGiB);
  EXPECT_EQ(most("50%", kQuotaGiB / 2, kQuotaGiB), kQuotaGiB / 2) << "no more than there is";
  EXPECT_EQ(most("0%", kQuotaGiB, kQuotaGiB), 0U);
  EXPECT_EQ(most("1MiB", kQuotaGiB, kQuotaGiB), std::uint64_t{1} << 20U)
      << "a size is what it says";
}

TEST(QuotaSettings, WhatIsNoQuotaIsRefusedAndChangesNothing) {
  QuotaSettings s = QuotaSettings::shared_node();
  for (const char* text : {"", "-1", "1.5", "12 sessions", "50%", "1GiB", "99999999999999999999"})
    EXPECT_EQ(s.set(Resource::kSessions, text).code(), Code::kInvalidArgument) << text;
  for (const char* text : {"", "%", "101%", "-1%", "much"})
    EXPECT_EQ(s.set(Resource::kPoolBytes, text).code(), Code::kInvalidArgument) << text;
  EXPECT_FALSE(s.set(Resource::kQueuedBytes, "50%").ok());  // of what?
  EXPECT_EQ(s.get(Resource::kSessions), "1024");
  EXPECT_EQ(s.get(Resource::kPoolBytes), "50%");
}

}  // namespace
}  // namespace amem
