#include "common/protocol.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "common/status.h"

namespace amem {
namespace {

TEST(Protocol, UuidsPrintAsTheDriverToolsDo) {
  const unsigned char bytes[16] = {0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef,
                                   0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef};
  EXPECT_EQ(to_string(make_uuid(bytes)), "GPU-01234567-89ab-cdef-0123-456789abcdef");
}

TEST(Protocol, GroupNames) {
  for (const char* good : {"train", "a", "Rollout_2", "x.y-z", "0"})
    EXPECT_TRUE(valid_group_name(good)) << good;
  for (const char* bad : {"", ".", "..", "-x", ".hidden", "a b", "a/b", "a\n", "\xc3\xa9"})
    EXPECT_FALSE(valid_group_name(bad)) << bad;
  EXPECT_TRUE(valid_group_name(std::string(63, 'g')));
  EXPECT_FALSE(valid_group_name(std::string(64, 'g')));
  for (const char* good :
       {"train", "train@1000", "train@0:/kubepods/pod12ab", "train:slurm-1", "train:a@1000"})
    EXPECT_TRUE(valid_group_address(good)) << good;
  for (const char* bad : {"", "@1000", "train@", "train@a b", "-x@1000", "train@\n", "train:", ":a",
                          "train:a:b", "train:-a"})
    EXPECT_FALSE(valid_group_address(bad)) << bad;
  EXPECT_FALSE(valid_group_name("train@1000"));
  EXPECT_FALSE(valid_group_name(std::string_view("a\0b", 3)));
}

TEST(Protocol, TheRuntimeDirectoryCanBeChosen) {
  ASSERT_EQ(::setenv("AMEM_RUNTIME_DIR", "/somewhere/else", 1), 0);
  EXPECT_EQ(default_runtime_dir(), "/somewhere/else");
  ASSERT_EQ(::unsetenv("AMEM_RUNTIME_DIR"), 0);
  EXPECT_NE(default_runtime_dir(), "");
}

TEST(Protocol, StatusCodesAreThoseOfGrpc) {
  EXPECT_EQ(static_cast<int>(Code::kDeadlineExceeded), 4);
  EXPECT_EQ(static_cast<int>(Code::kPermissionDenied), 7);
  EXPECT_EQ(static_cast<int>(Code::kFailedPrecondition), 9);
  EXPECT_EQ(static_cast<int>(Code::kUnavailable), 14);
  EXPECT_EQ(errno_status(Code::kInternal, "open /x", ENOENT).text(),
            "open /x: No such file or directory");
}

TEST(Protocol, AResultIsAValueOrAStatus) {
  Result<int> good(7);
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(good.value(), 7);
  EXPECT_TRUE(good.status().ok());
  Result<int> bad(Status(Code::kNotFound, "gone"));
  EXPECT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().text(), "gone");
}

}  // namespace
}  // namespace amem
