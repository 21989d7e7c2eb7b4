// ProofTarget: a throwaway process that sees certain devices, and is checkpointed to see what the
// driver does.
//
// For the loop's thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/protocol.h"
#include "common/status.h"
#include "daemon/operations/evictor.h"

namespace amem {

/// What such a process has said of itself.
struct ProofBasis {
  std::string step;                // what it is doing; empty: nothing yet
  std::string nccl;                // the version of the node's NCCL, which it uses; empty: none
  std::string no_nccl;             // why it uses none
  std::vector<std::string> files;  // of the driver and NCCL: others may behave differently
};

class ProofTarget {
 public:
  using Done = std::function<void(const Status&)>;

  /// Kills it. Nothing more is reported.
  virtual ~ProofTarget() = default;
  virtual pid_t pid() const = 0;
  /// `done` is called once, later, when everything that it has on its devices has been used: kOk:
  /// as it should be; kDataLoss: there are other bytes; an error of end(); else what the driver
  /// refused, kResourceExhausted where there is no space. One check at a time.
  virtual void check(Done done) = 0;
  /// OK: it lives. kCancelled: somebody has killed it. kAborted: it has ended in another way. Its
  /// pid stays taken while this object lives.
  virtual Status end() const = 0;
  virtual const ProofBasis& basis() const = 0;
};

class ProofTargets {
 public:
  virtual ~ProofTargets() = default;
  /// A process that sees these devices, in this order.
  virtual Result<std::unique_ptr<ProofTarget>> start(const VisibleDevices& devices,
                                                     ProofPool pool) = 0;
};

}  // namespace amem
