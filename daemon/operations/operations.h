// Operations: the pauses, resumes and swaps that operators have asked for, and who watches them.
//
// An operation goes on to its end whether or not its caller stays. What the two parts of a swap do
// to each other is decided in daemon/phases/swap.h.
//
// For the loop's thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "amem/v1/broker.pb.h"
#include "daemon/operations/node.h"
#include "daemon/phases/swap.h"

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

  /// `duplex`: a swap's second group comes in while the first goes out.
  Operations(Node& node, bool duplex, Drive drive)
      : node_(node), duplex_(duplex), drive_(std::move(drive)) {}

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
  struct Swapping {
    Swapping(Swap how, GroupId out_group, Observer who, Duration limit)
        : logic(std::move(how)), out(out_group), observer(std::move(who)), timeout(limit) {}
    Swap logic;
    GroupId out;
    GroupId in = 0;  // once it has begun
    Observer observer;
    Duration timeout;
    Time began = Clock::now();
    Time in_began;
    Time out_ended;
    std::optional<Outcome> pause;
    std::optional<Outcome> resume;
  };
  struct Running {
    Observer observer;
    std::shared_ptr<Swapping> swap;  // null: a pause or resume alone
  };

  Result<GroupEntry*> find(const std::string& name);
  /// The other group of a swap: one that comes in for this one, or goes out for it meanwhile.
  struct Other {
    std::optional<GroupId> arriving = std::nullopt;
    std::optional<GroupId> leaving = std::nullopt;
  };
  Status begin(GroupEntry& group, const Task& task, Duration timeout, Running running,
               const Other& other);
  void carry_out(const std::shared_ptr<Swapping>& swap, Swap::Next next);
  Status begin_in(const std::shared_ptr<Swapping>& swap, bool held);
  void finish(const Swapping& swap);
  void tell_done(const GroupEntry& group, const Outcome& outcome, const Running& running);

  Node& node_;
  bool duplex_;
  Drive drive_;
  std::map<GroupId, Running> running_;
  Status closed_;  // not OK: why nothing is begun any more
};

}  // namespace amem
