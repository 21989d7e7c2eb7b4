// Operations as Chrome's trace events, which Perfetto (ui.perfetto.dev) and chrome://tracing show.
//
// For each node, a process for the broker, with a track for each group: the operation, and in it
// its phases. A process for each group, with a track for each rank: what it was asked for, and in
// that its copies. Loads have a track of their own, since they run while memory is mapped. Each
// kind of driver call has one, too, since these calls take turns. Times are Unix time, as in the
// traces of PyTorch's profiler. The times of several nodes differ by as much as the nodes' clocks
// do.
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "client/core/json.h"
#include "client/ctl/add_on.h"
#include "client/ctl/views/format.h"

namespace amem::ctl {
namespace {

using client::Json;

/// Where an event is shown; those of one process stand by number.
struct Track {
  int process = 0;
  int thread = 0;
};

class Trace {
 public:
  void process(int process, const std::string& name) {
    meta({process, 0}, "process_name", {{"name", name}});
    meta({process, 0}, "process_sort_index", {{"sort_index", process}});
  }
  void track(Track track, const std::string& name) {
    meta(track, "thread_name", {{"name", name}});
    meta(track, "thread_sort_index", {{"sort_index", track.thread}});
  }
  void slice(Track track, const std::string& name, std::uint64_t begin_us, std::uint64_t us,
             const Json& args) {
    add({{"ph", "X"},
         {"pid", track.process},
         {"tid", track.thread},
         {"ts", begin_us},
         {"dur", us},
         {"name", name},
         {"cat", "amem"},
         {"args", args}});
  }
  std::string text() const {
    return "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" + events_ + "\n]}\n";
  }

 private:
  void meta(Track track, const std::string& what, const Json& args) {
    add({{"ph", "M"},
         {"pid", track.process},
         {"tid", track.thread},
         {"name", what},
         {"args", args}});
  }
  void add(const Json& event) {
    events_ += (events_.empty() ? "" : ",\n") + client::text_of(event);
  }

  std::string events_;
};

/// Numbers of processes and tracks of one node, given out as they are first asked for.
class Tracks {
 public:
  /// Its processes have the numbers from `first` on. `node`: empty: there are no others.
  Tracks(Trace& trace, int first, const std::string& node)
      : trace_(trace), broker_(first), prefix_(node.empty() ? "" : node + ": ") {
    trace_.process(broker_, prefix_ + "amemd");
  }

  /// The first number that is left.
  int next() const { return broker_ + static_cast<int>(groups_.size()) + 1; }
  Track broker(const std::string& group) {
    return of(broker_, group_of(group).number, "group " + group);
  }
  /// `row`: of the rank's tracks.
  Track rank(const std::string& group, const v1::RankSpan& span, int row, const std::string& what) {
    Group& known = group_of(group);
    const int next = static_cast<int>(known.ranks.size());
    const int place = known.ranks.try_emplace(span.id(), next).first->second;
    std::string name = span.rank() >= 0 ? "rank " + std::to_string(span.rank())
                                        : "rank #" + std::to_string(span.id());
    if (!what.empty()) name += ": " + what;
    return of(known.process, 1 + place * kRows + row, name);
  }

 private:
  static constexpr int kRows = 10;  // a rank has no more tracks
  struct Group {
    int number = 0;
    int process = 0;
    std::map<std::uint32_t, int> ranks;  // by id
  };

  Group& group_of(const std::string& name) {
    const int number = static_cast<int>(groups_.size()) + 1;
    const auto [it, fresh] = groups_.try_emplace(name, Group{number, broker_ + number, {}});
    if (fresh) trace_.process(it->second.process, prefix_ + "group " + name);
    return it->second;
  }
  Track of(int process, int thread, const std::string& name) {
    if (known_.emplace(process, thread).second) trace_.track({process, thread}, name);
    return {process, thread};
  }

  Trace& trace_;
  const int broker_;  // its process
  const std::string prefix_;
  std::map<std::string, Group> groups_;
  std::set<std::pair<int, int>> known_;
};

// The rows of a rank's tracks.
constexpr int kWork = 0;
constexpr int kLoads = 1;
constexpr int kFirstCalls = 2;

int row_of_calls(const std::string& name) {
  static const std::vector<std::string> order = {"cuMemImportFromShareableHandle", "cuMemMap",
                                                 "cuMemSetAccess", "cuMemUnmap", "cuMemRelease"};
  int row = kFirstCalls;
  for (const std::string& each : order) {
    if (each == name) return row;
    ++row;
  }
  return row;  // a newer broker may report others
}

std::string copy_rate(std::uint64_t bytes, std::uint64_t us) {
  return us == 0 ? "" : format_bytes(bytes * 1'000'000 / us) + "/s";
}

void add_rank(Trace& trace, Tracks& tracks, const v1::PastOperation& operation,
              const v1::RankSpan& span) {
  const bool loads = span.work() == "load";
  const Track track =
      tracks.rank(operation.group(), span, loads ? kLoads : kWork, loads ? "load" : "");
  Json args = {{"rank id", span.id()}, {"pid", span.pid()}};
  if (span.bytes() > 0) args["bytes"] = span.bytes();
  trace.slice(track, span.work(), operation.began_us() + span.begin_us(), span.us(), args);
  for (const v1::CallSpan& call : span.calls()) {
    const std::uint64_t begin = operation.began_us() + call.begin_us();
    if (call.name() == "copy") {
      trace.slice(track, call.name(), begin, call.us(),
                  {{"bytes", span.bytes()}, {"rate", copy_rate(span.bytes(), call.us())}});
      continue;
    }
    const int row = row_of_calls(call.name());
    trace.slice(tracks.rank(operation.group(), span, row, call.name()), call.name(), begin,
                call.us(), {{"in calls", format_micros(call.in_calls_us())}});
  }
}

void add(Trace& trace, Tracks& tracks, const v1::PastOperation& operation) {
  const Track track = tracks.broker(operation.group());
  Json args = Json::object();
  if (operation.transaction() != 0) args["transaction"] = operation.transaction();
  if (operation.swap()) args["swap"] = true;
  args["bytes"] = operation.bytes();
  if (operation.code() != 0) args["error"] = operation.error();
  for (const v1::PhaseTime& time : operation.times()) {
    if (time.broker_us() > 0)
      args[time.phase() + ": broker's CPU"] = format_micros(time.broker_us());
    if (time.driver_us() > 0)
      args[time.phase() + ": broker in the driver"] = format_micros(time.driver_us());
  }
  trace.slice(track, operation_text(operation), operation.began_us(), operation.us(), args);
  for (const v1::PhaseSpan& phase : operation.spans()) {
    trace.slice(track, phase.phase(), operation.began_us() + phase.begin_us(), phase.us(),
                Json::object());
    for (const v1::RankSpan& rank : phase.ranks()) add_rank(trace, tracks, operation, rank);
  }
}

}  // namespace

Result<std::string> chrome_trace(const std::vector<NodeHistory>& nodes) {
  Trace trace;
  int next = 1;
  for (const auto& [node, history] : nodes) {
    Tracks tracks(trace, next, node);
    for (const v1::PastOperation& operation : history.operations()) add(trace, tracks, operation);
    next = tracks.next();
  }
  return trace.text();
}

}  // namespace amem::ctl
