// Upgrades: an operator's wish that the amemd that is installed now takes this one's place. The
// holder keeps everything meanwhile, and ranks reconnect without help.
//
// For the loop's thread.
#pragma once

#include <functional>
#include <thread>
#include <utility>

#include "amem/v1/broker.pb.h"
#include "common/status.h"
#include "daemon/base/event_loop.h"
#include "daemon/base/successor.h"

namespace amem {

class Broker;
struct Caller;

class Upgrades {
 public:
  using Answer = std::function<void(const Status& status, const v1::UpgradeResponse& response)>;

  /// `begin` has this process end, and become the successor. All outlive this object.
  Upgrades(EventLoop& loop, Broker& broker, const Successor& successor,
           std::function<void()> begin);
  /// Waits for a successor that is being examined.
  ~Upgrades();
  Upgrades(const Upgrades&) = delete;
  Upgrades& operator=(const Upgrades&) = delete;

  /// Answers on the loop's thread, when it is settled whether there will be another. kAborted: not
  /// now, but soon; kPermissionDenied; kFailedPrecondition: there is no holder, or the successor
  /// does not take the configuration.
  void ask(const Caller& caller, Answer answer);
  /// Who else has to agree. Not OK: why not.
  void ask_also(std::function<Status()> may) { also_ = std::move(may); }

 private:
  Status may_hand_over(const Caller& caller) const;
  void examined(const Result<std::string>& version, const Answer& answer);

  EventLoop& loop_;
  Broker& broker_;
  const Successor& successor_;
  const std::function<void()> begin_;
  std::function<Status()> also_;
  std::thread examiner_;
  bool busy_ = false;
};

}  // namespace amem
