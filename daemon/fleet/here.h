// Here: what a participant of an operation over several nodes has its own node do.
//
// For the loop's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/operations/operations.h"
#include "daemon/owners/caller.h"

namespace amem {

/// What an operation over several nodes is to do on each of them.
struct FleetTransaction {
  Task task = Operation::kPause;
  bool swap = false;
  std::vector<std::string> groups;  // of a swap those that go out
  std::vector<std::string> in;      // of a swap
  Duration timeout{};

  /// The last with which it goes on.
  Stage last() const { return swap || task.op == Operation::kResume ? Stage::kIn : Stage::kOut; }
};

/// Of Broker and Operations as much as that.
class Here {
 public:
  virtual ~Here() = default;
  /// Its number, for the calls below; 0: refused.
  virtual std::uint64_t begin(const Caller& caller, const FleetTransaction& transaction,
                              const Operations::Observer& observer,
                              std::shared_ptr<Abroad> abroad) = 0;
  virtual void tell(std::uint64_t number, const std::string& group, const Event& event) = 0;
  virtual bool may_go_on(std::uint64_t number, Stage stage) = 0;
  virtual void give_up(std::uint64_t number, const Status& why) = 0;
};

}  // namespace amem
