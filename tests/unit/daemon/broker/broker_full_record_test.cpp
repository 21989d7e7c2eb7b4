// A record that has no space for another row: what can still be refused is, and nothing is lost.
#include <gmock/gmock.h>

#include "amem/v1/record.pb.h"
#include "tests/unit/fixtures/restart_fixture.h"

namespace amem {
namespace {

using ::testing::HasSubstr;

/// The record is small, and no holder has it.
class FullRecordTest : public BrokerTest {
 protected:
  void make_broker() override {
    Result<RecordLog> log = RecordLog::create(512 << 10);
    ASSERT_TRUE(log.ok()) << log.status().text();
    record = std::make_unique<Record>(*loop, std::move(log).value(), nullptr);
    broker = std::make_unique<Broker>(*loop, config, devices, nvml, record.get(), ground::kRuns);
    ASSERT_TRUE(broker->recover({}).ok());
  }
  void TearDown() override {
    fillers.clear();
    BrokerTest::TearDown();
    record.reset();
  }

  /// Leaves so many bytes of it free, about.
  void fill(std::uint64_t free = 0) {
    on_loop([&] {
      Status status;
      for (const std::size_t size : {16384U, 1024U, 64U, 8U, 0U}) {
        v1::record::Group filler;  // any message: nobody reads it
        filler.set_name(std::string(size, 'x'));
        do {
          fillers.emplace_back();
          status =
              record->write(fillers.back(), RowKind::kLimbo, 1'000'000 + fillers.size(), filler);
        } while (status.ok());
      }
      for (std::uint64_t freed = 0; freed < free && !fillers.empty(); freed += 24)
        fillers.pop_back();
    });
  }
  void empty() {
    on_loop([&] { fillers.clear(); });
  }
  void two() {
    join(r1);
    join(r2, "train", 1);
    of_a = r1.create(gpu(0), 4 * kMiB);
    of_b = r2.create(gpu(1), 6 * kMiB, "weights");
    r1.write(of_a, 0xaa);
    r2.write(of_b, 0xbb);
  }
  /// What the next broker would find of the group. On the loop's thread.
  v1::record::Group recorded() const {
    v1::record::Group group;
    record->log()->each([&](RowKey key, std::string_view row) {
      if (kind_of_row(key) != RowKind::kGroup) return;
      EXPECT_TRUE(group.ParseFromArray(row.data(), static_cast<int>(row.size())));
    });
    return group;
  }
  void expect_running() {
    EXPECT_EQ(group().state(), kRunning);
    EXPECT_FALSE(r1.gate_shut());
    EXPECT_FALSE(r2.gate_shut());
    EXPECT_TRUE(r1.holds(of_a, 0xaa));
    EXPECT_TRUE(r2.holds(of_b, 0xbb));
    EXPECT_EQ(status().pool().used_bytes(), 0U);
  }
  /// After a pause: the next broker would find the group paused, with all its bytes, and with space
  /// in the record it resumes.
  void check_record_and_resume(bool paused, std::uint64_t free) {
    if (paused) {
      EXPECT_TRUE(on_loop([&] {
        return recorded().paused() || recorded().under_way().restart() == v1::record::RELEASE;
      })) << free;
    }
    empty();
    if (paused) {
      ASSERT_TRUE(resume().ok());
    }
    expect_running();
  }

  std::unique_ptr<Record> record;
  std::vector<Row> fillers;
  ScriptedRank r1, r2;
  std::uint64_t of_a = 0, of_b = 0;
};

TEST_F(FullRecordTest, APauseIsCalledOffBeforeTheFirstRelease) {
  two();
  fill();
  const Status status = pause();
  EXPECT_EQ(status.code(), Code::kResourceExhausted) << status.text();
  EXPECT_THAT(status.text(), HasSubstr("the record of what this node holds is full"));
  EXPECT_EQ(r1.received[amem_v1_SessionMessage_release_tag], 0);
  expect_running();
  empty();
  ASSERT_TRUE(pause().ok());
  ASSERT_TRUE(resume().ok());
  expect_running();
}

TEST_F(FullRecordTest, ThatIsSoHoweverMuchOfItTheSaveCanStillWrite) {
  two();
  int refused = 0;
  int paused = 0;
  for (std::uint64_t free = 0; free < 3000; free += 96) {
    fill(free);
    const Status status = pause();
    if (!status.ok()) {
      EXPECT_EQ(status.code(), Code::kResourceExhausted) << status.text();
      expect_running();
    }
    ++(status.ok() ? paused : refused);
    check_record_and_resume(status.ok(), free);
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(paused, 0);
}

TEST_F(FullRecordTest, WhatAReleaseWritesHasSpaceWhateverOthersWriteMeanwhile) {
  constexpr pb_size_t kSave = amem_v1_SessionMessage_save_tag;
  two();
  int refused = 0;
  int paused = 0;
  for (std::uint64_t free = 0; free < 3000; free += 48) {
    fill(free);
    r1.moods[kSave] = Mood::kLate;
    const int before = r1.received[kSave];
    const auto watcher = begin(Operation::kPause);
    ASSERT_TRUE(eventually([&] { return watcher->done() || r1.received[kSave] > before; }));
    fill();
    r1.catch_up();
    const Status status = complete(watcher);
    ++(status.ok() ? paused : refused);
    check_record_and_resume(status.ok(), free);
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(paused, 0);
}

TEST_F(FullRecordTest, AResumeIsRefusedAndThePausedGroupStaysAsItIs) {
  two();
  ASSERT_TRUE(pause().ok());
  fill();
  const Status status = resume();
  EXPECT_EQ(status.code(), Code::kResourceExhausted) << status.text();
  EXPECT_EQ(group().state(), kPaused);
  EXPECT_EQ(r1.received[amem_v1_SessionMessage_map_tag], 0);
  empty();
  ASSERT_TRUE(resume().ok());
  expect_running();
}

TEST_F(FullRecordTest, WhatCannotBeOnRecordIsRefused) {
  two();
  fill();
  ScriptedRank late;
  late.connect(simulated_node->dir() + "/session.sock");
  const Packet refused = late.hello("train", 2);
  EXPECT_EQ(ScriptedRank::code(refused), Code::kResourceExhausted);
  ScriptedRank other;
  other.connect(simulated_node->dir() + "/session.sock");
  EXPECT_EQ(ScriptedRank::code(other.hello("other", 0)), Code::kResourceExhausted);
  EXPECT_EQ(status().groups().size(), 1) << "no group without a rank is left";
  EXPECT_EQ(set_policy("weights", v1::POLICY_DISCARD).code(), Code::kResourceExhausted);
  EXPECT_EQ(on_loop([&] {
              v1::ListQuotasResponse all;
              broker->reports().quotas(Caller{}, all);
              std::uint64_t policies = 0;
              for (const v1::OwnerQuotas& owner : all.owners())
                for (const v1::Quota& quota : owner.quotas())
                  if (quota.resource() == to_string(Resource::kPolicies)) policies += quota.used();
              return policies;
            }),
            0U)
      << "nobody is charged for it";
  empty();
  ASSERT_TRUE(pause().ok());
  ASSERT_TRUE(resume().ok());
  expect_running();  // weights were kept
}

}  // namespace
}  // namespace amem
