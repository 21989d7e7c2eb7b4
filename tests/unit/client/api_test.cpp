// The C and C++ interfaces for controllers, against a broker in this process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <amem/amem.hpp>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "client/core/control_client.h"
#include "tests/unit/fixtures/fake_broker.h"

namespace amem {
namespace {

using namespace std::chrono_literals;
using test::FakeBroker;
using test::make_done;
using test::make_progress;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

TEST(WithoutShim, RanksCallsSayHowToLoadItAndRegionsDoNothing) {
  amem_error error;
  const char* const tags[] = {"weights"};
  EXPECT_EQ(amem_is_active(), 0);
  EXPECT_EQ(amem_pause_tags(tags, 1, 0, &error), AMEM_ERROR_FAILED_PRECONDITION);
  EXPECT_THAT(error.text, HasSubstr("amemctl run --group"));
  EXPECT_EQ(amem_set_group("train", &error), AMEM_ERROR_FAILED_PRECONDITION);
  char* json = nullptr;
  EXPECT_EQ(amem_rank_stats(&json, &error), AMEM_ERROR_FAILED_PRECONDITION);
  EXPECT_EQ(json, nullptr);
  EXPECT_EQ(amem_region_begin("weights", AMEM_POLICY_KEEP, &error), AMEM_OK);
  EXPECT_EQ(amem_region_end(&error), AMEM_OK);
  EXPECT_EQ(amem_unbrokered_begin(&error), AMEM_OK);
  EXPECT_EQ(amem_unbrokered_end(&error), AMEM_OK);
  EXPECT_EQ(amem_region_begin("", AMEM_POLICY_KEEP, &error), AMEM_ERROR_INVALID_ARGUMENT);
}

class ClientApi : public testing::Test {
 protected:
  ClientApi() { open(0); }
  ~ClientApi() override { amem_close(client); }

  void open(std::uint32_t query_timeout_ms) {
    amem_close(client);
    amem_options options{};
    options.size = sizeof options;
    options.runtime_dir = dir.path().c_str();
    options.query_timeout_ms = query_timeout_ms;
    EXPECT_EQ(amem_open(&options, &client, &error), AMEM_OK) << error.text;
  }

  std::string socket() const { return dir / "control.sock"; }

  test::TempDir dir;
  FakeBroker broker{socket()};
  amem_client* client = nullptr;
  amem_error error{};
};

/// Takes over a string of the library.
std::string take(char* text) {
  std::string copy = text != nullptr ? text : "";
  amem_free(text);
  return copy;
}

TEST_F(ClientApi, QueriesGiveJson) {
  broker.node.set_version("9.8.7");
  broker.node.set_rss_bytes(12345);
  *broker.node.add_groups() = test::make_group("train", v1::GROUP_STATE_RUNNING);
  broker.rank_list.add_ranks()->set_pid(42);
  broker.allocation_list.resize(2);
  broker.allocation_list[1].set_id(7);

  char* json = nullptr;
  ASSERT_EQ(amem_status(client, &json, &error), AMEM_OK) << error.text;
  EXPECT_EQ(error.code, AMEM_OK);
  EXPECT_STREQ(error.text, "");
  EXPECT_THAT(take(json),
              StartsWith(R"({"version":"9.8.7","pid":0,"uptime_ms":0,"rss_bytes":12345)"));
  ASSERT_EQ(amem_groups(client, &json, nullptr), AMEM_OK);
  EXPECT_THAT(take(json), HasSubstr(R"("state":"GROUP_STATE_RUNNING")"));
  ASSERT_EQ(amem_ranks(client, nullptr, &json, &error), AMEM_OK);
  EXPECT_EQ(broker.asked_group, "");
  EXPECT_THAT(take(json), HasSubstr(R"("pid":42)"));
  ASSERT_EQ(amem_allocations(client, "train", &json, &error), AMEM_OK);
  EXPECT_EQ(broker.asked_group, "train");
  const std::string allocations = take(json);
  EXPECT_THAT(allocations, StartsWith(R"({"allocations":[{"id":0,)"));
  EXPECT_THAT(allocations, HasSubstr(R"(},{"id":7,)"));
}

TEST_F(ClientApi, PolicyIsPassedOn) {
  ASSERT_EQ(amem_set_policy(client, "train", "nccl", AMEM_POLICY_DISCARD, &error), AMEM_OK);
  EXPECT_EQ(broker.asked_policy.group(), "train");
  EXPECT_EQ(broker.asked_policy.tag(), "nccl");
  EXPECT_EQ(broker.asked_policy.policy(), v1::POLICY_DISCARD);
  EXPECT_FALSE(broker.asked_policy.force());
  ASSERT_EQ(amem_set_policy(client, "train", "heap", AMEM_POLICY_DISCARD_FORCED, &error), AMEM_OK);
  EXPECT_EQ(broker.asked_policy.policy(), v1::POLICY_DISCARD);
  EXPECT_TRUE(broker.asked_policy.force());
  EXPECT_EQ(amem_set_policy(client, "train", "", AMEM_POLICY_KEEP, &error),
            AMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(amem_set_policy(client, "train", "nccl", AMEM_POLICY_UNSPECIFIED, &error),
            AMEM_ERROR_INVALID_ARGUMENT);
  ASSERT_EQ(amem_set_save_form(client, "train", "w", AMEM_SAVE_FORM_SPARSE, &error), AMEM_OK);
  EXPECT_EQ(broker.asked_policy.tag(), "w");
  EXPECT_EQ(broker.asked_policy.policy(), v1::POLICY_UNSPECIFIED);
  EXPECT_EQ(broker.asked_policy.form(), v1::FORM_SPARSE);
  EXPECT_EQ(amem_set_save_form(client, "train", "w", static_cast<amem_save_form>(0), &error),
            AMEM_ERROR_INVALID_ARGUMENT);
}

TEST_F(ClientApi, PauseReportsProgress) {
  broker.progress = {make_progress("train", "save", 1, 2), make_done("train", 1000)};
  std::vector<std::string> seen;
  const auto callback = [](const amem_progress* progress, void* user) {
    static_cast<std::vector<std::string>*>(user)->push_back(std::string(progress->phase) +
                                                            (progress->done != 0 ? "done" : ""));
    EXPECT_EQ(progress->ranks_total, 2U);
    EXPECT_THAT(progress->json, StartsWith(R"({"group":"train")"));
    return 0;
  };
  ASSERT_EQ(amem_client_pause(client, "train", 250, callback, &seen, &error), AMEM_OK);
  EXPECT_THAT(seen, ElementsAre("save", "done"));
  EXPECT_EQ(broker.asked_timeout_ms, 250U);
}

TEST_F(ClientApi, TagsArePassedOn) {
  broker.progress = {make_done("train", 1)};
  const char* const tags[] = {"weights", "kv_cache"};
  EXPECT_EQ(amem_client_pause_tags(client, "train", tags, 2, 250, nullptr, nullptr, &error),
            AMEM_OK);
  EXPECT_THAT(broker.asked_tags, ElementsAre("weights", "kv_cache"));
  EXPECT_EQ(broker.asked_timeout_ms, 250U);
  EXPECT_EQ(amem_client_resume_tags(client, "train", tags, 1, 0, nullptr, nullptr, &error),
            AMEM_OK);
  EXPECT_THAT(broker.asked_tags, ElementsAre("weights"));
  EXPECT_EQ(amem_client_pause(client, "train", 0, nullptr, nullptr, &error), AMEM_OK);
  EXPECT_THAT(broker.asked_tags, ElementsAre());

  const std::vector<const char*> many(65, "a");
  EXPECT_EQ(amem_client_pause_tags(client, "train", many.data(), many.size(), 0, nullptr, nullptr,
                                   &error),
            AMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(error.text, HasSubstr("at most 64"));
  const char* const bad[] = {"weights", nullptr};
  EXPECT_EQ(amem_client_resume_tags(client, "train", bad, 2, 0, nullptr, nullptr, &error),
            AMEM_ERROR_INVALID_ARGUMENT);

  Client cpp(Options{.runtime_dir = dir.path(), .socket = {}, .query_timeout = {}});
  cpp.pause("train", {"weights", "kv_cache"}, 5s);
  EXPECT_THAT(broker.asked_tags, ElementsAre("weights", "kv_cache"));
  EXPECT_EQ(broker.asked_timeout_ms, 5000U);
  cpp.resume("train", Tags{"kv_cache"});
  EXPECT_THAT(broker.asked_tags, ElementsAre("kv_cache"));
}

TEST_F(ClientApi, WhatIsExceptedAndDiscardedIsPassedOn) {
  broker.progress = {make_done("train", 1)};
  const char* const weights[] = {"weights"};
  const char* const cache[] = {"kv_cache"};
  amem_selection what{};
  what.size = sizeof what;
  what.except_tags = weights;
  what.except_count = 1;
  what.discard = cache;
  what.discard_count = 1;
  what.guests = AMEM_GUESTS_REFUSE;
  EXPECT_EQ(amem_client_pause_selected(client, "train", &what, 0, nullptr, nullptr, &error),
            AMEM_OK);
  EXPECT_THAT(broker.asked_tags, ElementsAre());
  EXPECT_THAT(broker.asked_except, ElementsAre("weights"));
  EXPECT_THAT(broker.asked_discard, ElementsAre("kv_cache"));
  EXPECT_EQ(broker.asked_guests, v1::GUEST_POLICY_REFUSE);
  EXPECT_EQ(amem_client_resume_selected(client, "train", &what, 0, nullptr, nullptr, &error),
            AMEM_ERROR_INVALID_ARGUMENT)
      << "a resume drops nothing";
  what.tags = weights;
  what.tag_count = 1;
  EXPECT_EQ(amem_client_pause_selected(client, "train", &what, 0, nullptr, nullptr, &error),
            AMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(error.text, HasSubstr("exclude each other"));
  what.size = offsetof(amem_selection, except_tags);  // a program of before the rest was there
  EXPECT_EQ(amem_client_pause_selected(client, "train", &what, 0, nullptr, nullptr, &error),
            AMEM_OK);
  EXPECT_THAT(broker.asked_tags, ElementsAre("weights"));
  EXPECT_THAT(broker.asked_discard, ElementsAre());
  EXPECT_EQ(broker.asked_guests, v1::GUEST_POLICY_UNSPECIFIED);
  what.size = 0;
  EXPECT_EQ(amem_client_pause_selected(client, "train", &what, 0, nullptr, nullptr, &error),
            AMEM_ERROR_INVALID_ARGUMENT);

  Client cpp(Options{.runtime_dir = dir.path(), .socket = {}, .query_timeout = {}});
  cpp.pause("train", Selection{.tags = {}, .except_tags = {"a"}, .discard = {"b", "c"}});
  EXPECT_THAT(broker.asked_except, ElementsAre("a"));
  EXPECT_THAT(broker.asked_discard, ElementsAre("b", "c"));
  EXPECT_FALSE(broker.asked_force);
  Selection forced;
  forced.discard = {"heap"};
  forced.force = true;
  cpp.pause("train", forced);
  EXPECT_TRUE(broker.asked_force);
  cpp.resume("train", Selection{.tags = {}, .except_tags = {"kv_cache"}, .discard = {}});
  EXPECT_THAT(broker.asked_except, ElementsAre("kv_cache"));
  Selection pinning;
  pinning.guests = AMEM_GUESTS_PIN;
  cpp.pause("train", pinning);
  EXPECT_EQ(broker.asked_guests, v1::GUEST_POLICY_PIN);
  EXPECT_THROW(cpp.resume("train", pinning), Error) << "they are a pause's";
}

TEST_F(ClientApi, ResumeAndSwapWithoutCallback) {
  broker.progress = {make_done("train", 1)};
  EXPECT_EQ(amem_client_resume(client, "train", 0, nullptr, nullptr, &error), AMEM_OK);
  // A swap has two ends.
  EXPECT_EQ(amem_client_swap(client, "train", "rollout", 0, nullptr, nullptr, &error),
            AMEM_ERROR_INTERNAL);
  broker.progress.push_back(make_done("rollout", 2));
  EXPECT_EQ(amem_client_swap(client, "train", "rollout", 0, nullptr, nullptr, &error), AMEM_OK);
  EXPECT_EQ(broker.asked_group, "train");
  EXPECT_EQ(broker.asked_in, "rollout");
  EXPECT_EQ(amem_client_swap(client, "train", "train", 0, nullptr, nullptr, &error),
            AMEM_ERROR_INVALID_ARGUMENT);
}

TEST_F(ClientApi, SetsOfGroups) {
  const char* const groups[] = {"a", "b"};
  const char* const others[] = {"c", "d"};
  const char* const tags[] = {"kv"};
  broker.progress = {make_done("a", 1)};
  EXPECT_EQ(amem_client_pause_groups(client, groups, 2, nullptr, 0, nullptr, nullptr, &error),
            AMEM_ERROR_INTERNAL)
      << "one is missing";
  broker.progress.push_back(make_done("b", 1));
  EXPECT_EQ(amem_client_pause_groups(client, groups, 2, nullptr, 0, nullptr, nullptr, &error),
            AMEM_OK);
  EXPECT_THAT(broker.asked_groups, ElementsAre("a", "b"));
  EXPECT_EQ(amem_client_resume_groups(client, groups, 2, nullptr, 0, nullptr, nullptr, &error),
            AMEM_OK);
  EXPECT_EQ(amem_client_pause_groups(client, groups, 0, nullptr, 0, nullptr, nullptr, &error),
            AMEM_ERROR_INVALID_ARGUMENT);
  broker.progress.push_back(make_done("c", 1));
  broker.progress.push_back(make_done("d", 1));
  EXPECT_EQ(
      amem_client_swap_groups(client, groups, 2, others, 2, tags, 1, 0, nullptr, nullptr, &error),
      AMEM_OK);
  EXPECT_THAT(broker.asked_in_groups, ElementsAre("c", "d"));
  EXPECT_EQ(amem_client_swap_groups(client, groups, 2, groups, 1, nullptr, 0, 0, nullptr, nullptr,
                                    &error),
            AMEM_ERROR_INVALID_ARGUMENT);

  amem_selection selection{};
  selection.size = sizeof selection;
  selection.discard = tags;
  selection.discard_count = 1;
  selection.guests = AMEM_GUESTS_REFUSE;
  selection.deep = 1;
  selection.force = 1;
  const auto swap = [&](const amem_selection* what) {
    return amem_client_swap_selected(client, groups, 2, others, 2, what, 0, nullptr, nullptr,
                                     &error);
  };
  EXPECT_EQ(swap(&selection), AMEM_OK);
  EXPECT_TRUE(broker.asked_deep);
  EXPECT_TRUE(broker.asked_force);
  EXPECT_EQ(broker.asked_guests, v1::GUEST_POLICY_REFUSE);
  EXPECT_THAT(broker.asked_discard, ElementsAre("kv"));
  EXPECT_EQ(swap(nullptr), AMEM_OK);
  EXPECT_FALSE(broker.asked_deep);
  EXPECT_FALSE(broker.asked_force);
  EXPECT_THAT(broker.asked_discard, IsEmpty());
  selection.tags = tags;
  selection.tag_count = 1;
  EXPECT_EQ(swap(&selection), AMEM_ERROR_INVALID_ARGUMENT) << "a swap is of whole groups";

  Client cpp(Options{.runtime_dir = dir.path(), .socket = {}, .query_timeout = {}});
  Selection deep;
  deep.deep = true;
  cpp.swap_selected({"a", "b"}, {"c", "d"}, deep);
  EXPECT_TRUE(broker.asked_deep);
  cpp.swap_groups({"a", "b"}, {"c", "d"}, {"kv"});
  broker.progress.resize(2);
  cpp.pause_groups({"a", "b"});
  cpp.resume_groups({"b", "a"});
  EXPECT_THAT(broker.asked_groups, ElementsAre("b", "a"));
}

TEST_F(ClientApi, TheBrokersErrorsComeThrough) {
  broker.end = {grpc::StatusCode::RESOURCE_EXHAUSTED, "need 3 GiB, pool has 1 GiB"};
  EXPECT_EQ(amem_client_pause(client, "train", 0, nullptr, nullptr, &error),
            AMEM_ERROR_RESOURCE_EXHAUSTED);
  EXPECT_EQ(error.code, AMEM_ERROR_RESOURCE_EXHAUSTED);
  EXPECT_STREQ(error.text, "need 3 GiB, pool has 1 GiB");
  broker.end = {grpc::StatusCode::DEADLINE_EXCEEDED, "rank 3 did not become quiet"};
  EXPECT_EQ(amem_client_pause(client, "train", 0, nullptr, nullptr, &error),
            AMEM_ERROR_DEADLINE_EXCEEDED);
  EXPECT_STREQ(error.text, "rank 3 did not become quiet");
  broker.end = {grpc::StatusCode::UNIMPLEMENTED, ""};
  EXPECT_EQ(amem_ranks(client, "", nullptr, &error), AMEM_ERROR_UNIMPLEMENTED);
  EXPECT_THAT(error.text, HasSubstr("older"));
}

TEST_F(ClientApi, LongErrorTextIsCutAtACharacter) {
  std::string text;
  while (text.size() < 2000) text += "\xe2\x82\xac";
  broker.end = {grpc::StatusCode::ABORTED, text};
  EXPECT_EQ(amem_client_pause(client, "train", 0, nullptr, nullptr, &error), AMEM_ERROR_ABORTED);
  EXPECT_EQ(std::string(error.text).size(), 1017U);  // the most that is a multiple of 3
}

TEST_F(ClientApi, ProgressCallbackStopsTheWaiting) {
  broker.progress = {make_progress("train", "quiesce", 0, 2)};
  broker.hang = true;
  const auto stop = [](const amem_progress*, void*) { return 1; };
  EXPECT_EQ(amem_client_pause(client, "train", 0, stop, nullptr, &error), AMEM_ERROR_CANCELLED);
  EXPECT_THAT(error.text, HasSubstr("The broker continues the operation"));
}

TEST_F(ClientApi, CancelEndsCallsFromAnotherThread) {
  broker.events.resize(1);
  broker.hang = true;
  std::jthread canceller;
  const auto callback = [](const amem_event*, void* user) {
    auto& [thread, c] = *static_cast<std::pair<std::jthread*, amem_client*>*>(user);
    *thread = std::jthread([c = c] { amem_cancel(c); });
    return 0;
  };
  std::pair<std::jthread*, amem_client*> user{&canceller, client};
  EXPECT_EQ(amem_watch(client, nullptr, callback, &user, &error), AMEM_ERROR_CANCELLED);
}

TEST_F(ClientApi, ACancelIsNotLostOnAThreadThatHasYetToBeginItsCall) {
  broker.hang = true;
  std::promise<void> cancelled;
  std::promise<int> ended;
  const auto watch = [&] {
    cancelled.get_future().wait();
    const auto callback = [](const amem_event*, void*) { return 0; };
    ended.set_value(amem_watch(client, nullptr, callback, nullptr, &error));
  };
  std::thread thread(watch);
  amem_cancel(client);
  cancelled.set_value();
  std::future<int> code = ended.get_future();
  if (code.wait_for(5s) != std::future_status::ready) {
    ADD_FAILURE() << "the watch goes on";
    amem_cancel(client);
  }
  thread.join();
  EXPECT_EQ(code.get(), AMEM_ERROR_CANCELLED);
}

TEST_F(ClientApi, ACancelIsForGood) {
  broker.progress = {make_done("train", 1)};
  amem_cancel(client);
  char* json = nullptr;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(amem_status(client, &json, &error), AMEM_ERROR_CANCELLED);
    EXPECT_THAT(error.text, HasSubstr("Open another one"));
  }
  EXPECT_EQ(amem_allocations(client, "train", &json, &error), AMEM_ERROR_CANCELLED);
  EXPECT_EQ(amem_client_pause(client, "train", 0, nullptr, nullptr, &error), AMEM_ERROR_CANCELLED);
  EXPECT_THAT(broker.asked_groups, IsEmpty()) << "the broker was not asked";
  open(0);
  EXPECT_EQ(amem_client_pause(client, "train", 0, nullptr, nullptr, &error), AMEM_OK);

  Client cpp(Options{.runtime_dir = dir.path(), .socket = {}, .query_timeout = {}});
  cpp.cancel();
  EXPECT_THROW(cpp.watch("", [](const amem_event&) { return true; }), Error);
}

TEST_F(ClientApi, WatchGivesEventsUntilTheBrokerEnds) {
  v1::Event event;
  event.set_group("train");
  event.set_kind("state");
  event.set_state(v1::GROUP_STATE_PAUSED);
  event.set_time_ms(5);
  broker.events = {event, event};
  int count = 0;
  const auto callback = [](const amem_event* e, void* user) {
    EXPECT_STREQ(e->group, "train");
    EXPECT_STREQ(e->kind, "state");
    EXPECT_EQ(e->state, AMEM_GROUP_STATE_PAUSED);
    EXPECT_EQ(e->time_ms, 5U);
    ++*static_cast<int*>(user);
    return 0;
  };
  EXPECT_EQ(amem_watch(client, "train", callback, &count, &error), AMEM_ERROR_UNAVAILABLE);
  EXPECT_EQ(count, 2);
  EXPECT_EQ(amem_watch(client, "train", nullptr, nullptr, &error), AMEM_ERROR_INVALID_ARGUMENT);
}

TEST_F(ClientApi, AQueryHasADeadline) {
  broker.hang = true;
  open(100);
  char* json = nullptr;
  EXPECT_EQ(amem_status(client, &json, &error), AMEM_ERROR_DEADLINE_EXCEEDED);
  EXPECT_EQ(json, nullptr);
  EXPECT_THAT(error.text, HasSubstr(socket() + " did not answer within 100 ms"));
}

TEST_F(ClientApi, NamesThatNoGroupCanHaveAreRefusedHere) {
  for (const char* bad : {"", "../x", "\xff", "a b"}) {
    EXPECT_EQ(amem_client_pause(client, bad, 0, nullptr, nullptr, &error),
              AMEM_ERROR_INVALID_ARGUMENT);
  }
  EXPECT_EQ(amem_client_pause(client, nullptr, 0, nullptr, nullptr, &error),
            AMEM_ERROR_INVALID_ARGUMENT);
  char* json = nullptr;
  EXPECT_EQ(amem_ranks(client, "a b", &json, &error), AMEM_ERROR_INVALID_ARGUMENT);
}

TEST_F(ClientApi, NullArgumentsAreErrors) {
  EXPECT_EQ(amem_status(nullptr, nullptr, &error), AMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(amem_status(client, nullptr, &error), AMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(amem_open(nullptr, nullptr, &error), AMEM_ERROR_INVALID_ARGUMENT);
  amem_close(nullptr);
  amem_cancel(nullptr);
  amem_free(nullptr);
}

TEST_F(ClientApi, ListsThatAreNullOrHaveANullAreErrors) {
  broker.progress = {make_done("train", 1), make_done("rollout", 1)};
  const char* const null[] = {"a", nullptr};
  const char* const good[] = {"train"};
  const char* const other[] = {"rollout"};
  for (const char* const* bad : {static_cast<const char* const*>(nullptr), +null}) {
    const auto refused = [&](int code, const std::string& name) {
      EXPECT_EQ(code, AMEM_ERROR_INVALID_ARGUMENT) << name;
      EXPECT_THAT(error.text, HasSubstr(name + (bad == nullptr ? " is NULL" : "[1] is NULL")));
      error = {};
    };
    const auto with = [&](const char* const* amem_selection::*list,
                          std::size_t amem_selection::*n) {
      amem_selection selection{};
      selection.size = sizeof selection;
      selection.*list = bad;
      selection.*n = 2;
      return selection;
    };
    refused(amem_client_pause_tags(client, "train", bad, 2, 0, nullptr, nullptr, &error), "tags");
    refused(amem_client_resume_tags(client, "train", bad, 2, 0, nullptr, nullptr, &error), "tags");
    refused(amem_client_pause_groups(client, bad, 2, nullptr, 0, nullptr, nullptr, &error),
            "groups");
    refused(amem_client_resume_groups(client, bad, 2, nullptr, 0, nullptr, nullptr, &error),
            "groups");
    refused(
        amem_client_swap_discard(client, "train", "rollout", bad, 2, 0, nullptr, nullptr, &error),
        "discard");
    refused(
        amem_client_swap_groups(client, bad, 2, other, 1, nullptr, 0, 0, nullptr, nullptr, &error),
        "out");
    refused(
        amem_client_swap_groups(client, good, 1, bad, 2, nullptr, 0, 0, nullptr, nullptr, &error),
        "in");
    for (const auto& [selection, name] :
         {std::pair{with(&amem_selection::tags, &amem_selection::tag_count), "tags"},
          std::pair{with(&amem_selection::except_tags, &amem_selection::except_count),
                    "except_tags"},
          std::pair{with(&amem_selection::discard, &amem_selection::discard_count), "discard"}}) {
      refused(amem_client_pause_selected(client, "train", &selection, 0, nullptr, nullptr, &error),
              name);
      refused(amem_client_resume_selected(client, "train", &selection, 0, nullptr, nullptr, &error),
              name);
      refused(amem_client_pause_groups(client, good, 1, &selection, 0, nullptr, nullptr, &error),
              name);
      refused(amem_client_swap_selected(client, good, 1, other, 1, &selection, 0, nullptr, nullptr,
                                        &error),
              name);
    }
  }
  EXPECT_THAT(broker.asked_groups, IsEmpty()) << "the broker was not asked";
  // A list without entries need not be there.
  EXPECT_EQ(
      amem_client_swap_groups(client, good, 1, other, 1, nullptr, 0, 0, nullptr, nullptr, &error),
      AMEM_OK)
      << error.text;
}

TEST_F(ClientApi, NoTagsAreNotEverything) {
  broker.progress = {make_done("train", 1)};
  const char* const none[] = {"weights"};
  EXPECT_EQ(amem_client_pause_tags(client, "train", none, 0, 0, nullptr, nullptr, &error),
            AMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(error.text, HasSubstr("amem_client_pause()"));
  EXPECT_EQ(amem_client_resume_tags(client, "train", nullptr, 0, 0, nullptr, nullptr, &error),
            AMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(error.text, HasSubstr("amem_client_resume()"));
  Client cpp(Options{.runtime_dir = dir.path(), .socket = {}, .query_timeout = {}});
  EXPECT_THROW(cpp.pause("train", Tags{}), Error);
  EXPECT_THROW(cpp.resume("train", Tags{}, 1s), Error);
  EXPECT_THAT(broker.asked_groups, IsEmpty()) << "the broker was not asked";
  cpp.pause("train");
  cpp.resume("train", 1s);
  EXPECT_THAT(broker.asked_tags, IsEmpty());
}

TEST_F(ClientApi, BrokerThatGoesAndComesBack) {
  char* json = nullptr;
  ASSERT_EQ(amem_status(client, &json, &error), AMEM_OK);
  amem_free(json);
  broker.stop();
  EXPECT_EQ(amem_status(client, &json, &error), AMEM_ERROR_UNAVAILABLE);
  EXPECT_THAT(error.text, HasSubstr(socket()));
  EXPECT_THAT(error.text, HasSubstr("systemctl start amemd"));

  // At once, whatever gRPC thinks of the connection after that failure.
  FakeBroker again(socket());
  ASSERT_EQ(amem_status(client, &json, &error), AMEM_OK) << error.text;
  amem_free(json);
}

TEST_F(ClientApi, ConnectionLostDuringAnOperation) {
  broker.progress = {make_progress("train", "save", 0, 2)};
  broker.hang = true;
  broker.end = {grpc::StatusCode::UNAVAILABLE, "shutting down"};
  const auto callback = [](const amem_progress*, void* user) {
    static_cast<FakeBroker*>(user)->stop();
    return 0;
  };
  EXPECT_EQ(amem_client_pause(client, "train", 0, callback, &broker, &error),
            AMEM_ERROR_UNAVAILABLE);
  EXPECT_THAT(error.text, HasSubstr("was lost"));
}

TEST(ClientOpen, OptionsOfAnotherSize) {
  amem_error error{};
  amem_client* client = nullptr;
  amem_options options{};
  EXPECT_EQ(amem_open(&options, &client, &error), AMEM_ERROR_INVALID_ARGUMENT);  // size not set
  options.size = offsetof(amem_options, socket);  // an older header, which knew no more
  options.runtime_dir = "/nowhere";
  options.socket = reinterpret_cast<const char*>(1);
  ASSERT_EQ(amem_open(&options, &client, &error), AMEM_OK);
  char* json = nullptr;
  EXPECT_EQ(amem_status(client, &json, &error), AMEM_ERROR_UNAVAILABLE);
  EXPECT_THAT(error.text, HasSubstr("/nowhere/control.sock"));
  amem_close(client);
}

TEST(ClientOpen, PathTooLongForASocket) {
  amem_options options{};
  const std::string path(200, 'x');
  options.size = sizeof options;
  options.socket = path.c_str();
  amem_client* client = nullptr;
  EXPECT_EQ(amem_open(&options, &client, nullptr), AMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(client, nullptr);
}

TEST(ClientCodes, Names) {
  EXPECT_STREQ(amem_code_name(AMEM_OK), "OK");
  EXPECT_STREQ(amem_code_name(AMEM_ERROR_NOT_FOUND), "NOT_FOUND");
  EXPECT_STREQ(amem_code_name(AMEM_ERROR_DATA_LOSS), "DATA_LOSS");
  EXPECT_STREQ(amem_code_name(-1), "UNKNOWN");
  EXPECT_STREQ(amem_code_name(16), "UNKNOWN");
}

TEST(ClientDeadline, IsTheTimeAskedForAndAMargin) {
  EXPECT_GT(client::operation_deadline(1000, 1), 1000ms + 60s);
  EXPECT_GT(client::operation_deadline(0, 1), 5min);
  EXPECT_EQ(client::operation_deadline(1000, 2), 2 * client::operation_deadline(1000, 1));
}

// ---- the C++ header ----

class CppApi : public testing::Test {
 protected:
  test::TempDir dir;
  FakeBroker broker{dir / "control.sock"};
  Client client{Options{.runtime_dir = dir.path(), .socket = {}, .query_timeout = 0ms}};
};

TEST_F(CppApi, QueriesAndOperations) {
  broker.node.set_version("9.8.7");
  broker.progress = {make_progress("train", "save", 1, 2), make_done("train", 1000)};
  EXPECT_THAT(client.status(), HasSubstr("9.8.7"));
  EXPECT_EQ(client.ranks(), R"({"ranks":[]})");
  EXPECT_EQ(client.allocations("train"), R"({"allocations":[]})");
  EXPECT_EQ(client.groups(), R"({"groups":[]})");
  std::vector<std::string> phases;
  client.pause("train", 5s, [&](const amem_progress& progress) {
    phases.emplace_back(progress.phase);
    return true;
  });
  EXPECT_THAT(phases, ElementsAre("save", ""));
  EXPECT_EQ(broker.asked_timeout_ms, 5000U);
  client.resume("train");
  client.set_policy("train", "nccl", AMEM_POLICY_KEEP);
  client.set_save_form("train", "nccl", AMEM_SAVE_FORM_DENSE);
  EXPECT_EQ(broker.asked_policy.form(), v1::FORM_DENSE);
  broker.progress.push_back(make_done("rollout", 1));
  client.swap("train", "rollout");
}

TEST_F(CppApi, ErrorsAreThrownWithCodeAndText) {
  broker.end = {grpc::StatusCode::NOT_FOUND, "no group train"};
  try {
    client.pause("train");
    FAIL() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), AMEM_ERROR_NOT_FOUND);
    EXPECT_STREQ(e.what(), "no group train");
  }
}

TEST_F(CppApi, AnExceptionOfACallbackComesOut) {
  broker.progress = {make_progress("train", "save", 1, 2)};
  broker.hang = true;
  EXPECT_THROW(client.pause("train", 0ms,
                            [](const amem_progress&) -> bool { throw std::length_error("mine"); }),
               std::length_error);
}

TEST_F(CppApi, WatchEndsWhenTheCallbackHasEnough) {
  broker.events.resize(3);
  broker.hang = true;
  int count = 0;
  client.watch("", [&](const amem_event&) { return ++count < 2; });
  EXPECT_EQ(count, 2);
}

}  // namespace
}  // namespace amem
