// Receive buffers in NCCL's tables, and for which versions they are dropped.
#include <gtest/gtest.h>

#include <cstring>

#include "shim/scratch/fifos.h"
#include "shim/scratch/scratch.h"

namespace amem::shim {
namespace {

// As NCCL makes them on H200s: ncclRecvMem, LL, LL128, Simple.
constexpr std::uint64_t kLl = 524288;
constexpr std::uint64_t kLl128 = 4915200;
constexpr std::uint64_t kSimple = 4194304;
constexpr std::uint64_t kSize = 4096 + kLl + kLl128 + kSimple;
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

const std::vector<OwnPiece> kPieces = {{0x6f0000000000, 4096, 0, 7, 0},
                                       {kBuffer, kSize, 1, 8, 4 * kSize},
                                       {kBuffer + kSize, kSize, 1, 8, 5 * kSize}};
constexpr std::size_t kReceive = 2;  // the first of two

TEST(ShimScratch, AReceiveBufferKeepsItsCountersAndLl) {
  const std::vector<Fifo> fifos = find_fifos(kPieces, Peer().receives(kReceive, kBuffer).bytes());
  ASSERT_EQ(fifos.size(), 1U);
  const Fifo& fifo = fifos.front();
  EXPECT_EQ(fifo.piece.address, kBuffer);
  EXPECT_EQ(fifo.piece.id, 8U);
  EXPECT_EQ(fifo.piece.offset, 4 * kSize);
  EXPECT_EQ(fifo.kept, 4096 + kLl);
  EXPECT_EQ(fifo.next_slot(), kStep % 8);
  EXPECT_EQ(fifo.flag_at(fifo.next_slot()), 4096 + kLl + kStep % 8 * (kLl128 / 8) + 120);
  EXPECT_TRUE(fifo.empty(kStep, kStep));
  EXPECT_TRUE(fifo.empty(0, 0)) << "with LL and LL128 nobody writes the tail";
  EXPECT_FALSE(fifo.empty(kStep + 1, 0)) << "sent by Simple, and not received yet";
  EXPECT_FALSE(fifo.empty(kStep, kStep + 1)) << "by LL128";
}

TEST(ShimScratch, EveryPeersBothReceivesOfATableAreFound) {
  std::vector<std::byte> table;
  const auto add = [&](const Peer& peer) {
    table.insert(table.end(), peer.bytes().begin(), peer.bytes().end());
  };
  add(Peer());
  add(Peer().receives(kReceive, kBuffer));
  add(Peer().receives(kReceive + 1, kBuffer + kSize));
  table.resize(4096);
  const std::vector<Fifo> fifos = find_fifos(kPieces, table);
  ASSERT_EQ(fifos.size(), 2U);
  EXPECT_EQ(fifos[0].piece.address, kBuffer);
  EXPECT_EQ(fifos[1].piece.address, kBuffer + kSize);
  // The same as a connection to send by is none.
  EXPECT_TRUE(find_fifos(kPieces, Peer().receives(0, kBuffer).bytes()).empty());
}

TEST(ShimScratch, WhatDoesNotFitInAllIsNoReceiveBuffer) {
  const auto none = [&](const Peer& peer) { return find_fifos(kPieces, peer.bytes()).empty(); };
  const auto peer = [&] { return Peer().receives(kReceive, kBuffer); };
  ASSERT_FALSE(none(peer()));
  EXPECT_TRUE(none(peer().set(kReceive, 48, kBuffer + 8))) << "no buffer begins there";
  EXPECT_TRUE(none(peer().set(kReceive, 48, Address{0})));
  EXPECT_TRUE(none(peer().set(kReceive, 0, kBuffer + 8192))) << "another header";
  EXPECT_TRUE(none(peer().set(kReceive, 8, kBuffer))) << "LL128 before LL";
  EXPECT_TRUE(none(peer().set(kReceive, 16, Address{0x7e0000000000}))) << "the peer's: read mode";
  EXPECT_TRUE(none(peer().set(kReceive, 16, kBuffer + 4096 + kLl + kLl128 + 64)));
  EXPECT_TRUE(none(peer().set(kReceive, 72, std::int32_t{0})));
  EXPECT_TRUE(none(peer().set(kReceive, 72, std::int32_t{-524288})));
  EXPECT_TRUE(none(peer().set(kReceive, 72, std::int32_t{1 << 20}))) << "longer than the buffer";
  EXPECT_TRUE(none(peer().set(kReceive, 72, std::int32_t{65536}))) << "far shorter";
  std::vector<std::byte> cut = peer().bytes();
  cut.pop_back();
  EXPECT_TRUE(find_fifos(kPieces, cut).empty());
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
