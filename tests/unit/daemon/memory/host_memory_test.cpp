// What may be taken, of files as a host and a container have them.
#include "daemon/memory/host_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

namespace amem {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr std::uint64_t kGiB = 1ULL << 30;

class HostMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/amem-host-memory-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    root = name;
  }
  void TearDown() override { fs::remove_all(root); }

  void write(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(root + path).parent_path());
    std::ofstream(root + path) << text;
  }
  void host(std::uint64_t total, std::uint64_t available) const {
    write("/proc/meminfo", "MemTotal: " + std::to_string(total / 1024) +
                               " kB\nMemFree: 1 kB\nMemAvailable: " +
                               std::to_string(available / 1024) + " kB\nHugePages_Total: 0\n");
  }
  void group(const std::string& path, const std::string& max, std::uint64_t current,
             std::uint64_t inactive_file = 0) const {
    write("/sys/fs/cgroup" + path + "/memory.max", max + "\n");
    write("/sys/fs/cgroup" + path + "/memory.current", std::to_string(current) + "\n");
    write("/sys/fs/cgroup" + path + "/memory.stat",
          "anon 1\nfile 2\nactive_file 3\ninactive_file " + std::to_string(inactive_file) +
              "\nslab_reclaimable 0\n");
  }
  std::uint64_t left() const { return available_host_memory(root).bytes; }

  std::string root;
};

TEST_F(HostMemoryTest, AHostKeepsASixteenthForEverybodyElse) {
  host(64 * kGiB, 40 * kGiB);
  EXPECT_EQ(left(), 36 * kGiB);
  EXPECT_EQ(available_host_memory(root).limited_by, "the host");
  host(64 * kGiB, 3 * kGiB);
  EXPECT_EQ(left(), 0U);
}

/// The memory limit, and the pool, of amemd's container in the shipped manifest.
struct Shipped {
  std::uint64_t limit = 0;
  std::uint64_t pool = 0;
};

std::uint64_t gibibytes(const std::string& text, const char* pattern) {
  std::smatch found;
  return std::regex_search(text, found, std::regex(pattern)) ? std::stoull(found[1]) * kGiB : 0;
}

Shipped shipped() {
  std::ifstream file(AMEM_MANIFEST);
  std::stringstream text;
  text << file.rdbuf();
  return {gibibytes(text.str(), R"(limits: \{memory: (\d+)Gi\})"),
          gibibytes(text.str(), R"(\[pool\]\s*\n\s*size = "(\d+)GiB")")};
}

TEST_F(HostMemoryTest, ThePoolOfTheShippedManifestFitsIntoItsContainerOnAnyHost) {
  if (!std::filesystem::exists(AMEM_MANIFEST)) GTEST_SKIP() << "this tree has no manifest";
  const auto [limit, pool] = shipped();
  ASSERT_GT(pool, 0U) << AMEM_MANIFEST;
  ASSERT_GT(limit, pool) << AMEM_MANIFEST;
  write("/proc/self/cgroup", "0::/\n");
  for (const std::uint64_t host_size : {256U, 512U, 1024U, 2048U}) {
    host(host_size * kGiB, host_size * kGiB * 9 / 10);
    group("", std::to_string(limit), kGiB);
    EXPECT_GE(left(), pool) << "on a host of " << host_size << " GiB";
    // As the pool grows it is charged to the container; the last segment must fit, too.
    group("", std::to_string(limit), kGiB + pool - 4 * kGiB);
    EXPECT_GE(left(), 4 * kGiB) << "on a host of " << host_size << " GiB";
    EXPECT_THAT(available_host_memory(root).limited_by, HasSubstr("memory.max of control group /"));
  }
}

TEST_F(HostMemoryTest, TheTightestOfAllControlGroupsCounts) {
  host(256 * kGiB, 200 * kGiB);
  write("/proc/self/cgroup", "1:name=systemd:/other\n0::/slice/job/step\n");
  group("", "max", 0);
  group("/slice", std::to_string(100 * kGiB), 90 * kGiB);
  group("/slice/job", std::to_string(50 * kGiB), 20 * kGiB);
  group("/slice/job/step", "max", 20 * kGiB);
  EXPECT_EQ(left(), 10 * kGiB);
  EXPECT_THAT(available_host_memory(root).limited_by, HasSubstr("/slice, 100 GiB, with 90 GiB"));
}

TEST_F(HostMemoryTest, PageCacheDoesNotCountAsUsed) {
  host(256 * kGiB, 200 * kGiB);
  write("/proc/self/cgroup", "0::/slice/job\n");
  group("/slice", std::to_string(100 * kGiB), 100 * kGiB, 60 * kGiB);
  EXPECT_EQ(left(), 60 * kGiB);
  // A figure that cannot be: more cache than there is memory in use.
  group("/slice", std::to_string(100 * kGiB), 10 * kGiB, 60 * kGiB);
  EXPECT_EQ(left(), 100 * kGiB);
}

TEST_F(HostMemoryTest, WithoutSuchFilesNothingIsKnownToBeShort) {
  EXPECT_GT(left(), 1ULL << 60U);
  host(64 * kGiB, 32 * kGiB);
  write("/proc/self/cgroup", "0::/gone\n");
  EXPECT_EQ(left(), 28 * kGiB);
}

}  // namespace
}  // namespace amem
