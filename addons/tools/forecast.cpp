#include "addons/tools/forecast.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "client/core/json.h"
#include "client/ctl/conclusions/groups.h"
#include "client/ctl/views/format.h"
#include "client/ctl/views/views.h"

namespace amem::ctl {
namespace {

bool names(const std::vector<std::string>& tags, const std::string& tag) {
  return std::find(tags.begin(), tags.end(), tag) != tags.end();
}

std::uint64_t less(std::uint64_t from, std::uint64_t what) { return from - std::min(from, what); }

bool is_chosen(const CommandLine& o, const std::string& tag) {
  if (!o.tags.empty()) return names(o.tags, tag);
  return !names(o.except, tag);
}

bool is_whole(const CommandLine& o) { return o.tags.empty() && o.except.empty(); }

/// One that the pause finds as it must be: what is paused can be made deep.
Result<const v1::GroupInfo*> group_to_pause(const v1::NodeStatus& node, const std::string& name,
                                            bool deep) {
  const v1::GroupInfo* group = group_called(node.groups(), name);
  if (group == nullptr) return no_such_group(name);
  if (group->state() == v1::GROUP_STATE_RUNNING || group->partial()) return group;
  if (deep && group->state() == v1::GROUP_STATE_PAUSED && !group->deep()) return group;
  return Status(Code::kFailedPrecondition,
                "group " + name + " is " + state_text(*group) +
                    ". Only a running group can be paused; `amemctl groups " + name +
                    "` shows more");
}

/// As the broker refuses them.
Status check_chosen_tags(const CommandLine& o, const v1::GroupInfo& group) {
  std::string there;
  for (const v1::TagUsage& usage : group.tags())
    there += (there.empty() ? "" : ", ") + printable(usage.tag());
  for (const auto* list : {&o.tags, &o.except, &o.discard})
    for (const std::string& tag : *list) {
      const bool any = list == &o.except && (tag == "nccl" || tag == "heap");
      const bool has = std::any_of(group.tags().begin(), group.tags().end(),
                                   [&](const v1::TagUsage& usage) { return usage.tag() == tag; });
      if (!has && !any)
        return {Code::kNotFound, "group " + group.name() + " has no memory of tag " + tag +
                                     "; its tags are " + there};
    }
  for (const std::string& tag : o.discard) {
    if (tag == "nccl" || !is_chosen(o, tag))
      return {Code::kInvalidArgument, "tag " + tag + " cannot be dropped: " +
                                          (tag == "nccl" ? "NCCL's bytes are always kept"
                                                         : "the pause does not include it") +
                                          ". Remove it from --discard"};
    if (tag == "heap" && !o.force)
      return {Code::kInvalidArgument,
              "the job would lose the bytes of tag heap: all memory that no region names, such as "
              "weights and optimizer state. If it can lose all of them, pass --force"};
  }
  return {};
}

/// A library that is linked to a driver call that amem does not know keeps its group from pausing.
Status check_calls(const v1::GroupInfo& group, const v1::ListRanksResponse& ranks) {
  for (const v1::RankInfo& rank : ranks.ranks()) {
    if (rank.group() != group.name()) continue;
    for (const v1::UnknownCall& call : rank.unknown_calls())
      if (call.fate() == "linked")
        return {Code::kFailedPrecondition,
                "group " + group.name() + " cannot be paused: rank " + std::to_string(rank.rank()) +
                    " (pid " + std::to_string(rank.pid()) + ") has loaded " + call.library() +
                    ". This library is linked to " + call.name() +
                    ", a driver call that amem does not know. `amemctl ranks " + group.name() +
                    "` lists such calls"};
  }
  return {};
}

/// The bytes, by what becomes of them.
GroupForecast bytes_of(const CommandLine& o, const v1::GroupInfo& group) {
  GroupForecast sum;
  sum.group = group.name();
  sum.deep = o.deep;
  if (is_whole(o)) sum.unbrokered_bytes = group.unbrokered_bytes();
  std::map<std::string, std::uint64_t> open;
  for (const v1::GuestUsage& guest : group.guests())
    if (!guest.owner().empty()) open[guest.tag()] += guest.bytes();
  for (const v1::TagUsage& tag : group.tags()) {
    if (!is_chosen(o, tag.tag())) continue;
    const std::uint64_t pinned = std::min(tag.pinned_bytes(), tag.resident_bytes());
    // Several guests may have opened the same allocation.
    const std::uint64_t guests = std::min(open[tag.tag()], tag.resident_bytes() - pinned);
    const std::uint64_t leaves = tag.resident_bytes() - pinned - guests;
    // What an earlier pause has dropped is among the bytes that the policies drop.
    const std::uint64_t dropped =
        names(o.discard, tag.tag())
            ? leaves
            : std::min(leaves, less(tag.discard_bytes(), tag.dropped_bytes()));
    sum.pinned_bytes += pinned;
    sum.guest_bytes += guests;
    sum.dropped_bytes += dropped;
    sum.copied_bytes += leaves - dropped;
  }
  return sum;
}

std::uint64_t save_us(const v1::PastOperation& operation) {
  for (const v1::PhaseTime& time : operation.times())
    if (time.phase() == "save") return time.us();
  return 0;
}

/// A pause of all of a group's memory that waited for no other group, and for no checkpoint.
bool is_plain_pause(const v1::PastOperation& operation) {
  return operation.operation() == "pause" && operation.code() == 0 && !operation.swap() &&
         !operation.deep() && operation.tags().empty();
}

const v1::PastOperation* last_pause(const std::string& group,
                                    const v1::ListHistoryResponse& history) {
  const v1::PastOperation* last = nullptr;
  for (const v1::PastOperation& each : history.operations())
    if (each.group() == group && is_plain_pause(each)) last = &each;
  return last;
}

std::uint64_t unchanged_bytes(const v1::PastOperation& pause) {
  std::uint64_t bytes = 0;
  for (const v1::TagSave& save : pause.saves()) bytes += save.unchanged_bytes();
  return bytes;
}

/// Bytes of the chosen tags that a pause need not copy, if as much of each tag is unchanged as at
/// the last pause.
std::uint64_t still_unchanged(const CommandLine& o, const v1::GroupInfo& group,
                              const v1::PastOperation& last) {
  std::uint64_t bytes = 0;
  for (const v1::TagSave& save : last.saves()) {
    if (!is_chosen(o, save.tag()) || save.compared_bytes() == 0) continue;
    const double share =
        static_cast<double>(save.unchanged_bytes()) / static_cast<double>(save.compared_bytes());
    for (const v1::TagUsage& tag : group.tags())
      if (tag.tag() == save.tag())
        bytes += static_cast<std::uint64_t>(static_cast<double>(tag.retained_bytes()) * share);
  }
  return bytes;
}

/// From the group's last pause (null: there is none), else from what the node's others copied in
/// their time.
void estimate(const CommandLine& o, const v1::GroupInfo& group,
              const v1::ListHistoryResponse& history, const v1::PastOperation* last,
              GroupForecast& f) {
  if (last != nullptr)
    f.unchanged_bytes = std::min(f.copied_bytes, still_unchanged(o, group, *last));
  const std::uint64_t copies = f.copied_bytes - f.unchanged_bytes;
  // If others have taken the space since, a pause copies also what the last one did not.
  const bool alike = last != nullptr && f.unchanged_bytes >= unchanged_bytes(*last) / 8 * 7;
  if (alike && is_whole(o)) {
    const std::uint64_t save = std::min(save_us(*last), last->us());
    // It may have less to copy than it had then. Whether it has more depends on the zeros in it.
    const double share =
        last->bytes() > 0
            ? std::min(1.0, static_cast<double>(copies) / static_cast<double>(last->bytes()))
            : 1.0;
    f.us = last->us() - save + static_cast<std::uint64_t>(static_cast<double>(save) * share);
    f.rests_on = "its last pause took " + format_micros(last->us()) + " and copied " +
                 format_bytes(last->bytes());
    return;
  }
  std::uint64_t bytes = 0;
  std::uint64_t copying = 0;
  std::uint64_t rest = 0;
  std::uint64_t count = 0;
  for (const v1::PastOperation& each : history.operations()) {
    if (!is_plain_pause(each) || each.bytes() == 0 || save_us(each) == 0) continue;
    if (unchanged_bytes(each) > each.bytes() / 8) continue;  // its save hardly copied
    bytes += each.bytes();
    copying += save_us(each);
    rest += less(each.us(), save_us(each));
    ++count;
  }
  if (count == 0) return;
  const double rate = static_cast<double>(bytes) / static_cast<double>(copying);  // MB/s
  f.us = rest / count + static_cast<std::uint64_t>(static_cast<double>(copies) / rate);
  char text[64];
  std::snprintf(text, sizeof text, "%.3g GB/s", rate / 1000);
  f.rests_on = std::to_string(count) + (count == 1 ? " pause" : " pauses") +
               " on this node copied at " + text;
}

const v1::PoolShare* share_of(const v1::PoolStatus& pool, const std::string& owner) {
  for (const v1::PoolShare& share : pool.shares())
    if (share.owner() == owner) return &share;
  return nullptr;
}

/// Which owners that have none of these groups have how much of the pool, as far as amemd tells.
std::string pool_users(const v1::PoolStatus& pool,
                       const std::map<std::string, std::uint64_t>& by_owner) {
  std::string text;
  std::uint64_t told = 0;
  for (const v1::PoolShare& share : pool.shares()) {
    told += share.segment_bytes();
    if (by_owner.contains(share.owner()) || share.segment_bytes() == 0) continue;
    text += (text.empty() ? "" : ", ") + share.owner() + " keeps " +
            format_bytes(share.segment_bytes());
  }
  const std::uint64_t rest = less(pool.ready_bytes(), told + pool.unowned_bytes());
  if (rest > 0) text += (text.empty() ? "" : ", ") + ("other owners keep " + format_bytes(rest));
  return text;
}

/// What the owners can have of the pool for what their groups need: what is free in their segments,
/// and as many whole segments as nobody has and their quotas allow.
Status limit(const v1::NodeStatus& node, const std::map<std::string, std::uint64_t>& by_owner,
             Forecast& forecast) {
  const v1::PoolStatus& pool = node.pool();
  forecast.limit = "the pool";
  // What is not pinned yet comes last.
  const std::uint64_t to_come =
      pool.elastic_bytes() > 0 ? less(pool.configured_bytes(), pool.ready_bytes()) : 0;
  std::uint64_t unowned = pool.unowned_bytes() + to_come;
  std::uint64_t at_most = unowned;  // if they need so much
  std::uint64_t allowed = 0;
  std::uint64_t had = 0;  // of what they need
  for (const auto& [owner, needs] : by_owner) {
    const v1::PoolShare* share = share_of(pool, owner);
    if (share == nullptr)
      return {Code::kUnimplemented,
              "amemd " + node.version() +
                  " is older than this amemctl, and does not say how much of the pool an owner can "
                  "have. `amemctl upgrade` starts the one that is installed"};
    const std::uint64_t piece = std::max<std::uint64_t>(pool.segment_bytes(), 1);
    const std::uint64_t whole = (less(needs, share->free_bytes()) + piece - 1) / piece * piece;
    const std::uint64_t drawn =
        std::min({whole, unowned, less(share->available_bytes(), share->free_bytes())});
    unowned -= drawn;
    had += std::min(needs, share->free_bytes() + drawn);
    at_most += share->free_bytes();
    allowed += share->available_bytes();
    if (share->available_bytes() <
        std::min(needs, share->free_bytes() + pool.unowned_bytes() + to_come))
      forecast.limit = "the quota of " + owner;
  }
  forecast.to_pin_bytes = less(to_come, unowned);
  const bool fits = had == forecast.copied_bytes;
  forecast.free_bytes = fits ? std::min(at_most, allowed) : had;
  if (!fits && forecast.limit == "the pool") forecast.pool_users = pool_users(pool, by_owner);
  return {};
}

std::string stays(const GroupForecast& f) {
  std::string text;
  const auto add = [&text](std::uint64_t bytes, const char* why) {
    if (bytes > 0) text += (text.empty() ? "" : ", ") + format_bytes(bytes) + why;
  };
  if (!f.deep) add(f.unbrokered_bytes, " that is not brokered");
  add(f.pinned_bytes, " registered with a NIC");
  add(f.guest_bytes, " that other groups have open, unless the pause fails because of it");
  return text;
}

}  // namespace

Result<Forecast> forecast_pause(const CommandLine& o, const Known& known) {
  Forecast forecast;
  std::map<std::string, std::uint64_t> by_owner;
  bool measured = true;
  for (const std::string& name : o.groups) {
    const auto found = group_to_pause(known.node, name, o.deep);
    if (!found.ok()) return found.status();
    const v1::GroupInfo& group = *found.value();
    if (Status status = check_chosen_tags(o, group); !status.ok()) return status;
    if (Status status = check_calls(group, known.ranks); !status.ok()) return status;
    GroupForecast of = bytes_of(o, group);
    if (of.guest_bytes > 0 && o.guests == v1::GUEST_POLICY_REFUSE)
      return Status(Code::kFailedPrecondition,
                    "group " + name + " would not be paused: other groups have " +
                        format_bytes(of.guest_bytes) + " of it open. `amemctl groups " + name +
                        "` names them. --guests pin leaves this memory on the GPU");
    const v1::PastOperation* last = last_pause(group.name(), known.history);
    estimate(o, group, known.history, last, of);
    forecast.copied_bytes += of.copied_bytes;
    by_owner[group.owner()] += of.copied_bytes;
    if (last != nullptr && is_whole(o))
      forecast.last_bytes += last->bytes() + unchanged_bytes(*last);
    else
      measured = false;
    forecast.groups.push_back(std::move(of));
  }
  if (Status status = limit(known.node, by_owner, forecast); !status.ok()) return status;
  if (forecast.copied_bytes > forecast.free_bytes)
    forecast.fit =
        measured && forecast.last_bytes <= forecast.free_bytes ? Fit::kLikely : Fit::kUnsure;
  if (!measured) forecast.last_bytes = 0;
  return forecast;
}

std::string forecast_view(const Forecast& forecast) {
  std::string text;
  for (const GroupForecast& f : forecast.groups) {
    const std::string name = printable(f.group) + ": ";
    text += name + "a pause would free " + format_bytes(f.copied_bytes + f.dropped_bytes) +
            " of GPU memory: it would copy at most " + format_bytes(f.copied_bytes) + " and drop " +
            format_bytes(f.dropped_bytes) + "\n";
    if (f.unchanged_bytes > 0)
      text += name + "needs no copy of about " + format_bytes(f.unchanged_bytes) +
              ", if as little has changed as before the last pause\n";
    text +=
        name +
        (f.us == 0 ? std::string("the duration is unknown, because no pause here shows how long "
                                 "such copies take. `amemctl bench` measures some pauses")
                   : "takes about " + format_micros(f.us) + ": " + f.rests_on) +
        "\n";
    const std::string what = stays(f);
    if (!what.empty()) text += name + "stays on the GPU: " + what + "\n";
    if (f.deep && !what.empty())
      text +=
          name + "would not become deep, because that requires that all brokered memory leaves\n";
    else if (f.deep)
      text += name + "deep: its processes' own memory leaves, too: contexts, kernels, graphs" +
              (f.unbrokered_bytes > 0
                   ? " and " + format_bytes(f.unbrokered_bytes) + " that is not brokered"
                   : "") +
              "\n";
  }
  if (forecast.to_pin_bytes > 0)
    text += "amemd would first pin " + format_bytes(forecast.to_pin_bytes) +
            " of host memory, while the job runs on. `amemctl prepare` does that before\n";
  const std::string has = forecast.limit + " has " + format_bytes(forecast.free_bytes) + " free";
  const std::string needs = "the pause needs at most " + format_bytes(forecast.copied_bytes);
  switch (forecast.fit) {
    case Fit::kCertain:
      return text + "fits: " + has + ", and " + needs + "\n";
    case Fit::kLikely:
      return text + "fits if the memory has as many zeros as at the last pause: " + has + ", " +
             needs + ", and the last pause needed " + format_bytes(forecast.last_bytes) + "\n";
    case Fit::kUnsure:
      break;
  }
  return text + "may not fit: " + has + ", and " + needs + " (blocks of zeros need no space). " +
         (forecast.pool_users.empty()
              ? ""
              : "Of the pool, " + forecast.pool_users +
                    ". An owner keeps its part until its last process ends. ") +
         "Resume or end a paused group, or restart amemd with a larger pool.size\n";
}

std::string to_json(const Forecast& forecast) {
  client::Json groups = client::Json::array();
  for (const GroupForecast& f : forecast.groups)
    groups.push_back({{"group", f.group},
                      {"copied_bytes", f.copied_bytes},
                      {"unchanged_bytes", f.unchanged_bytes},
                      {"dropped_bytes", f.dropped_bytes},
                      {"pinned_bytes", f.pinned_bytes},
                      {"guest_bytes", f.guest_bytes},
                      {"unbrokered_bytes", f.unbrokered_bytes},
                      {"deep", f.deep},
                      {"us", f.us},
                      {"rests_on", f.rests_on}});
  const char* fits = forecast.fit == Fit::kCertain  ? "yes"
                     : forecast.fit == Fit::kLikely ? "likely"
                                                    : "unsure";
  return client::text_of({{"dry_run", true},
                          {"fits", fits},
                          {"copied_bytes", forecast.copied_bytes},
                          {"free_bytes", forecast.free_bytes},
                          {"to_pin_bytes", forecast.to_pin_bytes},
                          {"limit", forecast.limit},
                          {"keepers", forecast.pool_users},
                          {"groups", groups}});
}

}  // namespace amem::ctl
