// Calls of the driver by device: each device's in order, and one that hangs stops only itself.
#include "daemon/memory/workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "daemon/operations/restore_space.h"
#include "tests/unit/fixtures/broker_fixture.h"

namespace amem {
namespace {

constexpr Duration kLong = seconds(20);

/// A loop of its own, and the two devices of the simulated driver.
class WorkersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(loop.open().ok());
    ASSERT_TRUE(devices.open().ok());
    ASSERT_GE(devices.all().size(), 2U);
    ASSERT_TRUE(nvml.open(devices).ok());
    make(Workers::Runs::kThreads);
  }
  void make(Workers::Runs runs) {
    workers = std::make_unique<Workers>(loop, devices, nvml, runs,
                                        [this](const std::string& text) { trouble += text; });
  }
  const DeviceUuid& gpu(std::size_t ordinal) const { return devices.all()[ordinal].uuid; }
  /// The loop, for so long, or until stop().
  void run(Duration limit = kLong) {
    const auto timer = loop.at(Clock::now() + limit, [this] {
      late = true;
      loop.stop();
    });
    loop.run();
    loop.cancel(timer);
  }

  EventLoop loop;
  Devices devices;
  Nvml nvml;
  std::string trouble;
  bool late = false;
  std::unique_ptr<Workers> workers;
};

TEST_F(WorkersTest, OfADeviceEverythingIsDoneInOrderOnAThreadOfItsOwn) {
  std::vector<int> done;
  std::set<std::thread::id> threads;
  for (int i = 0; i < 100; ++i)
    workers->ask(
        gpu(0), {"call"}, kLong, [] { return std::this_thread::get_id(); },
        [&, i](const Result<std::thread::id>& thread) {
          done.push_back(i);
          threads.insert(thread.value());
          if (i == 99) loop.stop();
        });
  EXPECT_TRUE(done.empty()) << "never before ask() returns";
  run();
  ASSERT_EQ(done.size(), 100U);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(threads.size(), 1U);
  EXPECT_FALSE(threads.contains(std::this_thread::get_id()));
}

TEST_F(WorkersTest, OnTheLoopNothingIsDoneBeforeItTurns) {
  make(Workers::Runs::kLoop);
  std::thread::id thread;
  workers->ask(
      gpu(0), {"call"}, kLong, [] { return std::this_thread::get_id(); },
      [&](const Result<std::thread::id>& result) {
        thread = result.value();
        loop.stop();
      });
  EXPECT_EQ(thread, std::thread::id());
  run();
  EXPECT_EQ(thread, std::this_thread::get_id());
}

TEST_F(WorkersTest, ADeviceThatHangsIsNamedAndTheOtherGoesOn) {
  std::promise<void> hold;
  std::shared_future<void> held = hold.get_future();
  Status first, second;
  bool other = false;
  std::atomic<int> freed = 0;
  workers->ask(
      gpu(0), {"cuMemCreate", 2 << 20}, milliseconds(300),
      [&] {
        held.wait();
        return std::shared_ptr<int>(new int, [&](const int* made) { delete made, ++freed; });
      },
      [&](const Result<std::shared_ptr<int>>& result) { first = result.status(); });
  workers->ask(
      gpu(0), {"cuMemRelease"}, milliseconds(400), [] { return 0; },
      [&](const Result<int>& result) {
        second = result.status();
        loop.stop();
      });
  workers->ask(
      gpu(1), {"call"}, kLong, [] { return 0; },
      [&](const Result<int>& result) { other = result.ok() && first.ok(); });
  run();
  EXPECT_FALSE(late);
  EXPECT_TRUE(other) << "before the first was given up";
  EXPECT_EQ(first.code(), Code::kDeadlineExceeded);
  EXPECT_NE(first.text().find("device 0 (" + to_string(gpu(0)) +
                              "): cuMemCreate of 2 MiB has not returned for 0 s"),
            std::string::npos)
      << first.text();
  EXPECT_NE(second.text().find("cuMemRelease waits: cuMemCreate of 2 MiB has not returned"),
            std::string::npos)
      << second.text();
  EXPECT_EQ(freed, 0);
  hold.set_value();
  const Time until = Clock::now() + kLong;
  while (freed == 0 && Clock::now() < until) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(freed, 1) << "what came too late is freed";
}

TEST_F(WorkersTest, WhatHangsIsToldOfWhileItDoes) {
  std::promise<void> hold;
  std::shared_future<void> held = hold.get_future();
  workers->ask(
      gpu(1), {"cuMemCreate"}, kLong, [held] { return held.wait(), 0; },
      [&](const Result<int>&) { loop.stop(); });
  EXPECT_EQ(workers->hangs(gpu(1)), "") << "not yet";
  loop.at(Clock::now() + Workers::kSlow + seconds(1), [&] {
    EXPECT_NE(workers->hangs(gpu(1)).find("cuMemCreate has not returned for "), std::string::npos);
    EXPECT_EQ(workers->hangs(gpu(0)), "");
    // Who looks at usage does not wait for it.
    workers->look({gpu(0), gpu(1)}, [&](const Workers::Uses& uses) {
      EXPECT_TRUE(uses.contains(gpu(0)));
      EXPECT_FALSE(uses.contains(gpu(1)));
      hold.set_value();
    });
  });
  run();
  EXPECT_FALSE(late);
  EXPECT_NE(trouble.find("device 1 ("), std::string::npos) << trouble;
  EXPECT_NE(trouble.find(" hangs: cuMemCreate has not returned for 5 s. 0 calls wait"),
            std::string::npos)
      << trouble;
  EXPECT_EQ(workers->hangs(gpu(1)), "");
}

TEST_F(WorkersTest, MakesMemoryWhichIsClosedOnTheDevicesThread) {
  const Device& device = devices.all()[0];
  const std::uint64_t before = nvml.memory(device.uuid)->used;
  Workers::AllMade made;
  workers->create(device, {{device.granularity, false}, {1, false}, {device.total * 2, false}},
                  kLong, [&](Workers::AllMade all) {
                    made = std::move(all);
                    loop.stop();
                  });
  run();
  ASSERT_EQ(made.size(), 3U);
  ASSERT_TRUE(made[0].ok()) << made[0].status().text();
  EXPECT_EQ(made[1].status().code(), Code::kInvalidArgument);
  EXPECT_EQ(made[2].status().code(), Code::kResourceExhausted);
  EXPECT_EQ(nvml.memory(device.uuid)->used, before + device.granularity);
  made.clear();
  // After all that was asked for before.
  std::uint64_t used = before + 1;
  workers->look({device.uuid}, [&](const Workers::Uses& uses) {
    used = uses.at(device.uuid).used;
    loop.stop();
  });
  run();
  EXPECT_EQ(used, before);
}

TEST_F(WorkersTest, ARestoreThatOneDeviceHasNoSpaceForHoldsNone) {
  RestoreSpace space(*workers);
  const std::uint64_t size = devices.all()[0].granularity;
  Result<RestoreSpace::Claim> attempt = RestoreSpace::Claim();
  const auto told = [&](Result<RestoreSpace::Claim> result) {
    attempt = std::move(result);
    loop.stop();
  };
  space.attempt({{gpu(0), size}, {gpu(1), devices.all()[1].total * 2}}, kLong, told);
  EXPECT_TRUE(space.claimed(gpu(0))) << "while it is tried";
  run();
  EXPECT_EQ(attempt.status().code(), Code::kResourceExhausted) << attempt.status().text();
  EXPECT_FALSE(space.any_claimed());
  space.attempt({{gpu(0), size}, {gpu(1), size}}, kLong, told);
  run();
  ASSERT_TRUE(attempt.ok()) << attempt.status().text();
  EXPECT_TRUE(space.claimed(gpu(0)) && space.claimed(gpu(1)));
  attempt = RestoreSpace::Claim();
  EXPECT_FALSE(space.any_claimed());
}

TEST_F(WorkersTest, ItsEndDoesNotWaitForWhatHangs) {
  const auto hold = std::make_shared<std::promise<void>>();
  std::shared_future<void> held = hold->get_future();
  bool told = false;
  workers->ask(
      gpu(0), {"cuMemCreate"}, kLong, [held] { return held.wait(), 0; },
      [&](const Result<int>&) { told = true; });
  workers->ask(
      gpu(1), {"call"}, kLong, [] { return 0; }, [&](const Result<int>&) { told = true; });
  const Time began = Clock::now();
  workers.reset();
  EXPECT_LT(Clock::now() - began, Workers::kEndLimit + seconds(5));
  hold->set_value();
  loop.at(Clock::now() + milliseconds(50), [&] { loop.stop(); });
  run();
  EXPECT_FALSE(told);
}

}  // namespace
}  // namespace amem
