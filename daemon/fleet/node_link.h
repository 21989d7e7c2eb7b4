// NodeLink: the way from a leader to a node's part of an operation, and to those to which that node
// passes on; and to ask how far a part is.
//
// Whoever provides it calls back on the loop, never from within the call that caused it. For the
// loop's thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "amem/v1/fleet.pb.h"
#include "common/status.h"

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
  return why.ok() ? Status(Code::kAborted, "it hung up before its end") : why;
}

/// Ways to other nodes, by their addresses.
class NodeLinks {
 public:
  virtual ~NodeLinks() = default;
  /// What cannot be reached is heard as `over`. kInvalidArgument: no address.
  virtual Result<std::unique_ptr<NodeLink>> open(const std::string& address,
                                                 NodeLink::Heard heard) = 0;
  /// Within a second or so. Not OK: nobody has answered.
  using Answer = std::function<void(const Result<v1::FleetStanding>& standing)>;
  virtual void ask(const std::string& address, const std::string& order, Answer answer) = 0;
};

}  // namespace amem
