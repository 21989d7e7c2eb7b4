// CallbackScope: callbacks that end with the object that waits for them.
//
// A callback of a worker, a timer or a job of the loop may come when the object that asked for it
// has gone. An object that has a CallbackScope passes such callbacks through it.
//
// For the loop's thread: the callback runs there, and the object ends there.
#pragma once

#include <memory>
#include <utility>

namespace amem {

class CallbackScope {
 public:
  CallbackScope() = default;
  CallbackScope(CallbackScope&&) = default;
  CallbackScope& operator=(CallbackScope&&) = default;

  /// `job`, which does nothing once this scope has ended. It may outlive the scope, and be copied
  /// if `job` may.
  template <class Job>
  auto bind(Job job) const {
    return [alive = std::weak_ptr<const bool>(alive_), job = std::move(job)](auto&&... args) {
      if (!alive.expired()) job(std::forward<decltype(args)>(args)...);
    };
  }

 private:
  std::shared_ptr<const bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace amem
