// The list of driver calls that somebody has signed off: what is understood, and who may have
// written it.
#include "common/call_list.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace amem {
namespace {

TEST(CallListTest, LinesCommentsAndTheEnd) {
  const auto list = parse_call_list(
      "# signed off by N. N.\n"
      "\n"
      "cuDeviceGetExample 13060 pass\n"
      "  cuGetOther_v2\t14000  pass \n"
      "end\n"
      "# nothing else\n");
  ASSERT_TRUE(list.ok()) << list.status().text();
  ASSERT_EQ(list.value().size(), 2U);
  EXPECT_EQ(list.value()[0].name, "cuDeviceGetExample");
  EXPECT_EQ(list.value()[0].version, 13060);
  EXPECT_EQ(list.value()[1].name, "cuGetOther_v2");
  EXPECT_TRUE(parse_call_list("end\n").ok());
}

/// Wherever it is cut off it is no list.
TEST(CallListTest, EveryBeginningOfAListIsTorn) {
  const std::string whole = "cuDeviceGetExample 13060 pass\ncuGetOther 14000 pass\nend\n";
  ASSERT_TRUE(parse_call_list(whole).ok());
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_FALSE(parse_call_list(whole.substr(0, length)).ok()) << length;
}

TEST(CallListTest, OneLineThatIsNotUnderstoodIsEnough) {
  for (const char* line :
       {"cuDeviceGetExample", "cuDeviceGetExample 13060", "cuDeviceGetExample pass 13060",
        "cuDeviceGetExample 13060 gate", "cuDeviceGetExample 13060 pass now",
        "cuDeviceGetExample 13.6 pass", "cuDeviceGetExample 13 pass", "cuda 13060 pass",
        "CuDeviceGetExample 13060 pass", "cuDevice-Get 13060 pass", "end end",
        "cuDeviceGetExample 99999999999 pass"}) {
    const auto list = parse_call_list("cuGetOther 14000 pass\n" + std::string(line) + "\nend\n");
    ASSERT_FALSE(list.ok()) << line;
    EXPECT_NE(list.status().text().find("line 2"), std::string::npos) << list.status().text();
  }
  EXPECT_FALSE(parse_call_list("end\ncuGetOther 14000 pass\n").ok()) << "behind the end";
}

class CallListFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(path_) << "cuGetOther 14000 pass\nend\n";
    ASSERT_EQ(::chmod(path_.c_str(), 0644), 0);
  }
  void TearDown() override { ::unlink(path_.c_str()); }
  Code code() const { return read_call_list(path_, ::geteuid()).status().code(); }

  const std::string path_ = testing::TempDir() + "call_list_" + std::to_string(::getpid()) + ".txt";
};

TEST_F(CallListFileTest, OfItsOwnerAlone) {
  const auto list = read_call_list(path_, ::geteuid());
  ASSERT_TRUE(list.ok()) << list.status().text();
  EXPECT_EQ(list.value().size(), 1U);
}

TEST_F(CallListFileTest, OthersMustNotBeAbleToWriteIt) {
  for (const mode_t mode : {0664U, 0646U, 0666U}) {
    ASSERT_EQ(::chmod(path_.c_str(), mode), 0);
    EXPECT_EQ(code(), Code::kPermissionDenied) << mode;
  }
}

TEST_F(CallListFileTest, OfAStranger) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  ASSERT_EQ(::chown(path_.c_str(), 12345, 12345), 0);
  EXPECT_EQ(code(), Code::kPermissionDenied);
  EXPECT_TRUE(read_call_list(path_, 12345).ok()) << "of the owner of the shim";
}

TEST_F(CallListFileTest, NoneAndWhatIsNoFile) {
  EXPECT_EQ(read_call_list(path_ + ".none", 0).status().code(), Code::kNotFound);
  EXPECT_FALSE(read_call_list(testing::TempDir(), 0).ok());
  std::ofstream(path_, std::ios::app) << std::string(70000, '#') << "\n";
  EXPECT_FALSE(read_call_list(path_, ::geteuid()).ok()) << "too long";
}

TEST(CallListTest, NamesThatSayMemory) {
  for (const char* name : {"cuMemTeleport", "cuTensorMapX", "cuFooBindBar", "cuFooExport",
                           "cuImportFoo", "cuIpcFoo", "cuMulticastFoo", "cuLogicalEndpointFoo"})
    EXPECT_TRUE(says_memory(name)) << name;
  for (const char* name : {"cuTeleportAsync", "cuDeviceGetExample", "cuRemember"})
    EXPECT_FALSE(says_memory(name)) << name;
}

}  // namespace
}  // namespace amem
