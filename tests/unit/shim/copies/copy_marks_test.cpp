// How far queued copies are, on whatever driver is found: the simulated one, or a GPU's.
#include "shim/copies/copy_marks.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/unit/fixtures/on_driver.h"

namespace amem::shim {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;
using std::chrono::milliseconds;

class CopyMarksTest : public OnDriver {
 protected:
  void SetUp() override {
    LocalDevices::Use use(devices(), 0);
    ASSERT_EQ(use.result(), CUDA_SUCCESS);
    allocate(2 * kMiB);
    ASSERT_EQ(driver().cuStreamCreate_(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    marks.prepare(0);
  }
  void TearDown() override {
    driver().cuStreamDestroy_(stream);
    OnDriver::TearDown();
  }

  void queue(int copies) {
    LocalDevices::Use use(devices(), 0);
    for (int i = 0; i < copies; ++i) {
      ASSERT_EQ(driver().cuMemcpyHtoDAsync_(memory, host.data(), kMiB, stream), CUDA_SUCCESS);
      marks.queued(0, stream, kMiB);
    }
  }
  using Told = std::vector<std::pair<std::uint64_t, std::uint64_t>>;  // done, of; MiB
  Told follow(milliseconds interval = {}) {
    Told told;
    marks.follow({interval, [&](std::uint64_t done, std::uint64_t of) {
                    told.emplace_back(done / kMiB, of / kMiB);
                  }});
    return told;
  }

  CUstream stream = nullptr;
  std::vector<char> host = std::vector<char>(kMiB);
  CopyMarks marks{driver(), devices(), kMiB};
};

TEST_F(CopyMarksTest, SayHowFarCopiesAreHoweverManyThereAre) {
  queue(5);
  EXPECT_EQ(follow(), (Told{{1, 5}, {2, 5}, {3, 5}, {4, 5}, {5, 5}}));
  marks.clear();
  EXPECT_EQ(follow(), Told{}) << "of the phase before";

  queue(100);
  const Told told = follow();
  // Never more than there are events, and never less than half of them.
  EXPECT_LE(told.size(), CopyMarks::kEvents);
  EXPECT_GE(told.size(), CopyMarks::kEvents / 2);
  std::uint64_t last = 0;
  for (const auto& [done, of] : told) {
    EXPECT_EQ(of, 100U);
    EXPECT_GT(done, last);
    EXPECT_LE(done - last, 16U) << "they lie about as far apart";
    last = done;
  }
  EXPECT_GT(last, 84U);
  marks.clear();
  queue(2);
  EXPECT_EQ(follow(), (Told{{1, 2}, {2, 2}})) << "as close as at first";
  EXPECT_EQ(follow(std::chrono::hours(1)), Told{}) << "not so soon again";
}

TEST_F(CopyMarksTest, SayWhichCopiesHaveEndedToWhoeverActsOnThat) {
  LocalDevices::Use use(devices(), 0);
  ASSERT_EQ(driver().cuMemcpyHtoDAsync_(memory, host.data(), kMiB, stream), CUDA_SUCCESS);
  EXPECT_EQ(marks.queued(0, stream, kMiB), kMiB);
  EXPECT_EQ(marks.queued(0, stream, kMiB), 2 * kMiB);
  EXPECT_EQ(marks.queued(1, nullptr, kMiB), kMiB) << "of a device without events, too";
  std::vector<std::pair<int, std::uint64_t>> reached;
  marks.follow({.reached = [&](int device, std::uint64_t bytes) {
    reached.emplace_back(device, bytes / kMiB);
  }});
  using Reached = std::vector<std::pair<int, std::uint64_t>>;
  EXPECT_EQ(reached, (Reached{{0, 0}, {1, 0}, {0, 1}, {0, 2}}));
  marks.clear();
  EXPECT_EQ(marks.queued(0, stream, kMiB), kMiB) << "of the next phase";
}

TEST_F(CopyMarksTest, ADeviceThatWasNotPreparedHasNone) {
  marks.forget(0);
  queue(3);
  EXPECT_EQ(follow(), Told{});
  LocalDevices::Use use(devices(), 0);
  marks.prepare(0);
  queue(3);
  EXPECT_EQ(follow().size(), 3U);
}

}  // namespace
}  // namespace amem::shim
