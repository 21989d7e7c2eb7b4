// The kernels of sparse copies by way of the driver: on the simulated one its stand-ins for them,
// on a machine with a GPU the kernels themselves.
#include "shim/copies/sparse_copier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "shim/copies/sparse_count.h"
#include "tests/unit/fixtures/on_driver.h"

namespace amem::shim {
namespace {

using sparse::kBlock;
using sparse::kGroup;

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kMemory = 20 * kMiB;
using Bytes = std::vector<unsigned char>;

class SparseCopierTest : public OnDriver {
 protected:
  void SetUp() override {
    LocalDevices::Use use(devices(), 0);
    ASSERT_EQ(use.result(), CUDA_SUCCESS);
    allocate(kMemory);
    void* host = nullptr;
    ASSERT_EQ(driver().cuMemHostAlloc_(&host, kMemory, 0), CUDA_SUCCESS);
    pool = static_cast<unsigned char*>(host);
    std::memset(pool, 0x77, kMemory);
    ASSERT_EQ(driver().cuStreamCreate_(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    copier.prepare(0);
  }

  void put(std::uint64_t at, const Bytes& bytes) {
    LocalDevices::Use use(devices(), 0);
    ASSERT_EQ(driver().cuMemcpyHtoDAsync_(memory + at, bytes.data(), bytes.size(), stream),
              CUDA_SUCCESS);
    ASSERT_EQ(driver().cuStreamSynchronize_(stream), CUDA_SUCCESS);
  }
  Bytes get(std::uint64_t at, std::uint64_t length) {
    LocalDevices::Use use(devices(), 0);
    Bytes bytes(length);
    EXPECT_EQ(driver().cuMemcpyDtoHAsync_(bytes.data(), memory + at, length, stream), CUDA_SUCCESS);
    EXPECT_EQ(driver().cuStreamSynchronize_(stream), CUDA_SUCCESS);
    return bytes;
  }
  /// What the next pieces are in memory and, at the same offset, in the pool.
  Piece piece(std::uint64_t at, std::uint64_t length, bool wanted = true) {
    Piece p;
    p.id = at;
    p.length = length;
    p.device = 0;
    p.address = memory + at;
    p.pool = reinterpret_cast<CUdeviceptr>(pool + at);
    p.space = length;
    p.form = wanted ? Form::kSparse : Form::kAuto;
    return p;
  }
  std::vector<Piece> save(const std::vector<Piece>& pieces) {
    for (const Piece& p : pieces) EXPECT_TRUE(copier.offer(p));
    EXPECT_TRUE(copier.start().ok());
    std::vector<Piece> decided;
    const Status status = copier.store(decided);
    EXPECT_TRUE(status.ok()) << status.text();
    EXPECT_TRUE(copier.finish().ok());
    EXPECT_EQ(decided.size(), pieces.size());
    return decided;
  }
  void load(const std::vector<Piece>& pieces) {
    put(0, Bytes(kMemory, 0xcd));
    const Status status = copier.load(pieces);
    ASSERT_TRUE(status.ok()) << status.text();
    const Status finished = copier.finish();
    ASSERT_TRUE(finished.ok()) << finished.text();
  }
  /// One piece of these bytes, saved and loaded; gives what was stored, 0 when it was not sparse.
  std::uint64_t round_trip(const Bytes& bytes, bool wanted = true) {
    put(0, bytes);
    std::memset(pool, 0x77, kMemory);
    const std::vector<Piece> saved = save({piece(0, bytes.size(), wanted)});
    if (saved[0].form != Form::kSparse) return 0;
    const Bytes untouched(kMemory - saved[0].stored, 0x77);
    EXPECT_EQ(std::memcmp(pool + saved[0].stored, untouched.data(), untouched.size()), 0)
        << "wrote to the pool behind " << saved[0].stored;
    load(saved);
    EXPECT_TRUE(get(0, bytes.size()) == bytes);
    EXPECT_TRUE(get(bytes.size(), 16) == Bytes(16, 0xcd)) << "wrote behind its end";
    return saved[0].stored;
  }

  SparseCopier copier{driver(), devices()};
  CUstream stream = nullptr;
  unsigned char* pool = nullptr;
};

int host_blocks = 0;  // of the driver's heap of pinned memory
int registered = 0;

/// The driver, which counts these.
Driver counting(const Driver& driver) {
  static const Driver* real;
  real = &driver;
  host_blocks = registered = 0;
  Driver counts = driver;
  counts.cuMemHostAlloc_ = [](void** address, std::size_t size, unsigned flags) {
    ++host_blocks;
    return real->cuMemHostAlloc_(address, size, flags);
  };
  counts.cuMemHostRegister_ = [](void* address, std::size_t size, unsigned flags) {
    ++registered;
    return real->cuMemHostRegister_(address, size, flags);
  };
  counts.cuMemHostUnregister_ = [](void* address) {
    --registered;
    return real->cuMemHostUnregister_(address);
  };
  return counts;
}

// The kernels are tried, and one does not run: what was made for them goes.
TEST_F(SparseCopierTest, WhatCannotBePreparedLeavesNothing) {
  Driver failing = counting(driver());
  failing.cuLaunchKernel_ = [](CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                               unsigned, unsigned, CUstream, void**,
                               void**) { return CUDA_ERROR_NO_BINARY_FOR_GPU; };
  SparseCopier other(failing, devices());
  other.prepare(0);
  EXPECT_FALSE(other.offer(piece(0, kGroup)));
  EXPECT_EQ(registered, 0);
}

TEST_F(SparseCopierTest, WhereThereWasNoMemoryForTheKernelsTheNextPhaseTriesAgain) {
  check_what_is_loaded_again<SparseCopier>(
      [this](SparseCopier& other) { return other.offer(piece(0, kGroup)); },
      [](SparseCopier& other) { EXPECT_TRUE(other.finish().ok()); });
}

/// The driver, which runs the first kernels only when the device has been given another.
Driver late(const Driver& driver) {
  struct Launch {
    CUfunction function;
    unsigned blocks;
    unsigned threads;
    CUstream stream;
    std::vector<unsigned char> parameter;
  };
  static const Driver* real;
  static std::vector<Launch> held;
  real = &driver;
  held.clear();
  Driver late = driver;
  late.cuLaunchKernel_ = [](CUfunction function, unsigned blocks, unsigned, unsigned,
                            unsigned threads, unsigned, unsigned, unsigned, CUstream stream,
                            void** parameters, void**) {
    const auto* const bytes = static_cast<const unsigned char*>(parameters[0]);
    if (held.size() < 5) {  // each kernel's trial; words has the smallest parameter and comes last
      const std::size_t size = held.size() < 4 ? sizeof(sparse::Launch) : sizeof(sparse::Words);
      held.push_back({function, blocks, threads, stream, {bytes, bytes + size}});
      return CUDA_SUCCESS;
    }
    for (Launch& launch : held) {
      void* parameter[] = {launch.parameter.data()};
      if (launch.blocks == 0) continue;
      EXPECT_EQ(real->cuLaunchKernel_(launch.function, launch.blocks, 1, 1, launch.threads, 1, 1, 0,
                                      launch.stream, parameter, nullptr),
                CUDA_SUCCESS);
      launch.blocks = 0;
    }
    return real->cuLaunchKernel_(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters,
                                 nullptr);
  };
  return late;
}

// A program's own kernels may keep them waiting until the table is in use.
TEST_F(SparseCopierTest, TrialsThatRunLateTouchNothing) {
  Bytes bytes(kMiB);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i * 7);
  put(0, bytes);
  const Driver slow = late(driver());
  SparseCopier other(slow, devices());
  other.prepare(0);
  std::vector<Address> at;
  for (std::uint64_t i = 0; i < 100; ++i) at.push_back(memory + 8 * i);
  std::vector<std::uint64_t> words;
  const Status status = other.read(0, at, words);
  ASSERT_TRUE(status.ok()) << status.text();
  EXPECT_EQ(std::memcmp(words.data(), bytes.data(), 8 * words.size()), 0);
}

// There it would keep a chunk alive that the program's blocks are cut from, and their next ones
// would not be zero as they are without us.
TEST_F(SparseCopierTest, TheTableIsNoBlockOfTheDriversHeapOfPinnedMemory) {
  const Driver counts = counting(driver());
  SparseCopier other(counts, devices());
  other.prepare(0);
  EXPECT_EQ(host_blocks, 0);
  EXPECT_EQ(registered, 1);
  ASSERT_TRUE(other.offer(piece(0, kMemory))) << "it has no table";
  EXPECT_TRUE(other.finish().ok());
  other.forget(0);
  EXPECT_EQ(registered, 0) << "the table outlives what it was made for";
}

TEST_F(SparseCopierTest, AllZerosTakeAnIndexOnly) { EXPECT_EQ(round_trip(Bytes(3 * kMiB)), 4096U); }

TEST_F(SparseCopierTest, WithoutZerosItIsLeftToTheCopyEngine) {
  EXPECT_EQ(round_trip(Bytes(3 * kMiB, 1)), 0U);
}

TEST_F(SparseCopierTest, OneByteKeepsItsBlock) {
  for (std::uint64_t at : {std::uint64_t{0}, kBlock - 1, 5 * kBlock + 4097, 2 * kMiB - 1}) {
    Bytes bytes(2 * kMiB);
    bytes[at] = 0x80;
    EXPECT_EQ(round_trip(bytes), 4096 + kBlock) << "byte " << at;
  }
}

TEST_F(SparseCopierTest, AnOddTail) {
  for (std::uint64_t tail : {std::uint64_t{16}, std::uint64_t{4096}, kBlock - 16}) {
    Bytes bytes(kGroup + kBlock + tail);
    bytes[17] = 1;
    EXPECT_EQ(round_trip(bytes), 4096 + kBlock) << "tail " << tail;
    bytes.back() = 9;
    EXPECT_EQ(round_trip(bytes), 4096 + kBlock + tail) << "tail " << tail;
  }
}

TEST_F(SparseCopierTest, ByItselfOnlyWhereItPays) {
  Bytes bytes(10 * kBlock);
  for (std::uint64_t block = 0; block < 6; ++block) bytes[block * kBlock] = 1;
  EXPECT_EQ(round_trip(bytes, false), 4096 + 6 * kBlock);
  bytes[9 * kBlock] = 1;
  EXPECT_EQ(round_trip(bytes, false), 0U);
  EXPECT_EQ(round_trip(bytes, true), 4096 + 7 * kBlock);
}

TEST_F(SparseCopierTest, ManyPiecesOfAllKindsInOneGo) {
  std::mt19937 random(7);
  Bytes all(kMemory);
  std::vector<Piece> pieces;
  // More than one launch takes, with gaps between them.
  std::uint64_t at = 0;
  while (at + 3 * kBlock < kMemory && pieces.size() < 2 * sparse::kMaxRanges + 3) {
    const std::uint64_t units = 1 + random() % (pieces.size() % 50 == 0 ? 150'000 : 12'000);
    const std::uint64_t length = std::min(units * 16, kMemory - at);
    const auto percent =
        static_cast<unsigned>(pieces.size() % 5 * 25);  // of the blocks are not zero
    for (std::uint64_t begin = at; begin < at + length; begin += kBlock) {
      if (random() % 100 >= percent) continue;
      for (std::uint64_t i = begin; i < std::min(begin + kBlock, at + length); ++i)
        all[i] = static_cast<unsigned char>(random());
    }
    pieces.push_back(piece(at, length));
    at += length + 16;
  }
  ASSERT_GT(pieces.size(), sparse::kMaxRanges);
  put(0, all);
  std::vector<Piece> saved = save(pieces);
  std::erase_if(saved, [](const Piece& p) { return p.form != Form::kSparse; });
  EXPECT_GT(saved.size(), pieces.size() / 2);
  EXPECT_LT(saved.size(), pieces.size());
  load(saved);
  for (const Piece& p : saved) {
    const Bytes loaded = get(p.id, p.length);
    EXPECT_TRUE(
        std::equal(loaded.begin(), loaded.end(), all.begin() + static_cast<std::ptrdiff_t>(p.id)))
        << "the piece at " << p.id << " of " << p.length << " bytes";
  }
}

TEST_F(SparseCopierTest, ChecksumsAreThoseOfTheBytes) {
  std::mt19937_64 random(3);
  const std::uint64_t length = kGroup + 3 * kBlock + 48;
  std::vector<std::uint64_t> words(length / 8);
  for (std::uint64_t& word : words) word = random();
  Bytes bytes(length);
  std::memcpy(bytes.data(), words.data(), length);
  put(0, bytes);
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < words.size(); ++i) sum += sparse::mix(words[i], i);
  std::vector<Piece> pieces = {piece(0, length), piece(0, length - 16), piece(8, length)};
  ASSERT_TRUE(copier.checksums(pieces).ok());
  EXPECT_EQ(pieces[0].checksum, sum);
  EXPECT_NE(pieces[1].checksum, sum);
  EXPECT_EQ(pieces[2].checksum, 0U) << "not aligned";
  bytes[length - 1] ^= 1;
  put(0, bytes);
  ASSERT_TRUE(copier.checksums(pieces).ok());
  EXPECT_NE(pieces[0].checksum, sum);
}

TEST_F(SparseCopierTest, ABrokenIndexReadsNothingElse) {
  Bytes bytes(2 * kMiB);
  bytes[0] = 1;
  put(0, bytes);
  const std::vector<Piece> saved = save({piece(0, bytes.size())});
  ASSERT_EQ(saved[0].form, Form::kSparse);
  const sparse::Entry broken{0xffffffff, 0x10000000};
  std::memcpy(pool, &broken, sizeof broken);
  load(saved);
  EXPECT_TRUE(get(0, bytes.size()) == Bytes(bytes.size())) << "not even the block that is there";
}

TEST_F(SparseCopierTest, ALookTellsOfBlocksAndWritesNothing) {
  Bytes bytes(2 * kGroup + 3 * kBlock);
  bytes[kBlock] = bytes[kGroup - 1] = bytes[2 * kGroup + 2 * kBlock] = 1;
  put(0, bytes);
  ASSERT_TRUE(copier.offer(piece(0, bytes.size())));
  ASSERT_TRUE(copier.offer(piece(3 * kGroup, kGroup)));
  ASSERT_TRUE(copier.start().ok());
  std::vector<Look> looks;
  ASSERT_TRUE(copier.look(looks).ok());
  ASSERT_TRUE(copier.finish().ok());
  ASSERT_EQ(looks.size(), 2U);
  EXPECT_EQ(looks[0].id, 0U);
  EXPECT_EQ(looks[0].masks, (std::vector<std::uint32_t>{0x80000002, 0, 0b100}));
  EXPECT_EQ(looks[1].masks.size(), 1U);
  EXPECT_EQ(pool[0], 0x77);
}

TEST_F(SparseCopierTest, WhatIsLeftOutComesBackAsZeros) {
  const Bytes ones(4 * kGroup, 1);
  put(0, ones);
  save({piece(0, 4 * kGroup)});  // the table has seen other masks
  const std::vector<Gap> gaps = {{kGroup / 2, 2 * kGroup}};
  Piece most = piece(0, 4 * kGroup);
  most.left_out = &gaps;
  Piece all = piece(5 * kGroup, kGroup);
  const std::vector<Gap> everything = {{0, kGroup}};
  all.left_out = &everything;
  put(5 * kGroup, Bytes(kGroup, 1));
  const std::vector<Piece> saved = save({most, all});
  EXPECT_EQ(saved[0].stored, 4096 + 2 * kGroup);
  EXPECT_EQ(saved[1].stored, 4096U);
  put(0, Bytes(kMemory));
  ASSERT_TRUE(copier.load(saved).ok());
  ASSERT_TRUE(copier.finish().ok());
  Bytes expected = ones;
  std::fill_n(expected.begin() + kGroup / 2, 2 * kGroup, std::uint8_t{0});
  EXPECT_TRUE(get(0, 4 * kGroup) == expected);
  EXPECT_TRUE(get(5 * kGroup, kGroup) == Bytes(kGroup));
}

// It had fewer bytes when its place was chosen.
TEST_F(SparseCopierTest, WhatDoesNotFitInItsPlaceFailsAndWritesNothing) {
  Bytes bytes(2 * kGroup);
  bytes[0] = bytes[kGroup] = 1;
  put(0, bytes);
  Piece first = piece(0, kGroup);
  Piece second = piece(kGroup, kGroup);
  first.space = second.space = 4096 + kBlock;
  const std::vector<Piece> fit = save({first, second});
  EXPECT_TRUE(fit[0].form == Form::kSparse && fit[1].form == Form::kSparse);
  for (const bool whole : {false, true}) {
    bytes[kGroup + 5 * kBlock] = 1;
    if (whole) std::fill(bytes.begin() + kGroup, bytes.end(), 1);  // dense is no way out
    put(0, bytes);
    std::memset(pool, 0x77, kMemory);
    ASSERT_TRUE(copier.offer(first) && copier.offer(second));
    ASSERT_TRUE(copier.start().ok());
    std::vector<Piece> decided;
    const Status status = copier.store(decided);
    EXPECT_EQ(status.code(), Code::kAborted);
    EXPECT_NE(status.text().find("has changed while it was paused"), std::string::npos);
    EXPECT_TRUE(decided.empty());
    EXPECT_TRUE(copier.finish().ok());
    EXPECT_TRUE(std::all_of(pool, pool + kMemory, [](unsigned char c) { return c == 0x77; }));
  }
}

TEST_F(SparseCopierTest, WhatItCannotTake) {
  EXPECT_FALSE(copier.offer(piece(8, 4096)));
  EXPECT_FALSE(copier.offer(piece(0, 4097)));
  Piece elsewhere = piece(0, 4096);
  elsewhere.device = 1;
  EXPECT_FALSE(copier.offer(elsewhere)) << "device 1 has not been prepared";
  EXPECT_EQ(copier.load(std::vector<Piece>{elsewhere}).code(), Code::kFailedPrecondition);
  EXPECT_TRUE(copier.finish().ok());
  copier.forget(0);
  EXPECT_FALSE(copier.offer(piece(0, 4096)));
}

// Also while looks that were queued before have not been asked about.
TEST_F(SparseCopierTest, SingleWordsComeInTheirOrder) {
  std::vector<std::uint64_t> values(kMemory / sizeof(std::uint64_t));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = i * i + 1;
  const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
  put(0, Bytes(bytes, bytes + kMemory));
  std::vector<Address> at;
  std::vector<std::uint64_t> right;
  for (std::size_t i = 0; i < 3000; ++i) {  // more than the table has space for at a time
    const std::size_t word = i * 7919 % values.size();
    at.push_back(memory + word * sizeof(std::uint64_t));
    right.push_back(values[word]);
  }
  ASSERT_TRUE(copier.offer(piece(0, kMemory)));
  ASSERT_TRUE(copier.start().ok());
  std::vector<std::uint64_t> words = {1, 2, 3};
  const Status read = copier.read(0, at, words);
  ASSERT_TRUE(read.ok()) << read.text();
  EXPECT_TRUE(words == right);
  std::vector<Look> looks;
  ASSERT_TRUE(copier.look(looks).ok());
  EXPECT_EQ(looks.at(0).masks.at(0), 0xffffffff);
  EXPECT_TRUE(copier.read(0, {}, words).ok() && words.empty());
  EXPECT_EQ(copier.read(1, at, words).code(), Code::kFailedPrecondition);
  EXPECT_TRUE(copier.finish().ok());
  while (copier.offer(piece(0, kMemory))) continue;
  while (copier.offer(piece(0, 16))) continue;
  EXPECT_EQ(copier.read(0, at, words).code(), Code::kResourceExhausted);
  EXPECT_TRUE(copier.finish().ok());
}

TEST_F(SparseCopierTest, ATableThatIsFullTakesNoMore) {
  // The last pieces of what the table has space for are let go of by finish().
  int taken = 0;
  while (copier.offer(piece(0, kMemory))) ++taken;
  EXPECT_GT(taken, 4096 / 16);
  EXPECT_TRUE(copier.finish().ok());
  EXPECT_TRUE(copier.offer(piece(0, kMemory)));
  EXPECT_TRUE(copier.finish().ok());
}

}  // namespace
}  // namespace amem::shim
