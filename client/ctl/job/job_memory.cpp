#include "client/ctl/job/job_memory.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "client/ctl/job/process_tree.h"

namespace amem::ctl {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLooksAgain{100};    // while somebody else's operation is under way
constexpr milliseconds kTriesAgain{1'000};  // what was refused
/// Somebody else's operations on the group, one after the other.
constexpr int kMostTries = 600;

bool moves(const v1::GroupInfo& group) {
  return group.state() == v1::GROUP_STATE_PAUSING || group.state() == v1::GROUP_STATE_RESUMING;
}

/// The tags that the job has paused itself, all of their memory.
std::set<std::string> offloaded(const v1::GroupInfo& group) {
  std::set<std::string> tags;
  for (const v1::TagUsage& tag : group.tags())
    if (tag.allocated_bytes() > 0 && tag.resident_bytes() == 0) tags.insert(tag.tag());
  return tags;
}

}  // namespace

void JobMemory::cancel() {
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
  }
  changed_.notify_all();
  broker_.cancel();
}

void JobMemory::allow() {
  const std::lock_guard lock(mutex_);
  cancelled_ = false;
  broker_.allow();
}

bool JobMemory::sleep(milliseconds time) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, time, [this] { return cancelled_; });
}

Result<std::map<std::string, v1::GroupInfo>> JobMemory::groups() {
  const auto all = broker_.groups();
  if (!all.ok()) return all.status();
  const auto ranks = broker_.ranks("");
  if (!ranks.ok()) return ranks.status();
  const std::set<pid_t> job = below(::getpid(), read_parents());
  std::set<std::string> names;
  for (const v1::RankInfo& rank : ranks.value().ranks())
    if (job.contains(static_cast<pid_t>(rank.pid()))) names.insert(rank.group());
  // A broker outside this PID namespace knows the processes by other numbers.
  if (names.empty()) names.insert(group_);
  std::map<std::string, v1::GroupInfo> found;
  for (const v1::GroupInfo& group : all.value().groups())
    if (names.contains(group.name())) found.emplace(group.address(), group);
  return found;
}

Status JobMemory::pause() {
  for (int tries = 0; tries < kMostTries; ++tries) {
    const auto found = groups();
    if (!found.ok()) return found.status();
    client::Groups runs;
    bool waits = false;
    for (const auto& [address, group] : found.value()) {
      waits = waits || moves(group);
      if (group.state() == v1::GROUP_STATE_RUNNING || group.partial()) runs.push_back(address);
    }
    if (runs.empty() && !waits) return {};
    if (!waits) {
      for (const std::string& address : runs)  // an operation may go on after an error here
        paused_.insert_or_assign(address, offloaded(found.value().at(address)));
      Status status = broker_.pause(runs, {}, 0, [](const v1::Progress&) { return true; });
      if (status.ok()) continue;  // and looks whether there are more
      // Somebody else, such as the parent of another rank, may have begun it meanwhile, and resumes
      // it, too.
      const bool others =
          status.code() == Code::kFailedPrecondition || status.code() == Code::kAborted;
      if (others)
        for (const std::string& address : runs) paused_.erase(address);
      if (!others || tries > 0) return status;
    }
    if (!sleep(kLooksAgain)) return {Code::kCancelled, "interrupted"};
  }
  return {Code::kDeadlineExceeded, "other operations on the group are under way for too long"};
}

Status JobMemory::resume() {
  std::string said;
  while (!paused_.empty()) {
    Status status;
    if (const auto all = broker_.groups(); all.ok()) {
      std::map<std::string, std::set<std::string>> left;
      bool waits = false;
      for (const v1::GroupInfo& group : all.value().groups()) {
        const auto ours = paused_.find(group.address());
        if (ours == paused_.end() || group.state() == v1::GROUP_STATE_RUNNING) continue;
        left.insert(*ours);
        waits = waits || moves(group);
      }
      paused_ = left;
      if (left.empty()) break;
      if (!waits) {
        // Together those that are resumed in the same way, which are all in most jobs.
        const std::set<std::string>& stay = left.begin()->second;
        client::Groups groups;
        for (const auto& [address, tags] : left)
          if (tags == stay) groups.push_back(address);
        client::Choice what;
        what.except = {stay.begin(), stay.end()};
        status = broker_.resume(groups, what, 0, [](const v1::Progress&) { return true; });
        if (status.ok()) continue;
      }
    } else {
      status = all.status();
    }
    if (!status.ok() && status.code() != Code::kCancelled && status.text() != said) {
      said = status.text();
      say_("the GPU memory stays paused: " + said + ". amemctl tries again");
    }
    if (!sleep(status.ok() ? kLooksAgain : kTriesAgain)) return {Code::kCancelled, "interrupted"};
  }
  return {};
}

}  // namespace amem::ctl
