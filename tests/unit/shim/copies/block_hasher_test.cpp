// The kernels that find unchanged blocks, by way of the driver: on the simulated one its stand-ins
// for them, on a machine with a GPU the kernels themselves.
#include "shim/copies/block_hasher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "shim/copies/block_hashes.h"
#include "tests/unit/fixtures/on_driver.h"

namespace amem::shim {
namespace {

using block_hash::Hash;
using sparse::kBlock;
using sparse::kGroup;

constexpr std::uint64_t kMemory = 10 * kGroup;
using Bytes = std::vector<unsigned char>;

class BlockHasherTest : public OnDriver {
 protected:
  void SetUp() override {
    LocalDevices::Use use(devices(), 0);
    ASSERT_EQ(use.result(), CUDA_SUCCESS);
    allocate(kMemory);
    void* host = nullptr;
    ASSERT_EQ(driver().cuMemHostAlloc_(&host, kMemory, 0), CUDA_SUCCESS);
    pool = static_cast<unsigned char*>(host);
    ASSERT_EQ(driver().cuStreamCreate_(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    hasher.prepare(0);
    for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
    put();
  }

  void put() {
    LocalDevices::Use use(devices(), 0);
    ASSERT_EQ(driver().cuMemcpyHtoDAsync_(memory, bytes.data(), bytes.size(), stream),
              CUDA_SUCCESS);
    ASSERT_EQ(driver().cuStreamSynchronize_(stream), CUDA_SUCCESS);
  }
  Piece piece(std::uint64_t at, std::uint64_t length) {
    Piece p;
    p.id = 1;
    p.offset = at;
    p.length = length;
    p.device = 0;
    p.address = memory + at;
    p.pool = reinterpret_cast<CUdeviceptr>(pool + at);
    EXPECT_TRUE(hasher.serves(p));
    return p;
  }
  std::vector<std::vector<Hash>> hash(const std::vector<Piece>& pieces) {
    std::vector<std::vector<Hash>> hashes;
    const Status status = hasher.hash(pieces, hashes);
    EXPECT_TRUE(status.ok()) << status.text();
    return hashes;
  }

  std::mt19937_64 random{7};
  Bytes bytes = Bytes(kMemory);
  CUstream stream = nullptr;
  unsigned char* pool = nullptr;
  BlockHasher hasher{driver(), devices()};
};

TEST(MasksTest, ARunMaySpanGroups) {
  EXPECT_EQ(
      masks_of(
          std::vector<ByteRun>{{0, kBlock}, {31 * kBlock, 2 * kBlock}, {kGroup + 5 * kBlock, 16}},
          kGroup + 5 * kBlock + 16),
      (std::vector<std::uint32_t>{0x80000001U, 0x21U}));
  EXPECT_EQ(masks_of({}, 16), std::vector<std::uint32_t>{0});
}

TEST_F(BlockHasherTest, EqualBytesHaveEqualHashesWhereverTheyAre) {
  std::copy_n(bytes.begin(), 3 * kGroup, bytes.begin() + 5 * kGroup);
  put();
  const auto hashes = hash({piece(0, 3 * kGroup), piece(5 * kGroup, 3 * kGroup)});
  EXPECT_EQ(hashes[0].size(), 96U);
  EXPECT_EQ(hashes[0], hashes[1]);
  std::set<std::pair<std::uint64_t, std::uint64_t>> different;
  for (const Hash& each : hashes[0]) {
    EXPECT_NE(each.high, 0U);
    different.emplace(each.low, each.high);
  }
  EXPECT_EQ(different.size(), 96U);
}

TEST_F(BlockHasherTest, EachByteThatChangesIsFound) {
  const Piece all = piece(0, kMemory);
  std::vector<Hash> before = hash({all})[0];
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t at = random() % kMemory;
    bytes[at] ^= static_cast<unsigned char>(1 + random() % 255);
    put();
    const std::vector<Hash> now = hash({all})[0];
    EXPECT_EQ(changed(before, now, kMemory),
              (std::vector<ByteRun>{{at / kBlock * kBlock, kBlock}}));
    before = now;
  }
}

TEST_F(BlockHasherTest, ShortPiecesAndShortLastBlocks) {
  const std::vector<Piece> pieces = {piece(16, 16), piece(kGroup + 32, kBlock + 48),
                                     piece(4 * kGroup, kGroup + 16)};
  const auto before = hash(pieces);
  EXPECT_EQ(before[0].size(), 1U);
  EXPECT_EQ(before[1].size(), 2U);
  EXPECT_EQ(before[2].size(), 33U);
  bytes[16 + 15] ^= 1;
  bytes[kGroup + 32 + kBlock + 47] ^= 1;
  bytes[5 * kGroup + 15] ^= 1;
  bytes[16 + 16] ^= 1;          // behind the first
  bytes[5 * kGroup + 16] ^= 1;  // behind the last
  put();
  const auto now = hash(pieces);
  EXPECT_EQ(changed(before[0], now[0], 16), (std::vector<ByteRun>{{0, 16}}));
  EXPECT_EQ(changed(before[1], now[1], kBlock + 48), (std::vector<ByteRun>{{kBlock, 48}}));
  EXPECT_EQ(changed(before[2], now[2], kGroup + 16), (std::vector<ByteRun>{{kGroup, 16}}));
}

TEST_F(BlockHasherTest, ManyPieces) {
  std::vector<Piece> pieces;  // more than one launch takes
  for (std::uint64_t i = 0; i < 300; ++i) pieces.push_back(piece(i * 512, 512));
  const auto before = hash(pieces);
  bytes[299 * 512] ^= 1;
  put();
  const auto now = hash(pieces);
  for (std::size_t i = 0; i < 300; ++i)
    EXPECT_EQ(changed(before[i], now[i], 512).empty(), i != 299) << i;
}

TEST_F(BlockHasherTest, CopiesTheBlocksThatMasksNameAndNoOthers) {
  // Short last blocks, and pieces that more than one launch takes.
  std::vector<Piece> pieces = {piece(0, 3 * kGroup), piece(4 * kGroup, kGroup + 3 * kBlock + 48)};
  for (std::uint64_t i = 0; i < 300; ++i) pieces.push_back(piece(7 * kGroup + i * 512, 512));
  for (int round = 0; round < 20; ++round) {
    Bytes expected(kMemory);
    std::vector<std::vector<std::uint32_t>> masks;
    for (const Piece& p : pieces) {
      std::vector<ByteRun> runs;
      for (std::uint64_t at = 0; at < p.length; at += kBlock) {
        const std::uint64_t length = std::min(kBlock, p.length - at);
        if (random() % 10 != 0) continue;
        runs.push_back({at, length});
        std::copy_n(bytes.data() + p.offset + at, length, expected.data() + p.offset + at);
      }
      masks.push_back(masks_of(runs, p.length));
    }
    std::memset(pool, 0, kMemory);
    const Status copied = hasher.copy(pieces, masks);
    ASSERT_TRUE(copied.ok()) << copied.text();
    ASSERT_EQ(std::memcmp(pool, expected.data(), kMemory), 0) << "round " << round;
  }
}

TEST_F(BlockHasherTest, ComparesWithThePool) {
  std::memcpy(pool, bytes.data(), kMemory);
  const std::vector<Piece> pieces = {piece(0, 3 * kGroup), piece(4 * kGroup, kGroup + 48)};
  EXPECT_TRUE(hasher.compare(pieces).ok());
  pool[3 * kGroup] ^= 1;  // between them
  EXPECT_TRUE(hasher.compare(pieces).ok());
  pool[5 * kGroup + 47] ^= 1;
  const Status differs = hasher.compare(pieces);
  EXPECT_EQ(differs.code(), Code::kDataLoss);
  EXPECT_NE(differs.text().find("from byte " + std::to_string(5 * kGroup) + " on"),
            std::string::npos)
      << differs.text();
  pool[2 * kGroup + 7 * kBlock + 9] ^= 1;
  EXPECT_NE(hasher.compare(pieces).text().find(std::to_string(2 * kGroup + 7 * kBlock)),
            std::string::npos);
}

TEST_F(BlockHasherTest, WhereThereWasNoMemoryForTheKernelsTheNextPhaseTriesAgain) {
  check_what_is_loaded_again<BlockHasher>(
      [this](BlockHasher& other) { return other.serves(piece(0, kGroup)); },
      [](BlockHasher& other) { other.finish(); });
}

/// Kernels of the other devices use their pieces and tables until they have ended.
TEST_F(BlockHasherTest, AnErrorOfOneDeviceIsToldWhenAllHaveEnded) {
  if (devices().count() < 2) GTEST_SKIP() << "one device";
  static int fails_to_launch = -1;
  static int fails_to_wait = -1;
  static std::multiset<int> waited;
  Driver failing = driver();
  failing.cuLaunchKernel_ = [](CUfunction function, unsigned x, unsigned y, unsigned z,
                               unsigned threads_x, unsigned threads_y, unsigned threads_z,
                               unsigned shared, CUstream on, void** parameters, void** extra) {
    if (devices().current() == fails_to_launch) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    return driver().cuLaunchKernel_(function, x, y, z, threads_x, threads_y, threads_z, shared, on,
                                    parameters, extra);
  };
  failing.cuStreamSynchronize_ = [](CUstream of) {
    waited.insert(devices().current());
    const CUresult r = driver().cuStreamSynchronize_(of);
    return devices().current() == fails_to_wait ? CUDA_ERROR_LAUNCH_TIMEOUT : r;
  };
  LocalDevices both(failing);
  ASSERT_TRUE(both.load().ok());
  BlockHasher other(failing, both);
  std::vector<Piece> pieces;
  for (const int device : {0, 1}) {
    other.prepare(device);
    pieces.push_back(piece(0, kGroup));
    pieces.back().device = device;
    pieces.back().address = pieces.back().pool;  // which both reach
    ASSERT_TRUE(other.serves(pieces.back()));
  }
  std::vector<std::vector<Hash>> hashes;
  ASSERT_TRUE(other.hash(pieces, hashes).ok());
  const auto error = [&](int launch, int wait) {
    fails_to_launch = launch;
    fails_to_wait = wait;
    waited.clear();
    const std::string text = other.hash(pieces, hashes).text();
    fails_to_launch = fails_to_wait = -1;
    return text;
  };
  EXPECT_NE(error(1, -1).find("on device 1: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"),
            std::string::npos);
  EXPECT_EQ(waited, (std::multiset<int>{0, 1})) << "each may have kernels, the failed one as well";
  EXPECT_NE(error(-1, 0).find("on device 0: CUDA_ERROR_LAUNCH_TIMEOUT"), std::string::npos);
  EXPECT_EQ(waited, (std::multiset<int>{0, 1}));
}

TEST_F(BlockHasherTest, OtherDevicesAndUnalignedPiecesAreNotServed) {
  Piece p = piece(0, kGroup);
  p.device = 9;
  EXPECT_FALSE(hasher.serves(p));
  p = piece(0, kGroup);
  p.length -= 8;
  EXPECT_FALSE(hasher.serves(p));
}

}  // namespace
}  // namespace amem::shim
