#include "daemon/plans/shortage.h"

#include <gtest/gtest.h>

namespace amem {
namespace {

constexpr std::uint64_t kGiB = 1ULL << 30;

TEST(ShortageTest, SaysHowMuchWhoseAndWhatWouldHelp) {
  Shortage shortage;
  shortage.missing = 5 * kGiB + 1;
  shortage.free = 8 * kGiB;
  shortage.total = 12 * kGiB;
  shortage.tags = {{"kv_cache", {60 * kGiB, 9 * kGiB}},
                   {"nccl", {10 * kGiB, 10 * kGiB, false}},
                   {"weights", {4 * kGiB, 4 * kGiB}}};
  shortage.others = {{"small", kGiB}, {"rollout", 3 * kGiB}};
  EXPECT_EQ(
      describe(shortage),
      "the host pool is too small, even without zeros: it has 8 GiB of 12 GiB free, but 13 GiB are "
      "needed. The pause must save tag 'nccl' 10 GiB of 10 GiB, tag 'kv_cache' 9 GiB of 60 GiB, "
      "tag 'weights' 4 GiB of 4 GiB. Remedies: a pool.size of 17410MiB or more; to discard tag "
      "'kv_cache' (9 GiB less); to resume or end group 'rollout', which has 3 GiB in the pool");
}

TEST(ShortageTest, NamesTheLargestTagsAndWhatNobodyCouldLookAt) {
  Shortage shortage;
  shortage.missing = kGiB;
  shortage.not_seen = 2 * kGiB;
  for (const char* tag : {"a", "b", "c", "d", "e", "f"})
    shortage.tags[tag] = {kGiB, kGiB + static_cast<std::uint64_t>(*tag), false};
  const std::string text = describe(shortage);
  EXPECT_NE(text.find("tag 'f' 1 GiB of 1 GiB, tag 'e'"), std::string::npos) << text;
  EXPECT_NE(
      text.find(
          "tag 'c' 1 GiB of 1 GiB, 2 more tags. Ranks could not look for zeros in 2 GiB of it"),
      std::string::npos)
      << text;
  EXPECT_EQ(text.find("discard"), std::string::npos) << "none of them can be dropped";
  EXPECT_EQ(text.find("group"), std::string::npos);
}

}  // namespace
}  // namespace amem
