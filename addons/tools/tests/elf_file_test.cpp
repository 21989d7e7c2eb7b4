// What is read of ELF files, whole and hostile ones.
#include "addons/tools/diagnosis/elf_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/fixtures/fake_broker.h"
#include "tests/unit/fixtures/some_elf.h"

namespace amem::ctl {
namespace {

using test::some_elf;
using test::write_file;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(ElfFile, ARealProgram) {
  const auto elf = read_elf("/proc/self/exe");
  ASSERT_TRUE(elf.ok()) << elf.status().text();
  EXPECT_TRUE(elf.value().native);
  EXPECT_THAT(elf.value().interpreter, HasSubstr("ld-linux-x86-64"));
  EXPECT_THAT(elf.value().needed, Contains("libc.so.6"));
}

TEST(ElfFile, AllThatAFileSays) {
  const test::TempDir dir;
  const auto elf = read_elf(write_file(
      dir / "lib.so",
      some_elf({.interpreter = "", .needed = {"liba.so", "libb.so"}, .exports = {"f", "g"}})));
  ASSERT_TRUE(elf.ok()) << elf.status().text();
  EXPECT_EQ(elf.value().interpreter, "");
  EXPECT_THAT(elf.value().needed, ElementsAre("liba.so", "libb.so"));
  EXPECT_THAT(elf.value().exports, ElementsAre("f", "g"));
  const auto foreign = read_elf(write_file(dir / "arm.so", some_elf({.machine = EM_AARCH64})));
  ASSERT_TRUE(foreign.ok());
  EXPECT_FALSE(foreign.value().native);
}

TEST(ElfFile, WhereTheLoaderLooks) {
  const test::TempDir dir;
  const auto runpath = [&dir](const test::SomeElf& wanted) {
    return read_elf(write_file(dir / "program", some_elf(wanted))).value().runpath;
  };
  EXPECT_EQ(runpath({}), "");
  EXPECT_EQ(runpath({.rpath = "/a:/b"}), "/a:/b");
  EXPECT_EQ(runpath({.runpath = "$ORIGIN/lib", .rpath = "/a"}), "$ORIGIN/lib");
}

TEST(ElfFile, WhatIsNone) {
  const test::TempDir dir;
  EXPECT_EQ(read_elf(dir / "none").status().code(), Code::kNotFound);
  EXPECT_EQ(read_elf(dir.path()).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(read_elf(write_file(dir / "empty", "")).status().code(), Code::kInvalidArgument);
  EXPECT_THAT(read_elf(write_file(dir / "text", "#!/bin/sh\nexit 0\n")).status().text(),
              HasSubstr("not an ELF file"));
  ASSERT_EQ(::mkfifo((dir / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(read_elf(dir / "fifo").status().code(), Code::kInvalidArgument);
}

/// Every length, and every byte turned into the values that make offsets and sizes large: nothing
/// is read beyond the file or asked of the allocator that the file does not have.
TEST(ElfFile, DamagedAnywhere) {
  const std::string whole = some_elf({.exports = {"cuInit"}});
  const Fd file(::memfd_create("damaged", MFD_CLOEXEC));
  const auto read = [&file](const std::string& bytes) {
    EXPECT_EQ(::ftruncate(file.get(), static_cast<off_t>(bytes.size())), 0);
    EXPECT_EQ(::pwrite(file.get(), bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
    return read_elf("/proc/self/fd/" + std::to_string(file.get()));
  };
  ASSERT_TRUE(read(whole).ok());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    // The section headers stand at the end.
    EXPECT_FALSE(read(whole.substr(0, length)).ok()) << length;
  }
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const char value : {'\x00', '\x7f', '\x80', '\xff'}) {
      std::string damaged = whole;
      damaged[at] = value;
      const auto elf = read(damaged);
      if (elf.ok()) {
        EXPECT_LE(elf.value().interpreter.size(), whole.size());
        EXPECT_LE(elf.value().exports.size(), whole.size());
      }
    }
  }
}

}  // namespace
}  // namespace amem::ctl
