// Which pieces of a pool's memory who may have, and how they split and join.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

#include "shim/blocks/pool_pieces.h"
#include "tests/unit/fixtures/texts_and_sizes.h"

namespace amem::shim {
namespace {

constexpr PoolPieces::Shelf kShelf = 1;
constexpr PoolPieces::Line kA = 1;
constexpr PoolPieces::Line kB = 2;
constexpr Address kSegment = 1U << 24U;

class ShimPoolPieces : public testing::Test {
 protected:
  std::optional<Address> take(std::uint64_t size, PoolPieces::Line line = kA) {
    return pieces.take(kShelf, size, line, nullptr);
  }
  static std::vector<std::pair<Address, std::uint64_t>> pairs(
      const std::vector<AddressRange>& ranges) {
    std::vector<std::pair<Address, std::uint64_t>> all;
    for (const AddressRange& range : ranges) all.emplace_back(range.address, range.size);
    return all;
  }
  std::vector<std::pair<Address, std::uint64_t>> unused() { return pairs(pieces.unused(1)); }

  PoolPieces pieces;
};
using Ranges = std::vector<std::pair<Address, std::uint64_t>>;

TEST_F(ShimPoolPieces, NewMemoryIsAnybodysAndIsCut) {
  EXPECT_EQ(take(1), std::nullopt);
  pieces.add(kShelf, kSegment, 8 * kKiB);
  EXPECT_EQ(take(1000), kSegment);
  EXPECT_EQ(take(kKiB, kB), kSegment + kKiB) << "sizes are rounded up";
  EXPECT_EQ(pieces.used(kSegment)->asked, 1000U);
  EXPECT_EQ(take(7 * kKiB), std::nullopt);
  EXPECT_EQ(take(6 * kKiB), kSegment + 2 * kKiB);
  EXPECT_EQ(unused(), Ranges());
}

TEST_F(ShimPoolPieces, ALineHasItsOwnAgainAndOthersOnlyWhatHasPassed) {
  pieces.add(kShelf, kSegment, 2 * kKiB);
  take(kKiB);
  take(kKiB);
  pieces.give(kSegment, {kA, 1});
  EXPECT_EQ(take(kKiB, kB), std::nullopt);
  EXPECT_EQ(take(kKiB, kA), kSegment);
  pieces.give(kSegment, {kA, 2});
  pieces.give(kSegment + kKiB, {kB, 1});
  pieces.passed(kA, 1);
  EXPECT_EQ(take(kKiB, kB), kSegment + kKiB) << "its own: the other is behind a later point";
  pieces.passed(kA, 2);
  EXPECT_EQ(take(kKiB, kB), kSegment);
}

TEST_F(ShimPoolPieces, NeighboursJoinBehindOneLineOrNone) {
  pieces.add(kShelf, kSegment, 4 * kKiB);
  for (int i = 0; i < 4; ++i) take(kKiB);
  pieces.give(kSegment, {kA, 1});
  pieces.give(kSegment + 2 * kKiB, {kA, 2});
  pieces.give(kSegment + kKiB, {kA, 3});
  pieces.give(kSegment + 3 * kKiB, {kB, 1});
  EXPECT_EQ(take(4 * kKiB), std::nullopt);
  pieces.passed(kA, 2);
  EXPECT_EQ(take(3 * kKiB, kB), std::nullopt) << "the last of what has joined counts";
  pieces.passed(kA, 3);
  EXPECT_EQ(take(4 * kKiB, kB), std::nullopt);
  pieces.passed(kB, 1);
  EXPECT_EQ(take(4 * kKiB), kSegment);
}

TEST_F(ShimPoolPieces, TheSmallestThatIsLargeEnough) {
  pieces.add(kShelf, kSegment, 8 * kKiB);
  pieces.add(kShelf, kSegment + 16 * kKiB, 2 * kKiB);
  EXPECT_EQ(take(kKiB), kSegment + 16 * kKiB);
  EXPECT_EQ(take(2 * kKiB), kSegment);
  pieces.give(kSegment + 16 * kKiB, {kA, 1});
  EXPECT_EQ(take(kKiB), kSegment + 16 * kKiB) << "also among a line's own";
}

TEST_F(ShimPoolPieces, ShelvesAndSegmentsDoNotMix) {
  pieces.add(kShelf, kSegment, 2 * kKiB);
  pieces.add(2, kSegment + 2 * kKiB, 2 * kKiB);
  pieces.add(kShelf, kSegment + 4 * kKiB, 2 * kKiB);
  pieces.add(kShelf, kSegment + 6 * kKiB, 2 * kKiB);
  EXPECT_EQ(take(4 * kKiB), std::nullopt);
  EXPECT_EQ(pieces.take(2, 4 * kKiB, kA, nullptr), std::nullopt);
  EXPECT_EQ(pieces.take(2, kKiB, kA, nullptr), kSegment + 2 * kKiB);
}

TEST_F(ShimPoolPieces, OnlyUsableSegments) {
  pieces.add(kShelf, kSegment, 2 * kKiB);
  pieces.add(kShelf, kSegment + 4 * kKiB, 2 * kKiB);
  const auto usable = [](Address segment) { return segment != kSegment; };
  EXPECT_EQ(pieces.take(kShelf, kKiB, kA, usable), kSegment + 4 * kKiB);
  EXPECT_EQ(pieces.take(kShelf, 2 * kKiB, kA, usable), std::nullopt);
}

TEST_F(ShimPoolPieces, APieceBehindAnotherLine) {
  pieces.add(kShelf, kSegment, 2 * kKiB);
  take(2 * kKiB);
  EXPECT_FALSE(pieces.take_behind(kShelf, kKiB, nullptr));
  pieces.give(kSegment, {kA, 7});
  const auto behind = pieces.take_behind(kShelf, kKiB, nullptr);
  ASSERT_TRUE(behind);
  EXPECT_EQ(behind->address, kSegment);
  EXPECT_EQ(behind->point.line, kA);
  EXPECT_EQ(behind->point.order, 7U);
  pieces.give(behind->address, behind->point);
  EXPECT_EQ(unused(), (Ranges{{kSegment, 2 * kKiB}})) << "it has joined its rest again";
}

TEST_F(ShimPoolPieces, SegmentsGoWholeAndTheLargestFirst) {
  pieces.add(kShelf, kSegment, 2 * kKiB);
  pieces.add(kShelf, kSegment + 4 * kKiB, 4 * kKiB);
  pieces.add(kShelf, kSegment + 8 * kKiB, kKiB);
  const Address used = *take(kKiB);
  EXPECT_EQ(used, kSegment + 8 * kKiB);
  Ranges asked;
  const auto goes = [&](const AddressRange& range) {
    asked.emplace_back(range.address, range.size);
    return range.address != kSegment;
  };
  EXPECT_EQ(pairs(pieces.take_segments(kShelf, goes)), (Ranges{{kSegment + 4 * kKiB, 4 * kKiB}}));
  EXPECT_EQ(asked, (Ranges{{kSegment + 4 * kKiB, 4 * kKiB}, {kSegment, 2 * kKiB}}));
  EXPECT_FALSE(pieces.owns(kSegment + 4 * kKiB));
  pieces.give(used, {kA, 1});
  EXPECT_TRUE(
      pieces.take_segments(kShelf, [&](const AddressRange& range) { return range.address == used; })
          .empty())
      << "a line may still use it";
  pieces.passed(kA, 1);
  EXPECT_EQ(pairs(pieces.take_segments(kShelf, [](const AddressRange&) { return true; })),
            (Ranges{{kSegment, 2 * kKiB}, {used, kKiB}}));
}

TEST_F(ShimPoolPieces, WhatIsUnusedWhateverItIsBehind) {
  pieces.add(kShelf, kSegment, 4 * kKiB);
  pieces.add(kShelf, kSegment + 4 * kKiB, kKiB);
  for (int i = 0; i < 5; ++i) take(kKiB);
  pieces.give(kSegment + kKiB, {kA, 1});
  pieces.give(kSegment + 2 * kKiB, {kB, 1});
  EXPECT_EQ(pairs(pieces.unused(2 * kKiB)), (Ranges{{kSegment + kKiB, 2 * kKiB}}));
}

TEST_F(ShimPoolPieces, FindKnowsWhatTheProgramAskedFor) {
  pieces.add(kShelf, kSegment, 2 * kKiB);
  take(1000);
  EXPECT_EQ(pieces.find(kSegment + 999)->first, kSegment);
  EXPECT_FALSE(pieces.find(kSegment + 1000)) << "what rounding added is nobody's";
  EXPECT_EQ(pieces.used(kSegment + 512), nullptr);
  EXPECT_TRUE(pieces.owns(kSegment + 2047));
  EXPECT_FALSE(pieces.owns(kSegment + 2048));
}

/// Against a book that keeps each byte's owner.
TEST_F(ShimPoolPieces, AtRandomNoTwoHaveTheSame) {
  std::mt19937 random(7);
  constexpr std::uint64_t kUnits = 64;
  pieces.add(kShelf, kSegment, kUnits * 512);
  std::map<Address, std::uint64_t> taken;
  struct Free {
    PoolPieces::Line line = 0;
    std::uint64_t order = 0;
  };
  std::map<Address, Free> free;  // by unit; none: anybody's
  std::map<PoolPieces::Line, std::uint64_t> orders, passed;
  for (int step = 0; step < 20'000; ++step) {
    const PoolPieces::Line line = 1 + random() % 3;
    if (random() % 2 == 0) {
      const std::uint64_t units = 1 + random() % 9;
      const auto address = pieces.take(kShelf, units * 512, line, nullptr);
      if (!address) continue;
      for (std::uint64_t i = 0; i < units; ++i) {
        const Address unit = *address + i * 512;
        for (const auto& [begin, size] : taken)
          ASSERT_FALSE(unit >= begin && unit < begin + size) << step;
        if (const auto it = free.find(unit); it != free.end()) {
          ASSERT_TRUE(it->second.line == line || it->second.order <= passed[it->second.line])
              << step;
          free.erase(it);
        }
      }
      taken[*address] = units * 512;
    } else if (!taken.empty() && random() % 3 != 0) {
      const auto it = std::next(taken.begin(), static_cast<long>(random() % taken.size()));
      const std::uint64_t order = ++orders[line];
      for (std::uint64_t at = 0; at < it->second; at += 512) free[it->first + at] = {line, order};
      pieces.give(it->first, {line, order});
      taken.erase(it);
    } else {
      passed[line] += (orders[line] - passed[line] + 1) / 2;
      pieces.passed(line, passed[line]);
    }
  }
  for (const auto& [address, size] : taken) pieces.give(address, {});
  for (const auto& [line, order] : orders) pieces.passed(line, order);
  EXPECT_EQ(unused(), (Ranges{{kSegment, kUnits * 512}}));
}

}  // namespace
}  // namespace amem::shim
