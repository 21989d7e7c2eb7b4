// amemctl's commands against a broker in this process: what they write, and their exit codes.
#include "client/ctl/commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <sstream>

#include "client/ctl/exit_code.h"
#include "client/ctl/interrupt.h"
#include "common/version.h"
#include "tests/unit/fixtures/commands_fixture.h"

namespace amem::ctl {
namespace {

using test::Commands;
using test::FakeBroker;
using test::kSignalsBlocked;
using test::make_done;
using test::make_group;
using test::make_progress;
using testing::HasSubstr;

TEST_F(Commands, QueriesAsTextAndJson) {
  broker.node.set_version("9.8.7");
  *broker.node.add_groups() = make_group("train", v1::GROUP_STATE_PAUSED);
  broker.rank_list.add_ranks()->set_program("python");
  broker.allocation_list.resize(2);

  EXPECT_EQ(run({"status"}), kExitOk);
  EXPECT_THAT(out.str(), HasSubstr("amemd 9.8.7"));
  EXPECT_EQ(run({"status", "--json"}), kExitOk);
  EXPECT_THAT(out.str(), HasSubstr(R"({"version":"9.8.7")"));
  EXPECT_EQ(run({"groups"}), kExitOk);
  EXPECT_THAT(out.str(), HasSubstr("train  paused"));
  EXPECT_EQ(run({"ranks", "train"}), kExitOk);
  EXPECT_THAT(out.str(), HasSubstr("python"));
  EXPECT_EQ(broker.asked_group, "train");
  EXPECT_EQ(run({"allocations", "--json"}), kExitOk);
  const std::string lines = out.str();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2);
  EXPECT_EQ(run({"allocations", "--summary", "--json"}), kExitOk);
  EXPECT_THAT(out.str(), HasSubstr(R"("count":2)"));
  EXPECT_EQ(run({"allocations", "--summary"}), kExitOk);
  EXPECT_THAT(out.str(), HasSubstr("ALLOCS"));
  EXPECT_EQ(run({"top", "--once"}), kExitOk);
  EXPECT_THAT(out.str(), HasSubstr("MEMORY"));
  EXPECT_EQ(err.str(), "");
}

TEST_F(Commands, ListsInOtherFormats) {
  v1::GroupInfo& group = *broker.node.add_groups() = make_group("train", v1::GROUP_STATE_PAUSED);
  group.set_owner("/kubepods/pod12ab");
  group.set_address("train@1000");
  v1::RankInfo& rank = *broker.rank_list.add_ranks();
  rank.set_group("train");
  rank.set_rank(3);
  rank.add_tags()->set_tag("kv_cache");
  *broker.rank_list.add_ranks() = rank;
  broker.rank_list.mutable_ranks(1)->set_rank(-1);
  broker.rank_list.mutable_ranks(1)->set_pid(77);

  EXPECT_EQ(run({"groups", "-o", "name"}), kExitOk);
  EXPECT_EQ(out.str(), "train\n");
  EXPECT_EQ(run({"ranks", "-o", "name"}), kExitOk);
  EXPECT_EQ(out.str(), "train/3\ntrain/pid-77\n");
  EXPECT_EQ(run({"groups", "--json"}), kExitOk);
  const std::string json = out.str();
  EXPECT_EQ(run({"groups", "-o", "json"}), kExitOk);
  EXPECT_EQ(out.str(), json);
  for (const char* list : {"groups", "status"}) {
    EXPECT_EQ(run({list}), kExitOk);
    EXPECT_THAT(out.str(), testing::Not(HasSubstr("/kubepods/pod12ab"))) << list;
    EXPECT_EQ(run({list, "-o", "wide"}), kExitOk);
    EXPECT_THAT(out.str(), HasSubstr("train  train@1000  /kubepods/pod12ab\n")) << list;
  }
  EXPECT_EQ(run({"ranks"}), kExitOk);
  EXPECT_THAT(out.str(), testing::Not(HasSubstr("kv_cache")));
  EXPECT_EQ(run({"ranks", "-o", "wide"}), kExitOk);
  EXPECT_THAT(out.str(), HasSubstr("kv_cache"));
}

TEST_F(Commands, HealthAsksGrpcAndTheBroker) {
  const auto serves = [&](bool yes) {
    broker.health()->SetServingStatus(std::string(v1::Broker::service_full_name()), yes);
  };
  EXPECT_EQ(run({"health"}), kExitUnreachable) << "gRPC knows of no such service yet";
  serves(true);
  EXPECT_EQ(run({"health"}), kExitOk) << err.str();
  EXPECT_EQ(out.str(), "amemd at " + (dir / "control.sock") + " serves\n");
  EXPECT_EQ(run({"health", "--json"}), kExitOk);
  EXPECT_EQ(out.str(), "{\"serving\":true}\n");
  serves(false);
  EXPECT_EQ(run({"health"}), kExitUnreachable);
  EXPECT_THAT(err.str(), HasSubstr("does not serve"));
  EXPECT_EQ(out.str(), "");
  serves(true);
  broker.hang = true;
  EXPECT_EQ(run({"health", "--timeout", "100ms"}), kExitDeadline);
  EXPECT_THAT(err.str(), HasSubstr("did not answer within 100 ms"));
  broker.stop();
  EXPECT_EQ(run({"health"}), kExitUnreachable);
}

TEST_F(Commands, ReadyIsForProbes) {
  EXPECT_EQ(run({"ready", "rollout"}), kExitNotFound);
  *broker.node.add_groups() = make_group("rollout", v1::GROUP_STATE_PAUSED);
  EXPECT_EQ(run({"ready", "rollout"}), kExitWrongState);
  EXPECT_THAT(out.str(), HasSubstr("group rollout is not ready: paused since "));
  EXPECT_EQ(err.str(), "");
  broker.node.mutable_groups(0)->set_state(v1::GROUP_STATE_RUNNING);
  EXPECT_EQ(run({"ready", "rollout", "--json"}), kExitOk);
  EXPECT_THAT(out.str(), HasSubstr(R"("ready":true)"));
  broker.stop();
  EXPECT_EQ(run({"ready", "rollout"}), kExitUnreachable);
}

TEST_F(Commands, WaitIdleNamesWhatIsUnderWayStill) {
  *broker.node.add_groups() = make_group("rollout", v1::GROUP_STATE_PAUSED);
  *broker.node.add_groups() = make_group("train", v1::GROUP_STATE_RUNNING);
  EXPECT_EQ(run({"wait", "idle"}), kExitOk) << err.str();
  EXPECT_EQ(out.str(), "no operation is under way\n");
  EXPECT_EQ(run({"wait", "idle", "--json"}), kExitOk);
  EXPECT_EQ(out.str(), "{\"idle\":true}\n");
  broker.node.mutable_groups(1)->set_state(v1::GROUP_STATE_PAUSING);
  broker.node.mutable_groups(1)->set_phase("quiesce");
  EXPECT_EQ(run({"wait", "idle", "--timeout", "100ms"}), kExitDeadline);
  EXPECT_EQ(err.str(),
            "amemctl: waited 100 ms for all operations to end: group train is pausing (quiesce); "
            "`amemctl ranks` shows which ranks the broker waits for\n");
  EXPECT_EQ(out.str(), "");
  broker.node.mutable_groups(1)->set_state(v1::GROUP_STATE_RESUMING);
  EXPECT_EQ(run({"wait", "idle", "--timeout", "1ms"}), kExitDeadline);
  broker.stop();
  EXPECT_EQ(run({"wait", "idle"}), kExitUnreachable);
}

TEST_F(Commands, WaitForAGroup) {
  EXPECT_EQ(run({"wait", "group", "train", "--for", "gone"}), kExitOk) << err.str();
  EXPECT_EQ(out.str(), "there is no group train\n");
  EXPECT_EQ(run({"wait", "group", "train", "--timeout", "60ms"}), kExitDeadline);
  EXPECT_THAT(err.str(), HasSubstr("waited 60 ms for group train to run: there is no such group"));
  *broker.node.add_groups() = make_group("train", v1::GROUP_STATE_RUNNING);
  EXPECT_EQ(run({"wait", "group", "train"}), kExitOk) << err.str();
  EXPECT_EQ(out.str(), "group train is running with 2 ranks\n");
  EXPECT_EQ(run({"wait", "group", "train", "--json"}), kExitOk);
  EXPECT_EQ(out.str(), "{\"group\":\"train\",\"state\":\"running\",\"ranks\":2}\n");
  EXPECT_EQ(run({"wait", "group", "train", "--ranks", "3", "--timeout", "1ms"}), kExitDeadline);
  EXPECT_EQ(run({"wait", "group", "train", "--for", "paused", "--timeout", "1ms"}), kExitDeadline);
}

TEST_F(Commands, WaitForThePool) {
  broker.node.mutable_pool()->set_configured_bytes(4ULL << 30);
  broker.node.mutable_pool()->set_ready_bytes(1ULL << 30);
  EXPECT_EQ(run({"wait", "pool", "--timeout", "60ms"}), kExitDeadline);
  EXPECT_THAT(err.str(), HasSubstr("for the pool to be filled: it has 1.00 GiB of 4.00 GiB"));
  broker.node.mutable_pool()->set_error("no memory");
  EXPECT_EQ(run({"wait", "pool"}), kExitResources) << "at once: amemd has given up";
  broker.node.mutable_pool()->set_ready_bytes(4ULL << 30);
  EXPECT_EQ(run({"wait", "pool"}), kExitOk) << err.str();
  EXPECT_EQ(out.str(), "the pool has all of its 4.00 GiB\n");
  broker.node.mutable_pool()->set_ready_bytes(1ULL << 30);
  broker.node.mutable_pool()->set_elastic_bytes(3ULL << 30);
  EXPECT_EQ(run({"wait", "pool"}), kExitOk) << "the rest is pinned when something needs it";
}

TEST_F(Commands, AWaitLooksAgainUntilABrokerIsThere) {
  broker.stop();
  EXPECT_EQ(run({"wait", "pool", "--timeout", "120ms"}), kExitUnreachable);
  EXPECT_THAT(err.str(), HasSubstr("waited 120 ms for the pool to be filled: amemd does not run"));
  ::unlink((dir / "control.sock").c_str());
  std::unique_ptr<FakeBroker> late;
  std::jthread comes([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    late = std::make_unique<FakeBroker>(dir / "control.sock");
  });
  EXPECT_EQ(run({"wait", "group", "train", "--for", "gone"}), kExitOk) << err.str();
  comes.join();
}

TEST_F(Commands, PauseSaysHowItWent) {
  broker.progress = {make_progress("train", "save", 0, 2), make_done("train", 143'000)};
  EXPECT_EQ(run({"pause", "train", "--timeout", "2s"}), kExitOk);
  EXPECT_EQ(broker.asked_timeout_ms, 2000U);
  EXPECT_EQ(out.str(), "train: paused in 143 ms\n");
  EXPECT_EQ(err.str(), "train: save, 2 ranks\n");
  EXPECT_EQ(run({"resume", "train"}), kExitOk);
  EXPECT_EQ(broker.asked_timeout_ms, 0U);
  EXPECT_EQ(out.str(), "train: resumed in 143 ms\n");
  EXPECT_EQ(run({"pause", "train", "--json"}), kExitOk);
  EXPECT_EQ(err.str(), "");
  EXPECT_THAT(out.str(), HasSubstr("\"done\":true"));
}

TEST_F(Commands, ChosenTags) {
  broker.progress = {make_done("train", 143'000)};
  EXPECT_EQ(run({"pause", "train", "--tag", "weights", "kv_cache"}), kExitOk);
  EXPECT_THAT(broker.asked_tags, testing::ElementsAre("weights", "kv_cache"));
  EXPECT_EQ(out.str(), "train: paused (weights, kv_cache) in 143 ms\n");
  EXPECT_EQ(run({"pause", "train", "--except", "weights", "--discard", "kv_cache"}), kExitOk);
  EXPECT_THAT(broker.asked_tags, testing::ElementsAre());
  EXPECT_THAT(broker.asked_except, testing::ElementsAre("weights"));
  EXPECT_THAT(broker.asked_discard, testing::ElementsAre("kv_cache"));
  EXPECT_FALSE(broker.asked_force);
  EXPECT_EQ(run({"pause", "train", "--discard", "heap", "--force"}), kExitOk);
  EXPECT_TRUE(broker.asked_force);
  EXPECT_EQ(broker.asked_guests, v1::GUEST_POLICY_UNSPECIFIED);
  EXPECT_EQ(run({"pause", "train", "--guests", "refuse"}), kExitOk);
  EXPECT_EQ(broker.asked_guests, v1::GUEST_POLICY_REFUSE);
  EXPECT_EQ(run({"resume", "train", "--except", "kv_cache"}), kExitOk);
  EXPECT_THAT(broker.asked_except, testing::ElementsAre("kv_cache"));
  EXPECT_EQ(out.str(), "train: resumed (all but kv_cache) in 143 ms\n");
  broker.end = {grpc::StatusCode::NOT_FOUND, "train has no tag x: nccl, weights"};
  EXPECT_EQ(run({"resume", "train", "--tag", "x"}), kExitNotFound);
  EXPECT_THAT(err.str(), HasSubstr("nccl, weights"));
}

TEST_F(Commands, OneGroupAndOneTag) {
  *broker.node.add_groups() = make_group("train", v1::GROUP_STATE_RUNNING);
  *broker.node.add_groups() = make_group("rollout", v1::GROUP_STATE_PAUSED);
  EXPECT_EQ(run({"groups", "rollout"}), kExitOk);
  EXPECT_THAT(out.str(), HasSubstr("rollout  paused"));
  EXPECT_THAT(out.str(), testing::Not(HasSubstr("train")));
  EXPECT_EQ(run({"groups", "other"}), kExitNotFound);
  EXPECT_THAT(err.str(), HasSubstr("no group other"));

  broker.allocation_list.resize(3);
  broker.allocation_list[0].set_tag("nccl");
  broker.allocation_list[2].set_tag("weights");
  EXPECT_EQ(run({"allocations", "--tag", "weights", "--json"}), kExitOk);
  EXPECT_THAT(out.str(), testing::StartsWith(R"({"id":0,)"));
  EXPECT_THAT(out.str(), HasSubstr(R"("tag":"weights")"));
  const std::string lines = out.str();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 1);
  EXPECT_EQ(run({"allocations", "--tag", "weights", "nccl", "--summary", "--json"}), kExitOk);
  const std::string rows = out.str();
  EXPECT_EQ(std::count(rows.begin(), rows.end(), '\n'), 2);
}

TEST_F(Commands, AllGroupsEachByItself) {
  EXPECT_EQ(run({"pause", "--all"}), kExitOk);
  EXPECT_EQ(out.str(), "there is no group to be paused\n");
  for (const char* name : {"a", "b", "c"})
    *broker.node.add_groups() = make_group(name, v1::GROUP_STATE_RUNNING);
  *broker.node.add_groups() = make_group("d", v1::GROUP_STATE_PAUSED);
  broker.progress = {make_done("", 1000)};
  broker.ends["b"] = {grpc::StatusCode::RESOURCE_EXHAUSTED, "group b: the pool is too small"};
  EXPECT_EQ(run({"pause", "--all"}), kExitResources);
  EXPECT_THAT(broker.operated_on, testing::ElementsAre("a", "b", "c"));
  EXPECT_EQ(out.str(), "a: paused in 1.00 ms\nc: paused in 1.00 ms\nd is already paused\n");
  EXPECT_EQ(err.str(),
            "amemctl: group b: the pool is too small\n"
            "amemctl: 1 of 3 groups could not be paused: b\n");
  broker.ends["c"] = {grpc::StatusCode::ABORTED, "group c: a rank died"};
  EXPECT_EQ(run({"pause", "--all", "--json"}), kExitFailed) << "they failed for several reasons";
  EXPECT_THAT(err.str(), HasSubstr("2 of 3 groups could not be paused: b, c"));
}

TEST_F(Commands, ResumeOfAllTakesWhatIsPausedOfARunningGroup) {
  *broker.node.add_groups() = make_group("a", v1::GROUP_STATE_RUNNING);
  v1::GroupInfo& part = *broker.node.add_groups() = make_group("b", v1::GROUP_STATE_RUNNING);
  part.set_allocated_bytes(2);
  part.set_resident_bytes(1);
  *broker.node.add_groups() = make_group("c", v1::GROUP_STATE_PAUSED);
  broker.progress = {make_done("", 1000)};
  broker.ends["none"] = {};
  EXPECT_EQ(run({"resume", "--all"}), kExitOk) << err.str();
  EXPECT_EQ(out.str(), "a is already running\nb: resumed in 1.00 ms\nc: resumed in 1.00 ms\n");
}

TEST_F(Commands, SwapPausesOneAndResumesTheOther) {
  broker.progress = {make_done("train", 1000), make_done("rollout", 2000)};
  EXPECT_EQ(run({"swap", "train", "rollout"}), kExitOk);
  EXPECT_EQ(out.str(), "train: paused in 1.00 ms\nrollout: resumed in 2.00 ms\n");
}

TEST_F(Commands, SetsOfGroups) {
  broker.progress = {make_done("a", 1000), make_done("b", 2000)};
  EXPECT_EQ(run({"pause", "a", "b"}), kExitOk);
  EXPECT_EQ(broker.asked_group, "") << "an older broker must refuse it";
  EXPECT_THAT(broker.asked_groups, testing::ElementsAre("a", "b"));
  EXPECT_EQ(out.str(), "a: paused in 1.00 ms\nb: paused in 2.00 ms\n");
  EXPECT_EQ(run({"resume", "b", "a", "--tag", "kv"}), kExitOk);
  EXPECT_THAT(broker.asked_groups, testing::ElementsAre("b", "a"));
  EXPECT_EQ(run({"resume", "a"}), kExitOk);
  EXPECT_EQ(broker.asked_group, "a");
  EXPECT_THAT(broker.asked_groups, testing::ElementsAre());
  EXPECT_EQ(run({"pause", "a", "b", "a"}), kExitUsage);
  EXPECT_THAT(err.str(), HasSubstr("\"a\" is named twice"));

  broker.progress.push_back(make_done("c", 3000));
  EXPECT_EQ(run({"swap", "a", "b", "--for", "c"}), kExitOk);
  EXPECT_THAT(broker.asked_groups, testing::ElementsAre("a", "b"));
  EXPECT_EQ(broker.asked_in, "c");
  EXPECT_EQ(out.str(), "a: paused in 1.00 ms\nb: paused in 2.00 ms\nc: resumed in 3.00 ms\n");
  EXPECT_EQ(run({"swap", "a", "--for", "b", "c"}), kExitOk);
  EXPECT_EQ(broker.asked_group, "a");
  EXPECT_THAT(broker.asked_in_groups, testing::ElementsAre("b", "c"));
  EXPECT_EQ(run({"swap", "a", "b", "--for", "b", "c"}), kExitUsage);
  EXPECT_EQ(run({"swap", "a", "b", "--for", "c", "d"}), kExitFailed) << "one is missing";
}

TEST_F(Commands, FailuresHaveTextAndExitCode) {
  broker.end = {grpc::StatusCode::FAILED_PRECONDITION, "train is already paused"};
  EXPECT_EQ(run({"pause", "train"}), kExitWrongState);
  EXPECT_EQ(err.str(), "amemctl: train is already paused\n");
  EXPECT_EQ(out.str(), "");
  EXPECT_EQ(run({"pause", "train", "--json"}), kExitWrongState);
  EXPECT_EQ(
      err.str(),
      "{\"error\":{\"code\":\"FAILED_PRECONDITION\",\"text\":\"train is already paused\"}}\n");
  broker.end = {grpc::StatusCode::NOT_FOUND, "no group x"};
  EXPECT_EQ(run({"allocations", "x"}), kExitNotFound);
  EXPECT_EQ(run({"policy", "x", "nccl", "keep"}), kExitNotFound);
  EXPECT_EQ(run({"top", "--once"}), kExitNotFound);
}

TEST_F(Commands, WithoutABroker) {
  broker.stop();
  EXPECT_EQ(run({"status"}), kExitUnreachable);
  EXPECT_THAT(err.str(), HasSubstr(dir / "control.sock"));
  EXPECT_EQ(run({"watch"}), kExitUnreachable);
  EXPECT_EQ(run({"version"}), kExitOk);
  EXPECT_THAT(out.str(), HasSubstr("amemctl " + std::string(kVersion) + "\namemd unknown: "));
  EXPECT_EQ(run({"version", "--json"}), kExitOk);
  EXPECT_THAT(out.str(), HasSubstr("\"broker\":null"));
}

TEST_F(Commands, QueryThatTakesTooLong) {
  broker.hang = true;
  EXPECT_EQ(run({"status", "--timeout", "50ms"}), kExitDeadline);
}

TEST_F(Commands, PrepareSaysWhatItPinned) {
  broker.prepared.set_pinned_bytes(3ULL << 30);
  broker.prepared.set_us(1'500'000);
  broker.prepared.set_needed_bytes(4ULL << 30);
  broker.prepared.set_available_bytes(4ULL << 30);
  EXPECT_EQ(run({"prepare", "train", "rollout", "--timeout", "2s"}), kExitOk);
  EXPECT_EQ(broker.asked_groups, (std::vector<std::string>{"train", "rollout"}));
  EXPECT_EQ(broker.asked_timeout_ms, 2000U);
  EXPECT_EQ(out.str(),
            "a pause copies at most 4.00 GiB. amemd pinned 3.00 GiB of host memory for that in "
            "1.50 s\n");
  broker.prepared.set_available_bytes(1ULL << 30);
  EXPECT_EQ(run({"prepare", "train"}), kExitOk);
  EXPECT_THAT(out.str(), HasSubstr("the pool has space for 1.00 GiB of it"));
  EXPECT_EQ(run({"prepare", "train", "--json"}), kExitOk);
  EXPECT_THAT(out.str(), HasSubstr("\"pinned_bytes\":3221225472"));
  broker.end = {grpc::StatusCode::RESOURCE_EXHAUSTED, "no memory"};
  EXPECT_EQ(run({"prepare", "train"}), kExitResources);
}

TEST_F(Commands, PolicyAndVersion) {
  broker.node.set_version("9.8.7");
  EXPECT_EQ(run({"policy", "train", "kv_cache", "discard"}), kExitOk);
  EXPECT_EQ(out.str(), "train: kv_cache is discard from now on\n");
  EXPECT_EQ(run({"policy", "train", "nccl", "keep", "--json"}), kExitOk);
  EXPECT_EQ(out.str(),
            "{\"group\":\"train\",\"tag\":\"nccl\",\"policy\":\"POLICY_KEEP\","
            "\"form\":\"FORM_UNSPECIFIED\",\"force\":false}\n");
  EXPECT_EQ(run({"policy", "train", "heap", "discard", "--force"}), kExitOk);
  EXPECT_TRUE(broker.asked_policy.force());
  EXPECT_EQ(run({"policy", "train", "kv_cache", "keep", "--save", "dense"}), kExitOk);
  EXPECT_EQ(out.str(), "train: kv_cache is keep, saved dense from now on\n");
  EXPECT_EQ(broker.asked_policy.form(), v1::FORM_DENSE);
  EXPECT_EQ(run({"policy", "train", "kv_cache", "--save", "sparse"}), kExitOk);
  EXPECT_EQ(out.str(), "train: kv_cache is saved sparse from now on\n");
  EXPECT_EQ(broker.asked_policy.policy(), v1::POLICY_UNSPECIFIED);
  EXPECT_EQ(run({"version"}), kExitOk);
  EXPECT_THAT(out.str(), HasSubstr("amemd 9.8.7\n"));
}

TEST_F(Commands, WatchWritesALinePerEvent) {
  v1::Event event;
  event.set_group("train");
  event.set_kind("rank_joined");
  broker.events = {event, event};
  EXPECT_EQ(run({"watch"}), kExitUnreachable);  // this broker ends the stream
  EXPECT_THAT(out.str(), HasSubstr("train  rank_joined\n"));
  EXPECT_EQ(run({"watch", "--json"}), kExitUnreachable);
  EXPECT_THAT(out.str(), HasSubstr("\"kind\":\"rank_joined\""));
}

TEST_F(Commands, AWatchThatIsNeverConnectedEnds) {
  broker.stop();
  const std::string path = dir / "control.sock";
  ::unlink(path.c_str());
  const Fd listening(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));  // takes none of its calls
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(listening.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(listening.get(), 8), 0);
  EXPECT_EQ(run({"watch", "--timeout", "200ms"}), kExitDeadline);
  EXPECT_THAT(err.str(), HasSubstr("did not answer within 200 ms"));
}

TEST_F(Commands, ACallThatAnEndingBrokerCancelsIsALostConnection) {
  broker.end = {grpc::StatusCode::CANCELLED, "the server shuts down"};
  EXPECT_EQ(run({"watch"}), kExitUnreachable);
  EXPECT_THAT(err.str(), HasSubstr("was lost: the server shuts down"));
  EXPECT_EQ(run({"pause", "train"}), kExitUnreachable);
}

/// Sends a signal to this process once the fake broker has been asked for something.
class Interrupted : public Commands {
 protected:
  int run_interrupted(const std::vector<std::string>& arguments) {
    EXPECT_TRUE(kSignalsBlocked);
    broker.hang = true;
    std::jthread sender([this] {
      while (!broker.streaming) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ::kill(::getpid(), SIGINT);
    });
    return run(arguments, &interrupt);
  }

  Interrupt interrupt;
};

TEST_F(Interrupted, PauseSaysThatTheBrokerGoesOn) {
  v1::GroupInfo group = make_group("train", v1::GROUP_STATE_PAUSING);
  group.set_phase("quiesce");
  *broker.node.add_groups() = group;
  broker.progress = {make_progress("train", "quiesce", 0, 2)};
  EXPECT_EQ(run_interrupted({"pause", "train"}), kExitInterrupted);
  EXPECT_THAT(err.str(),
              HasSubstr("The broker continues the operation; train is pausing (quiesce)"));
}

/// What this process's signalfds are for, as the kernel writes it.
std::string signals_listened_to() {
  std::string masks;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fdinfo")) {
    std::ifstream info(entry.path());
    for (std::string word; info >> word;) {
      if (word == "sigmask:" && info >> word) masks += word;
    }
  }
  return masks;
}

TEST(InterruptSignals, WhatTheParentHadUsIgnoreStaysIgnored) {
  ASSERT_NE(::signal(SIGTERM, SIG_IGN), SIG_ERR);
  Interrupt interrupt;
  EXPECT_EQ(signals_listened_to(), "0000000000000003") << "SIGHUP and SIGINT";
  ::kill(::getpid(), SIGTERM);
  ::kill(::getpid(), SIGINT);  // comes second, and is the one that counts
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!interrupt.happened() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(interrupt.happened());
  ::signal(SIGTERM, SIG_DFL);
}

TEST_F(Interrupted, WatchEndsWell) { EXPECT_EQ(run_interrupted({"watch"}), kExitOk); }

TEST_F(Interrupted, ASignalThatComesBeforeTheCallIsNotLost) {
  broker.hang = true;
  ::kill(::getpid(), SIGINT);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!interrupt.happened() && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_TRUE(interrupt.happened());
  std::promise<void> ended;
  std::jthread rescuer([&, soon = ended.get_future()] {
    if (soon.wait_for(std::chrono::seconds(10)) == std::future_status::ready) return;
    ADD_FAILURE() << "the watch goes on";
    broker.stop();
  });
  EXPECT_EQ(run({"watch"}, &interrupt), kExitOk);
  ended.set_value();
}

}  // namespace
}  // namespace amem::ctl
