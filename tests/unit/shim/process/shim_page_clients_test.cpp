#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "shim/process/page_clients.h"

namespace amem::shim {
namespace {

class PageClientsTest : public testing::Test {
 protected:
  PageClientsTest() { std::filesystem::create_directories(modules_); }
  ~PageClientsTest() override { std::filesystem::remove_all(folder_); }

  bool may_be(const char* line) {
    std::ofstream(maps_) << "7f00-7f10 r-xp 0 08:01 1 /usr/lib/libc.so.6\n" << line << "\n";
    return pages_may_be_registered(modules_.c_str(), maps_.c_str());
  }

  const std::string folder_ =
      testing::TempDir() + "amem-page-clients-" + std::to_string(::getpid());
  const std::string modules_ = folder_ + "/module";
  const std::string maps_ = folder_ + "/maps";
  const char* const verbs_ = "7f20-7f30 r-xp 0 08:01 2 /usr/lib/libibverbs.so.1.14.39";
};

TEST_F(PageClientsTest, NobodyAsksTheDriverForPagesWithoutAModuleThatDoes) {
  EXPECT_FALSE(may_be(verbs_));
}

TEST_F(PageClientsTest, NorWithoutALibraryThatUsesIt) {
  std::filesystem::create_directory(modules_ + "/nvidia_peermem");
  EXPECT_FALSE(may_be("7f20-7f30 r-xp 0 08:01 2 /usr/lib/libm.so.6"));
  EXPECT_TRUE(may_be(verbs_));
}

TEST_F(PageClientsTest, WhatTheProcessHasLoadedMustBeKnown) {
  std::filesystem::create_directory(modules_ + "/gdrdrv");
  EXPECT_TRUE(pages_may_be_registered(modules_.c_str(), (folder_ + "/missing").c_str()));
}

}  // namespace
}  // namespace amem::shim
