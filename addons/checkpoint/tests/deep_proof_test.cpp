// Deep pauses are proven once for each set of devices that a process sees, with a process that is
// thrown away.
#include "addons/checkpoint/deep_proof.h"

#include <gmock/gmock.h>

#include <chrono>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace amem {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using enum ProcessState;

/// Processes, and a driver for them, a call at a time.
class FakeNode final : public ProcessCalls, public ProofTargets {
 public:
  explicit FakeNode(EventLoop& loop) : loop_(loop) {}

  void call(pid_t, CheckpointAction action, Time, Done done) override {
    static const std::map<CheckpointAction, ProcessState> kStates = {
        {CheckpointAction::kLock, kLocked},
        {CheckpointAction::kCheckpoint, kCheckpointed},
        {CheckpointAction::kRestore, kLocked},
        {CheckpointAction::kUnlock, kRunning}};
    words += std::string(" ") + word_of(action);
    CheckpointResult result{{}, {}, 0, kStates.at(action)};
    if (const auto other = results.find(action); other != results.end()) result = other->second;
    loop_.at(Clock::now() + call_takes, [result, done = std::move(done)] { done(result); });
  }
  Result<std::unique_ptr<ProofTarget>> start(const VisibleDevices& devices,
                                             ProofPool pool) override {
    if (!start_error.ok()) return start_error;
    ++started;
    seen.push_back(devices);
    pools.push_back(pool);
    return std::unique_ptr<ProofTarget>(std::make_unique<Target>(*this));
  }

  std::map<CheckpointAction, CheckpointResult> results;
  std::vector<ProofPool> pools;
  std::vector<VisibleDevices> seen;
  ProofBasis basis;
  Duration call_takes{};
  Status start_error;
  std::deque<Status> checks;  // what the next ones find; then: all is right
  Status end;
  bool answers = true;  // to checks
  int started = 0;
  int living = 0;
  std::string words;

 private:
  class Target final : public ProofTarget {
   public:
    explicit Target(FakeNode& node) : node_(node) { ++node_.living; }
    ~Target() override { --node_.living; }
    Target(const Target&) = delete;
    Target& operator=(const Target&) = delete;
    pid_t pid() const override { return 11; }
    void check(Done done) override {
      node_.words += " check";
      if (!node_.answers) return;
      Status found;
      if (!node_.checks.empty()) {
        found = node_.checks.front();
        node_.checks.pop_front();
      }
      node_.loop_.post([found, done = std::move(done)] { done(found); });
    }
    Status end() const override { return node_.end; }
    const ProofBasis& basis() const override { return node_.basis; }

   private:
    FakeNode& node_;
  };

  EventLoop& loop_;
};

class DeepProofTest : public ::testing::Test {
 protected:
  DeepProofTest() {
    first.bytes[0] = 1;
    second.bytes[0] = 2;
    EXPECT_TRUE(loop.open().ok());
    proof.emplace(loop, node, node, std::chrono::milliseconds(300),
                  [this](const VisibleDevices& devices, Duration, const auto& done) {
                    pools_for.push_back(devices);
                    done(pool);
                  });
  }

  /// What a test does one after the other, on the loop; the last of it stops the loop.
  void run(const std::function<void()>& begin) {
    loop.post(begin);
    loop.at(Clock::now() + std::chrono::seconds(20), [this] {
      ADD_FAILURE() << "it does not end";
      loop.stop();
    });
    loop.run();
    proof.reset();
    EXPECT_EQ(node.living, 0);
  }
  Status result_of(const DeepProof::Sets& sets) {
    Status result;
    run([&] {
      proof->prove(sets, [&](const Status& status) {
        result = status;
        known = proof->verdict(sets);
        terms = proof->terms(sets);
        loop.stop();
      });
    });
    return result;
  }
  /// Asks again after the first answer.
  std::pair<Status, Status> results_of_two(const std::function<void()>& between) {
    std::pair<Status, Status> results;
    run([&] {
      proof->prove({{first}}, [&](const Status& status) {
        results.first = status;
        between();
        proof->prove({{first}}, [&](const Status& again) {
          results.second = again;
          loop.stop();
        });
      });
    });
    return results;
  }

  EventLoop loop;
  DeviceUuid first{};
  DeviceUuid second{};
  FakeNode node{loop};
  Result<ProofPool> pool = ProofPool{Place::kMemfd, 0, nullptr};
  std::optional<DeepProof> proof;
  std::optional<Status> known;            // after the answer
  std::string terms;                      // likewise
  std::vector<VisibleDevices> pools_for;  // that pools were made for
};

TEST_F(DeepProofTest, TwoCyclesProveIt) {
  EXPECT_FALSE(proof->verdict({{first}}));
  EXPECT_TRUE(result_of({{first}}).ok());
  EXPECT_EQ(node.words,
            " check lock checkpoint restore unlock check lock checkpoint restore unlock check");
  ASSERT_EQ(node.pools.size(), 1U);
  EXPECT_EQ(node.pools[0].place, Place::kMemfd);
  ASSERT_TRUE(known);
  EXPECT_TRUE(known->ok());
}

TEST_F(DeepProofTest, TheProcessSeesWhatARankSees) {
  // Also in this order: the first one is another.
  EXPECT_TRUE(result_of({{first, second}, {second, first}}).ok());
  EXPECT_THAT(node.seen,
              UnorderedElementsAre(ElementsAre(first, second), ElementsAre(second, first)));
  EXPECT_EQ(pools_for, node.seen);
}

TEST_F(DeepProofTest, EachSetIsProvenOnceForAllWhoAsk) {
  int answers = 0;
  run([&] {
    for (const auto& sets : {DeepProof::Sets{{first}}, DeepProof::Sets{{first}, {second, first}},
                             DeepProof::Sets{{second, first}}})
      proof->prove(sets, [&](const Status& status) {
        EXPECT_TRUE(status.ok()) << status.text();
        if (++answers < 3) return;
        EXPECT_EQ(node.living, 0);
        // And later.
        proof->prove({{first}, {second, first}}, [&](const Status&) { loop.stop(); });
      });
  });
  EXPECT_EQ(node.started, 2);
}

TEST_F(DeepProofTest, ARefusalOfTheDriverStays) {
  node.results[CheckpointAction::kRestore] = {
      {Code::kFailedPrecondition, "restore: CUDA_ERROR_UNKNOWN"}, "CUDA_ERROR_UNKNOWN", 0, kFailed};
  const auto [status, again] = results_of_two([&] { node.results.clear(); });
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_THAT(status.text(), AllOf(HasSubstr("deep pauses do not work on this node"),
                                   HasSubstr(to_string(first)), HasSubstr("CUDA_ERROR_UNKNOWN")));
  EXPECT_EQ(again.text(), status.text());
  EXPECT_EQ(node.started, 1);
}

TEST_F(DeepProofTest, ADriverThatLacksTheCallsIsRefused) {
  node.results[CheckpointAction::kLock] = {{Code::kUnavailable, "it lacks the calls"}};
  EXPECT_EQ(result_of({{first}}).code(), Code::kFailedPrecondition);
  EXPECT_TRUE(known);
}

TEST_F(DeepProofTest, SuccessThatChangesNothingIsRefused) {
  node.results[CheckpointAction::kCheckpoint] = {{}, {}, 0, kLocked};
  EXPECT_THAT(result_of({{first}}).text(), HasSubstr("but the process is locked"));
}

TEST_F(DeepProofTest, OtherBytesAreRefused) {
  node.checks = {{}, {Code::kDataLoss, "memory has other bytes"}};
  EXPECT_THAT(result_of({{first}}).text(), HasSubstr("memory has other bytes"));
  EXPECT_EQ(known->code(), Code::kFailedPrecondition);
}

TEST_F(DeepProofTest, ABusyNodeIsAskedAgain) {
  node.results[CheckpointAction::kRestore] = {
      {Code::kFailedPrecondition, "no space"}, "CUDA_ERROR_OUT_OF_MEMORY", 0, kCheckpointed};
  const auto [status, again] = results_of_two([&] { node.results.clear(); });
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_THAT(status.text(), AllOf(HasSubstr("amemd could not prove"), HasSubstr("no space")));
  EXPECT_TRUE(again.ok()) << again.text();
  EXPECT_EQ(node.started, 2);
}

TEST_F(DeepProofTest, AProcessThatDoesNotAnswerIsKilledAtTheDeadline) {
  node.answers = false;
  node.basis.step = "an all-reduce of NCCL";
  const auto [status, again] = results_of_two([&] {
    EXPECT_EQ(node.living, 0);
    node.answers = true;
  });
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_THAT(status.text(), HasSubstr("within 300 ms: an all-reduce of NCCL"));
  EXPECT_TRUE(again.ok()) << again.text();
}

TEST_F(DeepProofTest, WithoutTimeForASecondCycleOneProvesIt) {
  node.call_takes = std::chrono::milliseconds(45);
  const Status status = result_of({{first}});
  EXPECT_TRUE(status.ok()) << status.text();
  EXPECT_EQ(node.words, " check lock checkpoint restore unlock check");
}

TEST_F(DeepProofTest, ItIsSaidWithWhichNcclItWasProven) {
  node.basis.nccl = "2.27.3";
  EXPECT_TRUE(result_of({{first}}).ok());
  EXPECT_EQ(terms, "with NCCL 2.27.3");
}

TEST_F(DeepProofTest, ItIsSaidWhyItWasProvenWithoutNccl) {
  node.basis.no_nccl = "there is none";
  EXPECT_TRUE(result_of({{first}}).ok());
  EXPECT_EQ(terms, "without NCCL, because there is none");
}

TEST_F(DeepProofTest, AnotherLibraryIsProvenAnew) {
  const std::string file = ::testing::TempDir() + "amem-proof-library";
  const auto install = [&] {
    std::ofstream(file + ".new") << "library";
    std::filesystem::rename(file + ".new", file);
  };
  install();
  node.basis.files = {file};
  node.checks = {{Code::kFailedPrecondition, "ncclAllReduce"}};
  const auto [status, again] = results_of_two([&] {
    EXPECT_TRUE(proof->verdict({{first}}));
    install();
    EXPECT_FALSE(proof->verdict({{first}}));
  });
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_TRUE(again.ok()) << again.text();
  EXPECT_EQ(node.started, 2);
  std::filesystem::remove(file);
}

TEST_F(DeepProofTest, AProcessThatSomebodyKillsSaysNothingOfTheDriver) {
  node.results[CheckpointAction::kCheckpoint] = {
      {Code::kFailedPrecondition, "no such process"}, "CUDA_ERROR_INVALID_VALUE", 0, kUnknown};
  node.end = {Code::kCancelled, "it was killed"};
  EXPECT_EQ(result_of({{first}}).code(), Code::kAborted);
  EXPECT_FALSE(known);
}

TEST_F(DeepProofTest, WhatCannotBeStartedIsAskedAgain) {
  node.start_error = {Code::kNotFound, "no program"};
  const auto [status, again] = results_of_two([&] {
    node.start_error = {};
    pool = Status(Code::kResourceExhausted, "no memory for the pool");
  });
  EXPECT_THAT(status.text(), HasSubstr("no program"));
  EXPECT_EQ(again.code(), Code::kResourceExhausted);
}

TEST_F(DeepProofTest, OneDeviceThatFailsIsTheAnswerForAll) {
  node.checks = {{Code::kFailedPrecondition, "cuInit"}};
  EXPECT_THAT(result_of({{first}, {second}}).text(), HasSubstr(to_string(first)));
}

TEST_F(DeepProofTest, NobodyIsToldAfterItsEnd) {
  run([&] {
    proof->prove({{first}}, [](const Status&) { ADD_FAILURE(); });
    loop.post([&] {
      EXPECT_EQ(node.living, 1);
      proof.reset();
      EXPECT_EQ(node.living, 0);
      loop.at(Clock::now() + std::chrono::milliseconds(20), [&] { loop.stop(); });
    });
  });
}

}  // namespace
}  // namespace amem
