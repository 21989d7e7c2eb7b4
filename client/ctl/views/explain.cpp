#include "client/ctl/views/explain.h"

#include <cstdio>
#include <utility>

#include "client/ctl/views/format.h"

namespace amem::ctl {
namespace {

void add(std::string& text, const std::string& part) { text += (text.empty() ? "" : ", ") + part; }

/// "15.67 GB, 55.5 GB/s": powers of ten, as links are measured.
std::string rate(std::uint64_t bytes, std::uint64_t us) {
  char text[64];
  std::snprintf(text, sizeof text, "%.2f GB, %.1f GB/s", static_cast<double>(bytes) / 1e9,
                us > 0 ? static_cast<double>(bytes) / 1e3 / static_cast<double>(us) : 0.0);
  return text;
}

std::string of_rank(const v1::RankTime& rank) {
  std::string calls;
  for (const auto& [name, us] :
       {std::pair("import", rank.import_us()), std::pair("map", rank.map_us()),
        std::pair("access", rank.access_us()), std::pair("unmap", rank.unmap_us()),
        std::pair("release", rank.release_us())})
    if (us > 0) add(calls, std::string(name) + " " + format_micros(us));
  if (rank.handles() > 0)
    add(calls, std::to_string(rank.handles()) + (rank.handles() == 1 ? " handle" : " handles"));
  std::string text = calls;
  if (rank.copy_us() > 0)
    text += (text.empty() ? "copy " : "; copy ") + format_micros(rank.copy_us()) + " (" +
            rate(rank.bytes(), rank.copy_us()) + ")";
  // What is left is the way there and back, and the rank's service thread being busy elsewhere.
  if (rank.busy_us() > 0 && rank.us() > rank.busy_us())
    text += (text.empty() ? "waited " : "; waited ") + format_micros(rank.us() - rank.busy_us());
  return text;
}

}  // namespace

std::string explain(const v1::Progress& done) {
  std::string text;
  for (const v1::PhaseTime& phase : done.times()) {
    text += "  " + printable(phase.phase()) + " " + format_micros(phase.us());
    std::string broker;
    if (phase.broker_us() > 0) add(broker, "broker's CPU " + format_micros(phase.broker_us()));
    if (phase.driver_us() > 0) add(broker, "in the driver " + format_micros(phase.driver_us()));
    text += (broker.empty() ? "" : ": ") + broker + "\n";
    for (const v1::RankTime& rank : phase.ranks()) {
      const std::string name =
          rank.rank() >= 0 ? std::to_string(rank.rank()) : "#" + std::to_string(rank.id());
      const std::string what = of_rank(rank);
      text += "    rank " + name + ": " + format_micros(rank.us()) + (what.empty() ? "" : ": ") +
              what + "\n";
    }
  }
  return text;
}

}  // namespace amem::ctl
