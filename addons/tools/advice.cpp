#include "addons/tools/advice.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "client/core/json.h"
#include "client/ctl/views/format.h"

namespace amem::ctl {
namespace {

constexpr std::uint64_t kMiB = 1ULL << 20U;
constexpr std::uint64_t kGiB = 1ULL << 30U;

// Less than that is copied, or stays, without anybody noticing.
constexpr std::uint64_t kWorthIt = kWorthNaming;
// Most of NCCL's buffers is zeros as it is, which no pause copies.
constexpr std::uint64_t kMuchOfNccl = kGiB;
// PyTorch's expandable segments have pieces of 20 MiB. Those that amem makes for a heap are larger.
constexpr std::uint64_t kSmallPiece = 24 * kMiB;
constexpr std::uint64_t kManyPieces = 256;
constexpr std::uint64_t kLongQuiesceUs = 200'000;
constexpr std::size_t kAtMost = 5;

const v1::TagUsage* tag_of(const v1::GroupInfo& group, const std::string& tag) {
  for (const v1::TagUsage& usage : group.tags())
    if (usage.tag() == tag) return &usage;
  return nullptr;
}

/// Returns the bytes that are saved, if the group is paused; else the most that there can be.
std::uint64_t copied_of(const v1::GroupInfo& group, const v1::TagUsage& tag) {
  if (group.state() == v1::GROUP_STATE_PAUSED) return tag.saved_bytes();
  const std::uint64_t stays = tag.discard_bytes() + tag.pinned_bytes();
  return tag.allocated_bytes() - std::min(stays, tag.allocated_bytes());
}

using List = std::vector<Advice>;

void stays(const v1::ListRanksResponse& ranks, List& list) {
  for (const Staying& each : what_stays(ranks))
    list.push_back({each.check, each.bytes,
                    text_of(each) + ", because " + each.why + ". " + each.remedy, each.parts});
}

void cache(const v1::GroupInfo& group, List& list) {
  for (const v1::TagUsage& tag : group.tags()) {
    if (tag.tag().find("cache") == std::string::npos) continue;
    const std::uint64_t bytes = copied_of(group, tag);
    if (bytes < kWorthIt) continue;
    list.push_back({"discard", bytes,
                    format_bytes(bytes) + " of tag " + printable(tag.tag()) +
                        " is copied to the pool and back. If the job can rebuild this cache, "
                        "allocate it in `amem.region(TAG, keep=False)`"});
  }
}

void regions(const v1::GroupInfo& group, List& list) {
  const v1::TagUsage* heap = tag_of(group, "heap");
  if (heap == nullptr) return;
  for (const v1::TagUsage& tag : group.tags())
    if (tag.tag() != "heap" && tag.tag() != "nccl") return;  // somebody marks what it is for
  const std::uint64_t bytes = copied_of(group, *heap);
  if (bytes < kGiB) return;
  list.push_back({"tags", bytes,
                  format_bytes(bytes) +
                      " has only the tag heap, and a pause copies all of it. Allocate what the job "
                      "can rebuild, such as a KV cache, in `amem.region(TAG, keep=False)`"});
}

void pieces(const v1::GroupInfo& group, List& list) {
  const v1::TagUsage* heap = tag_of(group, "heap");
  if (heap == nullptr || heap->allocation_count() < kManyPieces ||
      heap->allocated_bytes() / heap->allocation_count() > kSmallPiece)
    return;
  list.push_back(
      {"pieces", heap->allocated_bytes(),
       format_bytes(heap->allocated_bytes()) + " of tag heap is in " +
           std::to_string(heap->allocation_count()) +
           " pieces, and a resume maps each of them separately. Remove expandable_segments from "
           "PYTORCH_CUDA_ALLOC_CONF, so that amem combines them"});
}

void scratch(const v1::GroupInfo& group, List& list) {
  const v1::TagUsage* nccl = tag_of(group, "nccl");
  if (nccl == nullptr) return;
  const bool paused = group.state() == v1::GROUP_STATE_PAUSED;
  const std::uint64_t bytes = copied_of(group, *nccl);
  if (bytes < (paused ? kWorthIt : kMuchOfNccl)) return;
  list.push_back(
      {"nccl-scratch", bytes,
       (paused ? format_bytes(bytes) : "up to " + format_bytes(bytes)) +
           " of NCCL's buffers is copied. Set AMEM_NCCL_SCRATCH=drop in the job's environment: a "
           "pause then drops the bytes that nobody reads after a collective"});
}

void nics(const v1::GroupInfo& group, List& list) {
  if (group.pinned_bytes() < kWorthIt) return;
  list.push_back({"pinned", group.pinned_bytes(),
                  format_bytes(group.pinned_bytes()) +
                      " is registered with a NIC and stays on the GPU. Let the job deregister it "
                      "before a pause, or register smaller buffers. `amemctl allocations " +
                      group.name() + " --json` names the ranks that pin it"});
}

void guests(const v1::GroupInfo& group, List& list) {
  std::uint64_t bytes = 0;
  std::set<std::string> names;
  for (const v1::GuestUsage& guest : group.guests()) {
    bytes += guest.bytes();
    names.insert(printable(guest.guest()));
  }
  if (bytes < kWorthIt) return;
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  list.push_back({"guests", bytes,
                  format_bytes(bytes) + " is open in " + text +
                      " and stays on the GPU. Let these jobs close it before the pause"});
}

/// It only made deep what was paused.
bool deepened(const v1::PastOperation& operation) {
  return operation.times_size() > 0 && operation.times(0).phase() == "detach";
}

const v1::PastOperation* last_pause(const v1::ListHistoryResponse& history) {
  const auto& all = history.operations();
  const auto last = std::find_if(all.rbegin(), all.rend(), [](const v1::PastOperation& each) {
    return each.operation() == "pause" && each.code() == 0 && !deepened(each);
  });
  return last != all.rend() ? &*last : nullptr;
}

/// Reports whether the pool still has, while the group runs, what the last pause has saved with
/// hashes.
void retained(const v1::GroupInfo& group, const v1::ListHistoryResponse& history, List& list) {
  const v1::PastOperation* const last = last_pause(history);
  if (last == nullptr || group.state() != v1::GROUP_STATE_RUNNING) return;
  for (const v1::TagSave& save : last->saves()) {
    const v1::TagUsage* const tag = tag_of(group, save.tag());
    if (tag == nullptr || !save.hashed() || save.kept_bytes() < kGiB) continue;
    const std::uint64_t bytes =
        save.kept_bytes() - std::min(save.kept_bytes(), tag->retained_bytes());
    if (bytes * 2 < save.kept_bytes()) continue;
    list.push_back({"retained", bytes,
                    "the pool had no free space for " + format_bytes(bytes) + " of tag " +
                        printable(save.tag()) +
                        " after the last resume, so the next pause copies all of it, changed or "
                        "not: a pool.size that is larger by that much lets pauses compare"});
  }
}

/// Reports whether the last pause mostly waited for the program.
void quiesce(const v1::ListHistoryResponse& history, List& list) {
  const v1::PastOperation* const last = last_pause(history);
  if (last == nullptr) return;
  for (const v1::PhaseTime& time : last->times()) {
    if (time.phase() != "quiesce" || time.us() < kLongQuiesceUs || time.us() * 2 < last->us())
      continue;
    list.push_back({"quiesce", 0,
                    "the last pause took " + format_micros(last->us()) + " and waited " +
                        format_micros(time.us()) +
                        " of it until the ranks were quiet. Pause between steps, when no long "
                        "kernel and no capture runs"});
    return;
  }
}

}  // namespace

std::vector<Advice> advice_for(const v1::GroupInfo& group, const v1::ListRanksResponse& ranks,
                               const v1::ListHistoryResponse& history) {
  List list;
  stays(ranks, list);
  cache(group, list);
  regions(group, list);
  pieces(group, list);
  scratch(group, list);
  nics(group, list);
  guests(group, list);
  retained(group, history, list);
  quiesce(history, list);
  std::stable_sort(list.begin(), list.end(),
                   [](const Advice& a, const Advice& b) { return a.bytes > b.bytes; });
  if (list.size() > kAtMost) list.resize(kAtMost);
  return list;
}

std::string advice_view(const v1::GroupInfo& group, const std::vector<Advice>& advice) {
  const std::string name = printable(group.name()) + ": ";
  std::string text;
  for (const Advice& each : advice) text += name + each.text + "\n";
  return !text.empty() ? text
                       : name + "nothing to advise: no large part of its " +
                             format_bytes(group.allocated_bytes()) +
                             " stays on the GPU or is copied without need\n";
}

std::string to_json(const v1::GroupInfo& group, const std::vector<Advice>& advice) {
  client::Json list = client::Json::array();
  for (const Advice& each : advice) {
    client::Json parts = client::Json::array();
    for (const Staying::Part& part : each.parts)
      parts.push_back({{"rank", part.rank},
                       {"pid", part.pid},
                       {"uuid", part.uuid},
                       {"kind", part.kind},
                       {"bytes", part.bytes}});
    list.push_back(
        {{"check", each.check}, {"bytes", each.bytes}, {"text", each.text}, {"parts", parts}});
  }
  return client::text_of({{"group", group.name()}, {"advice", list}});
}

}  // namespace amem::ctl
