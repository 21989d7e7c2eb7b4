// Receive buffers in NCCL's tables, and for which versions they are dropped.
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "shim/scratch/fifos.h"
#include "shim/scratch/scratch.h"

namespace amem::shim {
namespace {

// As NCCL makes them on H200s: ncclRecvMem, LL, LL128, Simple.
constexpr std::uint64_t kLl = 524288;
constexpr std::uint64_t kLl128 = 4915200;
constexpr std::uint64_t kSimple = 4194304;
constexpr std::uint64_t kBufferSize = 4096 + kLl + kLl128 + kSimple;
constexpr Address kBuffer = 0x7f0000000000;
constexpr std::uint64_t kStep = 29;

/// A ncclDevChannelPeer whose connections are all of one kind.
class Peer {
 public:
  template <class T>
  Peer& set(std::size_t connection, std::size_t field, T value) {
    std::memcpy(bytes_.data() + connection * 152 + field, &value, sizeof value);
    return *this;
  }
  Peer& receives(std::size_t connection, Address buffer) {
    return set(connection, 0, buffer + 4096)
        .set(connection, 8, buffer + 4096 + kLl)
        .set(connection, 16, buffer + 4096 + kLl + kLl128)
        .set(connection, 48, buffer)
        .set(connection, 56, Address{0x7e0000000000})  // head: the peer's
        .set(connection, 72, static_cast<std::int32_t>(kSimple / 8))
        .set(connection, 104, kStep);
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_ = std::vector<std::byte>(608);
};

const std::vector<OwnBuffer> kBuffers = {
    {0x6f0000000000, 4096, 0, 7, 0},
    {kBuffer, kBufferSize, 1, 8, 4 * kBufferSize},
    {kBuffer + kBufferSize, kBufferSize, 1, 8, 5 * kBufferSize}};
constexpr std::size_t kReceive = 2;  // the first of two

Fifo fifo_at(std::uint64_t step) {
  const std::vector<Fifo> fifos =
      find_fifos(kBuffers, Peer().receives(kReceive, kBuffer).set(kReceive, 104, step).bytes());
  return fifos.size() == 1 ? fifos.front() : Fifo{};
}

TEST(ShimScratch, AReceiveBufferKeepsItsCounters) {
  const Fifo fifo = fifo_at(kStep);
  EXPECT_EQ(fifo.buffer.address, kBuffer);
  EXPECT_EQ(fifo.buffer.id, 8U);
  EXPECT_EQ(fifo.buffer.offset, 4 * kBufferSize);
  EXPECT_EQ(fifo.step, kStep);
  EXPECT_EQ(fifo.live_bytes(), 4096U);
}

TEST(ShimScratch, LlIsKeptWhereZerosCouldBeTakenForItsFlags) {
  constexpr std::uint64_t kRound = std::uint64_t{1} << 32U;
  EXPECT_EQ(fifo_at(0x7ffffff7).live_bytes(), 4096U);
  EXPECT_EQ(fifo_at(0x7ffffff8).live_bytes(), 4096 + kLl);
  EXPECT_EQ(fifo_at(kRound - 1).live_bytes(), 4096 + kLl);
  EXPECT_EQ(fifo_at(kRound).live_bytes(), 4096U);
  EXPECT_EQ(fifo_at(5 * kRound + 0x90000000).live_bytes(), 4096 + kLl);
}

TEST(ShimScratch, TheFirstLineOfEachSlotIsLookedAtInTheOrderOfSteps) {
  const auto at = fifo_at(kStep).looks();
  EXPECT_EQ(at[0], 0U);
  EXPECT_EQ(at[1], 4096 + kStep % 8 * (kLl / 8));
  EXPECT_EQ(at[8], 4096 + (kStep + 7) % 8 * (kLl / 8));
  EXPECT_EQ(at[9], 4096 + kLl + kStep % 8 * (kLl128 / 8) + 120);
  EXPECT_EQ(at[16], 4096 + kLl + (kStep + 7) % 8 * (kLl128 / 8) + 120);
}

TEST(ShimScratch, ASenderThatIsAheadBySomeProtocol) {
  constexpr std::uint64_t kMany = (std::uint64_t{3} << 32U) - 4;  // LL's flags begin again in 4
  for (const std::uint64_t step : {kStep, kMany}) {
    const Fifo fifo = fifo_at(step);
    const auto ll = [](std::uint64_t flag) { return flag << 32U | 0x12345678U; };
    std::array<std::uint64_t, Fifo::kWords> words{};
    words[0] = step;
    // What the last eight steps have left.
    for (std::uint64_t i = 0; i < 8; ++i) {
      words[1 + i] = ll(step + i - 7);
      words[9 + i] = step + i - 7;
    }
    EXPECT_TRUE(fifo.empty(words)) << step;
    const auto with = [&](std::size_t at, std::uint64_t word) {
      auto changed = words;
      changed[at] = word;
      return fifo.empty(changed);
    };
    EXPECT_TRUE(with(0, 0)) << "with LL and LL128 nobody writes the tail";
    EXPECT_FALSE(with(0, step + 1)) << "sent by Simple, and not received yet";
    // Also behind an empty message, which leaves no flag.
    for (std::uint64_t i = 0; i < 8; ++i) {
      EXPECT_FALSE(with(1 + i, ll(step + i + 1))) << "by LL, " << i;
      EXPECT_FALSE(with(9 + i, step + i + 1)) << "by LL128, " << i;
    }
  }
}

TEST(ShimScratch, EveryPeersBothReceivesOfATableAreFound) {
  std::vector<std::byte> table;
  const auto add = [&](const Peer& peer) {
    table.insert(table.end(), peer.bytes().begin(), peer.bytes().end());
  };
  add(Peer());
  add(Peer().receives(kReceive, kBuffer));
  add(Peer().receives(kReceive + 1, kBuffer + kBufferSize));
  table.resize(4096);
  const std::vector<Fifo> fifos = find_fifos(kBuffers, table);
  ASSERT_EQ(fifos.size(), 2U);
  EXPECT_EQ(fifos[0].buffer.address, kBuffer);
  EXPECT_EQ(fifos[1].buffer.address, kBuffer + kBufferSize);
  // The same as a connection to send by is none.
  EXPECT_TRUE(find_fifos(kBuffers, Peer().receives(0, kBuffer).bytes()).empty());
}

TEST(ShimScratch, WhatDoesNotFitInAllIsNoReceiveBuffer) {
  const auto none = [&](const Peer& peer) { return find_fifos(kBuffers, peer.bytes()).empty(); };
  const auto peer = [&] { return Peer().receives(kReceive, kBuffer); };
  ASSERT_FALSE(none(peer()));
  EXPECT_TRUE(none(peer().set(kReceive, 48, kBuffer + 8))) << "no buffer begins there";
  EXPECT_TRUE(none(peer().set(kReceive, 48, Address{0})));
  EXPECT_TRUE(none(peer().set(kReceive, 0, kBuffer + 8192))) << "another header";
  EXPECT_TRUE(none(peer().set(kReceive, 8, kBuffer))) << "LL128 before LL";
  EXPECT_TRUE(none(peer().set(kReceive, 8, kBuffer + 4096 + 8))) << "LL of half a line";
  EXPECT_TRUE(none(peer().set(kReceive, 16, Address{0x7e0000000000}))) << "the peer's: read mode";
  EXPECT_TRUE(none(peer().set(kReceive, 16, kBuffer + 4096 + kLl + kLl128 + 64)));
  EXPECT_TRUE(none(peer().set(kReceive, 72, std::int32_t{0})));
  EXPECT_TRUE(none(peer().set(kReceive, 72, std::int32_t{-524288})));
  EXPECT_TRUE(none(peer().set(kReceive, 72, std::int32_t{1 << 20}))) << "longer than the buffer";
  EXPECT_TRUE(none(peer().set(kReceive, 72, std::int32_t{65536}))) << "far shorter";
  std::vector<std::byte> cut = peer().bytes();
  cut.pop_back();
  EXPECT_TRUE(find_fifos(kBuffers, cut).empty());
  EXPECT_TRUE(find_fifos({}, peer().bytes()).empty());
}

TEST(ShimScratch, OnlyWhereItIsProven) {
  EXPECT_FALSE(scratch_rule(NcclScratch::kKeep, 22809).drop);
  const ScratchRule proof = scratch_rule(NcclScratch::kProve, 0);
  EXPECT_TRUE(proof.drop && proof.prove);
  for (const int proven : {22809, 23007}) {
    const ScratchRule rule = scratch_rule(NcclScratch::kDrop, proven);
    EXPECT_TRUE(rule.drop && !rule.prove && rule.refusal.empty()) << proven;
  }
  const ScratchRule unknown = scratch_rule(NcclScratch::kDrop, 0);
  EXPECT_FALSE(unknown.drop);
  EXPECT_NE(unknown.refusal.find("does not say its version"), std::string::npos);
  const ScratchRule old = scratch_rule(NcclScratch::kDrop, 21903);
  EXPECT_FALSE(old.drop || old.prove);
  EXPECT_NE(old.refusal.find("NCCL 2.19.3"), std::string::npos) << old.refusal;
}

}  // namespace
}  // namespace amem::shim
