#include "client/ctl/conclusions/waiting.h"

#include <nlohmann/json.hpp>

#include "client/core/json.h"
#include "client/ctl/conclusions/groups.h"
#include "client/ctl/views/format.h"
#include "client/ctl/views/views.h"

namespace amem::ctl {
namespace {

std::string with_ranks(std::uint32_t count) {
  return " with " + std::to_string(count) + (count == 1 ? " rank" : " ranks");
}

bool operates(const v1::GroupInfo& group) {
  return group.state() == v1::GROUP_STATE_PAUSING || group.state() == v1::GROUP_STATE_RESUMING;
}

bool meets(const v1::GroupInfo& group, const WaitTarget& awaited) {
  switch (awaited.goal) {
    case Goal::kRunning:
      return group.state() == v1::GROUP_STATE_RUNNING && group.rank_count() >= awaited.ranks;
    case Goal::kPaused:
      return group.state() == v1::GROUP_STATE_PAUSED;
    case Goal::kGone:
      break;
  }
  return false;
}

/// Returns what whoever waits can do about a group that is not as they want it.
std::string remedy(const v1::GroupInfo& group, const WaitTarget& awaited) {
  const std::string& name = awaited.group;
  if (operates(group)) return "`amemctl ranks " + name + "` shows which ranks the broker waits for";
  if (awaited.goal == Goal::kGone)
    return "`amemctl ranks " + name + "` lists the processes that must end";
  if (awaited.goal == Goal::kPaused) return "`amemctl pause " + name + "` pauses it";
  if (group.state() == v1::GROUP_STATE_PAUSED) return "`amemctl resume " + name + "` resumes it";
  return "`amemctl ranks " + name + "` lists them";
}

std::string awaited_text(const WaitTarget& awaited) {
  switch (awaited.what) {
    case WaitFor::kIdle:
      return "all operations to end";
    case WaitFor::kPool:
      return "the pool to be filled";
    case WaitFor::kGroup:
      break;
  }
  const std::string group = "group " + awaited.group;
  if (awaited.goal == Goal::kPaused) return group + " to be paused";
  if (awaited.goal == Goal::kGone) return group + " to be gone";
  return group + " to run" + (awaited.ranks > 1 ? with_ranks(awaited.ranks) : "");
}

std::string json_of_group(const std::string& name, const std::string& state, std::uint32_t ranks) {
  return client::text_of({{"group", name}, {"state", state}, {"ranks", ranks}});
}

}  // namespace

Sight see_group(const v1::ListGroupsResponse& groups, const WaitTarget& awaited) {
  const v1::GroupInfo* group = group_called(groups.groups(), awaited.group);
  if (group == nullptr) {
    if (awaited.goal == Goal::kGone)
      return {
          true, {}, "there is no group " + awaited.group, json_of_group(awaited.group, "gone", 0)};
    return {false,
            {},
            "there is no such group; `amemctl doctor --group " + awaited.group +
                " -- COMMAND` says whether the processes of a command would join it",
            {}};
  }
  const std::string is = state_text(*group) + with_ranks(group->rank_count());
  if (meets(*group, awaited))
    return {true,
            {},
            "group " + awaited.group + " is " + is,
            json_of_group(awaited.group, state_text(*group), group->rank_count())};
  return {false, {}, "it is " + is + "; " + remedy(*group, awaited), {}};
}

Sight see_idle(const v1::ListGroupsResponse& groups) {
  std::string under_way;
  for (const v1::GroupInfo& group : groups.groups())
    if (operates(group))
      under_way +=
          (under_way.empty() ? "" : ", ") + ("group " + group.name()) + " is " + state_text(group);
  if (under_way.empty()) return {true, {}, "no operation is under way", "{\"idle\":true}"};
  return {false, {}, under_way + "; `amemctl ranks` shows which ranks the broker waits for", {}};
}

Sight see_pool(const v1::PoolStatus& pool) {
  const std::uint64_t reserve = pool.configured_bytes() - pool.elastic_bytes();
  const std::string size = format_bytes(reserve);
  if (pool.ready_bytes() >= reserve)
    return {true,
            {},
            "the pool has all of its " + size,
            client::text_of({{"ready_bytes", pool.ready_bytes()},
                             {"configured_bytes", pool.configured_bytes()}})};
  std::string found = "it has " + format_bytes(pool.ready_bytes()) + " of " + size;
  if (pool.error().empty()) return {false, {}, found + " so far. Wait longer with --timeout", {}};
  // amemd does not go on after that until it is restarted.
  found += " and cannot get more: " + pool.error() +
           ". Free host memory, or set a smaller pool.size, then restart amemd";
  return {false, {Code::kResourceExhausted, found}, found, {}};
}

std::chrono::milliseconds default_patience(WaitFor what) {
  // An operation is a matter of seconds. A job has to start, and a large pool to be pinned.
  return what == WaitFor::kIdle ? std::chrono::seconds(30) : std::chrono::minutes(5);
}

std::string waited_in_vain(const WaitTarget& awaited, std::chrono::milliseconds time,
                           const std::string& found) {
  const auto ms = time.count();
  const std::string passed =
      ms % 1000 == 0 ? std::to_string(ms / 1000) + " s" : std::to_string(ms) + " ms";
  return "waited " + passed + " for " + awaited_text(awaited) + ": " + found;
}

}  // namespace amem::ctl
