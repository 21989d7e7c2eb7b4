#include "daemon/base/runtime_dir.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace amem {
namespace {

namespace fs = std::filesystem;

class RuntimeDirTest : public ::testing::Test {
 protected:
  void SetUp() override {
    base = (fs::temp_directory_path() / "amem-runtime-test-XXXXXX").string();
    ASSERT_NE(::mkdtemp(base.data()), nullptr);
    path = base + "/run";
  }
  void TearDown() override { fs::remove_all(base); }
  void expect_refused(const std::string& directory, const std::string& why) {
    const Status status = RuntimeDir().open(directory, 0700);
    EXPECT_EQ(status.code(), Code::kFailedPrecondition) << status.text();
    EXPECT_NE(status.text().find(why), std::string::npos) << status.text();
    EXPECT_NE(status.text().find(directory), std::string::npos) << status.text();
    EXPECT_FALSE(fs::exists(directory + "/amemd.lock")) << "nothing is left in it";
  }

  std::string base, path;
};

TEST_F(RuntimeDirTest, IsMadeWithItsModeAndUsedAgain) {
  {
    RuntimeDir dir;
    ASSERT_TRUE(dir.open(path, 0755).ok());
    struct stat st {};
    ASSERT_EQ(::stat(path.c_str(), &st), 0);
    EXPECT_EQ(st.st_mode & 07777U, 0755U);
    EXPECT_EQ(RuntimeDir().open(path, 0755).code(), Code::kAlreadyExists);
  }
  EXPECT_TRUE(RuntimeDir().open(path + "/", 0755).ok());
}

TEST_F(RuntimeDirTest, OneThatOthersMayWriteToIsRefused) {
  for (const mode_t mode : {0770U, 0707U, 01777U}) {
    fs::create_directory(path);
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    expect_refused(path, "is writable for other users");
    fs::remove_all(path);
  }
}

TEST_F(RuntimeDirTest, ALinkIsRefused) {
  fs::create_directory(base + "/elsewhere");
  fs::create_symlink(base + "/elsewhere", path);
  expect_refused(path, "symbolic link");
  expect_refused(path + "/", "symbolic link");
}

TEST_F(RuntimeDirTest, AnotherUsersIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be two users";
  ASSERT_EQ(::mkdir(path.c_str(), 0700), 0);
  ASSERT_EQ(::chown(path.c_str(), 12345, 12345), 0);
  expect_refused(path, "belongs to uid 12345");
}

}  // namespace
}  // namespace amem
