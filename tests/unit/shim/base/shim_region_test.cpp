#include <gtest/gtest.h>

#include <thread>

#include "shim/base/region.h"

namespace amem::shim {
namespace {

TEST(ShimRegion, GivesItsThreadTagAndPolicy) {
  EXPECT_FALSE(Region::current().has_value());
  ASSERT_TRUE(Region::begin("kv_cache", 2).ok());
  ASSERT_TRUE(Region::current().has_value());
  EXPECT_EQ(Region::current()->tag, "kv_cache");
  EXPECT_EQ(Region::current()->policy, amem_v1_RegionPolicy_REGION_POLICY_DISCARD);
  std::thread([] {
    EXPECT_FALSE(Region::current().has_value());
    EXPECT_EQ(Region::end().code(), Code::kFailedPrecondition);
    EXPECT_TRUE(Region::begin("weights", 1).ok());
    EXPECT_TRUE(Region::end().ok());
  }).join();
  EXPECT_EQ(Region::current()->tag, "kv_cache");
  ASSERT_TRUE(Region::end().ok());
  EXPECT_FALSE(Region::current().has_value());
}

TEST(ShimRegion, DoesNotNest) {
  ASSERT_TRUE(Region::begin("outer", 0).ok());
  const Status again = Region::begin("inner", 1);
  EXPECT_EQ(again.code(), Code::kFailedPrecondition);
  EXPECT_NE(again.text().find("outer"), std::string::npos);
  EXPECT_EQ(Region::current()->tag, "outer");
  ASSERT_TRUE(Region::end().ok());
  EXPECT_EQ(Region::end().code(), Code::kFailedPrecondition);
}

TEST(ShimRegion, MayBeUnbrokeredForAWhile) {
  EXPECT_FALSE(Region::unbrokered());
  EXPECT_EQ(Region::end_unbrokered().code(), Code::kFailedPrecondition);
  ASSERT_TRUE(Region::begin("weights", 1).ok());
  ASSERT_TRUE(Region::begin_unbrokered().ok());
  EXPECT_EQ(Region::begin_unbrokered().code(), Code::kFailedPrecondition);
  EXPECT_EQ(Region::begin("kv_cache", 1).code(), Code::kFailedPrecondition);
  EXPECT_EQ(Region::end().code(), Code::kFailedPrecondition) << "what began last ends first";
  EXPECT_TRUE(Region::unbrokered());
  std::thread([] { EXPECT_FALSE(Region::unbrokered()); }).join();
  ASSERT_TRUE(Region::end_unbrokered().ok());
  EXPECT_FALSE(Region::unbrokered());
  EXPECT_EQ(Region::current()->tag, "weights");
  ASSERT_TRUE(Region::end().ok());
}

TEST(ShimRegion, RefusesWhatIsNoTagOrPolicy) {
  for (const char* tag :
       {"", "nccl", "two words", "a/b", "tag\n", "\xc3\xa4", "12345678901234567890123456789012"})
    EXPECT_EQ(Region::begin(tag, 0).code(), Code::kInvalidArgument) << tag;
  for (const int policy : {-1, 3})
    EXPECT_EQ(Region::begin("weights", policy).code(), Code::kInvalidArgument) << policy;
  EXPECT_FALSE(Region::current().has_value());
  for (const char* tag : {"a", "NCCL", "heap", ".-_9zZ", "1234567890123456789012345678901"})
    EXPECT_TRUE(valid_region_tag(tag)) << tag;
}

}  // namespace
}  // namespace amem::shim
