// Driver calls that shims do not know, as ranks tell a whole broker of them.
#include <string>
#include <vector>

#include "tests/unit/fixtures/broker_fixture.h"
#include "tests/unit/fixtures/log_heard.h"

namespace amem {
namespace {

class BrokerUnknownCallsTest : public BrokerTest {
 protected:
  struct Call {
    std::string name;
    amem_v1_UnknownCalls_Fate fate = amem_v1_UnknownCalls_Fate_FATE_HIDDEN;
    std::string library = {};
  };
  /// `more`: calls that follow in other messages.
  static void tell(ScriptedRank& rank, const std::vector<Call>& calls, std::uint32_t more = 0) {
    Message message = amem_v1_SessionMessage_init_zero;
    message.which_body = amem_v1_SessionMessage_unknown_calls_tag;
    amem_v1_UnknownCalls& body = message.body.unknown_calls;
    ASSERT_LE(calls.size(), kMaxUnknownCallsPerMessage);
    for (const Call& call : calls) {
      amem_v1_UnknownCalls_Call& told = body.calls[body.calls_count++];
      set_text(told.name, call.name);
      told.fate = call.fate;
      set_text(told.library, call.library);
    }
    body.more = more;
    rank.send(message);
  }
  /// cuCall0, cuCall1, ... in as many messages as they take.
  static void tell_many(ScriptedRank& rank, std::size_t count) {
    for (std::size_t told = 0; told < count;) {
      std::vector<Call> calls;
      for (; calls.size() < kMaxUnknownCallsPerMessage && told < count; ++told)
        calls.push_back({"cuCall" + std::to_string(told)});
      tell(rank, calls, static_cast<std::uint32_t>(count - told));
    }
  }
  /// Waits until the broker has read what the rank has sent so far.
  static void read(ScriptedRank& rank) {
    EXPECT_EQ(ScriptedRank::code(rank.await_reply(rank.ask_to_await_closed())), Code::kOk);
  }
  auto calls(std::size_t rank = 0) {
    return on_loop([&] { return broker->reports().ranks(Caller{}, ""); })
        .value()
        .at(rank)
        .unknown_calls();
  }
};

TEST_F(BrokerUnknownCallsTest, AreReported) {
  join(a);
  tell(a, {{"cuOne\n"}, {"cuOther", amem_v1_UnknownCalls_Fate_FATE_LINKED, "libfoo.so"}});
  read(a);
  ASSERT_EQ(calls().size(), 2);
  EXPECT_EQ(calls()[0].name().find('\n'), std::string::npos) << "made printable";
  EXPECT_EQ(calls()[0].fate(), "hidden");
  EXPECT_EQ(calls()[1].fate(), "linked");
  EXPECT_EQ(calls()[1].library(), "libfoo.so");
}

TEST_F(BrokerUnknownCallsTest, AddToWhatWasToldBefore) {
  join(a);
  tell_many(a, 40);
  read(a);
  ASSERT_EQ(calls().size(), 40) << "of two messages";
  for (int i = 0; i < 40; ++i) EXPECT_EQ(calls()[i].name(), "cuCall" + std::to_string(i));
  tell(a, {});
  tell(a, {{"cuCall7", amem_v1_UnknownCalls_Fate_FATE_LINKED, "libfoo.so"}});
  read(a);
  ASSERT_EQ(calls().size(), 40) << "a name is there once";
  EXPECT_EQ(calls()[7].fate(), "linked");
  EXPECT_EQ(calls()[7].library(), "libfoo.so");
  EXPECT_EQ(calls()[8].fate(), "hidden");
}

TEST_F(BrokerUnknownCallsTest, AreBounded) {
  join(a);
  std::optional<LogHeard> heard;
  on_loop([&] { heard.emplace(); });
  tell_many(a, 300);
  tell(a, {{"cuOneMore"}, {"cuCall1", amem_v1_UnknownCalls_Fate_FATE_LISTED}});
  read(a);
  const std::string log = on_loop([&] { return heard->text(); });
  on_loop([&] { heard.reset(); });
  ASSERT_EQ(calls().size(), static_cast<int>(kMostUnknownCalls));
  EXPECT_EQ(calls()[255].name(), "cuCall255");
  EXPECT_EQ(calls()[1].fate(), "listed") << "what is kept still changes";
  const std::string line = "than the 256 that amemd keeps for a rank. amemd does not keep 44";
  ASSERT_NE(log.find(line), std::string::npos) << log;
  EXPECT_EQ(log.find("does not keep"), log.rfind("does not keep")) << log;
}

TEST_F(BrokerUnknownCallsTest, APauseCountsThoseThatNobodyHasSignedOff) {
  two_sharing();
  constexpr auto kListed = amem_v1_UnknownCalls_Fate_FATE_LISTED;
  const auto counted = [&] {
    const auto watcher = begin(Operation::kPause);
    EXPECT_TRUE(complete(watcher).ok());
    EXPECT_TRUE(resume().ok());
    return watcher->all().back().unknown_calls();
  };
  tell(a, {{"cuSigned", kListed}, {"cuSignedHere", kListed}});
  read(a);
  EXPECT_EQ(calls().size(), 2) << "shown all the same";
  EXPECT_EQ(counted(), 0U);
  tell(a, {{"cuHidden"}});
  tell(b, {{"cuHidden"}, {"cuSigned", kListed}, {"cuSignedHere"}});
  read(a);
  read(b);
  EXPECT_EQ(counted(), 2U) << "one is hidden from both ranks, one from the rank without the list";
}

}  // namespace
}  // namespace amem
