// What errors of the driver say about a context, and waits that the driver refuses.
#include <gtest/gtest.h>

#include <vector>

#include "shim/driver/context_errors.h"
#include "shim/driver/local_devices.h"

namespace amem::shim {
namespace {

TEST(ContextErrors, OnlyWhatEndsTheContextEndsItsWork) {
  for (const CUresult r :
       {CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_ASSERT,
        CUDA_ERROR_HARDWARE_STACK_ERROR, CUDA_ERROR_ECC_UNCORRECTABLE,
        CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_DEINITIALIZED, CUDA_ERROR_NO_DEVICE}) {
    EXPECT_TRUE(ends_context(r)) << r;
    EXPECT_TRUE(context_is_gone(r)) << r;
  }
  for (const CUresult r :
       {CUDA_SUCCESS, CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_NOT_READY, CUDA_ERROR_UNKNOWN,
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
        CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_NOT_INITIALIZED,
        CUDA_ERROR_NOT_PERMITTED})
    EXPECT_FALSE(ends_context(r)) << r;
  EXPECT_FALSE(context_is_gone(CUDA_SUCCESS));
  EXPECT_FALSE(context_is_gone(CUDA_ERROR_OUT_OF_MEMORY));
  EXPECT_TRUE(context_is_gone(CUDA_ERROR_INVALID_CONTEXT)) << "its handle names nothing";
}

// What the driver answers to the waits for the stream, then for its context.
std::vector<CUresult> answers;
std::vector<bool> whole_contexts;

CUresult next(bool whole_context) {
  whole_contexts.push_back(whole_context);
  if (answers.empty()) return CUDA_SUCCESS;
  const CUresult r = answers.front();
  answers.erase(answers.begin());
  return r;
}

class DevicesTest : public testing::Test {
 protected:
  void SetUp() override {
    whole_contexts.clear();
    answers.clear();
    driver.cuGetErrorName_ = [](CUresult, const char** name) {
      *name = "ERROR";
      return CUDA_SUCCESS;
    };
    driver.cuStreamSynchronize_ = [](CUstream) { return next(false); };
    driver.cuCtxSynchronize_ = [] { return next(true); };
  }
  Driver driver;
  LocalDevices devices{driver};
};

TEST_F(DevicesTest, AWaitThatTheDriverRefusesIsTriedAgainUntilNothingRuns) {
  answers = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
             CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED};
  EXPECT_EQ(devices.wait(nullptr), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(whole_contexts, (std::vector<bool>{false, true, true, true}));
}

TEST_F(DevicesTest, NothingRunsInAContextThatHasEnded) {
  answers = {CUDA_ERROR_ILLEGAL_ADDRESS};
  EXPECT_EQ(devices.wait(nullptr), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(whole_contexts, (std::vector<bool>{false}));
}

}  // namespace
}  // namespace amem::shim
