// Operations: the pauses, resumes and swaps that operators have asked for, and who watches them.
//
// An operation goes on to its end whether or not its caller stays; a swap is a pause and then, when
// that has succeeded, a resume.
//
// For the loop's thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "amem/v1/broker.pb.h"
#include "daemon/node.h"

namespace amem {

/// Is told how an operation goes. Must not block.
class OperationObserver {
 public:
  virtual ~OperationObserver() = default;
  virtual void progress(const v1::Progress& progress) = 0;
  /// The last call.
  virtual void finished(const Status& status) = 0;
};

class Operations {
 public:
  using Observer = std::shared_ptr<OperationObserver>;
  /// Carries out the actions of a group that has begun something.
  using Drive = std::function<void(GroupEntry&)>;

  Operations(Node& node, Drive drive) : node_(node), drive_(std::move(drive)) {}

  /// `timeout` 0: the configured one. What is refused is told to the observer at once.
  void start(const Task& task, const std::string& group, Duration timeout,
             const Observer& observer);
  void swap(const std::string& out, const std::string& in, Duration timeout,
            const Observer& observer);

  // What the groups do, whoever asked for it.
  void progress(const GroupEntry& group, const action::Progress& progress);
  void finished(const GroupEntry& group, const Outcome& outcome);

  /// The broker is ending: tells every observer so, and those that come later at once.
  void close(const Status& status);

 private:
  struct Running {
    Observer observer;
    std::string then_resume;  // a swap's second group
    Duration timeout{};
  };

  Result<GroupEntry*> find(const std::string& name);
  void begin(GroupEntry& group, const Task& task, Running running);

  Node& node_;
  Drive drive_;
  std::map<GroupId, Running> running_;
  Status closed_;  // not OK: why nothing is begun any more
};

}  // namespace amem
