// What requests of the control API ask for.
#include "daemon/control/tasks.h"

#include <gtest/gtest.h>

#include "common/protocol.h"

namespace amem {
namespace {

TEST(ControlTasks, AllOfIt) {
  const auto pause = task_of(v1::PauseRequest());
  ASSERT_TRUE(pause.ok());
  EXPECT_EQ(pause.value(), Task(Operation::kPause));
  const auto resume = task_of(v1::ResumeRequest());
  ASSERT_TRUE(resume.ok());
  EXPECT_EQ(resume.value(), Task(Operation::kResume));
}

TEST(ControlTasks, TagsAndAllButTags) {
  v1::PauseRequest some;
  some.add_tags("kv");
  some.add_tags("kv");
  some.add_discard("heap");
  Task expected(Operation::kPause, {{"kv"}, false}, {"heap"});
  EXPECT_EQ(task_of(some).value(), expected);
  some.set_force(true);
  expected.force = true;
  EXPECT_EQ(task_of(some).value(), expected);
  v1::SwapRequest swap;
  swap.add_discard("heap");
  swap.set_force(true);
  EXPECT_TRUE(transaction_of(swap).value().task.force);
  v1::ResumeRequest others;
  others.add_except_tags("kv");
  EXPECT_EQ(task_of(others).value(), Task(Operation::kResume, {{"kv"}, true}));
  others.add_tags("heap");
  EXPECT_EQ(task_of(others).status().code(), Code::kInvalidArgument) << "not both";
}

TEST(ControlTasks, TagsThatARankCannotBeToldOf) {
  const auto code = [](const std::string& tag) {
    v1::PauseRequest pause;
    pause.add_tags(tag);
    v1::SwapRequest swap;
    swap.add_discard(tag);
    EXPECT_EQ(task_of(pause).status().code(), discard_of(swap).status().code());
    return discard_of(swap).status().code();
  };
  EXPECT_EQ(code(std::string(31, 'x')), Code::kOk);
  EXPECT_EQ(code(std::string(32, 'x')), Code::kInvalidArgument);
  EXPECT_EQ(code(""), Code::kInvalidArgument);
}

TEST(ControlTasks, TooManyTags) {
  v1::PauseRequest pause;
  for (std::size_t i = 0; i < kMaxTags; ++i) pause.add_discard("tag" + std::to_string(i));
  EXPECT_TRUE(task_of(pause).ok());
  pause.add_discard("one more");
  EXPECT_EQ(task_of(pause).status().code(), Code::kInvalidArgument);
}

TEST(ControlTasks, OneGroupOrSeveral) {
  v1::PauseRequest request;
  request.set_group("train");
  EXPECT_EQ(groups_of(request.group(), request.groups()).value(),
            std::vector<std::string>{"train"});
  request.add_groups("a");
  request.add_groups("b");
  EXPECT_EQ(groups_of(request.group(), request.groups()).status().code(), Code::kInvalidArgument)
      << "not both";
  request.clear_group();
  EXPECT_EQ(groups_of(request.group(), request.groups()).value(),
            (std::vector<std::string>{"a", "b"}));
}

TEST(ControlTasks, WhatBecomesOfGuests) {
  v1::PauseRequest request;
  EXPECT_EQ(task_of(request).value().guests, GuestPolicy::kDefault);
  request.set_guests(v1::GUEST_POLICY_REFUSE);
  EXPECT_EQ(task_of(request).value().guests, GuestPolicy::kRefuse);
  request.set_guests(static_cast<v1::GuestPolicy>(7));
  EXPECT_EQ(task_of(request).status().code(), Code::kInvalidArgument);
}

TEST(ControlTasks, WhatMayBeDeep) {
  v1::PauseRequest pause;
  pause.set_deep(true);
  EXPECT_TRUE(task_of(pause).value().deep);
  pause.add_nodes("a:1");
  EXPECT_EQ(task_of(pause).status().code(), Code::kInvalidArgument);
  v1::SwapRequest swap;
  swap.set_out("a");
  swap.set_in("b");
  EXPECT_FALSE(transaction_of(swap).value().task.deep);
  swap.set_deep(true);
  EXPECT_TRUE(transaction_of(swap).value().task.deep);
  swap.add_nodes("a:1");
  EXPECT_EQ(transaction_of(swap).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace amem
