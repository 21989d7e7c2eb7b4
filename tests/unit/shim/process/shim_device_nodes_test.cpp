// Which device nodes the broker is shown.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "shim/process/device_nodes.h"

namespace amem::shim {
namespace {

class ShimDeviceNodes : public testing::Test {
 protected:
  void SetUp() override {
    std::string text = (std::filesystem::temp_directory_path() / "amem-nodes-XXXXXX").string();
    ASSERT_NE(::mkdtemp(text.data()), nullptr);
    dir = text;
    for (const char* name : {"nvidia0", "nvidia7", "nvidiactl", "nvidia-uvm", "nvidia", "xnvidia1"})
      std::ofstream(dir / name) << "";
  }
  void TearDown() override { std::filesystem::remove_all(dir); }
  std::filesystem::path dir;
};

TEST_F(ShimDeviceNodes, WhereNoneIsOpenThoseThatCanBeAreOpened) {
  const std::vector<Fd> nodes = open_device_nodes(dir);
  ASSERT_EQ(nodes.size(), 2U) << "nvidia0 and nvidia7";
  for (const Fd& node : nodes) {
    EXPECT_EQ(::fcntl(node.get(), F_GETFL) & O_ACCMODE, O_RDWR);
    EXPECT_EQ(::fcntl(node.get(), F_GETFD), FD_CLOEXEC);
  }
  EXPECT_TRUE(open_device_nodes(dir / "missing").empty());
  EXPECT_EQ(openable_device_nodes(dir).size(), 2U);
}

TEST_F(ShimDeviceNodes, WhatIsOpenAndNoDeviceIsNotShown) {
  const Fd file(::open((dir / "nvidia0").c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_TRUE(open_device_nodes("/nowhere").empty()) << "the name alone does not make it one";
}

}  // namespace
}  // namespace amem::shim
