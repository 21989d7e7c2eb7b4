// What does not fit in one packet goes in several: all of it, once, and the last one says so.
#include "daemon/operations/outbox.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstdlib>
#include <filesystem>
#include <numeric>

namespace amem {
namespace {

class OutboxTest : public ::testing::Test, protected SessionHandler {
 protected:
  static constexpr RankId kRank = 7;
  using Ids = std::vector<std::uint64_t>;

  void SetUp() override {
    dir = (std::filesystem::temp_directory_path() / "amem-outbox-test-XXXXXX").string();
    ASSERT_NE(::mkdtemp(dir.data()), nullptr);
    ASSERT_TRUE(loop.open().ok());
    const std::string path = dir + "/session.sock";
    ASSERT_TRUE(server.listen({path, 0600, {}}).ok());
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    ASSERT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    loop.run();  // until the session is open
    ASSERT_TRUE(node.ranks.contains(kRank));
  }
  void TearDown() override {
    server.shut();
    node.ranks.clear();
    std::filesystem::remove_all(dir);
  }
  void session_opened(SessionId session, const PeerCredentials& peer) override {
    Rank& rank = node.ranks[kRank];
    rank.id = kRank;
    rank.session = session;
    rank.peer = peer;
    loop.stop();
  }
  void session_packet(SessionId, Packet&) override {}
  void session_closed(SessionId, const std::string&) override {}

  /// The packets that have come.
  std::vector<Packet> packets() {
    std::vector<Packet> all;
    for (Packet packet; all.size() < 10 && receive(socket.get(), MSG_DONTWAIT, packet).ok();
         packet = {})
      all.push_back(std::move(packet));
    return all;
  }
  static Ids numbers(std::size_t count) {
    Ids ids(count);
    std::iota(ids.begin(), ids.end(), 1);
    return ids;
  }

  std::string dir;
  Fd socket{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
  EventLoop loop;
  Accounts accounts{loop, Quotas{}};
  SessionServer server{loop, *this, accounts, Isolation::kUid};
  Record record;
  Node node{2 << 20, record, [](const PoolSegment&) {}, [](const PoolSegment&) {},
            [](std::uint64_t) {}};
  Outbox outbox{node, server, DeviceUuid{}};
};

TEST_F(OutboxTest, CopiesGoInPackets) {
  const Ids ids = numbers(2 * kMaxCopiesPerMessage + 1);
  std::vector<CopyRange> copies;
  for (const std::uint64_t id : ids) copies.push_back({id, 0, 4096, kZeroSegment, 0});
  outbox.send_copies(kRank, CopyKind::kLoad, Epoch(3), copies, true);
  Ids came;
  std::vector<bool> last;
  for (const Packet& packet : packets()) {
    ASSERT_EQ(packet.message.which_body, amem_v1_SessionMessage_load_tag);
    const amem_v1_Copies& load = packet.message.body.load;
    for (pb_size_t i = 0; i < load.copies_count; ++i) came.push_back(load.copies[i].id);
    last.push_back(load.last);
  }
  EXPECT_EQ(came, ids);
  EXPECT_EQ(last, (std::vector<bool>{false, false, true}));
}

TEST_F(OutboxTest, MapsGoInPacketsWithTheirDescriptors) {
  const Ids ids = numbers(kMaxMapsPerMessage + 2);
  const auto memory = std::make_shared<const Fd>(::memfd_create("outbox_test", MFD_CLOEXEC));
  std::vector<Allocation> allocations(ids.size());
  std::vector<const Allocation*> maps;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    allocations[i].id = ids[i];
    allocations[i].fd = memory;
    maps.push_back(&allocations[i]);
  }
  outbox.send_maps(kRank, Epoch(3), maps, true);
  Ids came;
  std::vector<bool> last;
  for (const Packet& packet : packets()) {
    ASSERT_EQ(packet.message.which_body, amem_v1_SessionMessage_map_tag);
    const amem_v1_Map& map = packet.message.body.map;
    came.insert(came.end(), map.ids, map.ids + map.ids_count);
    EXPECT_EQ(packet.fds.size(), map.ids_count);
    last.push_back(map.last);
  }
  EXPECT_EQ(came, ids);
  EXPECT_EQ(last, (std::vector<bool>{false, true}));
}

TEST_F(OutboxTest, NothingIsAPacketOnlyWhereTheRankAnswers) {
  outbox.send_copies(kRank, CopyKind::kLoad, Epoch(3), {}, false);
  EXPECT_TRUE(packets().empty());
  outbox.send_copies(kRank, CopyKind::kLoad, Epoch(3), {}, true);
  const std::vector<Packet> all = packets();
  ASSERT_EQ(all.size(), 1U) << "the rank answers it";
  EXPECT_TRUE(all.front().message.body.load.last);
}

}  // namespace
}  // namespace amem
