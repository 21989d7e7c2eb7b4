#include "daemon/control/turn_call.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "amem/v1/broker.pb.h"

namespace amem {
namespace {

/// A call whose caller goes away (OnCancel) before or after amemd answers it. gRPC is not there: it
/// would delete the call in the end.
class TurnCallTest : public testing::Test {
 protected:
  TurnCallTest()
      : call_(*new TurnCall(
            loop_, [this](std::uint64_t number) { forgotten_.push_back(number); },
            [this](const Caller& caller) { taken_back_.push_back(caller.who); })) {}
  void SetUp() override { ASSERT_TRUE(loop_.open().ok()); }
  ~TurnCallTest() override { hang_up_for_good(); }

  void begin(std::uint64_t number, bool at_once, bool fresh = true) {
    Caller caller;
    caller.who = "pid 7";
    call_.begin(caller, response_, [=, this](TurnCall::Done done) {
      ++begun_;
      if (at_once) done({}, fresh);
      done_ = std::move(done);
      return at_once ? std::uint64_t{0} : number;
    });
  }
  void cancel() { static_cast<grpc::ServerUnaryReactor&>(call_).OnCancel(); }
  void hang_up_for_good() { static_cast<grpc::ServerUnaryReactor&>(call_).OnDone(); }
  /// Once.
  void run() {
    loop_.post([this] { loop_.stop(); });
    loop_.run();
  }

  EventLoop loop_;
  v1::LeaseResponse response_;
  TurnCall::Done done_;
  int begun_ = 0;
  std::vector<std::uint64_t> forgotten_;
  std::vector<std::string> taken_back_;
  TurnCall& call_;
};

TEST_F(TurnCallTest, WhatIsWaitedForIsForgottenWithItsCaller) {
  begin(5, false);
  cancel();
  run();
  EXPECT_EQ(forgotten_, (std::vector<std::uint64_t>{5}));
  EXPECT_TRUE(taken_back_.empty());
}

TEST_F(TurnCallTest, WhatItsCallerHasNotHeardOfIsTakenBack) {
  begin(5, true);  // both are posted before the loop comes to either
  cancel();
  run();
  EXPECT_TRUE(forgotten_.empty());
  EXPECT_EQ(taken_back_, (std::vector<std::string>{"pid 7"}));
}

TEST_F(TurnCallTest, WhatOthersHaveTooStays) {
  begin(5, true, false);
  cancel();
  run();
  EXPECT_TRUE(forgotten_.empty());
  EXPECT_TRUE(taken_back_.empty());
}

TEST_F(TurnCallTest, WhoHasGoneBeforeItBeginsGetsNothing) {
  cancel();
  begin(5, true);
  run();
  EXPECT_EQ(begun_, 0);
}

}  // namespace
}  // namespace amem
