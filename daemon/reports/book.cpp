#include "daemon/reports/book.h"

#include <prometheus/text_serializer.h>

#include <string_view>

namespace amem {
namespace {

/// Of a counter's family; its samples keep it.
constexpr std::string_view kTotal = "_total";

/// "# TYPE name_total counter" without the ending.
void shorten_name(std::string& line) {
  const std::size_t begin = line.find(' ', 2) + 1;
  const std::size_t end = line.find(' ', begin);
  if (end == std::string::npos) return;
  const std::string_view name = std::string_view(line).substr(begin, end - begin);
  if (name.ends_with(kTotal)) line.erase(end - kTotal.size(), kTotal.size());
}

}  // namespace

std::string prometheus_text(const Families& families) {
  return prometheus::TextSerializer().Serialize(families);
}

/// The two differ in what a counter's family is called, and in that this one says where it ends.
std::string open_metrics_text(const Families& families) {
  std::string text;
  const std::string lines = prometheus_text(families);
  for (std::size_t at = 0; at < lines.size();) {
    const std::size_t end = lines.find('\n', at);
    std::string line = lines.substr(at, end - at);
    if (line.starts_with("# ")) shorten_name(line);
    text += line + "\n";
    at = end == std::string::npos ? lines.size() : end + 1;
  }
  return text + "# EOF\n";
}

}  // namespace amem
