// A whole broker on the simulated driver, with scripted ranks on its real session socket.
#pragma once

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>
#include <type_traits>

#include "daemon/broker/broker.h"
#include "fake_rank.h"

namespace amem {
using std::chrono::milliseconds;
using std::chrono::seconds;
using Mood = FakeRank::Mood;

constexpr std::uint64_t kMiB = 1ULL << 20;
constexpr std::uint64_t kDeviceMemory = 128 * kMiB;
constexpr std::uint64_t kPool = 32 * kMiB;

inline constexpr auto kRunning = v1::GROUP_STATE_RUNNING;
inline constexpr auto kPaused = v1::GROUP_STATE_PAUSED;

/// A simulated node of this process's own.
class SimulatedNode : public ::testing::Environment {
 public:
  void SetUp() override {
    dir_ = (std::filesystem::temp_directory_path() / "amem-broker-test-XXXXXX").string();
    ASSERT_NE(::mkdtemp(dir_.data()), nullptr);
    ASSERT_EQ(::chmod(dir_.c_str(), 0755), 0);
    std::filesystem::create_directory(dir_ + "/sim");
    ::setenv("AMEM_SIM_DIR", (dir_ + "/sim").c_str(), 1);
    ::setenv("AMEM_SIM_DEVICES", "2", 1);
    ::setenv("AMEM_SIM_MEMORY", std::to_string(kDeviceMemory).c_str(), 1);
    ::setenv("AMEM_SIM_FAULT_FILE", fault_file().c_str(), 1);
    spdlog::set_level(spdlog::level::off);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  const std::string& dir() const { return dir_; }
  std::string fault_file() const { return dir_ + "/faults"; }

 private:
  std::string dir_;
};

inline SimulatedNode* const node = static_cast<SimulatedNode*>(
    ::testing::AddGlobalTestEnvironment(new SimulatedNode));  // owned by googletest

/// What an operator sees of an operation. Filled on the loop's thread.
class Watcher final : public OperationObserver {
 public:
  void progress(const v1::Progress& progress) override {
    const std::lock_guard lock(mutex_);
    all_.push_back(progress);
  }
  void finished(const Status& status) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(status_.has_value()) << "finished twice";
    status_ = status;
  }
  bool done() const {
    const std::lock_guard lock(mutex_);
    return status_.has_value();
  }
  Status status() const {
    const std::lock_guard lock(mutex_);
    return status_.value_or(Status(Code::kUnknown, "not finished"));
  }
  std::vector<v1::Progress> all() const {
    const std::lock_guard lock(mutex_);
    return all_;
  }
  bool saw(const std::string& phase) const {
    const std::lock_guard lock(mutex_);
    return std::any_of(all_.begin(), all_.end(),
                       [&](const v1::Progress& p) { return p.phase() == phase; });
  }

 private:
  mutable std::mutex mutex_;
  std::vector<v1::Progress> all_;
  std::optional<Status> status_;
};

class BrokerTest : public ::testing::Test {
 protected:
  /// Every deadline; generous, because test machines are busy.
  virtual Duration patience() const { return seconds(8); }

  virtual void configure(Config&) const {}

  /// Rules for the broker's driver from now on (tests/sim/README.md); empty: none.
  static void faults(const std::string& rules) {
    std::ofstream(node->fault_file() + ".new") << rules;
    std::filesystem::rename(node->fault_file() + ".new", node->fault_file());
  }

  void SetUp() override {
    config = Config::defaults(false, node->dir());
    config.pool_size = kPool;
    config.pool_segment = 8 * kMiB;
    config.session_mode = 0666;
    const Duration limit = patience();
    config.deadlines = {limit, limit, limit, seconds(10), limit, limit, limit, milliseconds(20)};
    configure(config);
    ASSERT_TRUE(devices.open().ok());
    ASSERT_EQ(devices.all().size(), 2U);
    ASSERT_TRUE(nvml.open(devices).ok());
    ASSERT_TRUE(loop.open().ok());
    broker = std::make_unique<Broker>(loop, config, devices, nvml);
    const Status started = broker->start();
    ASSERT_TRUE(started.ok()) << started.text();
    thread = std::thread([this] { loop.run(); });
    ASSERT_TRUE(eventually([&] { return status().pool().ready_bytes() == kPool; }));
  }

  void TearDown() override {
    std::filesystem::remove(node->fault_file());
    for (FakeRank* rank : ranks) rank->die();
    on_loop([&] { broker->shut(); });
    loop.stop();
    thread.join();
    broker.reset();
  }

  // ---- on the loop's thread ----
  template <class Work>
  std::invoke_result_t<Work> on_loop(Work work) {
    std::packaged_task<std::invoke_result_t<Work>()> task(std::move(work));
    auto result = task.get_future();
    loop.post([&task] { task(); });
    return result.get();
  }
  v1::NodeStatus status() {
    return on_loop([&] {
      v1::NodeStatus s;
      broker->status(s);
      return s;
    });
  }
  v1::GroupInfo group(const std::string& name = "train") {
    const v1::NodeStatus all = status();
    for (const v1::GroupInfo& info : all.groups())
      if (info.name() == name) return info;
    return {};
  }
  std::shared_ptr<Watcher> begin(const Task& task, const std::string& name = "train",
                                 Duration timeout = {}) {
    auto watcher = std::make_shared<Watcher>();
    on_loop([&] { broker->start_operation(task, name, timeout, watcher); });
    return watcher;
  }
  Status set_policy(const std::string& tag, v1::Policy policy, const std::string& name = "train") {
    return on_loop([&] { return broker->set_policy(name, tag, policy); });
  }
  Status set_form(const std::string& tag, v1::SaveForm form) {
    return on_loop([&] { return broker->set_policy("train", tag, v1::POLICY_UNSPECIFIED, form); });
  }

  // ---- ranks ----
  void join(FakeRank& rank, const std::string& name = "train", int number = 0) {
    rank.connect(node->dir() + "/session.sock");
    const Packet welcome = rank.hello(name, number);
    ASSERT_EQ(FakeRank::code(welcome), Code::kOk) << welcome.message.body.reply.text;
    rank.gate_shut = welcome.message.body.reply.result.welcome.gate_shut;
    ranks.push_back(&rank);
  }
  /// Lets all ranks answer until `condition`; false after 10 s.
  template <class Condition>
  bool eventually(Condition condition) {
    const auto until = std::chrono::steady_clock::now() + seconds(10);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > until) return false;
      bool any = false;
      for (FakeRank* rank : ranks)
        if (rank->alive()) any |= rank->pump(milliseconds(0));
      if (!any) std::this_thread::sleep_for(milliseconds(1));
    }
    return true;
  }
  Status complete(const std::shared_ptr<Watcher>& watcher) {
    EXPECT_TRUE(eventually([&] { return watcher->done(); }));
    settle();
    return watcher->status();
  }
  Status pause(const std::string& name = "train") {
    return complete(begin(Operation::kPause, name));
  }
  Status resume(const std::string& name = "train") {
    return complete(begin(Operation::kResume, name));
  }
  /// Lets the ranks answer what is left, and the broker take it.
  void settle() {
    for (int quiet = 0; quiet < 3;) {
      on_loop([] { return 0; });
      bool any = false;
      for (FakeRank* rank : ranks)
        if (rank->alive()) any |= rank->pump(milliseconds(2));
      quiet = any ? 0 : quiet + 1;
    }
  }
  /// Two ranks of `train` that share what each has.
  void two_sharing() {
    join(a, "train", 0);
    join(b, "train", 1);
    of_a = a.create(gpu(0), 4 * kMiB);
    of_b = b.create(gpu(1), 6 * kMiB);
    b.share(a, of_a);
    a.share(b, of_b);
    a.write(of_a, 0xaa);
    b.write(of_b, 0xbb);
  }
  void expect_intact() {
    EXPECT_TRUE(a.holds(of_a, 0xaa));
    EXPECT_TRUE(b.holds(of_a, 0xaa)) << "the peer sees the same memory";
    EXPECT_TRUE(a.holds(of_b, 0xbb));
    EXPECT_TRUE(b.holds(of_b, 0xbb));
  }
  const DeviceUuid& gpu(std::size_t ordinal) const { return devices.all()[ordinal].uuid; }
  std::uint64_t used(std::size_t ordinal) const { return nvml.memory(gpu(ordinal))->used; }

  Config config;
  Devices devices;
  Nvml nvml;
  EventLoop loop;
  std::unique_ptr<Broker> broker;
  std::thread thread;
  std::vector<FakeRank*> ranks;
  FakeRank a, b, c, d;
  std::uint64_t of_a = 0, of_b = 0;
};

}  // namespace amem
