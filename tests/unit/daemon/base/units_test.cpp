#include "daemon/base/units.h"

#include <gtest/gtest.h>

namespace amem {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Units, Sizes) {
  EXPECT_EQ(parse_size("8GiB").value(), 8ULL << 30);
  EXPECT_EQ(parse_size(" 512 mib ").value(), 512ULL << 20);
  EXPECT_EQ(parse_size("1.5GiB").value(), 3ULL << 29);
  EXPECT_EQ(parse_size("2G").value(), 2ULL << 30);
  EXPECT_EQ(parse_size("1GB").value(), 1000000000ULL);
  EXPECT_EQ(parse_size("4096").value(), 4096ULL);
  EXPECT_EQ(parse_size("0").value(), 0ULL);
  for (const char* bad :
       {"", "GiB", "-1GiB", "8 GiBs", "1.5", "0x10", "1e3", "nan", "inf", "99999999TiB", "8 8GiB"})
    EXPECT_FALSE(parse_size(bad).ok()) << bad;
}

TEST(Units, SizesForPeople) {
  EXPECT_EQ(format_size(0), "0 B");
  EXPECT_EQ(format_size(1023), "1023 B");
  EXPECT_EQ(format_size(8ULL << 30), "8 GiB");
  EXPECT_EQ(format_size(3ULL << 29), "1.5 GiB");
  EXPECT_EQ(format_size((8ULL << 30) + 1), "8 GiB");
}

TEST(Units, ExactSizesReadBack) {
  for (std::uint64_t n : {0ULL, 17ULL, 1ULL << 20, 3ULL << 29, (8ULL << 30) + 1})
    EXPECT_EQ(parse_size(exact_size(n)).value(), n) << exact_size(n);
  EXPECT_EQ(exact_size(8ULL << 30), "8GiB");
  EXPECT_EQ(exact_size(3ULL << 29), "1536MiB");
}

TEST(Units, Durations) {
  EXPECT_EQ(parse_duration("30s").value(), seconds(30));
  EXPECT_EQ(parse_duration("250ms").value(), milliseconds(250));
  EXPECT_EQ(parse_duration("1.5s").value(), milliseconds(1500));
  EXPECT_EQ(parse_duration("2min").value(), seconds(120));
  EXPECT_EQ(parse_duration("7").value(), seconds(7));
  for (const char* bad : {"", "s", "-1s", "1d", "25h", "soon"})
    EXPECT_FALSE(parse_duration(bad).ok()) << bad;
  EXPECT_EQ(format_duration(seconds(30)), "30s");
  EXPECT_EQ(format_duration(milliseconds(1500)), "1500ms");
  EXPECT_EQ(rounded_duration({}), "0 s");
  EXPECT_EQ(rounded_duration(milliseconds(250)), "250 ms");
  EXPECT_EQ(rounded_duration(std::chrono::microseconds(999700)), "1 s");
  EXPECT_EQ(rounded_duration(milliseconds(1524)), "1.5 s");
  EXPECT_EQ(rounded_duration(milliseconds(9960)), "10 s");
  EXPECT_EQ(rounded_duration(milliseconds(17270)), "17 s");
  EXPECT_EQ(rounded_duration(seconds(131)), "131 s");
}

TEST(Units, AnAddressHasANumericHostAndAPort) {
  EXPECT_EQ(parse_address("9480").value(), "127.0.0.1:9480");
  EXPECT_EQ(parse_address("10.0.0.7:1").value(), "10.0.0.7:1");
  EXPECT_EQ(parse_address("[::1]:65535").value(), "[::1]:65535");
  for (const char* wrong :
       {"", "0", "65536", "-1", "9480 ", "0x10", "1.2.3:80", "localhost:80", ":80",
        "1.2.3.4:", "::1:80", "[::1]", "[]:80", "[1.2.3.4]:80", "1.2.3.4:80:80"})
    EXPECT_EQ(parse_address(wrong).status().code(), Code::kInvalidArgument) << wrong;
}

}  // namespace
}  // namespace amem
