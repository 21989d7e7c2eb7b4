// A block in parts: as many allocations, whose ids follow each other, with one token.
#include <gmock/gmock.h>

#include <cstring>

#include "tests/unit/fixtures/owners_fixture.h"

namespace amem {
namespace {

using ::testing::HasSubstr;

Packet create_in_parts(ScriptedRank& rank, const DeviceUuid& device, std::uint64_t size,
                       std::uint64_t part) {
  return rank.await_reply(
      rank.ask_for_memory({.device = device, .size = size, .tag = "heap", .part = part}));
}

using PartsOfBlocksTest = BrokerTest;
using PartsOfOwnersTest = OwnersTest;

TEST_F(PartsOfBlocksTest, TheyAreOfTheSizeAndARest) {
  join(a, "train");
  const Packet answer = create_in_parts(a, gpu(0), 10 * kMiB, 4 * kMiB);
  const amem_v1_Created& created = answer.message.body.reply.result.created;
  EXPECT_EQ(created.count, 3U);
  EXPECT_EQ(group().allocation_count(), 3U);
  EXPECT_EQ(used(0), 10 * kMiB);
  join(b, "train", 1);
  Token token;
  std::memcpy(token.data(), created.token, token.size());
  for (std::uint64_t at = 0; at < 3; ++at)
    EXPECT_EQ(ScriptedRank::code(b.try_redeem(created.id + at, token)), Code::kOk) << at;
  EXPECT_NE(ScriptedRank::code(b.try_redeem(created.id + 3, token)), Code::kOk);
}

TEST_F(PartsOfBlocksTest, NotMoreThanAnAnswerGives) {
  join(a, "train");
  const Packet most = create_in_parts(a, gpu(0), 256 * kMiB, 2 * kMiB);
  EXPECT_EQ(ScriptedRank::code(most), Code::kResourceExhausted) << "there is not so much memory";
  const Packet answer = create_in_parts(a, gpu(0), 256 * kMiB + 1, 2 * kMiB);
  EXPECT_EQ(ScriptedRank::code(answer), Code::kInvalidArgument);
  EXPECT_THAT(answer.message.body.reply.text, HasSubstr("more than 128 allocations"));
  const Packet huge = create_in_parts(a, gpu(0), ~std::uint64_t{0}, 1);
  EXPECT_EQ(ScriptedRank::code(huge), Code::kInvalidArgument);
}

TEST_F(PartsOfBlocksTest, WhereThereIsLittleSpaceItIsAskedForAsOne) {
  join(a, "train");
  const std::uint64_t free = nvml.memory(gpu(0))->free;
  const Packet answer = create_in_parts(a, gpu(0), free + 2 * kMiB, 2 * kMiB);
  EXPECT_EQ(ScriptedRank::code(answer), Code::kResourceExhausted);
  EXPECT_EQ(group().allocation_count(), 0U);
  EXPECT_EQ(nvml.memory(gpu(0))->free, free);
}

TEST_F(PartsOfOwnersTest, AQuotaThatEndsWithinThemGivesNone) {
  join_as(kAlice, a);
  EXPECT_EQ(ScriptedRank::code(create_in_parts(a, gpu(0), 20 * kMiB, 8 * kMiB)),
            Code::kResourceExhausted);
  EXPECT_EQ(quota(kAlice, Resource::kDeviceBytes).used(), 0U);
  EXPECT_EQ(quota(kAlice, Resource::kAllocations).used(), 0U);
  EXPECT_EQ(ScriptedRank::code(create_in_parts(a, gpu(0), 16 * kMiB, 8 * kMiB)), Code::kOk);
  EXPECT_EQ(quota(kAlice, Resource::kDeviceBytes).used(), 16 * kMiB);
}

}  // namespace
}  // namespace amem
