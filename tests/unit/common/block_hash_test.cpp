// The hash of a block, beside its definition written out with other means.
#include "common/block_hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace amem::block_hash {
namespace {

using Words = std::vector<std::uint32_t>;
using Wide = Product;

constexpr std::uint64_t kWords = sparse::kBlock / sizeof(std::uint32_t);

class BlockHashTest : public testing::Test {
 protected:
  BlockHashTest() {
    for (Word128& unit : key->unit)
      for (std::uint32_t& word : unit.word) word = static_cast<std::uint32_t>(random());
    for (std::uint64_t& point : key->point) point = random() % (kPrime - 1) + 1;
  }
  Words some(std::uint64_t words = kWords) {
    Words block(words);
    for (std::uint32_t& word : block) word = static_cast<std::uint32_t>(random());
    return block;
  }
  Hash hash(const Words& block) const {
    Sums sums{};
    for (std::uint32_t unit = 0; unit < block.size() / 4; ++unit)
      add(sums, {{block[4 * unit], block[4 * unit + 1], block[4 * unit + 2], block[4 * unit + 3]}},
          key->unit[unit], key->unit[unit + 1], key->unit[unit + 2]);
    return finish(sums, key->point);
  }
  std::uint32_t key_word(std::uint64_t i) const { return key->unit[i / 4].word[i % 4]; }

  std::mt19937_64 random{49};
  std::unique_ptr<Key> key = std::make_unique<Key>();
};

TEST_F(BlockHashTest, IsWhatItsDefinitionSays) {
  for (const std::uint64_t words : {std::uint64_t{4}, std::uint64_t{4092}, kWords}) {
    const Words block = some(words);
    std::uint64_t value[2] = {};
    for (std::uint64_t row = 0; row < 4; ++row) {
      std::uint64_t sum = 0;
      for (std::uint64_t i = 0; i < words; i += 2)
        sum += std::uint64_t{static_cast<std::uint32_t>(block[i] + key_word(i + 2 * row))} *
               static_cast<std::uint32_t>(block[i + 1] + key_word(i + 1 + 2 * row));
      for (int p = 0; p < 2; ++p)
        for (const std::uint64_t half : {sum & 0xffffffffU, sum >> 32})
          value[p] = static_cast<std::uint64_t>((Wide{value[p]} + half) * key->point[p] % kPrime);
    }
    const Hash found = hash(block);
    EXPECT_EQ(found.low, value[0]);
    EXPECT_EQ(found.high, value[1] | 1ULL << 63);
  }
}

TEST_F(BlockHashTest, ProductsAreThoseOfThePrimesField) {
  for (int i = 0; i < 100'000; ++i) {
    const std::uint64_t a = random() % kPrime;
    const std::uint64_t b = random() % kPrime;
    ASSERT_EQ(multiply(a, b), static_cast<std::uint64_t>(Wide{a} * b % kPrime));
  }
  for (const std::uint64_t a : {std::uint64_t{0}, std::uint64_t{1}, kPrime - 1})
    for (const std::uint64_t b : {std::uint64_t{0}, std::uint64_t{1}, kPrime - 1})
      EXPECT_EQ(multiply(a, b), static_cast<std::uint64_t>(Wide{a} * b % kPrime));
}

/// What sums without keys, or with one key for all words, would not see.
TEST_F(BlockHashTest, SmallChangesAreSeen) {
  const Words block = some();
  const Hash before = hash(block);
  const auto differs = [&](Words changed) { return !(hash(changed) == before); };
  for (int i = 0; i < 2000; ++i) {
    Words changed = block;
    changed[random() % kWords] ^= 1U << random() % 32;
    EXPECT_TRUE(differs(std::move(changed)));
  }
  for (const std::uint64_t distance : {1U, 2U, 3U, 4U, 8U, 4096U}) {
    Words swapped = block;
    std::swap(swapped[100], swapped[100 + distance]);
    EXPECT_TRUE(differs(std::move(swapped)));
    Words moved = block;  // the sum of all words stays
    moved[100] += 1;
    moved[100 + distance] -= 1;
    EXPECT_TRUE(differs(std::move(moved)));
  }
  Words rotated = block;
  std::rotate(rotated.begin(), rotated.begin() + 4, rotated.end());
  EXPECT_TRUE(differs(std::move(rotated)));
}

TEST_F(BlockHashTest, BlocksOfZerosAndAlmostZerosAllDiffer) {
  std::set<std::pair<std::uint64_t, std::uint64_t>> seen;
  Words block(kWords);
  const auto add = [&] {
    const Hash found = hash(block);
    EXPECT_NE(found.high, 0U) << "it says that it was taken";
    EXPECT_TRUE(seen.emplace(found.low, found.high).second);
  };
  add();
  for (std::uint64_t i = 0; i < kWords; i += 7) {
    block[i] = 1;
    add();
    block[i] = 0;
  }
}

TEST_F(BlockHashTest, AnotherKeyGivesAnotherHash) {
  const Words block = some();
  const Hash before = hash(block);
  key->unit[0].word[0] ^= 1;
  EXPECT_FALSE(hash(block) == before);
  key->unit[0].word[0] ^= 1;
  EXPECT_TRUE(hash(block) == before);
  key->point[0] ^= 2;
  EXPECT_FALSE(hash(block) == before);
}

}  // namespace
}  // namespace amem::block_hash
