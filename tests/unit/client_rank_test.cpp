// The library as a rank sees it: linked, with this program in the shim's place.
#include <gtest/gtest.h>

#include <amem/amem.hpp>
#include <cstdio>
#include <cstdlib>
#include <string>

extern "C" int client_header_compiles_as_c(void);

namespace {

/// What the shim in this program was asked, and what it answers.
struct FakeShim {
  int pauses = 0;
  int resumes = 0;
  uint32_t timeout_ms = 0;
  int code = 0;
  int active = 1;
} shim;

int answer(char* error, size_t error_size) {
  if (shim.code != 0) std::snprintf(error, error_size, "rank 3 did not come");
  return shim.code;
}

}  // namespace

extern "C" {
int amem_shim_pause(uint32_t timeout_ms, char* error, size_t error_size);
int amem_shim_resume(uint32_t timeout_ms, char* error, size_t error_size);
int amem_shim_active(void);

int amem_shim_pause(uint32_t timeout_ms, char* error, size_t error_size) {
  ++shim.pauses;
  shim.timeout_ms = timeout_ms;
  return answer(error, error_size);
}
int amem_shim_resume(uint32_t timeout_ms, char* error, size_t error_size) {
  ++shim.resumes;
  shim.timeout_ms = timeout_ms;
  return answer(error, error_size);
}
int amem_shim_active(void) { return shim.active; }
}

namespace amem {
namespace {

class Rank : public testing::Test {
 protected:
  Rank() {
    shim = {};
    ::unsetenv("AMEM_GROUP");
    ::unsetenv("AMEM_GROUPID");
  }
};

TEST_F(Rank, CallsReachTheShim) {
  amem_error error;
  EXPECT_EQ(amem_pause(250, &error), AMEM_OK);
  EXPECT_EQ(error.code, AMEM_OK);
  EXPECT_EQ(shim.pauses, 1);
  EXPECT_EQ(shim.timeout_ms, 250U);
  EXPECT_EQ(amem_resume(0, nullptr), AMEM_OK);
  EXPECT_EQ(shim.resumes, 1);
  EXPECT_EQ(amem_is_active(), 1);
  shim.active = 0;
  EXPECT_EQ(amem_is_active(), 0);
}

TEST_F(Rank, TheShimsErrorsComeThrough) {
  shim.code = AMEM_ERROR_DEADLINE_EXCEEDED;
  amem_error error;
  EXPECT_EQ(amem_pause(1, &error), AMEM_ERROR_DEADLINE_EXCEEDED);
  EXPECT_STREQ(error.text, "rank 3 did not come");
  EXPECT_EQ(amem_pause(1, nullptr), AMEM_ERROR_DEADLINE_EXCEEDED);
  EXPECT_THROW(amem::resume(), Error);
}

TEST_F(Rank, GroupAsTheShimReadsIt) {
  EXPECT_EQ(group(), "default");
  ::setenv("AMEM_GROUPID", "7", 1);
  EXPECT_EQ(group(), "7");
  ::setenv("AMEM_GROUP", "train", 1);
  EXPECT_EQ(group(), "train");
  ::setenv("AMEM_GROUP", "not a name", 1);
  EXPECT_EQ(group(), "default");

  char small[4];
  amem_error error;
  EXPECT_EQ(amem_group(small, sizeof small, &error), AMEM_ERROR_OUT_OF_RANGE);
  EXPECT_NE(std::string(error.text).find("8 bytes"), std::string::npos);
}

TEST_F(Rank, PausedScopeResumesOnce) {
  {
    PausedScope scope(std::chrono::seconds(2));
    EXPECT_EQ(shim.pauses, 1);
    scope.resume();
    EXPECT_EQ(shim.resumes, 1);
    EXPECT_EQ(shim.timeout_ms, 2000U);
  }
  EXPECT_EQ(shim.resumes, 1);
  { const PausedScope scope; }
  EXPECT_EQ(shim.resumes, 2);
}

TEST_F(Rank, HeaderIsC) { EXPECT_EQ(client_header_compiles_as_c(), 0); }

TEST_F(Rank, LibraryReachesForTheBrokerToo) {
  Client client(Options{.runtime_dir = "/nowhere", .socket = {}, .query_timeout = {}});
  try {
    client.status();
    FAIL() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), AMEM_ERROR_UNAVAILABLE);
    EXPECT_NE(std::string(e.what()).find("/nowhere/control.sock"), std::string::npos);
  }
}

}  // namespace
}  // namespace amem
