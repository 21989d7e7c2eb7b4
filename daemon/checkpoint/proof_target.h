// ProofTarget: a throwaway process on a device, which is checkpointed to see what the driver does.
//
// For the loop's thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "common/fd.h"
#include "common/place.h"
#include "common/protocol.h"
#include "common/status.h"

namespace amem {

/// The pool as such a process sees it.
struct ProofPool {
  std::optional<Place> place = {};  // nothing: none
  std::uint64_t bytes = 0;
  SharedFd fd = {};  // of kHostNuma: memory that nobody else uses
};

class ProofTarget {
 public:
  using Done = std::function<void(const Status&)>;

  /// Kills it. Nothing more is reported.
  virtual ~ProofTarget() = default;
  virtual pid_t pid() const = 0;
  /// `done` is called once, later, when everything that it has on its device has been used: kOk: as
  /// it should be; kDataLoss: there are other bytes; an error of end(); else what the driver
  /// refused, kResourceExhausted where there is no space. One check at a time.
  virtual void check(Done done) = 0;
  /// OK: it lives. kCancelled: somebody has killed it. kAborted: it has ended in another way. Its
  /// pid stays taken as long as this object lives.
  virtual Status end() const = 0;
};

class ProofTargets {
 public:
  virtual ~ProofTargets() = default;
  virtual Result<std::unique_ptr<ProofTarget>> start(const DeviceUuid& device, ProofPool pool) = 0;
};

/// Of an amemd that has nobody to start such processes.
class NoProofTargets final : public ProofTargets {
 public:
  Result<std::unique_ptr<ProofTarget>> start(const DeviceUuid&, ProofPool) override {
    return Status(Code::kUnimplemented, "this amemd cannot checkpoint processes");
  }
};

}  // namespace amem
