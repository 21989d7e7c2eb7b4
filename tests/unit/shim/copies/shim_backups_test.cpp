#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "common/sparse.h"
#include "shim/copies/backups.h"
#include "shim/copies/copiers.h"

namespace amem::shim {
namespace {

Piece piece(std::uint64_t id, std::uint64_t offset, std::uint64_t length) {
  Piece p;
  p.id = id;
  p.offset = offset;
  p.length = length;
  return p;
}

std::vector<std::uint64_t> offsets(const std::vector<Piece>& pieces) {
  std::vector<std::uint64_t> list;
  for (const Piece& p : pieces) list.push_back(p.offset);
  return list;
}

TEST(ShimBackups, FindsThePiecesOfARange) {
  Backups backups;
  backups.add(piece(7, 0, 100));
  backups.add(piece(7, 100, 50));
  backups.add(piece(7, 200, 10));
  EXPECT_EQ(offsets(backups.find(7, 0, 100)), std::vector<std::uint64_t>{0});
  EXPECT_EQ(offsets(backups.find(7, 99, 2)), (std::vector<std::uint64_t>{0, 100}));
  EXPECT_EQ(offsets(backups.find(7, 149, 1)), std::vector<std::uint64_t>{100});
  EXPECT_TRUE(backups.find(7, 149, 2).empty()) << "150 to 199 was not saved";
  EXPECT_TRUE(backups.find(7, 205, 6).empty());
  EXPECT_TRUE(backups.find(7, 500, 1).empty());
  EXPECT_TRUE(backups.find(8, 0, 1).empty());
}

TEST(ShimBackups, WhatIsPausedIsKeptWhenTheGateOpens) {
  Backups backups;
  backups.add(piece(7, 0, 100));
  backups.add(piece(8, 0, 100));
  backups.begin();
  EXPECT_FALSE(backups.find(7, 0, 1).empty());
  backups.drop_others([](std::uint64_t id) { return id == 8; });
  EXPECT_TRUE(backups.find(7, 0, 1).empty()) << "of an earlier pause, whose place is others' now";
  EXPECT_FALSE(backups.find(8, 0, 1).empty());
  EXPECT_EQ(backups.pauses(), 1U);
}

std::vector<std::byte> read(const Piece& p, const std::vector<std::byte>& pool,
                            std::uint64_t offset, std::uint64_t length) {
  std::vector<std::byte> out(length, std::byte{0xee});
  const Driver driver;
  LocalDevices devices(driver);
  Copiers(driver, devices).of(p.form).read(p, pool.data(), offset, length, out.data());
  return out;
}

TEST(ShimBackups, ReadsADenseCopy) {
  std::vector<std::byte> pool(1000);
  for (std::size_t i = 0; i < pool.size(); ++i) pool[i] = static_cast<std::byte>(i);
  const auto out = read(piece(1, 0, 1000), pool, 300, 5);
  EXPECT_EQ(std::memcmp(out.data(), pool.data() + 300, 5), 0);
}

TEST(ShimBackups, ReadsASparseCopy) {
  // 40 blocks, of which 1, 33 and 34 are not zero, the last one shorter.
  Piece p = piece(1, 0, 39 * sparse::kBlock + 4096);
  p.form = Form::kSparse;
  std::vector<std::byte> pool(sparse::index_bytes(p.length) + 3 * sparse::kBlock);
  const std::array<sparse::Entry, 2> index = {{{0b10, 0}, {0b110, 1}}};
  std::memcpy(pool.data(), index.data(), sizeof index);
  for (std::size_t slot = 0; slot < 3; ++slot)
    std::memset(pool.data() + sparse::index_bytes(p.length) + slot * sparse::kBlock,
                static_cast<int>(slot + 1), sparse::kBlock);
  std::vector<std::byte> expected(p.length);
  const auto fill = [&](std::size_t block, int value) {
    std::memset(expected.data() + block * sparse::kBlock, value, sparse::kBlock);
  };
  fill(1, 1);
  fill(33, 2);
  fill(34, 3);
  EXPECT_EQ(read(p, pool, 0, p.length), expected);
  const std::uint64_t middle = 33 * sparse::kBlock - 10;
  EXPECT_EQ(read(p, pool, middle, 2 * sparse::kBlock),
            std::vector<std::byte>(
                expected.begin() + static_cast<std::ptrdiff_t>(middle),
                expected.begin() + static_cast<std::ptrdiff_t>(middle + 2 * sparse::kBlock)));
}

}  // namespace
}  // namespace amem::shim
