#include <gtest/gtest.h>

#include "daemon/reports/book.h"

namespace amem {
namespace {

Families some() {
  Book book;
  book.gauge("amem_up", "Whether it_total runs").add({{"tag", "a\"b\\c\nd"}}, 1.0);
  book.counter("amem_operations_total", "Operations").add({}, std::uint64_t{3});
  book.gauge("amem_empty", "Nothing");
  Histogram times(Histogram::kMicroseconds);
  times.add(1'500);
  times.add(20'000'000);
  book.histogram("amem_seconds", "Times").add({{"phase", "save"}}, times, 1e6);
  return book.take();
}

TEST(MetricsTextTest, Prometheus) {
  const std::string text = prometheus_text(some());
  EXPECT_NE(text.find("# TYPE amem_operations_total counter\namem_operations_total 3\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find(R"(amem_up{tag="a\"b\\c\nd"} 1)"), std::string::npos) << text;
  EXPECT_EQ(text.find("amem_empty"), std::string::npos) << "a family without samples";
  EXPECT_NE(text.find("amem_seconds_bucket{phase=\"save\",le=\"0.001\"} 0\n"), std::string::npos);
  EXPECT_NE(text.find("amem_seconds_bucket{phase=\"save\",le=\"0.002\"} 1\n"), std::string::npos);
  EXPECT_NE(text.find("amem_seconds_bucket{phase=\"save\",le=\"10\"} 1\n"), std::string::npos);
  EXPECT_NE(text.find("amem_seconds_bucket{phase=\"save\",le=\"+Inf\"} 2\n"), std::string::npos);
  EXPECT_NE(text.find("amem_seconds_sum{phase=\"save\"} 20.0015\n"), std::string::npos) << text;
}

TEST(MetricsTextTest, OpenMetricsNamesACountersFamilyWithoutItsEnding) {
  const std::string text = open_metrics_text(some());
  EXPECT_NE(text.find("# HELP amem_operations Operations\n# TYPE amem_operations counter\n"
                      "amem_operations_total 3\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("# HELP amem_up Whether it_total runs\n"), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with("# EOF\n"));
  EXPECT_EQ(open_metrics_text({}), "# EOF\n");
}

}  // namespace
}  // namespace amem
