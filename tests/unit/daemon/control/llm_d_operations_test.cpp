// What llm-d's clients are told of groups and of what they have asked for.
#include "daemon/control/llm_d_operations.h"

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
  Caller user(uid_t uid) {
    Caller caller;
    caller.account = accounts.of({uid, {}});
    caller.operates = caller.sees_all = false;
    return caller;
  }
  std::uint64_t begin(const std::string& job = "train") {
    return operations.begin(root, job, now).value();
  }
  llm_d::GetOperationResponse get(std::uint64_t number) {
    return operations.get(root, operations.id_of(number), now).value();
  }

  EventLoop loop;
  Quotas quotas;
  Accounts accounts{loop, quotas};
  const Caller root;
  Time now = Time() + std::chrono::hours(1);
  LlmdOperations operations{kRun};
};

TEST_F(LlmdOperationsTest, PendingThenComplete) {
  const std::uint64_t number = begin();
  EXPECT_EQ(operations.id_of(number), "amem-0123456789abcdef-1");
  EXPECT_EQ(operations.ended(number), std::nullopt);
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
  EXPECT_EQ(operations.begin(root, "train", now).status().code(), Code::kAborted);
  EXPECT_TRUE(operations.begin(root, "rollout", now).ok());
  EXPECT_TRUE(operations.begin(user(1000), "train", now).ok()) << "a group of that user's";
  operations.end(number, {}, nullptr, now);
  EXPECT_TRUE(operations.begin(root, "train", now).ok());
}

TEST_F(LlmdOperationsTest, WhatBeganNothingLeavesNothing) {
  const std::uint64_t number = begin();
  operations.end(number, {Code::kNotFound, "no such group"}, nullptr, now);
  operations.drop(number);
  EXPECT_EQ(get(number).status(), llm_d::OPERATION_STATUS_FAILED);
  EXPECT_NE(begin(), number);
}

// A client that is told "not found" asks again for ever.
TEST_F(LlmdOperationsTest, WhatAmemdDoesNotKnowAnyMoreHasFailed) {
  const auto answer = operations.get(root, LlmdOperations(7).id_of(99), now);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer.value().status(), llm_d::OPERATION_STATUS_FAILED);
  EXPECT_THAT(answer.value().error(), HasSubstr("restarted"));
}

TEST_F(LlmdOperationsTest, IdsThatNoAmemdGivesOut) {
  for (const char* id : {"", "amem-", "amem-0123456789abcdef", "amem-0123456789abcdef-",
                         "amem-0123456789abcdef-x", "amem-0123-1", "6ba7b810-9dad-11d1"})
    EXPECT_EQ(operations.get(root, id, now).status().code(), Code::kNotFound) << id;
  const std::uint64_t last = begin();
  for (const std::uint64_t number : {std::uint64_t{0}, last + 1})
    EXPECT_EQ(operations.get(root, operations.id_of(number), now).status().code(), Code::kNotFound)
        << number;
}

TEST_F(LlmdOperationsTest, AGroupThatRunsAlready) {
  const auto answer = operations.get(user(1000), LlmdOperations::kAlreadyRunning, now);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer.value().status(), llm_d::OPERATION_STATUS_COMPLETE);
}

TEST_F(LlmdOperationsTest, OthersLearnNothing) {
  const Caller alice = user(1000);
  const std::uint64_t hers = operations.begin(alice, "train", now).value();
  const std::uint64_t of_root = begin();
  const auto seen = [&](const Caller& caller, std::uint64_t number) {
    return operations.get(caller, operations.id_of(number), now).value().status() ==
           llm_d::OPERATION_STATUS_PENDING;
  };
  EXPECT_TRUE(seen(alice, hers));
  EXPECT_TRUE(seen(root, hers));
  EXPECT_FALSE(seen(user(1001), hers));
  EXPECT_FALSE(seen(alice, of_root));
}

TEST_F(LlmdOperationsTest, TheFirstToEndAreForgotten) {
  const std::uint64_t goes_on = begin("rollout");
  const std::uint64_t first = begin();
  operations.end(first, {}, nullptr, now);
  for (std::size_t i = 1; i < LlmdOperations::kMostEnded; ++i)
    operations.end(begin(), {}, nullptr, now);
  EXPECT_EQ(get(first).status(), llm_d::OPERATION_STATUS_COMPLETE);
  operations.end(begin(), {}, nullptr, now);
  EXPECT_EQ(get(first).status(), llm_d::OPERATION_STATUS_FAILED);
  EXPECT_EQ(get(first + 1).status(), llm_d::OPERATION_STATUS_COMPLETE);
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
TEST(LlmdWords, FieldsOfLlmdThatAmemdDoesNotRead) {
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
