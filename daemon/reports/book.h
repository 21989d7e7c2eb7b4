// Book: metric families that are being filled; and families as text. Plain values; any thread.
#pragma once

#include <prometheus/metric_family.h>

#include <cstdint>
#include <deque>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "daemon/node/history.h"

namespace amem {

using Labels = std::vector<prometheus::ClientMetric::Label>;
using Families = std::vector<prometheus::MetricFamily>;

/// The first, then the others.
inline Labels with(Labels labels, const Labels& more) {
  labels.insert(labels.end(), more.begin(), more.end());
  return labels;
}

class Family {
 public:
  Family(prometheus::MetricType type, std::string name, std::string help) {
    family_.type = type;
    family_.name = std::move(name);
    family_.help = std::move(help);
  }

  void add(Labels labels, double value) {
    prometheus::ClientMetric& metric = add(std::move(labels));
    (family_.type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value) =
        value;
  }
  void add(Labels labels, std::uint64_t value) {
    add(std::move(labels), static_cast<double>(value));
  }
  /// `unit`: so many of the histogram's are one of the metric's.
  void add(Labels labels, const Histogram& histogram, double unit) {
    auto& metric = add(std::move(labels)).histogram;
    metric.sample_count = histogram.count();
    metric.sample_sum = static_cast<double>(histogram.sum()) / unit;
    std::uint64_t so_far = 0;
    for (std::size_t i = 0; i < histogram.bounds().size(); ++i)
      metric.bucket.push_back(
          {so_far += histogram.buckets()[i], static_cast<double>(histogram.bounds()[i]) / unit});
    metric.bucket.push_back({histogram.count(), std::numeric_limits<double>::infinity()});
  }

 private:
  friend class Book;
  prometheus::ClientMetric& add(Labels labels) {
    prometheus::ClientMetric& metric = family_.metric.emplace_back();
    metric.label = std::move(labels);
    return metric;
  }

  prometheus::MetricFamily family_;
};

/// References stay valid while the book exists.
class Book {
 public:
  Family& gauge(const char* name, const char* help) {
    return families_.emplace_back(prometheus::MetricType::Gauge, name, help);
  }
  Family& counter(const char* name, const char* help) {
    return families_.emplace_back(prometheus::MetricType::Counter, name, help);
  }
  Family& histogram(const char* name, const char* help) {
    return families_.emplace_back(prometheus::MetricType::Histogram, name, help);
  }

  /// In the order in which they were begun; without those that are empty.
  Families take() {
    Families all;
    for (Family& each : families_)
      if (!each.family_.metric.empty()) all.push_back(std::move(each.family_));
    return all;
  }

 private:
  std::deque<Family> families_;  // which moves none of them
};

/// Prometheus' own text format, 0.0.4.
std::string prometheus_text(const Families& families);
/// OpenMetrics 1.0.0.
std::string open_metrics_text(const Families& families);

}  // namespace amem
