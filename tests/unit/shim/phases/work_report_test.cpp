// What the broker hears of calls that wait and of work, on whatever driver is found: the simulated
// one, or a GPU's.
#include "shim/phases/work_report.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>

#include "shim/gate/captures.h"
#include "tests/unit/fixtures/for_good.h"
#include "tests/unit/fixtures/on_driver.h"
#include "tests/unit/fixtures/session_broker.h"

namespace amem::shim {
namespace {

using namespace std::chrono_literals;
using test::for_good;
using test::SessionListener;

constexpr auto kLook = 200ms;
constexpr int kSeveralLooks = 700;  // milliseconds

std::atomic<int> questions{0};

/// Kept for its threads.
struct Rank {
  Rank(LocalDevices& devices, bool waits, std::chrono::milliseconds look)
      : report(devices, gate, session, {look, 50ms}) {
    gate.prepare({waits, 10s, [] { return 0; }});
    gate.take_worked();  // of other tests' threads
  }
  Gate gate;
  Session session{10s};
  SessionListener listener;
  WorkReport report;
};

class WorkReportTest : public OnDriver {
 protected:
  static void SetUpTestSuite() {
    OnDriver::SetUpTestSuite();
    counting() = driver();
    counting().cuCtxRecordEvent_ = [](CUcontext context, CUevent event) {
      ++questions;
      return driver().cuCtxRecordEvent_(context, event);
    };
    ASSERT_TRUE(counted().load().ok());
  }
  static Driver& counting() {
    static Driver& instance = for_good<Driver>();
    return instance;
  }
  static LocalDevices& counted() {
    static LocalDevices& instance = for_good<LocalDevices>(counting());
    return instance;
  }

  void SetUp() override {
    LocalDevices::Use use(devices(), 0);
    ASSERT_EQ(driver().cuStreamCreate_(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    connect(true);
  }
  void TearDown() override {
    end_work();
    rank->report.set(false);
    rank->session.stop(Session::Clock::now());
    broker.die();
    LocalDevices::Use use(devices(), 0);
    driver().cuStreamSynchronize_(stream);
    driver().cuStreamDestroy_(stream);
  }
  void connect(bool waits, std::chrono::milliseconds look = kLook) {
    rank = &for_good<Rank>(counted(), waits, look);
    questions = 0;
    std::thread serving([&] {
      broker.accept();
      broker.welcome(test::some_key(1));
    });
    ASSERT_TRUE(rank->session.connect(broker.path(), {"train", 0, "test"}).ok());
    serving.join();
    ASSERT_TRUE(rank->session.start(rank->listener).ok());
  }

  void pass() const { const Pass pass(rank->gate); }
  void expect(bool waiting, bool worked, const std::string& call = "") {
    const Message message = broker.next();
    ASSERT_EQ(message.which_body, amem_v1_SessionMessage_work_tag);
    const amem_v1_Work& work = message.body.work;
    EXPECT_EQ(work.waiting, waiting);
    EXPECT_EQ(work.worked, worked);
    EXPECT_EQ(work.call, call);
  }
  /// The reports begin with a rank that has nothing to do.
  void begins_idle() {
    ASSERT_TRUE(device_gets_idle());
    rank->report.set(true);
    expect(false, false);
  }
  bool nothing_comes() { return broker.nothing_comes(kSeveralLooks); }

  /// Work of the device that no call at the gate says anything about, until end_work().
  void begin_work() {
    using Launch = CUresult (*)(CUstream, CUhostFn, void*);
    static const auto launch =
        reinterpret_cast<Launch>(::dlsym(::dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchHostFunc"));
    const auto wait = [](void* on) {
      while (*static_cast<std::atomic<bool>*>(on)) std::this_thread::sleep_for(1ms);
    };
    working = true;
    LocalDevices::Use use(devices(), 0);
    ASSERT_EQ(launch(stream, wait, &working), CUDA_SUCCESS);
  }
  void end_work() { working = false; }
  static bool device_gets_idle() {
    return test::eventually([] { return devices().work_left(0) == false; });
  }

  static std::string path() {
    static int tests = 0;
    return testing::TempDir() + "amem-work-" + std::to_string(::getpid()) + "-" +
           std::to_string(++tests);
  }

  CUstream stream = nullptr;
  std::atomic<bool>& working = for_good<std::atomic<bool>>(false);
  test::SessionBroker broker{path()};
  Rank* rank = nullptr;
};

TEST_F(WorkReportTest, TheDriverSaysWhetherWorkIsLeft) {
  EXPECT_TRUE(device_gets_idle());
  begin_work();
  EXPECT_EQ(devices().work_left(0), true);
  end_work();
  EXPECT_TRUE(device_gets_idle());
  Driver older = driver();
  older.cuCtxRecordEvent_ = nullptr;
  LocalDevices without(older);
  ASSERT_TRUE(without.load().ok());
  begin_work();
  EXPECT_EQ(without.work_left(0), false);
  Driver failing = driver();
  failing.cuCtxRecordEvent_ = [](CUcontext, CUevent) { return CUDA_ERROR_UNKNOWN; };
  LocalDevices unknown(failing);
  ASSERT_TRUE(unknown.load().ok());
  EXPECT_EQ(unknown.work_left(0), std::nullopt);
}

TEST_F(WorkReportTest, NothingIsSaidUnlessTheBrokerAsks) {
  pass();
  rank->gate.close();
  std::thread caller([&] { pass(); });
  EXPECT_TRUE(nothing_comes());
  EXPECT_EQ(questions, 0);
  rank->report.set(true);
  expect(true, false);
  rank->report.set(false);
  rank->gate.open();
  caller.join();
  EXPECT_TRUE(nothing_comes());
  EXPECT_EQ(questions, 0);
}

TEST_F(WorkReportTest, WhoAsksAgainHearsTheStateAgain) {
  begins_idle();
  rank->report.set(true);
  expect(false, false);
  EXPECT_TRUE(nothing_comes());
}

TEST_F(WorkReportTest, AWaitIsSaidAtOnceAndItsEnd) {
  rank->session.stop(Session::Clock::now());
  connect(true, 1h);
  begins_idle();
  rank->gate.close();
  EXPECT_TRUE(nothing_comes());
  std::thread first([&] { const Pass pass(rank->gate, "cuFirst"); });
  expect(true, false, "cuFirst");
  std::thread second([&] { const Pass pass(rank->gate, "cuSecond"); });
  EXPECT_TRUE(nothing_comes()) << "one is enough";
  rank->gate.permit(0);
  EXPECT_TRUE(nothing_comes()) << "the other one still waits";
  rank->gate.open();
  first.join();
  second.join();
  expect(false, false);
}

TEST_F(WorkReportTest, CallersThatStepThroughOneByOneAreOneWait) {
  begins_idle();
  rank->gate.close();
  std::thread caller([&] {
    for (int i = 0; i < 20; ++i) pass();
  });
  for (int i = 0; i < 20; ++i) {
    while (rank->gate.snapshot().waiting.empty()) std::this_thread::sleep_for(1ms);
    rank->gate.permit(0);
    std::this_thread::sleep_for(5ms);
  }
  caller.join();
  expect(true, false);
  expect(false, false);
  EXPECT_TRUE(nothing_comes());
  rank->gate.open();
}

TEST_F(WorkReportTest, AnErrorInPlaceOfAWaitIsSaid) {
  rank->session.stop(Session::Clock::now());
  connect(false);
  begins_idle();
  rank->gate.close();
  rank->gate.set(Gate::Mode::kMemoryLeft);
  EXPECT_EQ(rank->gate.enter(), CUDA_ERROR_NOT_READY);
  expect(true, false);
  expect(false, false);
  rank->gate.open();
}

TEST_F(WorkReportTest, WorkIsSaidOnceAndItsEnd) {
  begins_idle();
  {
    const Pass inside(rank->gate);
    expect(false, true);
    EXPECT_TRUE(nothing_comes());
  }
  expect(false, false);
  EXPECT_TRUE(nothing_comes());
  pass();
  expect(false, true);
  expect(false, false);
}

TEST_F(WorkReportTest, WorkThatComesAndGoesIsSaidOnceForEachLook) {
  begins_idle();
  const auto began = Gate::Clock::now();
  int said = 0;
  while (Gate::Clock::now() < began + 10 * kLook) {
    pass();
    std::this_thread::sleep_for(3ms);
    pass();
    if (!broker.nothing_comes(0)) {
      broker.next();
      ++said;
    }
  }
  EXPECT_LE(said, 11);
  EXPECT_GE(said, 1);
}

TEST_F(WorkReportTest, WhatIsLeftOnADeviceIsWork) {
  begins_idle();
  const int before = questions;
  begin_work();
  pass();
  expect(false, true);
  EXPECT_TRUE(nothing_comes());
  const int asked = questions - before;
  EXPECT_GE(asked, 1);
  EXPECT_LE(asked, 10) << "once for each look";
  end_work();
  expect(false, false);
  const int at_end = questions;
  EXPECT_TRUE(nothing_comes());
  EXPECT_EQ(questions, at_end) << "no call has passed since";
}

TEST_F(WorkReportTest, NothingIsAskedWhileACaptureIsOpen) {
  begins_idle();
  const int before = questions;
  {
    const Pass pass(rank->gate, rank->gate.enter_capture());
    rank->gate.capture_began();
  }
  expect(false, true);
  EXPECT_TRUE(nothing_comes()) << "nobody knows whether the device is idle";
  EXPECT_EQ(questions, before);
  rank->gate.capture_ended();
  expect(false, false);
  EXPECT_EQ(questions, before + 1);
}

TEST_F(WorkReportTest, CapturesThatBeginAllTheTimeAreNotBroken) {
  begins_idle();
  using Begin = CUresult (*)(CUstream, CUstreamCaptureMode);
  using End = CUresult (*)(CUstream, CUgraph*);
  void* const cuda = ::dlopen("libcuda.so.1", RTLD_NOW);
  const auto begin = reinterpret_cast<Begin>(::dlsym(cuda, "cuStreamBeginCapture_v2"));
  const auto end = reinterpret_cast<End>(::dlsym(cuda, "cuStreamEndCapture"));
  const LocalDevices::Use use(devices(), 0);
  const int before = questions;
  const auto began = Gate::Clock::now();
  while (Gate::Clock::now() < began + 3s) {
    // So far apart that no call passes between two looks, and as often beside one as not.
    std::this_thread::sleep_for(2 * kLook + std::chrono::milliseconds(questions % 7));
    {
      const Pass pass(rank->gate, rank->gate.enter_capture());
      ASSERT_EQ(begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
      rank->gate.capture_began();
    }
    std::this_thread::sleep_for(kLook / 2);
    CUgraph graph = nullptr;
    EXPECT_EQ(end(stream, &graph), CUDA_SUCCESS);
    rank->gate.capture_ended();
  }
  EXPECT_GT(questions, before);
}

TEST_F(WorkReportTest, AMonitoringProgramSaysNothing) {
  begins_idle();
  const auto began = Gate::Clock::now();
  while (Gate::Clock::now() < began + 5 * kLook) {
    if (rank->gate.try_enter()) rank->gate.leave_quietly();  // as cuMemGetInfo does
    { const PassToAsk pass(rank->gate, rank->gate.enter_to_ask()); }
    std::this_thread::sleep_for(1ms);
  }
  rank->gate.close();
  std::thread asks([&] { const PassToAsk pass(rank->gate, rank->gate.enter_to_ask()); });
  EXPECT_TRUE(nothing_comes());
  rank->gate.open();
  asks.join();
  EXPECT_EQ(questions, 1) << "when the reports began";
}

TEST_F(WorkReportTest, APausedGroupHasNoWork) {
  begins_idle();
  begin_work();
  pass();
  expect(false, true);
  rank->gate.close();
  expect(false, false);
  const int before = questions;
  EXPECT_TRUE(nothing_comes());
  EXPECT_EQ(questions, before);
  rank->gate.open();
  expect(false, true);
}

TEST_F(WorkReportTest, NothingIsAskedOnceTheDriverEnds) {
  begins_idle();
  begin_work();
  pass();
  expect(false, true);
  rank->report.stop(Gate::Clock::now() + 1s);
  const int before = questions;
  EXPECT_TRUE(nothing_comes());
  EXPECT_EQ(questions, before);
}

}  // namespace
}  // namespace amem::shim
