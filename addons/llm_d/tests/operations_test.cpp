// What llm-d's clients are told of groups and of what they have asked for.
#include "addons/llm_d/operations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace amem {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr std::uint64_t kRun = 0x0123456789abcdef;

class LlmdOperationsTest : public testing::Test {
 protected:
  std::uint64_t begin(const std::string& job = "train") {
    return operations.begin(job, now).value();
  }
  std::uint64_t ended(const std::string& job = "train") {
    const std::uint64_t number = begin(job);
    operations.end(number, {}, nullptr, now += milliseconds(1));
    return number;
  }
  llm_d::GetOperationResponse get(std::uint64_t number) {
    return operations.get(operations.id_of(number), now).value();
  }

  LlmdOperations::Time now = LlmdOperations::Time() + std::chrono::hours(1);
  LlmdOperations operations{kRun};
};

TEST_F(LlmdOperationsTest, PendingThenComplete) {
  const std::uint64_t number = begin();
  EXPECT_EQ(operations.id_of(number), "amem-0123456789abcdef-1");
  now += milliseconds(250);
  EXPECT_EQ(get(number).status(), llm_d::OPERATION_STATUS_PENDING);
  EXPECT_EQ(get(number).elapsed_ms(), 250);
  EXPECT_FALSE(get(number).has_storage_bytes());

  v1::GroupInfo group;
  group.set_saved_bytes(5);
  group.set_allocated_bytes(7);
  operations.end(number, {}, &group, now);
  now += milliseconds(1000);
  EXPECT_EQ(get(number).status(), llm_d::OPERATION_STATUS_COMPLETE);
  EXPECT_EQ(get(number).elapsed_ms(), 250) << "until it ended";
  EXPECT_EQ(get(number).storage_bytes(), 5);
  EXPECT_EQ(get(number).snapshot_device_bytes(), 7);
  EXPECT_FALSE(get(number).has_error());
}

TEST_F(LlmdOperationsTest, AFailureSaysWhy) {
  const std::uint64_t number = begin();
  operations.end(number, {Code::kAborted, "rank 3 has ended"}, nullptr, now);
  operations.end(number, {}, nullptr, now);  // too late
  EXPECT_EQ(get(number).status(), llm_d::OPERATION_STATUS_FAILED);
  EXPECT_EQ(get(number).error(), "rank 3 has ended");
  EXPECT_FALSE(get(number).has_storage_bytes());
}

TEST_F(LlmdOperationsTest, AJobHasOneAtATime) {
  const std::uint64_t number = begin();
  EXPECT_EQ(operations.begin("train", now).status().code(), Code::kAborted);
  EXPECT_TRUE(operations.begin("rollout", now).ok());
  operations.end(number, {}, nullptr, now);
  EXPECT_TRUE(operations.begin("train", now).ok());
}

TEST_F(LlmdOperationsTest, WhatBeganNothingLeavesNothing) {
  const std::uint64_t number = begin();
  operations.end(number, {Code::kNotFound, "no such group"}, nullptr, now);
  operations.drop(number);
  EXPECT_EQ(get(number).status(), llm_d::OPERATION_STATUS_FAILED);
  EXPECT_NE(begin(), number);
}

// A client that is told "not found" asks again for ever.
TEST_F(LlmdOperationsTest, WhatIsNotKnownAnyMoreHasFailed) {
  const auto answer = operations.get(LlmdOperations(7).id_of(99), now);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer.value().status(), llm_d::OPERATION_STATUS_FAILED);
  EXPECT_THAT(answer.value().error(), HasSubstr("restarted"));
}

TEST_F(LlmdOperationsTest, IdsThatNobodyGivesOut) {
  for (const char* id : {"", "amem-", "amem-0123456789abcdef", "amem-0123456789abcdef-",
                         "amem-0123456789abcdef-x", "amem-0123-1", "6ba7b810-9dad-11d1"})
    EXPECT_EQ(operations.get(id, now).status().code(), Code::kNotFound) << id;
  const std::uint64_t last = begin();
  for (const std::uint64_t number : {std::uint64_t{0}, last + 1})
    EXPECT_EQ(operations.get(operations.id_of(number), now).status().code(), Code::kNotFound)
        << number;
}

TEST_F(LlmdOperationsTest, AGroupThatRunsAlready) {
  const auto answer = operations.get(LlmdOperations::kAlreadyRunning, now);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer.value().status(), llm_d::OPERATION_STATUS_COMPLETE);
}

TEST_F(LlmdOperationsTest, OfAJobTheFirstToEndAreForgotten) {
  const std::uint64_t others = ended("rollout");
  const std::uint64_t first = ended();
  for (std::size_t i = 1; i < LlmdOperations::kMostEnded; ++i) ended();
  EXPECT_EQ(get(first).status(), llm_d::OPERATION_STATUS_COMPLETE);
  const std::uint64_t goes_on = begin();
  for (int i = 0; i < 2000; ++i) ended("loops");
  EXPECT_EQ(get(first).status(), llm_d::OPERATION_STATUS_COMPLETE);
  operations.end(goes_on, {}, nullptr, now);
  EXPECT_EQ(get(first).status(), llm_d::OPERATION_STATUS_FAILED);
  EXPECT_EQ(get(first + 1).status(), llm_d::OPERATION_STATUS_COMPLETE);
  EXPECT_EQ(get(others).status(), llm_d::OPERATION_STATUS_COMPLETE)
      << "however often another job is saved";
}

TEST_F(LlmdOperationsTest, TheJobThatEndedFirstIsForgotten) {
  const std::uint64_t goes_on = begin("goes on");
  const std::uint64_t first = ended("first");
  const std::uint64_t second = ended("second");
  for (std::size_t i = 3; i < LlmdOperations::kMostJobs; ++i) ended(std::to_string(i));
  const std::uint64_t again = ended("first");
  ended("one more");
  EXPECT_EQ(get(second).status(), llm_d::OPERATION_STATUS_FAILED);
  EXPECT_EQ(get(first).status(), llm_d::OPERATION_STATUS_COMPLETE);
  EXPECT_EQ(get(again).status(), llm_d::OPERATION_STATUS_COMPLETE);
  EXPECT_EQ(get(goes_on).status(), llm_d::OPERATION_STATUS_PENDING);
}

TEST(LlmdWords, States) {
  EXPECT_EQ(job_state(v1::GROUP_STATE_RUNNING), llm_d::JOB_STATE_RUNNING);
  EXPECT_EQ(job_state(v1::GROUP_STATE_PAUSING), llm_d::JOB_STATE_TRANSITIONING);
  EXPECT_EQ(job_state(v1::GROUP_STATE_PAUSED), llm_d::JOB_STATE_SAVED);
  EXPECT_EQ(job_state(v1::GROUP_STATE_RESUMING), llm_d::JOB_STATE_TRANSITIONING);
  EXPECT_EQ(job_state(v1::GROUP_STATE_UNSPECIFIED), llm_d::JOB_STATE_UNSPECIFIED);
}

TEST(LlmdWords, JobsAndAccelerators) {
  v1::NodeStatus node;
  v1::GroupInfo& group = *node.add_groups();
  group.set_name("train");
  group.set_state(v1::GROUP_STATE_PAUSED);
  for (const bool known : {true, false}) {
    v1::DeviceStatus& device = *node.add_devices();
    device.set_uuid("GPU-1");
    device.set_total_bytes(100);
    device.set_used_bytes(known ? 60 : 0);
    device.set_brokered_bytes(40);
    device.set_usage_known(known);
  }
  llm_d::StatusResponse status;
  put(status, node);
  ASSERT_EQ(status.job_statuses_size(), 1);
  EXPECT_EQ(status.job_statuses(0).job_id(), "train");
  EXPECT_EQ(status.job_statuses(0).state(), llm_d::JOB_STATE_SAVED);
  ASSERT_EQ(status.accelerator_statuses_size(), 2);
  EXPECT_EQ(status.accelerator_statuses(0).id(), "GPU-1");
  EXPECT_EQ(status.accelerator_statuses(0).memory_total_bytes(), 100);
  EXPECT_EQ(status.accelerator_statuses(0).memory_used_bytes(), 60);
  EXPECT_EQ(status.accelerator_statuses(1).memory_used_bytes(), 40) << "at least what is brokered";
}

TEST(LlmdWords, TheGroupOfAJob) {
  v1::ListGroupsResponse groups;
  v1::GroupInfo& group = *groups.add_groups();
  group.set_name("train");
  group.set_address("train@1000");
  EXPECT_EQ(group_of(groups, "train"), &groups.groups(0));
  EXPECT_EQ(group_of(groups, "train@1000"), &groups.groups(0));
  EXPECT_EQ(group_of(groups, "rollout"), nullptr);
  v1::GroupInfo& of_another = *groups.add_groups();
  of_another.set_name("train");
  of_another.set_address("train@1001");
  EXPECT_EQ(group_of(groups, "train"), nullptr) << "whose it is cannot be known";
  EXPECT_EQ(group_of(groups, "train@1001"), &groups.groups(1));
}

TEST(LlmdWords, RequestsThatAGroupCannotAnswer) {
  llm_d::BackendConfig backend;
  EXPECT_TRUE(check("train", backend).ok());
  EXPECT_EQ(check("", backend).code(), Code::kInvalidArgument);
  EXPECT_EQ(check(std::string(5000, 'x'), backend).code(), Code::kInvalidArgument);
  backend.mutable_cuda();
  EXPECT_TRUE(check("train", backend).ok());
  backend.mutable_app_channel();
  EXPECT_EQ(check("train", backend).code(), Code::kUnimplemented);
}

// As llm-d's own clients write them: explicit PIDs of CUDA, and another way.
TEST(LlmdWords, FieldsThatAreNotRead) {
  llm_d::SnapshotRequest request;
  ASSERT_TRUE(request.ParseFromString(
      std::string("\x0a\x05train\x18\x01\x22\x06\x0a\x04\x0a\x02\x0a\x00", 17)));
  EXPECT_EQ(request.job_id(), "train");
  EXPECT_TRUE(check(request.job_id(), request.backend_config()).ok());
  ASSERT_TRUE(request.ParseFromString(std::string("\x0a\x05train\x22\x04\x12\x02\x08\x01", 13)));
  EXPECT_EQ(check(request.job_id(), request.backend_config()).code(), Code::kUnimplemented);
}

}  // namespace
}  // namespace amem
