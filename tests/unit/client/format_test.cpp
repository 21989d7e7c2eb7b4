// How amemctl writes numbers, bars, times and tables.
#include "client/ctl/views/format.h"

#include <gtest/gtest.h>

#include <limits>

#include "client/ctl/exit_code.h"
#include "client/ctl/views/text_table.h"
#include "common/times.h"

namespace amem::ctl {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kMiB = 1 << 20;

TEST(FormatBytes, ThreeDigitsAndUnit) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(2 * kMiB), "2.00 MiB");
  EXPECT_EQ(format_bytes(64 * kMiB), "64.0 MiB");
  EXPECT_EQ(format_bytes(840 * kMiB), "840 MiB");
  EXPECT_EQ(format_bytes(3440 * kMiB), "3.36 GiB");
  EXPECT_EQ(format_bytes(std::numeric_limits<std::uint64_t>::max()), "16.0 EiB");
}

TEST(FormatBytes, RoundsIntoTheNextUnitAndDigit) {
  EXPECT_EQ(format_bytes(1024 * kMiB - 1), "1.00 GiB");
  EXPECT_EQ(format_bytes(10 * kMiB - 1), "10.0 MiB");
  EXPECT_EQ(format_bytes(100 * kMiB - 1), "100 MiB");
}

TEST(FormatMicros, PicksTheUnit) {
  EXPECT_EQ(format_micros(0), "0 us");
  EXPECT_EQ(format_micros(999), "999 us");
  EXPECT_EQ(format_micros(8'040), "8.04 ms");
  EXPECT_EQ(format_micros(143'210), "143 ms");
  EXPECT_EQ(format_micros(999'900), "1.00 s");
  EXPECT_EQ(format_micros(75'000'000), "75.0 s");
}

TEST(FormatAge, TwoUnitsAtMost) {
  EXPECT_EQ(format_age(999), "0 s");
  EXPECT_EQ(format_age(59'999), "59 s");
  EXPECT_EQ(format_age(60'000), "1 min");
  EXPECT_EQ(format_age(185'000), "3 min 5 s");
  EXPECT_EQ(format_age(2 * 3'600'000 + 60'000), "2 h 1 min");
  EXPECT_EQ(format_age(52ULL * 3'600'000), "2 d 4 h");
}

TEST(ParseDuration, UnitsAndLimits) {
  EXPECT_EQ(parse_duration("500ms"), milliseconds(500));
  EXPECT_EQ(parse_duration("1.5s"), milliseconds(1500));
  EXPECT_EQ(parse_duration("30"), milliseconds(30'000));
  EXPECT_EQ(parse_duration("2m"), milliseconds(120'000));
  for (const char* bad :
       {"", "s", "3x", "0", "-1", "0.1ms", "1e3", "nan", "inf", "99999999999", "1 s", "5ss"}) {
    EXPECT_EQ(parse_duration(bad), std::nullopt) << bad;
  }
}

TEST(Printable, DisarmsControlCharacters) {
  EXPECT_EQ(printable("a\x1b[31mb\nc\x7f"), "a?[31mb?c?");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m"),
            "?31m");
  EXPECT_EQ(printable("trän"), "trän");
}

TEST(FormatBar, FillsInProportion) {
  EXPECT_EQ(format_bar(0, 0, 10, 12), "[          ]");
  EXPECT_EQ(format_bar(5, 3, 10, 12), "[#####===  ]");
  EXPECT_EQ(format_bar(10, 0, 10, 12), "[##########]");
}

TEST(FormatBar, ShowsTheSmallestAndSurvivesTheImpossible) {
  EXPECT_EQ(format_bar(1, 0, 1'000'000, 12), "[#         ]");
  EXPECT_EQ(format_bar(20, 20, 10, 12), "[##########]");
  EXPECT_EQ(format_bar(5, 5, 0, 12), "[          ]");
}

TEST(TextTable, AlignsColumnsWithoutTrailingSpaces) {
  TextTable table({{"NAME"}, {"SIZE", Align::kRight}, {"NOTE"}});
  table.add({"train", "3.36 GiB", ""});
  table.add({"x", "0 B", "bad"});
  EXPECT_EQ(table.render({}),
            "NAME       SIZE  NOTE\n"
            "train  3.36 GiB\n"
            "x           0 B  bad\n");
}

TEST(TextTable, ColoursDoNotMoveColumns) {
  TextTable table({{"A"}, {"B"}});
  table.add({{"ok", Tone::kGood}, "1"});
  table.add({"long", "2"});
  EXPECT_EQ(table.render({.color = true}),
            "\x1b[1mA\x1b[0m     \x1b[1mB\x1b[0m\n\x1b[32mok\x1b[0m    1\nlong  2\n");
}

TEST(TextTable, CountsCharactersAndDisarmsCells) {
  TextTable table({{"A"}, {"B"}});
  table.add({"ä", "1"});
  table.add({"a\nb", "2"});
  EXPECT_EQ(table.render({}), "A    B\nä    1\na?b  2\n");
}

TEST(ExitCode, OnePerKindOfFailure) {
  EXPECT_EQ(exit_code(Code::kOk), 0);
  EXPECT_EQ(exit_code(Code::kAborted), 1);
  EXPECT_EQ(exit_code(Code::kInternal), 1);
  EXPECT_EQ(exit_code(Code::kInvalidArgument), 2);
  EXPECT_EQ(exit_code(Code::kUnavailable), 3);
  EXPECT_EQ(exit_code(Code::kNotFound), 4);
  EXPECT_EQ(exit_code(Code::kFailedPrecondition), 5);
  EXPECT_EQ(exit_code(Code::kDeadlineExceeded), 6);
  EXPECT_EQ(exit_code(Code::kResourceExhausted), 7);
  EXPECT_EQ(exit_code(Code::kPermissionDenied), 8);
  EXPECT_EQ(exit_code(static_cast<Code>(99)), 1);
}

}  // namespace
}  // namespace amem::ctl
