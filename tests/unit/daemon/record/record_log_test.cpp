#include "daemon/record/record_log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <random>
#include <string>

namespace amem {
namespace {

using ::testing::HasSubstr;
using Rows = std::map<RowKey, std::string>;

Rows rows_of(const RecordLog& log) {
  Rows rows;
  log.each([&](RowKey key, std::string_view row) { rows[key] = row; });
  return rows;
}

/// What whoever takes the memory over finds.
Result<Rows> found(const RecordLog& log) {
  Result<RecordLog> next = RecordLog::open(log.memory().duplicate());
  if (!next.ok()) return next.status();
  return rows_of(next.value());
}

RecordLog make(std::size_t size = RecordLog::kSize) {
  Result<RecordLog> log = RecordLog::create(size);
  EXPECT_TRUE(log.ok()) << log.status().text();
  return std::move(log).value();
}

std::uint64_t pages_of(const RecordLog& log) {
  struct stat stat {};
  EXPECT_EQ(::fstat(log.memory().get(), &stat), 0);
  return static_cast<std::uint64_t>(stat.st_blocks) * 512;
}

TEST(RecordLogTest, TheNextFindsWhatWasWritten) {
  RecordLog log = make();
  ASSERT_TRUE(log.put(1, "one").ok());
  ASSERT_TRUE(log.put(2, "").ok());
  ASSERT_TRUE(log.put(3, std::string(100'000, 'x')).ok());
  ASSERT_TRUE(log.put(1, "another, and longer").ok());
  ASSERT_TRUE(log.erase(2).ok());
  ASSERT_TRUE(log.erase(9).ok()) << "there is none";
  const Rows expected = {{1, "another, and longer"}, {3, std::string(100'000, 'x')}};
  EXPECT_EQ(rows_of(log), expected);
  const Result<Rows> next = found(log);
  ASSERT_TRUE(next.ok()) << next.status().text();
  EXPECT_EQ(next.value(), expected);
}

TEST(RecordLogTest, TheNextGoesOnWriting) {
  RecordLog log = make();
  ASSERT_TRUE(log.put(1, "one").ok());
  Result<RecordLog> next = RecordLog::open(log.memory().duplicate());
  ASSERT_TRUE(next.ok());
  ASSERT_TRUE(next.value().put(2, "two").ok());
  ASSERT_TRUE(next.value().erase(1).ok());
  EXPECT_EQ(found(next.value()).value(), (Rows{{2, "two"}}));
}

TEST(RecordLogTest, WhatIsReplacedTakesNoSpaceForEver) {
  RecordLog log = make();
  const std::string row(200, 'r');
  for (int round = 0; round < 200; ++round)
    for (RowKey key = 0; key < 1000; ++key) ASSERT_TRUE(log.put(key, row).ok());
  EXPECT_EQ(log.rows(), 1000U);
  EXPECT_LT(pages_of(log), 8U << 20U) << "200 times 224,000 bytes were written";
  EXPECT_EQ(found(log).value().size(), 1000U);
}

TEST(RecordLogTest, ManySmallRowsComeThroughChanges) {
  std::mt19937 random(1);
  RecordLog log = make(256 << 10);  // changes halves often
  Rows expected;
  for (int i = 0; i < 20'000; ++i) {
    const RowKey key = random() % 300;
    if (random() % 3 == 0) {
      ASSERT_TRUE(log.erase(key).ok());
      expected.erase(key);
    } else {
      const std::string row(random() % 200, static_cast<char>('a' + i % 26));
      ASSERT_TRUE(log.put(key, row).ok());
      expected[key] = row;
    }
    if (i % 500 == 0) {
      ASSERT_EQ(found(log).value(), expected) << i;
    }
  }
  EXPECT_EQ(rows_of(log), expected);
}

TEST(RecordLogTest, AFullRecordSaysSoAndKeepsWhatItHas) {
  RecordLog log = make(64 << 10);
  const std::string row(1000, 'r');
  RowKey key = 0;
  Status status;
  while (status.ok()) status = log.put(key++, row);
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_THAT(status.text(), HasSubstr(std::to_string(key - 1) + " rows"));
  EXPECT_EQ(found(log).value().size(), key - 1);
  ASSERT_TRUE(log.erase(0).ok());
  EXPECT_TRUE(log.put(key, row).ok()) << "there is space again";
  EXPECT_EQ(found(log).value().size(), key - 1);
}

TEST(RecordLogTest, WhatIsPromisedCanBeWrittenHoweverFullTheRestIs) {
  RecordLog log = make(64 << 10);
  const std::string row(1000, 'r');
  const std::string longer(3000, 'l');
  ASSERT_TRUE(log.put(0, row).ok());
  std::uint64_t promised = 2 * RecordLog::bytes_of(longer.size());
  ASSERT_TRUE(log.promise(promised).ok());
  RowKey key = 1;
  while (log.put(key, row).ok()) ++key;
  const RowKey first = 1'000'000;
  const RowKey second = 1'000'001;
  EXPECT_FALSE(log.put(first, longer).ok()) << "without the promise";
  ASSERT_TRUE(log.put(first, longer, &promised).ok());
  EXPECT_EQ(promised, RecordLog::bytes_of(longer.size()));
  EXPECT_FALSE(log.put(key, row).ok()) << "the rest of it is still promised";
  ASSERT_TRUE(log.put(second, longer, &promised).ok());
  EXPECT_EQ(promised, 0U);
  const Rows rows = found(log).value();
  EXPECT_EQ(rows.at(first), longer);
  EXPECT_EQ(rows.at(second), longer);
  EXPECT_EQ(rows.size(), key + 2);
}

TEST(RecordLogTest, APromiseThatDoesNotFitIsRefusedAndOneThatIsReleasedMakesSpace) {
  RecordLog log = make(64 << 10);
  EXPECT_EQ(log.promise(1 << 20).code(), Code::kResourceExhausted);
  ASSERT_TRUE(log.promise(28 << 10).ok());
  const std::string row(8000, 'r');
  EXPECT_FALSE(log.put(1, row).ok());
  log.release(28 << 10);
  EXPECT_TRUE(log.put(1, row).ok());
}

TEST(RecordLogTest, WhatTheOneBeforeHasReplacedTakesNoSpaceOfTheNext) {
  RecordLog log = make(64 << 10);
  for (int round = 0; round < 25; ++round) ASSERT_TRUE(log.put(1, std::string(1000, 'r')).ok());
  Result<RecordLog> next = RecordLog::open(log.memory().duplicate());
  ASSERT_TRUE(next.ok()) << next.status().text();
  EXPECT_TRUE(next.value().promise(28 << 10).ok()) << "beside one row of 1000 bytes";
}

TEST(RecordLogTest, TheNextKnowsHowMuchOfItCounts) {
  RecordLog log = make();
  for (const std::size_t size : {10U, 1000U, 100U})
    ASSERT_TRUE(log.put(1, std::string(size, 'r')).ok());
  ASSERT_TRUE(log.put(2, "two").ok());
  ASSERT_TRUE(log.erase(2).ok());
  const Result<RecordLog> next = RecordLog::open(log.memory().duplicate());
  ASSERT_TRUE(next.ok()) << next.status().text();
  EXPECT_EQ(next.value().live(), RecordLog::bytes_of(100));
  EXPECT_EQ(log.live(), RecordLog::bytes_of(100));
}

TEST(RecordLogTest, OnlyAboveAMebibyteOfWhichLittleCountsIsCopiedOver) {
  RecordLog log = make();
  const std::string row(1000, 'r');
  const std::uint64_t bytes = RecordLog::bytes_of(row.size());
  std::uint64_t written = 0;
  while (written <= 1U << 20U) {
    ASSERT_TRUE(log.put(1, row).ok());
    ASSERT_EQ(log.written(), written += bytes);
  }
  ASSERT_TRUE(log.put(1, row).ok());
  EXPECT_EQ(log.written(), 2 * bytes) << "what counted, and this";
  RecordLog other = make();
  written = 0;
  for (RowKey key = 0; written <= 1U << 20U; ++key, written += bytes)
    ASSERT_TRUE(other.put(key, row).ok());
  ASSERT_TRUE(other.put(0, row).ok());
  EXPECT_EQ(other.written(), written + bytes) << "nearly all of it counts";
}

TEST(RecordLogTest, WhatIsPromisedIsNotFullOfRowsThatHaveBeenReplaced) {
  RecordLog log = make(64 << 10);
  const std::string row(1000, 'r');
  for (RowKey key = 0; key < 12; ++key) ASSERT_TRUE(log.put(key, row).ok());
  ASSERT_TRUE(log.promise(10 << 10).ok());
  for (int round = 0; round < 100; ++round) ASSERT_TRUE(log.put(1, row).ok()) << round;
  EXPECT_EQ(found(log).value().size(), 12U);
}

TEST(RecordLogTest, ItsFormIsThatOfItsVersion) {
  RecordLog log = make(64 << 10);
  ASSERT_TRUE(log.put(7, "thirteen char").ok());
  std::uint64_t row[3];
  ASSERT_EQ(::pread(log.memory().get(), row, sizeof row, 4096), 24);
  EXPECT_EQ(row[0], 7U);
  EXPECT_EQ(row[1], 13U) << "its size, and no flag";
  EXPECT_EQ(row[2], 9435540220107567759U) << "its checksum";
  const auto committed = [&log] {
    std::uint64_t word = 0;
    EXPECT_EQ(::pread(log.memory().get(), &word, sizeof word, 24), 8);
    return word;
  };
  EXPECT_EQ(committed(), 40U);
  for (int round = 0; round < 40; ++round) ASSERT_TRUE(log.put(7, std::string(1000, 'r')).ok());
  EXPECT_EQ(committed(), (1ULL << 63U) | log.written()) << "in the second half";
}

TEST(RecordLogTest, ItsSizeCannotChange) {
  const RecordLog log = make();
  EXPECT_NE(::ftruncate(log.memory().get(), 4096), 0);
  EXPECT_NE(::ftruncate(log.memory().get(), static_cast<off_t>(2 * RecordLog::kSize)), 0);
}

TEST(RecordLogTest, EveryByteOfARowIsLookedAt) {
  RecordLog log = make(64 << 10);
  ASSERT_TRUE(log.put(7, "a row").ok());
  for (std::uint64_t at = 0; at < 24 + 5; ++at) {
    char byte = 0;
    const auto place = static_cast<off_t>(4096 + at);
    ASSERT_EQ(::pread(log.memory().get(), &byte, 1, place), 1);
    const char changed = static_cast<char>(byte ^ 4);
    ASSERT_EQ(::pwrite(log.memory().get(), &changed, 1, place), 1);
    EXPECT_EQ(found(log).status().code(), Code::kDataLoss) << "byte " << at;
    ASSERT_EQ(::pwrite(log.memory().get(), &byte, 1, place), 1);
  }
  EXPECT_TRUE(found(log).ok());
}

TEST(RecordLogTest, WhatIsNoRecordIsRefusedByName) {
  Fd memory(::memfd_create("something", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_THAT(RecordLog::open(memory.duplicate()).status().text(), HasSubstr("0 bytes"));
  ASSERT_EQ(::ftruncate(memory.get(), 1 << 20), 0);
  EXPECT_THAT(RecordLog::open(memory.duplicate()).status().text(), HasSubstr("not sealed"));
  ASSERT_EQ(::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_EQ(RecordLog::open(memory.duplicate()).status().code(), Code::kDataLoss);
  ASSERT_EQ(::pwrite(memory.get(), "amem record 1\n", 15, 0), 15);
  const Status other = RecordLog::open(std::move(memory)).status();
  EXPECT_EQ(other.code(), Code::kFailedPrecondition);
  EXPECT_THAT(other.text(), HasSubstr("another version (\"amem record 1\", this is \"" +
                                      std::string(kRecordMagic, 13) + "\")"));
}

TEST(RecordLogTest, WhatSomebodyCouldShrinkIsRefused) {
  Fd program(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  EXPECT_THAT(RecordLog::open(std::move(program)).status().text(), HasSubstr("not sealed"));
}

TEST(RecordLogTest, AHeaderThatCannotBeIsRefusedByName) {
  constexpr std::uint64_t kBytes = 64 << 10;
  RecordLog log = make(kBytes);
  ASSERT_TRUE(log.put(7, "a row").ok());
  const auto with = [&log](off_t at, std::uint64_t value) {
    std::uint64_t before = 0;
    EXPECT_EQ(::pread(log.memory().get(), &before, sizeof before, at), 8);
    EXPECT_EQ(::pwrite(log.memory().get(), &value, sizeof value, at), 8);
    const Status status = found(log).status();
    EXPECT_EQ(::pwrite(log.memory().get(), &before, sizeof before, at), 8);
    EXPECT_EQ(status.code(), Code::kDataLoss);
    return status.text();
  };
  EXPECT_THAT(with(16, kBytes - 8), HasSubstr("its size differs from the size in its header"));
  EXPECT_THAT(with(24, kBytes), HasSubstr("the end in its header is beyond its size"));
  EXPECT_THAT(with(24, 16), HasSubstr("a row is damaged at byte 0 of 16")) << "half of its header";
  EXPECT_THAT(with(24, 48), HasSubstr("a row is damaged at byte 32 of 48"));
  EXPECT_TRUE(found(log).ok());
}

/// What a child does to the record; it stops itself first.
void write_rows(RecordLog& log) {
  ::raise(SIGSTOP);
  (void)log.put(1, "new");
  (void)log.erase(2);
  (void)log.put(3, std::string(3000, 'c'));  // there is no space in this half
  ::raise(SIGSTOP);
}

// A child writes; it is looked at between any two of its instructions.
TEST(RecordLogTest, AKillBetweenAnyTwoInstructionsLeavesARowAsItWasOrAsItIsToBe) {
  RecordLog log = make(4096 + 2 * 4096);
  ASSERT_TRUE(log.put(1, "old").ok());
  ASSERT_TRUE(log.put(2, "old").ok());
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(log.put(4, "often").ok());
  const Rows before = rows_of(log);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(77);
    write_rows(log);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WIFEXITED(status)) GTEST_SKIP() << "processes may not be traced here";
  Rows now = before;
  std::vector<Rows> seen = {before};
  std::size_t steps = 0;
  for (bool begun = false;; ++steps) {
    ASSERT_EQ(::ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr), 0);
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    if (!WIFSTOPPED(status)) break;
    if (WSTOPSIG(status) == SIGSTOP && std::exchange(begun, steps > 100)) break;
    const Result<Rows> rows = found(log);
    ASSERT_TRUE(rows.ok()) << "after " << steps << " instructions: " << rows.status().text();
    if (rows.value() != now) seen.push_back(now = rows.value());
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  Rows first = before;
  first[1] = "new";
  Rows second = first;
  second.erase(2);
  Rows third = second;
  third[3] = std::string(3000, 'c');
  EXPECT_EQ(seen, (std::vector<Rows>{before, first, second, third})) << steps << " instructions";
  EXPECT_GT(steps, 200U);
}

}  // namespace
}  // namespace amem
