#include "daemon/memory/shortage.h"

#include <gtest/gtest.h>

namespace amem {
namespace {

constexpr std::uint64_t kGiB = 1ULL << 30;

TEST(ShortageTest, SaysHowMuchWhoseAndWhatWouldHelp) {
  Shortage shortage;
  shortage.missing = 5 * kGiB + 1;
  shortage.free = 8 * kGiB;
  shortage.total = 12 * kGiB;
  shortage.pool_size = 17 * kGiB + 1;
  shortage.tags = {{"heap", {10 * kGiB, 10 * kGiB, false}},
                   {"kv_cache", {60 * kGiB, 9 * kGiB}},
                   {"weights", {4 * kGiB, 4 * kGiB, false}}};
  shortage.others = {{"small", kGiB}, {"rollout", 3 * kGiB}, {"eval", 3 * kGiB}};
  EXPECT_EQ(
      describe(shortage),
      "the host pool is too small, even without zeros: it has 8 GiB of 12 GiB free, but 13 GiB are "
      "needed. The pause must save tag 'heap' 10 GiB of 10 GiB, tag 'kv_cache' 9 GiB of 60 GiB, "
      "tag 'weights' 4 GiB of 4 GiB. Remedies: to restart amemd with a pool.size of 17410MiB or "
      "more; if the job can lose what its regions mark as a cache, to discard 'kv_cache' (9 GiB); "
      "to resume or end 'eval' (3 GiB), 'rollout' (3 GiB), whose bytes are in the pool");
}

TEST(ShortageTest, SaysWhatOtherOwnersKeep) {
  Shortage shortage;
  shortage.missing = kGiB;
  shortage.of_others = 3 * kGiB;
  EXPECT_NE(describe(shortage).find(
                "it has 0 B of 0 B free, but 1 GiB are needed, and other owners keep 3 GiB until "
                "their last processes end. The pause"),
            std::string::npos)
      << describe(shortage);
}

TEST(ShortageTest, EachRemedyIsEnoughByItself) {
  Shortage shortage;
  shortage.missing = 10 * kGiB;
  shortage.pool_size = 20 * kGiB;
  shortage.tags = {{"kv_cache", {9 * kGiB, 9 * kGiB}}};
  shortage.others = {{"a", 6 * kGiB}, {"b", 3 * kGiB}};
  const std::string text = describe(shortage);
  EXPECT_EQ(text.substr(text.find("Remedies: ")),
            "Remedies: to restart amemd with a pool.size of 20GiB or more");
}

TEST(ShortageTest, SaysWhatKeepsThePoolSmall) {
  const auto remedies = [](Shortage shortage) {
    shortage.missing = 1;
    const std::string text = describe(shortage);
    return text.substr(text.find("Remedies: "));
  };
  Shortage shortage;
  shortage.quota = 3 * kGiB;
  EXPECT_EQ(remedies(shortage), "Remedies: to restart amemd with a quotas.pool of 3GiB or more");
  shortage.pool_size = 5 * kGiB;
  EXPECT_EQ(remedies(shortage),
            "Remedies: to restart amemd with a quotas.pool of 3GiB or more, and a pool.size of "
            "5GiB or more");
  shortage = {};
  shortage.coming = true;
  EXPECT_EQ(remedies(shortage), "Remedies: to wait for the rest of the pool (`amemctl wait pool`)");
  shortage = {};
  shortage.trouble = "the host has only 2 GiB";
  EXPECT_EQ(remedies(shortage),
            "Remedies: to remove what keeps amemd from creating the pool: the host has only 2 GiB");
}

TEST(ShortageTest, NamesTheLargestTagsAndWhatNobodyCouldLookAt) {
  Shortage shortage;
  shortage.missing = kGiB;
  shortage.pool_size = 2 * kGiB;
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
  EXPECT_EQ(text.find("discard"), std::string::npos) << "none of them is a cache";
  EXPECT_EQ(text.find("group"), std::string::npos);
  for (const char* tag : {"a", "b"}) shortage.tags.erase(tag);
  EXPECT_EQ(describe(shortage).find("more tags"), std::string::npos) << "four are all named";
}

}  // namespace
}  // namespace amem
