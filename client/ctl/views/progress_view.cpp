#include "client/ctl/views/progress_view.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "client/ctl/views/format.h"
#include "client/ctl/views/views.h"

namespace amem::ctl {
namespace {

constexpr std::size_t kBarWidth = 26;
/// In a log, how often a long copy says how far it is.
constexpr std::uint64_t kLogEveryUs = 5'000'000;

/// "12.3 GiB of 110 GiB, 47.9 GB/s, 2.05 s left": at the rate since the phase began.
std::string copies_text(const v1::Progress& progress, std::uint64_t began_us) {
  std::string text =
      format_bytes(progress.copied_bytes()) + " of " + format_bytes(progress.to_copy_bytes());
  const std::uint64_t us = progress.elapsed_us() - std::min(began_us, progress.elapsed_us());
  if (us == 0 || progress.copied_bytes() == 0) return text;
  const double rate = static_cast<double>(progress.copied_bytes()) / static_cast<double>(us);
  const auto left = static_cast<double>(
      progress.to_copy_bytes() - std::min(progress.copied_bytes(), progress.to_copy_bytes()));
  char number[32];
  std::snprintf(number, sizeof number, "%.3g", rate / 1000);  // bytes a microsecond: MB a second
  return text + ", " + number + " GB/s, " + format_micros(static_cast<std::uint64_t>(left / rate)) +
         " left";
}

/// With its node, where there are several.
std::string name_of(const v1::Progress& progress) {
  const std::string group = printable(progress.group());
  return progress.node().empty() ? group : printable(progress.node()) + ": " + group;
}

/// To a list with commas.
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
  // The rest of the time the packets travel, or the rank's service thread does something else.
  if (rank.busy_us() > 0 && rank.us() > rank.busy_us())
    text += (text.empty() ? "waited " : "; waited ") + format_micros(rank.us() - rank.busy_us());
  return text;
}

}  // namespace

std::string ProgressView::update(const v1::Progress& progress) {
  if (progress.done()) return clear();
  const std::string group = name_of(progress);
  const std::string phase = printable(progress.phase());
  Began& began = began_[group];
  if (began.phase != phase) began = {phase, progress.elapsed_us(), progress.elapsed_us()};
  const bool copies = progress.to_copy_bytes() > 0;
  if (columns_ == 0) {
    // Lines are for logs: one when a phase begins, and a few of a long copy. In a swap the groups
    // take turns, and the phases of waves come again.
    const std::string waits = progress.waits_for().empty()
                                  ? std::string()
                                  : ", waits: " + printable(progress.waits_for());
    const std::string now = group + ": " + phase + waits;
    if (!told_[group].insert(phase + waits).second) {
      if (!copies || progress.elapsed_us() < began.logged_us + kLogEveryUs) return {};
      began.logged_us = progress.elapsed_us();
      return now + ", " + copies_text(progress, began.elapsed_us) + "\n";
    }
    if (progress.ranks_total() == 0) return now + "\n";
    return now + ", " + std::to_string(progress.ranks_total()) +
           (progress.ranks_total() == 1 ? " rank\n" : " ranks\n");
  }

  std::string line = group + "  " + phase;
  // The bar keeps its place while the phases change.
  line.append(phase.size() < 8 ? 8 - phase.size() : 0, ' ');
  line +=
      ' ' + (copies ? format_bar(progress.copied_bytes(), 0, progress.to_copy_bytes(), kBarWidth)
                    : format_bar(progress.ranks_done(), 0, progress.ranks_total(), kBarWidth));
  if (progress.ranks_total() > 0) {  // some phases are the broker's alone
    line += ' ' + std::to_string(progress.ranks_done()) + '/' +
            std::to_string(progress.ranks_total()) + " ranks";
  }
  if (!progress.waits_for().empty()) line += "  waits: " + printable(progress.waits_for());
  if (copies)
    line += "  " + copies_text(progress, began.elapsed_us);
  else if (progress.bytes() > 0)
    line += "  " + format_bytes(progress.bytes());
  line += "  " + format_micros(progress.elapsed_us());
  // A line that wraps could not be redrawn. All of it is ASCII or a name, so cutting bytes is safe
  // enough for a line that lives a tenth of a second.
  if (line.size() >= columns_) line.resize(columns_ - 1);
  drawn_ = true;
  return "\r" + style_(Tone::kBusy, line) + "\x1b[K";
}

std::string ProgressView::clear() {
  if (!drawn_) return {};
  drawn_ = false;
  return "\r\x1b[K";
}

std::string result_line(const v1::Progress& progress, const std::string& verb, const Style& style) {
  std::string line = name_of(progress) + ": " + style(Tone::kGood, verb) + " in " +
                     format_micros(progress.elapsed_us());
  std::string times;
  for (const v1::PhaseTime& time : progress.times())
    add(times, printable(time.phase()) + " " + format_micros(time.us()));
  if (!times.empty()) line += " (" + times + ")";
  line += '\n';
  std::string stays;
  if (progress.pinned_bytes() > 0)
    add(stays, format_bytes(progress.pinned_bytes()) + " pinned, registered with a NIC");
  if (progress.unbrokered_bytes() > 0)
    add(stays, format_bytes(progress.unbrokered_bytes()) + " not brokered (amemctl ranks " +
                   printable(progress.group()) + ")");
  if (const std::string guests = guest_text(progress); !guests.empty()) add(stays, guests);
  if (!stays.empty()) line += "  still on the devices: " + stays + '\n';
  if (progress.unknown_calls() > 0)
    line += "  driver calls that amem does not know: " + std::to_string(progress.unknown_calls()) +
            " (amemctl ranks " + printable(progress.group()) + ")\n";
  if (progress.dropped_bytes() > 0)
    line += "  dropped: " + format_bytes(progress.dropped_bytes()) + "; a resume provides zeros\n";
  std::uint64_t kept = 0;
  std::uint64_t unchanged = 0;
  for (const v1::TagSave& save : progress.saves()) {
    kept += save.kept_bytes();
    unchanged += save.unchanged_bytes();
  }
  if (unchanged > 0)
    line += "  unchanged, and so not copied: " + format_bytes(unchanged) + " of " +
            format_bytes(kept) + '\n';
  for (const std::string& remark : progress.remarks())
    line += "  note: " + printable(remark) + '\n';
  if (progress.swap_us() > 0) line += "swapped in " + format_micros(progress.swap_us()) + '\n';
  return line;
}

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
  std::string memory;
  const std::pair<std::uint64_t, const char*> became[] = {
      {done.memory().handed_on_bytes(), " handed on"},
      {done.memory().made_bytes(), " made"},
      {done.memory().closed_bytes(), " freed"}};
  for (const auto& [bytes, what] : became)
    if (bytes > 0) add(memory, format_bytes(bytes) + what);
  if (!memory.empty()) text += "  device memory: " + memory + "\n";
  for (const v1::TagSave& save : done.saves()) {
    text += "  tag " + printable(save.tag()) + ": kept " + format_bytes(save.kept_bytes());
    if (save.compared_bytes() > 0)
      text += ", compared " + format_bytes(save.compared_bytes()) + ", unchanged " +
              format_bytes(save.unchanged_bytes());
    text += ", copied " + format_bytes(save.copied_bytes()) + "\n";
  }
  return text;
}

}  // namespace amem::ctl
