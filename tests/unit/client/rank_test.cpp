// The library as a rank sees it: linked, with this program in the shim's place.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <amem/amem.hpp>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

extern "C" int client_header_compiles_as_c(void);

namespace {

/// What the shim in this program was asked, and what it answers.
struct FakeShim {
  int pauses = 0;
  int resumes = 0;
  uint32_t timeout_ms = 0;
  std::vector<std::string> tags;
  std::vector<std::string> except;
  std::vector<std::string> discard;
  int guests = 0;
  int deep = 0;
  int force = 0;
  std::string group;
  std::vector<std::string> regions;  // open ones
  int unbrokered = 0;                // times begun and not ended
  int policy = -1;
  std::string stats = R"({"group":"train"})";
  int code = 0;
  int active = 1;
} shim;

void asked(const char* const* tags, size_t count, uint32_t timeout_ms) {
  shim.tags.clear();
  for (size_t i = 0; i < count; ++i) shim.tags.emplace_back(tags[i]);
  shim.timeout_ms = timeout_ms;
}

std::vector<std::string> listed(const char* const* tags, size_t count) {
  return {tags, tags + count};
}

int answer(char* error, size_t error_size) {
  if (shim.code != 0) std::snprintf(error, error_size, "rank 3 did not come");
  return shim.code;
}

}  // namespace

extern "C" {
int amem_shim_pause(const char* const* tags, size_t count, uint32_t timeout_ms, char* error,
                    size_t size);
int amem_shim_resume(const char* const* tags, size_t count, uint32_t timeout_ms, char* error,
                     size_t size);
int amem_shim_request_2(int op, const char* const* tags, size_t count, const char* const* except,
                        size_t except_count, const char* const* discard, size_t discard_count,
                        int guests, uint32_t timeout_ms, char* error, size_t size);
int amem_shim_request_3(int op, const char* const* tags, size_t count, const char* const* except,
                        size_t except_count, const char* const* discard, size_t discard_count,
                        int guests, int deep, uint32_t timeout_ms, char* error, size_t size);
int amem_shim_request_4(int op, const char* const* tags, size_t count, const char* const* except,
                        size_t except_count, const char* const* discard, size_t discard_count,
                        int guests, int deep, int force, uint32_t timeout_ms, char* error,
                        size_t size);
int amem_shim_set_policy(const char* tag, int policy, char* error, size_t size);
int amem_shim_set_group(const char* group, char* error, size_t size);
int amem_shim_group(char* name, size_t size);
int amem_shim_region_begin(const char* tag, int policy, char* error, size_t size);
int amem_shim_region_end(char* error, size_t size);
int amem_shim_unbrokered_begin(char* error, size_t size);
int amem_shim_unbrokered_end(char* error, size_t size);
int amem_shim_stats(char* json, size_t size);
int amem_shim_active(void);

int amem_shim_pause(const char* const* tags, size_t count, uint32_t timeout_ms, char* error,
                    size_t size) {
  ++shim.pauses;
  asked(tags, count, timeout_ms);
  return answer(error, size);
}
int amem_shim_resume(const char* const* tags, size_t count, uint32_t timeout_ms, char* error,
                     size_t size) {
  ++shim.resumes;
  asked(tags, count, timeout_ms);
  return answer(error, size);
}
int amem_shim_request_2(int op, const char* const* tags, size_t count, const char* const* except,
                        size_t except_count, const char* const* discard, size_t discard_count,
                        int guests, uint32_t timeout_ms, char* error, size_t size) {
  ++(op == 1 ? shim.pauses : shim.resumes);
  asked(tags, count, timeout_ms);
  shim.except = listed(except, except_count);
  shim.discard = listed(discard, discard_count);
  shim.guests = guests;
  return answer(error, size);
}
int amem_shim_request_3(int op, const char* const* tags, size_t count, const char* const* except,
                        size_t except_count, const char* const* discard, size_t discard_count,
                        int guests, int deep, uint32_t timeout_ms, char* error, size_t size) {
  shim.deep = deep;
  return amem_shim_request_2(op, tags, count, except, except_count, discard, discard_count, guests,
                             timeout_ms, error, size);
}
int amem_shim_request_4(int op, const char* const* tags, size_t count, const char* const* except,
                        size_t except_count, const char* const* discard, size_t discard_count,
                        int guests, int deep, int force, uint32_t timeout_ms, char* error,
                        size_t size) {
  shim.force = force;
  return amem_shim_request_3(op, tags, count, except, except_count, discard, discard_count, guests,
                             deep, timeout_ms, error, size);
}
int amem_shim_set_policy(const char* tag, int policy, char* error, size_t size) {
  shim.tags = {tag};
  shim.policy = policy;
  return answer(error, size);
}
int amem_shim_set_group(const char* group, char* error, size_t size) {
  if (shim.code == 0) shim.group = group;
  return answer(error, size);
}
int amem_shim_group(char* name, size_t size) {
  return std::snprintf(name, size, "%s", shim.group.c_str());
}
int amem_shim_region_begin(const char* tag, int policy, char* error, size_t size) {
  shim.regions.emplace_back(tag);
  shim.policy = policy;
  return answer(error, size);
}
int amem_shim_region_end(char* error, size_t size) {
  shim.regions.pop_back();
  return answer(error, size);
}
int amem_shim_unbrokered_begin(char* error, size_t size) {
  ++shim.unbrokered;
  return answer(error, size);
}
int amem_shim_unbrokered_end(char* error, size_t size) {
  --shim.unbrokered;
  return answer(error, size);
}
int amem_shim_stats(char* json, size_t size) {
  return std::snprintf(json, size, "%s", shim.stats.c_str());
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

TEST_F(Rank, ChosenTags) {
  const char* const tags[] = {"weights", "kv_cache"};
  EXPECT_EQ(amem_pause_tags(tags, 2, 250, nullptr), AMEM_OK);
  EXPECT_EQ(shim.tags, (Tags{"weights", "kv_cache"}));
  EXPECT_EQ(shim.timeout_ms, 250U);
  amem::resume({"weights"}, std::chrono::seconds(1));
  EXPECT_EQ(shim.tags, Tags{"weights"});
  EXPECT_EQ(shim.timeout_ms, 1000U);
  amem::pause();
  EXPECT_EQ(shim.tags, Tags());
}

TEST_F(Rank, NoTagsAreNotEverything) {
  amem_error error;
  EXPECT_EQ(amem_pause_tags(nullptr, 0, 0, &error), AMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.text).find("amem_pause()"), std::string::npos);
  EXPECT_EQ(amem_resume_tags(nullptr, 0, 0, &error), AMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_THROW(amem::pause(Tags{}), Error);
  EXPECT_THROW(amem::resume(Tags{}), Error);
  EXPECT_EQ(shim.pauses + shim.resumes, 0);
}

TEST_F(Rank, ListsThatAreNullOrHaveANullAreErrors) {
  const char* const null[] = {"a", nullptr};
  for (const char* const* bad : {static_cast<const char* const*>(nullptr), +null}) {
    EXPECT_EQ(amem_pause_tags(bad, 2, 0, nullptr), AMEM_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(amem_resume_tags(bad, 2, 0, nullptr), AMEM_ERROR_INVALID_ARGUMENT);
    amem_selection selection{};
    selection.size = sizeof selection;
    selection.discard = bad;
    selection.discard_count = 2;
    amem_error error;
    EXPECT_EQ(amem_pause_selected(&selection, 0, &error), AMEM_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(error.text).rfind("discard", 0), 0U) << error.text;
    EXPECT_EQ(amem_resume_selected(&selection, 0, nullptr), AMEM_ERROR_INVALID_ARGUMENT);
  }
  EXPECT_EQ(shim.pauses + shim.resumes, 0);
}

/// What the linker gave programs that were built with amem 0.1.
template <class Function>
Function* of_0_1(Function* /*now*/, const char* name) {
  void* const found = ::dlvsym(RTLD_DEFAULT, name, "AMEM_0");
  EXPECT_NE(found, nullptr) << name;
  return reinterpret_cast<Function*>(found);
}

TEST_F(Rank, ProgramsOf01PauseEverythingWithoutTagsAndAreWarnedOnce) {
  testing::internal::CaptureStderr();
  const auto pause = of_0_1(&amem_pause_tags, "amem_pause_tags");
  const auto resume = of_0_1(&amem_resume_tags, "amem_resume_tags");
  EXPECT_EQ(pause(nullptr, 0, 250, nullptr), AMEM_OK);
  EXPECT_EQ(resume(nullptr, 0, 0, nullptr), AMEM_OK);
  EXPECT_EQ(pause(nullptr, 0, 250, nullptr), AMEM_OK);
  EXPECT_EQ(shim.pauses, 2);
  EXPECT_EQ(shim.resumes, 1);
  EXPECT_EQ(shim.tags, Tags());
  EXPECT_EQ(shim.timeout_ms, 250U);
  const char* const tags[] = {"weights"};
  EXPECT_EQ(pause(tags, 1, 0, nullptr), AMEM_OK);
  EXPECT_EQ(shim.tags, Tags{"weights"});
  EXPECT_EQ(pause(nullptr, 3, 0, nullptr), AMEM_ERROR_INVALID_ARGUMENT);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("warning: the program calls amem_pause_tags() with no tags"),
            std::string::npos)
      << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
}

TEST_F(Rank, ProgramsOf01UseAClientAfterACancel) {
  amem_options options{};
  options.size = sizeof options;
  options.runtime_dir = "/nowhere";
  amem_client* client = nullptr;
  ASSERT_EQ(amem_open(&options, &client, nullptr), AMEM_OK);
  const auto client_pause = of_0_1(&amem_client_pause_tags, "amem_client_pause_tags");
  const auto client_resume = of_0_1(&amem_client_resume_tags, "amem_client_resume_tags");
  of_0_1(&amem_cancel, "amem_cancel")(client);
  of_0_1(&amem_cancel, "amem_cancel")(nullptr);
  EXPECT_EQ(client_pause(client, "train", nullptr, 0, 0, nullptr, nullptr, nullptr),
            AMEM_ERROR_UNAVAILABLE);
  EXPECT_EQ(client_resume(client, "train", nullptr, 0, 0, nullptr, nullptr, nullptr),
            AMEM_ERROR_UNAVAILABLE);
  amem_cancel(client);
  EXPECT_EQ(client_pause(client, "train", nullptr, 0, 0, nullptr, nullptr, nullptr),
            AMEM_ERROR_CANCELLED);
  amem_close(client);
}

TEST_F(Rank, PoliciesArePassedOn) {
  amem::set_policy("kv_cache", AMEM_POLICY_DISCARD);
  EXPECT_EQ(shim.tags, Tags{"kv_cache"});
  EXPECT_EQ(shim.policy, 2);
  amem::set_policy("heap", AMEM_POLICY_DISCARD_FORCED);
  EXPECT_EQ(shim.policy, 3);
  EXPECT_EQ(amem_set_tag_policy("kv_cache", AMEM_POLICY_UNSPECIFIED, nullptr),
            AMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(amem_set_tag_policy(nullptr, AMEM_POLICY_KEEP, nullptr), AMEM_ERROR_INVALID_ARGUMENT);
}

TEST_F(Rank, WhatIsExceptedAndDiscardedIsPassedOn) {
  const int pauses = shim.pauses;
  amem::pause(amem::Selection{.tags = {}, .except_tags = {"weights"}, .discard = {"a", "b"}});
  EXPECT_EQ(shim.pauses, pauses + 1);
  EXPECT_EQ(shim.tags, Tags());
  EXPECT_EQ(shim.except, Tags{"weights"});
  EXPECT_EQ(shim.discard, (Tags{"a", "b"}));
  EXPECT_EQ(shim.guests, 0);
  EXPECT_EQ(shim.force, 0);
  amem::Selection forced;
  forced.discard = {"heap"};
  forced.force = true;
  amem::pause(forced);
  EXPECT_EQ(shim.discard, Tags{"heap"});
  EXPECT_EQ(shim.force, 1);
  EXPECT_EQ(shim.deep, 0);
  amem::Selection refusing;
  refusing.guests = AMEM_GUESTS_REFUSE;
  amem::pause(refusing);
  EXPECT_EQ(shim.guests, 2);
  EXPECT_EQ(shim.deep, 0);
  refusing.deep = true;
  amem::pause(refusing);
  EXPECT_EQ(shim.guests, 2);
  EXPECT_NE(shim.deep, 0);
  const int resumes = shim.resumes;
  EXPECT_EQ(amem_resume_selected(nullptr, 7, nullptr), AMEM_OK) << "everything";
  EXPECT_EQ(shim.resumes, resumes + 1);
  EXPECT_EQ(shim.except, Tags());
  EXPECT_EQ(shim.timeout_ms, 7U);
}

TEST_F(Rank, Regions) {
  {
    const Region region("weights", AMEM_POLICY_DISCARD);
    EXPECT_EQ(shim.regions, Tags{"weights"});
    EXPECT_EQ(shim.policy, AMEM_POLICY_DISCARD);
  }
  EXPECT_EQ(shim.regions, Tags());
  amem_error error;
  EXPECT_EQ(amem_region_begin("", AMEM_POLICY_KEEP, &error), AMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(amem_region_begin(nullptr, AMEM_POLICY_KEEP, &error), AMEM_ERROR_INVALID_ARGUMENT);
  shim.code = AMEM_ERROR_FAILED_PRECONDITION;
  EXPECT_THROW(Region("nested"), Error);
}

TEST_F(Rank, UnbrokeredForAWhile) {
  {
    const Unbrokered stays;
    EXPECT_EQ(shim.unbrokered, 1);
  }
  EXPECT_EQ(shim.unbrokered, 0);
  shim.code = AMEM_ERROR_FAILED_PRECONDITION;
  EXPECT_THROW(Unbrokered(), Error);
}

TEST_F(Rank, StatsOfAnyLength) {
  EXPECT_EQ(rank_stats(), shim.stats);
  shim.stats = "{\"x\":\"" + std::string(100'000, 'x') + "\"}";
  EXPECT_EQ(rank_stats(), shim.stats);
  amem_error error;
  EXPECT_EQ(amem_rank_stats(nullptr, &error), AMEM_ERROR_INVALID_ARGUMENT);
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

TEST_F(Rank, GroupThatWasSet) {
  shim.code = AMEM_ERROR_FAILED_PRECONDITION;
  EXPECT_THROW(set_group("late"), Error);
  EXPECT_EQ(group(), "default");
  shim.code = 0;
  set_group("rollout");
  EXPECT_EQ(shim.group, "rollout");
  ::setenv("AMEM_GROUP", "train", 1);
  EXPECT_EQ(group(), "rollout");
  shim.group = "7";
  EXPECT_EQ(group(), "7") << "by ncclSetGroupID";
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
