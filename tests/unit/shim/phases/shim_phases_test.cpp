// Commands of a broker that a rank has come back to: they may find done what they ask for. And what
// the rank tells each broker.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <set>
#include <string>
#include <system_error>
#include <thread>

#include "shim/gate/wait_log.h"
#include "shim/phases/phases.h"
#include "tests/unit/fixtures/for_good.h"
#include "tests/unit/fixtures/session_broker.h"
#include "tests/unit/fixtures/texts_and_sizes.h"

namespace amem::shim {
namespace {

using namespace std::chrono_literals;
using test::for_good;
using test::some_key;

/// A rank without memory, in a process without a driver. Kept for its threads.
struct Rank {
  Rank() {
    driver.cuThreadExchangeStreamCaptureMode_ = [](CUstreamCaptureMode*) { return CUDA_SUCCESS; };
    gate.prepare({false, 10s, [] { return -1; }});
    options.group = "train";
  }
  Driver driver;
  LocalDevices devices{driver};
  Gate gate;
  Session session{10s};
  Memory memory{driver, devices, gate, session};
  Heap heap{driver, devices, gate, memory, session};
  Report report{driver, devices, memory, session};
  Options options;
  Slabs slabs{driver, devices, memory, options.slab_size};
  Scratch scratch{driver, devices, memory, slabs, heap, options};
  Mover mover{driver, devices, memory, scratch, options};
  Bypass bypass{options.bypass_allowed};
  CutMonitor cut{driver, devices, gate, heap, bypass, session};
  ExitHandler exit{[] {}};
  WorkReport work{devices, gate, session};
  Phases phases{driver, devices, gate, memory,  mover, scratch, cut,
                report, work,    heap, session, exit,  options};
};

class ShimPhases : public testing::Test {
 protected:
  static std::string path() {
    static int tests = 0;
    return testing::TempDir() + "amem-phases-" + std::to_string(::getpid()) + "-" +
           std::to_string(++tests);
  }
  void SetUp() override { start(false); }
  void start(bool shut) {
    std::thread serving([&] {
      broker.accept();
      broker.welcome(some_key(1));
    });
    ASSERT_TRUE(rank.session.connect(broker.path(), {"train", 0, "test"}, 20s).ok());
    serving.join();
    if (shut) rank.phases.join_shut("pid 12 of uid 1000");
    ASSERT_TRUE(rank.session.start(rank.phases).ok());
  }
  void TearDown() override { rank.session.stop(Session::Clock::now()); }

  /// The broker dies, and another one comes. The result: whether the rank says that its gate is
  /// shut.
  bool next_broker() {
    broker.hang_up();
    const bool gate_shut = broker.accept().gate_shut;
    EXPECT_TRUE(broker.items().empty());
    broker.welcome(some_key(1));
    return gate_shut;
  }
  Message of(pb_size_t which, std::uint64_t epoch) {
    Message message = amem_v1_SessionMessage_init_zero;
    message.which_body = which;
    message.body.ask.epoch = epoch;  // the first field of each of them
    return message;
  }
  void quiesce(std::uint64_t epoch) { tell(of(amem_v1_SessionMessage_quiesce_tag, epoch)); }
  void release(std::uint64_t epoch, bool undo = false) {
    Message message = of(amem_v1_SessionMessage_release_tag, 0);
    message.body.release = amem_v1_Release_init_zero;
    message.body.release.epoch = epoch;
    message.body.release.undo = undo;
    tell(message);
  }
  void open(std::uint64_t epoch) {
    Message message = of(amem_v1_SessionMessage_ask_tag, epoch);
    message.body.ask.phase = number_of(RankPhase::kOpen);
    tell(message);
  }
  void tell(const Message& message, const std::vector<int>& fds = {}) {
    EXPECT_TRUE(send_message(broker.socket(), message, fds).ok());
  }
  /// The next answer to a command.
  amem_v1_PhaseDone answer() {
    Message message = broker.next();
    while (message.which_body == amem_v1_SessionMessage_unbrokered_tag ||
           message.which_body == amem_v1_SessionMessage_unknown_calls_tag ||
           message.which_body == amem_v1_SessionMessage_cut_status_tag)
      message = broker.next();
    EXPECT_EQ(message.which_body, amem_v1_SessionMessage_phase_done_tag);
    return message.body.phase_done;
  }
  /// The next answer must be a success.
  void done(std::uint64_t epoch, RankPhase phase) {
    const amem_v1_PhaseDone answered = answer();
    EXPECT_EQ(answered.epoch, epoch);
    EXPECT_EQ(answered.phase, number_of(phase));
    EXPECT_EQ(answered.code, 0U) << answered.text;
  }
  void quiet(std::uint64_t epoch) {
    const Message message = broker.next();
    ASSERT_EQ(message.which_body, amem_v1_SessionMessage_cut_status_tag);
    EXPECT_EQ(message.body.cut_status.epoch, epoch);
  }
  void on_service_thread(const std::function<void()>& work) {
    std::promise<void> done;
    rank.session.run([&] {
      work();
      done.set_value();
    });
    done.get_future().wait();
  }
  /// The unknown calls of the next report, which may take several messages.
  std::map<std::string, amem_v1_UnknownCalls_Fate> told_calls() {
    std::map<std::string, amem_v1_UnknownCalls_Fate> calls;
    for (bool last = false; !last;) {
      const Message message = broker.next();
      EXPECT_EQ(message.which_body, amem_v1_SessionMessage_unknown_calls_tag);
      if (message.which_body != amem_v1_SessionMessage_unknown_calls_tag) break;
      const amem_v1_UnknownCalls& body = message.body.unknown_calls;
      for (pb_size_t i = 0; i < body.calls_count; ++i)
        calls[body.calls[i].name] = body.calls[i].fate;
      last = body.more == 0;
    }
    return calls;
  }
  bool passes() {
    if (!rank.gate.try_enter()) return false;
    rank.gate.leave();
    return true;
  }

  test::SessionBroker broker{path()};
  Rank& rank = for_good<Rank>();
};

/// Every command of the table, as the broker sends it, and what answers it.
struct Sent {
  RankCommand command;
  RankPhase answer;
  std::function<Message(std::uint64_t epoch)> message;
};

Message message_of(pb_size_t which, std::uint64_t epoch) {
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = which;
  message.body.ask.epoch = epoch;  // the first field of each of them
  return message;
}

Message release_of(std::uint64_t epoch, const std::function<void(amem_v1_Release&)>& change) {
  Message message = message_of(amem_v1_SessionMessage_release_tag, epoch);
  change(message.body.release);
  return message;
}

Message ask_of(std::uint64_t epoch, RankPhase phase) {
  Message message = message_of(amem_v1_SessionMessage_ask_tag, epoch);
  message.body.ask.phase = number_of(phase);
  return message;
}

Message save_of(std::uint64_t epoch) {
  Message message = message_of(amem_v1_SessionMessage_save_tag, epoch);
  message.body.save.last = true;
  return message;
}

Message map_of(std::uint64_t epoch) {
  Message message = message_of(amem_v1_SessionMessage_map_tag, epoch);
  message.body.map.last = true;
  return message;
}

const std::vector<Sent>& all_commands() {
  static const std::vector<Sent> all = {
      {RankCommand::kQuiesce, RankPhase::kQuiet,
       [](std::uint64_t e) { return message_of(amem_v1_SessionMessage_quiesce_tag, e); }},
      {RankCommand::kSave, RankPhase::kSave, save_of},
      {RankCommand::kReleaseWave, RankPhase::kRelease,
       [](std::uint64_t e) {
         return release_of(e, [](amem_v1_Release& r) { r.listed = r.more_waves = true; });
       }},
      {RankCommand::kReleaseAll, RankPhase::kRelease,
       [](std::uint64_t e) { return release_of(e, [](amem_v1_Release&) {}); }},
      {RankCommand::kReleaseList, RankPhase::kRelease,
       [](std::uint64_t e) { return release_of(e, [](amem_v1_Release& r) { r.listed = true; }); }},
      {RankCommand::kReleaseTags, RankPhase::kRelease,
       [](std::uint64_t e) {
         return release_of(e, [](amem_v1_Release& r) { set_text(r.tags[r.tags_count++], "a"); });
       }},
      {RankCommand::kUndo, RankPhase::kRelease,
       [](std::uint64_t e) { return release_of(e, [](amem_v1_Release& r) { r.undo = true; }); }},
      {RankCommand::kReturn, RankPhase::kMap, map_of},
      {RankCommand::kOpen, RankPhase::kOpen,
       [](std::uint64_t e) { return ask_of(e, RankPhase::kOpen); }},
      {RankCommand::kDetach, RankPhase::kDetach,
       [](std::uint64_t e) { return ask_of(e, RankPhase::kDetach); }},
      {RankCommand::kAllowFrees, RankPhase::kAllowFrees,
       [](std::uint64_t e) { return ask_of(e, RankPhase::kAllowFrees); }},
  };
  return all;
}

/// The way from kRuns to each state that a command leads to.
const std::map<RankState, std::vector<RankCommand>>& ways() {
  using C = RankCommand;
  static const std::map<RankState, std::vector<RankCommand>> all = {
      {RankState::kRuns, {}},
      {RankState::kCuts, {C::kQuiesce}},
      {RankState::kSaves, {C::kQuiesce, C::kSave}},
      {RankState::kLeaves, {C::kQuiesce, C::kSave, C::kReleaseWave}},
      {RankState::kPaused, {C::kQuiesce, C::kSave, C::kReleaseAll}},
      {RankState::kReturns, {C::kQuiesce, C::kSave, C::kReleaseAll, C::kReturn}},
      {RankState::kDetached, {C::kQuiesce, C::kSave, C::kReleaseAll, C::kDetach}},
  };
  return all;
}

// All pairs, also those that no broker sends: the rank answers each as the table says, and a plain
// resume works afterwards.
TEST_F(ShimPhases, EveryCommandInEveryState) {
  std::uint64_t epoch = 0;
  const auto send = [&](RankCommand command, bool allowed) {
    const Sent& sent = all_commands().at(static_cast<std::size_t>(command));
    tell(sent.message(++epoch));
    if (command == RankCommand::kQuiesce && allowed) return quiet(epoch);
    const amem_v1_PhaseDone answered = answer();
    EXPECT_EQ(answered.epoch, epoch);
    EXPECT_EQ(answered.phase, number_of(sent.answer));
    EXPECT_EQ(answered.code == 0, allowed) << answered.text;
    if (!allowed) {
      EXPECT_EQ(answered.code, static_cast<std::uint32_t>(Code::kFailedPrecondition));
      EXPECT_NE(std::string(answered.text).find("so it cannot"), std::string::npos);
    }
  };
  int refused = 0;
  for (const auto& [state, way] : ways()) {
    for (const Sent& sent : all_commands()) {
      SCOPED_TRACE(std::string("a process that ") + describe(state) + " is to " +
                   describe(sent.command));
      RankState at = RankState::kRuns;
      for (const RankCommand command : way) {
        send(command, true);
        at = after(at, command).value();
      }
      ASSERT_EQ(at, state);
      const bool allowed = after(state, sent.command).has_value();
      refused += allowed ? 0 : 1;
      send(sent.command, allowed);
      on_service_thread([] {});  // the gate follows the answer
      const RankState now = after(state, sent.command).value_or(state);
      EXPECT_EQ(rank.gate.mode(), gate_of(now));
      send(RankCommand::kOpen, true);
      EXPECT_TRUE(passes());
    }
  }
  EXPECT_EQ(refused, 12);
}

TEST(RankState, WhatHasFailedStaysSo) {
  for (const Sent& sent : all_commands())
    EXPECT_EQ(after(RankState::kFailed, sent.command), std::nullopt) << describe(sent.command);
  EXPECT_EQ(gate_of(RankState::kFailed), Gate::Mode::kFailed);
}

// A free that passes between two waves could take what the next one is to save, and one in a
// process that is put away would wait in the driver.
TEST(RankState, WhereFreesPass) {
  for (const auto& [state, way] : ways())
    EXPECT_EQ(gate_of(state) == Gate::Mode::kFreesPass, state == RankState::kPaused)
        << describe(state);
}

TEST_F(ShimPhases, OpenAtAnOpenGate) {
  EXPECT_FALSE(next_broker());
  open(3);
  done(3, RankPhase::kOpen);
  EXPECT_TRUE(passes());
}

TEST_F(ShimPhases, AGateThatTheDeadBrokerHasShutStaysShutUntilAnOpen) {
  quiesce(1);
  quiet(1);
  EXPECT_FALSE(passes());
  EXPECT_TRUE(next_broker());
  EXPECT_FALSE(passes());
  open(2);
  done(2, RankPhase::kOpen);
  EXPECT_TRUE(passes());
  EXPECT_FALSE(next_broker());
}

TEST_F(ShimPhases, ACallerThatWaitsLongSaysWhoHasPausedItsGroup) {
  Message message = of(amem_v1_SessionMessage_quiesce_tag, 1);
  set_text(message.body.quiesce.paused_by, "pid 12 of uid 1000");
  tell(message);
  quiet(1);
  wait_log().prepare("train", 50ms);
  testing::internal::CaptureStderr();
  std::thread caller([&] { const Pass pass(rank.gate); });
  std::this_thread::sleep_for(200ms);
  open(2);
  caller.join();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("for the resume of group train, paused by pid 12 of uid 1000"),
            std::string::npos)
      << said;
}

TEST_F(ShimPhases, AQuiesceAtAShutGateIsAnsweredAnewAlsoUnderTheSameNumber) {
  quiesce(4);
  quiet(4);
  EXPECT_TRUE(next_broker());
  EXPECT_TRUE(broker.nothing_comes(100)) << "nobody has asked";
  quiesce(4);
  quiet(4);
  EXPECT_TRUE(next_broker());
  quiesce(5);
  quiet(5);
}

TEST_F(ShimPhases, ReleaseOfWhatHasLeftAlready) {
  quiesce(1);
  quiet(1);
  release(1);
  done(1, RankPhase::kRelease);
  EXPECT_TRUE(next_broker());
  release(2);
  done(2, RankPhase::kRelease);
  release(3, true);
  done(3, RankPhase::kRelease);
  EXPECT_FALSE(passes());
  open(4);
  done(4, RankPhase::kOpen);
  EXPECT_TRUE(passes());
}

TEST_F(ShimPhases, AnUndoWhereNothingHasComeBack) {
  EXPECT_FALSE(next_broker());
  release(1, true);
  done(1, RankPhase::kRelease);
  EXPECT_TRUE(passes());
}

/// How many descriptors of files of this name the process has.
std::ptrdiff_t descriptors_of(const std::string& name) {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::count_if(begin(all), end(all), [&](const auto& entry) {
    std::error_code gone;  // another thread's may be
    return std::filesystem::read_symlink(entry.path(), gone) == name;
  });
}

TEST_F(ShimPhases, ASegmentThatIsHereAlready) {
  constexpr std::uint64_t kSize = 1 << 16;
  const Fd memory(::memfd_create("segment", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(memory.get(), kSize), 0);
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_pool_segment_tag;
  message.body.pool_segment = {2, kSize, number_of(Place::kMemfd), {}};
  tell(message, {memory.get()});
  EXPECT_FALSE(next_broker());
  testing::internal::CaptureStderr();
  tell(message, {memory.get()});
  open(1);
  done(1, RankPhase::kOpen);
  EXPECT_EQ(testing::internal::GetCapturedStderr().find("pool segment"), std::string::npos);
  testing::internal::CaptureStderr();
  message.body.pool_segment.size = 2 * kSize;
  tell(message, {memory.get()});
  open(2);
  done(2, RankPhase::kOpen);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("pool segment 2 has 131072 bytes, but it had 65536 before"),
            std::string::npos)
      << said;
  EXPECT_EQ(descriptors_of("/memfd:segment (deleted)"), 1) << "what came is closed";
}

TEST_F(ShimPhases, ARankThatWaitsForABrokerSaysSoAgainAndAgain) {
  auto& orphan = for_good<Orphan>(rank.memory, rank.mover, rank.session, rank.options, 50ms);
  BrokeredAllocation a;
  a.id = 9;
  a.size = 4096;
  rank.memory.brokered.table.move(rank.memory.brokered.table.add(a), Where::kAway);
  testing::internal::CaptureStderr();
  on_service_thread([&] {
    EXPECT_TRUE(orphan.waits_for_broker(RankState::kPaused, {Code::kUnavailable, "no"}, true));
  });
  std::this_thread::sleep_for(300ms);
  on_service_thread([&] { orphan.ends(); });
  std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(lines_with(said, "It waits for a broker. Start amemd again"), 1) << said;
  EXPECT_GE(lines_with(said, "rank 7 of group train still waits for a broker, with 4096 bytes"), 2)
      << said;
  testing::internal::CaptureStderr();
  std::this_thread::sleep_for(200ms);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "it has come back";
  on_service_thread([&] {
    EXPECT_FALSE(orphan.waits_for_broker(RankState::kPaused, {Code::kNotFound, "no"}, false))
        << "no broker will come";
    EXPECT_FALSE(rank.phases.waits_for_broker({Code::kNotFound, "no"}, false));
  });
}

// What it has of its own may run on; what others have may have gone.
TEST_F(ShimPhases, WhoHoldsOutWithAllMemoryHere) {
  BrokeredAllocation a;
  a.id = 9;
  a.size = 4096;
  BrokeredAllocation& mine = rank.memory.brokered.table.add(a);
  auto& orphan = for_good<Orphan>(rank.memory, rank.mover, rank.session, rank.options);
  const Status why(Code::kUnavailable, "no");
  EXPECT_FALSE(orphan.waits_for_broker(RankState::kRuns, why, true));
  EXPECT_FALSE(orphan.waits_for_broker(RankState::kPaused, why, true));
  for (bool BrokeredAllocation::*shared :
       {&BrokeredAllocation::shared, &BrokeredAllocation::imported, &BrokeredAllocation::guest}) {
    mine.*shared = true;
    EXPECT_TRUE(orphan.waits_for_broker(RankState::kPaused, why, true));
    EXPECT_FALSE(orphan.waits_for_broker(RankState::kRuns, why, true)) << "an open gate stays open";
    EXPECT_FALSE(orphan.waits_for_broker(RankState::kPaused, why, false));
    mine.*shared = false;
  }
}

TEST_F(ShimPhases, AllUnknownCallsAreToldAndToldToTheNextBroker) {
  using Told = std::map<std::string, amem_v1_UnknownCalls_Fate>;
  UnknownCalls& calls = UnknownCalls::get();
  // Of this run alone: what is noted stays for the next one in this process.
  const std::string asked = "cuAsked" + std::to_string(calls.noted().size());
  const auto ask = [&](const std::string& name) {
    EXPECT_FALSE(calls.may_have(name.c_str(), [](int) { return true; }));
  };
  std::vector<UnknownCalls::Call> linked;
  const auto link = [&](const std::string& name, const char* library) {
    linked.push_back({name, UnknownCalls::Fate::kLinked, library});
    calls.set_linked(linked);
  };
  const auto names = [&] {
    std::set<std::string> all;
    for (const UnknownCalls::Call& call : calls.noted()) all.insert(call.name);
    return all.size();
  };
  const auto report = [&] { on_service_thread([&] { rank.report.send(false); }); };
  for (int i = 0; i < 70; ++i) link("cuReported" + std::to_string(i), "libfoo.so");
  report();
  EXPECT_EQ(told_calls().size(), names());
  link("cuReported1", "libbar.so");
  ask("cuReported2");
  report();
  EXPECT_TRUE(broker.nothing_comes(100)) << "that it is linked is told already, and is graver";
  ask(asked);
  report();
  EXPECT_EQ(told_calls(), (Told{{asked, amem_v1_UnknownCalls_Fate_FATE_HIDDEN}}));
  link(asked, "libfoo.so");
  report();
  EXPECT_EQ(told_calls(), (Told{{asked, amem_v1_UnknownCalls_Fate_FATE_LINKED}}));
  EXPECT_FALSE(next_broker());
  const Told again = told_calls();
  EXPECT_EQ(again.size(), names());
  EXPECT_EQ(again.at(asked), amem_v1_UnknownCalls_Fate_FATE_LINKED);
  linked.pop_back();
  calls.set_linked(linked);  // its library was unloaded
  report();
  EXPECT_EQ(told_calls(), (Told{{asked, amem_v1_UnknownCalls_Fate_FATE_HIDDEN}}));
}

class ShimPhasesShut : public ShimPhases {
 protected:
  void SetUp() override { start(true); }
};

TEST_F(ShimPhasesShut, ARankThatJoinedShutSaysSo) { EXPECT_TRUE(next_broker()); }

TEST_F(ShimPhases, ABrokerHearsOfWorkOnlyIfItAsks) {
  const auto reports = [&](bool on) {
    Message message = amem_v1_SessionMessage_init_zero;
    message.which_body = amem_v1_SessionMessage_turn_reports_tag;
    message.body.turn_reports.on = on;
    tell(message);
  };
  // Beside what it says anyway.
  const auto waiting = [&] {
    Message message = broker.next();
    while (message.which_body != amem_v1_SessionMessage_work_tag) message = broker.next();
    return message.body.work.waiting;
  };
  const auto says_nothing_of_it = [&](std::chrono::milliseconds time) {
    const auto end = Session::Clock::now() + time;
    for (auto now = Session::Clock::now(); now < end; now = Session::Clock::now()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - now);
      if (broker.nothing_comes(static_cast<int>(left.count()))) return true;
      if (broker.next().which_body == amem_v1_SessionMessage_work_tag) return false;
    }
    return true;
  };
  rank.gate.prepare({true, 20s, [] { return -1; }});
  rank.gate.close();
  std::thread caller([&] { const Pass pass(rank.gate); });
  EXPECT_TRUE(says_nothing_of_it(100ms));
  reports(true);
  EXPECT_TRUE(waiting());
  EXPECT_FALSE(next_broker());
  EXPECT_TRUE(says_nothing_of_it(1200ms)) << "this one has not asked";
  reports(true);
  EXPECT_TRUE(waiting());
  reports(false);
  rank.gate.open();
  caller.join();
  EXPECT_TRUE(says_nothing_of_it(1200ms));
  reports(true);
  EXPECT_FALSE(waiting());
}

}  // namespace
}  // namespace amem::shim
