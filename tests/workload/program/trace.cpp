#include "tests/workload/program/trace.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>

#include "tests/workload/base/failure.h"

namespace amem::workload {
namespace {

using Verb = TraceCall::Verb;

// The driver packs small reservations side by side, but keeps what it reserves for symmetric memory
// (several times the device's memory) far from them.
constexpr std::uint64_t kNeighbourhood = std::uint64_t{256} << 30U;

const std::map<std::string, Verb, std::less<>> kVerbs = {
    {"create", Verb::kCreate},   {"map", Verb::kMap},       {"access", Verb::kAccess},
    {"export", Verb::kExport},   {"import", Verb::kImport}, {"retain", Verb::kRetain},
    {"release", Verb::kRelease}, {"unmap", Verb::kUnmap},
};

template <typename Number>
bool Read(std::string_view text, int base, Number* number) {
  if (base == 16 && text.starts_with("0x")) text.remove_prefix(2);
  const auto end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *number, base);
  return error == std::errc() && stop == end;
}

bool ReadFlag(std::string_view text, bool* flag) {
  *flag = text == "1";
  return text == "0" || text == "1";
}

bool ReadLocation(std::string_view text, TraceCall* call) {
  const std::size_t colon = text.find(':');
  return colon != std::string_view::npos && Read(text.substr(0, colon), 10, &call->location) &&
         Read(text.substr(colon + 1), 10, &call->location_id);
}

bool ReadOwner(std::string_view text, TraceCall* call) {
  constexpr std::string_view kRank = "rank";
  return text.starts_with(kRank) && Read(text.substr(kRank.size()), 10, &call->owner);
}

/// False when the value makes no sense; fields that replaying does not need are skipped.
bool ReadField(std::string_view name, std::string_view value, TraceCall* call) {
  if (name == "n") return Read(value, 10, &call->bytes);
  if (name == "va") return Read(value, 16, &call->address);
  if (name == "off") return Read(value, 10, &call->offset);
  if (name == "vh") return Read(value, 16, &call->handle);
  if (name == "id") return Read(value, 16, &call->id);
  if (name == "owner") return ReadOwner(value, call);
  if (name == "rc") return Read(value, 10, &call->result);
  if (name == "loc") return ReadLocation(value, call);
  if (name == "dev") return Read(value, 10, &call->device);
  if (name == "hty") return Read(value, 10, &call->handle_types);
  if (name == "fl") return Read(value, 10, &call->access);
  if (name == "rdma") return ReadFlag(value, &call->rdma);
  if (name == "mine") return ReadFlag(value, &call->brokered);
  if (name == "imported") return ReadFlag(value, &call->imported);
  return true;
}

/// Nothing when the line is no memory call of NCCL. Sets `bad` to a field that makes no sense.
std::optional<TraceCall> ParseLine(const std::string& text, std::string* bad) {
  std::istringstream words(text);
  std::string word;
  words >> word;
  const auto verb = kVerbs.find(word);
  if (verb == kVerbs.end()) return std::nullopt;
  TraceCall call;
  call.verb = verb->second;
  while (words >> word) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos) continue;
    if (!ReadField(std::string_view(word).substr(0, equals),
                   std::string_view(word).substr(equals + 1), &call)) {
      *bad = word;
    }
  }
  return call;
}

[[noreturn]] void RefuseField(const std::string& path, std::size_t line, const std::string& field) {
  throw Failure(path + ":" + std::to_string(line) + ": cannot read " + field);
}

std::size_t FindTeardown(const std::vector<TraceCall>& calls) {
  std::size_t begin = calls.size();
  while (begin > 0) {
    const Verb verb = calls[begin - 1].verb;
    if (verb != Verb::kRetain && verb != Verb::kRelease && verb != Verb::kUnmap) break;
    --begin;
  }
  // What is released right behind its mapping belongs to that mapping: "handle released, mapping
  // lives on".
  while (begin < calls.size() && calls[begin].verb == Verb::kRelease) ++begin;
  return begin;
}

std::vector<TraceRange> FindSharedRanges(const Trace& trace) {
  std::map<std::uint64_t, std::uint64_t> mapped;  // address -> bytes, ever
  std::map<std::uint64_t, std::uint64_t> live;    // address -> handle, now
  std::multiset<std::uint64_t> handles;           // of live mappings
  std::set<std::uint64_t> second;                 // addresses of second mappings
  for (std::size_t i = 0; i < trace.teardown; ++i) {
    const TraceCall& call = trace.calls[i];
    if (call.verb == Verb::kMap) {
      if (handles.contains(call.handle)) second.insert(call.address);
      mapped[call.address] = std::max(mapped[call.address], call.bytes);
      live[call.address] = call.handle;
      handles.insert(call.handle);
    } else if (call.verb == Verb::kUnmap && live.contains(call.address)) {
      handles.erase(handles.find(live[call.address]));
      live.erase(call.address);
    }
  }

  std::vector<TraceRange> ranges;
  bool shared = false;
  TraceRange range;
  for (const auto& [address, bytes] : mapped) {
    if (range.end != 0 && address - range.end > kNeighbourhood) {
      if (shared) ranges.push_back(range);
      shared = false;
      range = {};
    }
    if (range.end == 0) range.begin = address;
    range.end = std::max(range.end, address + bytes);
    shared = shared || second.contains(address);
  }
  if (shared) ranges.push_back(range);
  return ranges;
}

}  // namespace

Trace ReadTrace(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw Failure("cannot read the trace " + path);
  Trace trace;
  std::string text;
  bool own_device_known = false;
  for (std::size_t line = 1; std::getline(file, text); ++line) {
    std::string bad;
    std::optional<TraceCall> call = ParseLine(text, &bad);
    if (!bad.empty()) RefuseField(path, line, bad);
    if (!call) {
      ++trace.ignored;
      continue;
    }
    call->line = line;
    // The program's own memory, not NCCL's: the trace says nothing more of it.
    if (call->verb == Verb::kCreate && call->location == 1 && !call->brokered &&
        call->result == 0) {
      ++trace.ignored;
      continue;
    }
    if (call->verb == Verb::kCreate && call->location == 1 && !own_device_known) {
      trace.device = call->location_id;
      own_device_known = true;
    }
    trace.calls.push_back(*call);
  }
  if (trace.calls.empty()) throw Failure(path + " holds no memory calls");
  trace.teardown = FindTeardown(trace.calls);
  trace.shared_ranges = FindSharedRanges(trace);
  return trace;
}

}  // namespace amem::workload
