#include "daemon/settings/log.h"

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace amem {
namespace {

class LogTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir = (std::filesystem::temp_directory_path() / "amem-log-test-XXXXXX").string();
    ASSERT_NE(::mkdtemp(dir.data()), nullptr);
    config = Config::defaults(false, dir);
    config.log_file = dir + "/log";
  }
  void TearDown() override {
    set_up_logging(Config::defaults(false, dir));
    std::filesystem::remove_all(dir);
  }
  static std::string read(const std::string& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  std::string dir;
  Config config;
};

TEST_F(LogTest, TextLines) {
  set_up_logging(config);
  spdlog::info("hello {}", 1);
  spdlog::debug("not at this level");
  const std::string text = read(config.log_file);
  EXPECT_NE(text.find(" info    hello 1\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("debug"), std::string::npos);
}

TEST_F(LogTest, JsonLinesAreEscaped) {
  config.log_format = "json";
  set_up_logging(config);
  spdlog::warn("a \"quoted\" \\ line\nbreak");
  const std::string text = read(config.log_file);
  EXPECT_TRUE(text.starts_with("{\"time\":\"20")) << text;
  EXPECT_TRUE(text.ends_with(
      "\"level\":\"warning\",\"message\":\"a \\\"quoted\\\" \\\\ line\\u000abreak\"}\n"))
      << text;
}

TEST_F(LogTest, ReopenFollowsAMovedFile) {
  set_up_logging(config);
  spdlog::info("one");
  std::filesystem::rename(config.log_file, config.log_file + ".1");
  spdlog::info("two");
  reopen_log();
  spdlog::info("three");
  EXPECT_NE(read(config.log_file + ".1").find("two"), std::string::npos);
  EXPECT_EQ(read(config.log_file).find("two"), std::string::npos);
  EXPECT_NE(read(config.log_file).find("three"), std::string::npos);
}

TEST_F(LogTest, AFullDiskStopsNothingAndTheLossIsTold) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  std::filesystem::create_symlink("/dev/full", config.log_file);
  set_up_logging(config);
  spdlog::info("lost");
  spdlog::info("lost too");
  std::filesystem::remove(config.log_file);
  reopen_log();
  spdlog::info("after");
  const std::string text = read(config.log_file);
  EXPECT_NE(text.find("2 log lines were lost before this one\n"), std::string::npos) << text;
  EXPECT_NE(text.find("after"), std::string::npos);
}

TEST_F(LogTest, AFileThatCannotBeOpenedStopsNothing) {
  config.log_file = dir + "/no/such/dir/log";
  set_up_logging(config);
  spdlog::info("on stderr");
  reopen_log();
}

}  // namespace
}  // namespace amem
