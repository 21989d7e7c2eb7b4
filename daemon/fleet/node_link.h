// NodeLink: the way from a leader to a node's participant of an operation, and to those to which
// that node passes on; and to ask how far a participant is.
//
// Whoever provides it calls back on the loop, never from within the call that caused it. For the
// loop's thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "amem/v1/fleet.pb.h"
#include "common/status.h"
#include "daemon/phases/task.h"

namespace amem {

class NodeLink {
 public:
  struct Heard {
    std::function<void(v1::FleetReports reports)> reports;
    /// The last call. OK: the node has ended it.
    std::function<void(const Status& why)> over;
  };

  /// Breaks it; nothing is heard any more.
  virtual ~NodeLink() = default;
  virtual void send(v1::FleetCommand command) = 0;
};

/// Why a node that has not ended is lost, of a way that is `over`.
inline Status lost_by(const Status& why) {
  return why.ok() ? Status(Code::kAborted, "it disconnected before the end of the operation") : why;
}

/// Of one transaction. Its ways to nodes are kept from one round to the next.
class Questions {
 public:
  struct Question {
    std::string address;
    /// Within a second or so. Not OK: nobody has answered.
    std::function<void(const Result<v1::FleetStanding>& standing)> answer;
  };

  /// Nothing is heard any more.
  virtual ~Questions() = default;
  /// Of many each has its second once it is its turn. REQUIRES: the round before has been answered.
  virtual void ask(std::vector<Question> round) = 0;
};

/// Ways to other nodes, by their addresses.
class NodeLinks {
 public:
  virtual ~NodeLinks() = default;
  /// What cannot be reached is heard as `over`. kInvalidArgument: no address.
  virtual Result<std::unique_ptr<NodeLink>> open(const std::string& address,
                                                 NodeLink::Heard heard) = 0;
  /// To nodes that have a part of this transaction, how far they are.
  virtual std::unique_ptr<Questions> questions(const std::string& transaction) = 0;
};

// Sides as brokers say them to each other. Pure.
inline Side side_of(const v1::FleetStage& told) { return told.out() ? Side::kOut : Side::kIn; }
inline void put(Side side, v1::FleetStage& told) { told.set_out(side == Side::kOut); }

}  // namespace amem
