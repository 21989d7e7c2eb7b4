// JobMemory: the GPU memory of a command and of all that it has started. Pauses and resumes the
// groups of the ranks among them.
//
// One thread calls it at a time; cancel() comes from any.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "client/core/control_client.h"
#include "common/status.h"

namespace amem::ctl {

class JobMemory {
 public:
  /// `broker` outlives this object. `group`: the whole name of the one that the command joins, for
  /// a broker that sees other numbers of its processes. `say` gets a line for people.
  using Say = std::function<void(const std::string& line)>;
  JobMemory(client::ControlClient& broker, std::string group, Say say)
      : broker_(broker), group_(std::move(group)), say_(std::move(say)) {}

  /// Pauses each group that has a rank among this process's descendants, and waits where somebody
  /// else pauses or resumes it. OK: none of them has memory on the GPUs, or there are none.
  /// kCancelled: cancel().
  Status pause();
  /// Resumes what pause() has paused, without what the job had paused before, until all of it runs
  /// or has gone. What stands against it is said, and it tries again without end. kCancelled:
  /// cancel(); then what is left is resumed by the next call.
  Status resume();
  /// Whether resume() has anything to do.
  bool paused() const { return !paused_.empty(); }

  /// Ends the call under way; the operation that it has begun goes on.
  void cancel();
  /// From now on calls work again.
  void allow();

 private:
  /// Those of this job, by address.
  Result<std::map<std::string, v1::GroupInfo>> groups();
  /// False: cancelled.
  bool sleep(std::chrono::milliseconds time);

  client::ControlClient& broker_;
  const std::string group_;
  const Say say_;
  // By address: the tags that a resume leaves paused, as the job has paused them itself.
  std::map<std::string, std::set<std::string>> paused_;
  std::mutex mutex_;  // guards cancelled_
  std::condition_variable changed_;
  bool cancelled_ = false;
};

}  // namespace amem::ctl
