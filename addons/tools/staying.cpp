#include "addons/tools/staying.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "client/ctl/views/device_names.h"
#include "client/ctl/views/format.h"

namespace amem::ctl {
namespace {

constexpr std::size_t kPartsNamed = 8;  // a rank on each GPU of a node

struct StayReason {
  std::string_view kind;
  const char* check;
  const char* what;
  const char* why;
  const char* remedy;
};

constexpr const char* kOutside = "the scope does not include it";
constexpr const char* kUseHeap = "Start the job with `amemctl run --scope heap`";
constexpr const char* kPassed =
    "the program allocated it within amem.unbrokered, as compressible memory, or without amemd";
constexpr const char* kAllocateInside =
    "Let the program allocate it outside amem.unbrokered, not compressible, and while amemd runs";

constexpr StayReason kReasons[] = {
    {"pool", "stream-ordered", "the driver's stream-ordered pools",
     "the scope does not include it, other processes may import the pool's memory, or the program "
     "allocated it within amem.unbrokered or without amemd",
     "Start the job with `amemctl run --scope heap`, and let the program create pools without "
     "handle types; or pause with --deep"},
    {"graph", "graph", "memory that CUDA graphs own", "the driver allocates it for the graphs",
     "Allocate before a capture and not during it"},
    {"managed", "managed", "managed memory", "the driver moves it between host and GPU",
     "Use cudaMalloc instead of cudaMallocManaged (llama.cpp: unset "
     "GGML_CUDA_ENABLE_UNIFIED_MEMORY; JAX: unset TF_FORCE_UNIFIED_MEMORY)"},
    {"array", "array", "CUDA arrays", "the driver shares no handle of an array's memory",
     "Use textures of linear memory instead of arrays"},
    {"device", "scope", "memory of cudaMalloc", kOutside, kUseHeap},
    {"vmm", "scope", "memory of cuMemCreate", kOutside, kUseHeap},
};

/// A kind of a newer shim's, too, is named.
StayReason reason_for(std::string_view kind) {
  const auto* const reason =
      std::find_if(std::begin(kReasons), std::end(kReasons),
                   [&](const StayReason& each) { return each.kind == kind; });
  if (reason != std::end(kReasons)) return *reason;
  return {kind, "other", "other memory", "amem does not broker it", "Let the job free it"};
}

std::string name_of(const v1::RankInfo& rank) {
  return "rank " +
         (rank.rank() >= 0 ? std::to_string(rank.rank()) : "#" + std::to_string(rank.id())) +
         " (pid " + std::to_string(rank.pid()) + ")";
}

/// Several users may have a group of one name.
using GroupKey = std::pair<std::string, std::uint32_t>;

GroupKey group_of(const v1::RankInfo& rank) { return {rank.group(), rank.uid()}; }

/// The scope heap shows by memory of that tag.
std::set<GroupKey> groups_of_heap(const v1::ListRanksResponse& ranks) {
  std::set<GroupKey> groups;
  for (const v1::RankInfo& rank : ranks.ranks())
    for (const v1::TagUsage& tag : rank.tags())
      if (tag.tag() == "heap") groups.insert(group_of(rank));
  return groups;
}

/// As commands take them.
std::map<GroupKey, std::string> group_names(const v1::ListRanksResponse& ranks) {
  std::map<GroupKey, std::string> names;
  std::map<std::string, std::set<std::uint32_t>> owners;
  for (const v1::RankInfo& rank : ranks.ranks()) owners[rank.group()].insert(rank.uid());
  for (const auto& [name, uids] : owners)
    for (const std::uint32_t uid : uids)
      names[{name, uid}] = uids.size() > 1 ? name + "@" + std::to_string(uid) : name;
  return names;
}

}  // namespace

std::vector<Staying> what_stays(const v1::ListRanksResponse& ranks) {
  const std::set<GroupKey> heap = groups_of_heap(ranks);
  const std::map<GroupKey, std::string> names = group_names(ranks);
  std::map<std::pair<GroupKey, std::string>, Staying> found;
  for (const v1::RankInfo& rank : ranks.ranks()) {
    for (const v1::UnbrokeredUsage& usage : rank.unbrokered()) {
      if (usage.host()) continue;
      StayReason reason = reason_for(usage.kind());
      if (reason.why == kOutside && heap.contains(group_of(rank)))
        reason = {reason.kind, "unbrokered", reason.what, kPassed, kAllocateInside};
      Staying& staying = found[{group_of(rank), reason.check}];
      staying.group = names.at(group_of(rank));
      staying.check = reason.check;
      staying.what = staying.parts.empty() || staying.what == reason.what ? reason.what : "memory";
      staying.why = reason.why;
      staying.remedy = reason.remedy;
      staying.bytes += usage.bytes();
      staying.parts.push_back(
          {name_of(rank), rank.pid(), usage.uuid(), usage.kind(), usage.bytes()});
    }
  }
  std::vector<Staying> list;
  for (auto& [key, staying] : found) {
    if (staying.bytes < kWorthNaming) continue;
    std::stable_sort(staying.parts.begin(), staying.parts.end(),
                     [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
    list.push_back(std::move(staying));
  }
  std::stable_sort(list.begin(), list.end(),
                   [](const Staying& a, const Staying& b) { return a.bytes > b.bytes; });
  return list;
}

std::string text_of(const Staying& staying) {
  DeviceNames names;
  std::set<std::string> kinds;
  for (const Staying::Part& part : staying.parts) {
    names.add(part.uuid);
    kinds.insert(part.kind);
  }
  std::string text = format_bytes(staying.bytes) + " of " + staying.what + " stays on the GPU: ";
  const std::size_t named = std::min(staying.parts.size(), kPartsNamed);
  for (std::size_t i = 0; i < named; ++i) {
    const Staying::Part& part = staying.parts[i];
    text += (i > 0 ? ", " : "") + part.rank + " on " + printable(names(part.uuid)) + " " +
            format_bytes(part.bytes) +
            (kinds.size() > 1 ? " (" + printable(part.kind) + ")" : std::string());
  }
  if (const std::size_t more = staying.parts.size() - named; more > 0)
    text +=
        ", and " + std::to_string(more) + " more (amemctl ranks " + printable(staying.group) + ")";
  return text;
}

}  // namespace amem::ctl
