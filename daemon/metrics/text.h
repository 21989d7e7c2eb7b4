// Metric families as text. Plain functions; any thread.
#pragma once

#include <string>

#include "daemon/metrics/book.h"

namespace amem {

/// Prometheus' own text format, 0.0.4.
std::string prometheus_text(const Families& families);
/// OpenMetrics 1.0.0.
std::string open_metrics_text(const Families& families);

}  // namespace amem
