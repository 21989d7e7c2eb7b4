// What a device that hangs does to a whole broker: it stops only itself.
#include <thread>

#include "tests/unit/fixtures/broker_fixture.h"

namespace amem {
namespace {

class HangTest : public BrokerTest {
 protected:
  void configure(Config& all) const override { all.deadlines.create = seconds(4); }
  /// The next call that makes memory, of whatever device, does not return before the end of this.
  static void hang() { faults("cuMemCreate:1:hold"); }
  static void end_of_hang() { std::filesystem::remove(simulated_node->fault_file()); }

  void two_groups() {
    join(a, "train", 0);
    of_a = a.create(gpu(0), 4 * kMiB);
    a.write(of_a, 0xaa);
    join(b, "rollout", 0);
    of_b = b.create(gpu(1), 6 * kMiB);
    b.write(of_b, 0xbb);
  }
};

TEST_F(HangTest, OnlyTheGroupOnThatDeviceWaits) {
  two_groups();
  ASSERT_TRUE(pause("train").ok());
  ASSERT_TRUE(pause("rollout").ok());
  hang();
  const auto stuck = begin(Operation::kResume, "train");
  ASSERT_TRUE(eventually([&] { return group("train").phase() == "create"; }));
  const Status other = resume("rollout");
  EXPECT_TRUE(other.ok()) << other.text();
  EXPECT_FALSE(stuck->done()) << "the other group did not wait for it";
  EXPECT_TRUE(b.holds(of_b, 0xbb));

  const Status given_up = complete(stuck);
  EXPECT_EQ(given_up.code(), Code::kDeadlineExceeded) << given_up.text();
  EXPECT_NE(given_up.text().find("create: device 0 (" + to_string(gpu(0)) +
                                 "): cuMemCreate of 4 MiB has not returned for "),
            std::string::npos)
      << given_up.text();
  EXPECT_EQ(group("train").state(), kPaused);

  end_of_hang();
  const Status resumed = resume("train");
  ASSERT_TRUE(resumed.ok()) << resumed.text();
  EXPECT_TRUE(a.holds(of_a, 0xaa));
  EXPECT_TRUE(eventually([&] { return used(0) == 4 * kMiB; })) << "what came too late is freed";
}

TEST_F(HangTest, ARankThatAllocatesThereIsTold) {
  two_groups();
  hang();
  std::thread allocates([this] {
    const Packet refused = a.try_create(gpu(0), 2 * kMiB, "nccl");
    EXPECT_EQ(ScriptedRank::code(refused), Code::kDeadlineExceeded);
    EXPECT_NE(std::string(refused.message.body.reply.text).find("device 0 ("), std::string::npos)
        << refused.message.body.reply.text;
  });
  while (!std::filesystem::exists(simulated_node->fault_file())) std::this_thread::yield();
  std::this_thread::sleep_for(milliseconds(100));
  const Time began = Clock::now();
  b.create(gpu(1), 2 * kMiB);
  EXPECT_LT(Clock::now() - began, milliseconds(1000)) << "on another device";
  allocates.join();
  EXPECT_EQ(status().devices(0).brokered_bytes(), 4 * kMiB);
  end_of_hang();
  a.create(gpu(0), 2 * kMiB);
  EXPECT_EQ(used(0), 6 * kMiB);
}

TEST_F(HangTest, WhoeverAwaitsItWaitsForTheCloseOfWhatItFreed) {
  two_groups();
  hang();
  b.ask_to_create(gpu(0), 2 * kMiB, "nccl");
  b.try_redeem(0, {});  // what it sent before has reached the device's thread

  a.free(of_a);
  const std::uint64_t asked = a.ask_to_await_closed();
  a.try_redeem(0, {});
  EXPECT_EQ(used(0), 4 * kMiB);
  end_of_hang();
  EXPECT_EQ(ScriptedRank::code(a.await_reply(asked)), Code::kOk) << "not before the close";
}

TEST_F(HangTest, APauseThereEndsThoughItsMemoryStays) {
  two_groups();
  hang();
  std::thread allocates([this] { (void)a.try_create(gpu(0), 2 * kMiB, "nccl"); });
  std::this_thread::sleep_for(milliseconds(100));
  allocates.join();
  const Status paused = pause("train");
  EXPECT_TRUE(paused.ok()) << paused.text();
  EXPECT_EQ(used(0), 4 * kMiB) << "its close waits for the call that hangs";
  end_of_hang();
  EXPECT_TRUE(eventually([&] { return used(0) == 0; }));
  ASSERT_TRUE(resume("train").ok());
  EXPECT_TRUE(a.holds(of_a, 0xaa));
}

}  // namespace
}  // namespace amem
