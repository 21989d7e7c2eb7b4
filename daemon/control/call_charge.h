// CallCharge: what a call of the control API has of its owner's quotas until gRPC has done with it:
// the call itself, and the messages that wait for its caller.
//
// For the loop's thread; any thread may let go of it, and what it has is given back on the loop's.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common/status.h"
#include "daemon/base/event_loop.h"
#include "daemon/owners/caller.h"

namespace amem {

class CallCharge {
 public:
  static std::shared_ptr<CallCharge> make(EventLoop& loop) {
    return {new CallCharge, [&loop](CallCharge* charge) {
              loop.post([owned = std::shared_ptr<CallCharge>(charge)] {});
            }};
  }

  /// kResourceExhausted: the caller's owner may have no more of it.
  Status take(const Caller& caller, const Amounts& amounts) {
    if (caller.account == nullptr) return {};
    Result<Charge> charge = caller.account->take(amounts);
    if (!charge.ok()) return charge.status();
    taken_.push_back(std::move(charge).value());
    return {};
  }

 private:
  CallCharge() = default;

  std::vector<Charge> taken_;
};

/// Of a call, with so many bytes of messages that may wait for its caller.
inline Amounts of_call(std::uint64_t bytes) {
  Amounts amounts;
  amounts[Resource::kCalls] = 1;
  amounts[Resource::kQueuedBytes] = bytes;
  return amounts;
}

}  // namespace amem
