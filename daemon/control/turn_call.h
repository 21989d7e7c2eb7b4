// TurnCall: a call of the control API that waits for a turn: a lease, or a group's first turn.
//
// gRPC's threads call; the rest happens on the loop's.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "common/status.h"
#include "daemon/base/clock.h"
#include "daemon/base/event_loop.h"
#include "daemon/base/units.h"
#include "daemon/control/unary_calls.h"
#include "daemon/owners/caller.h"

namespace amem {

/// Deletes itself when gRPC has done with it. What both threads touch lives as long as either may
/// do so.
class TurnCall final : public grpc::ServerUnaryReactor {
 public:
  /// What is waited for ends with this.
  using Done = std::function<void(const Status&, bool fresh)>;
  /// Begins to wait, and returns a number for `forget`; 0: it has ended.
  using Begin = std::function<std::uint64_t(Done)>;
  using Forget = std::function<void(std::uint64_t)>;
  /// What this call alone has made, and its caller has not heard of, ends.
  using TakeBack = std::function<void(const Caller&)>;

  TurnCall(EventLoop& loop, Forget forget, TakeBack take_back)
      : loop_(loop),
        forget_(std::move(forget)),
        take_back_(std::move(take_back)),
        wait_(std::make_shared<Wait>()) {
    wait_->charge = CallCharge::make(loop);
  }

  /// `Response`: with waited_us.
  template <class Response>
  void begin(const Caller& caller, Response& response, Begin begin) {
    loop_.post([this, wait = wait_, caller, begin = std::move(begin), response = &response] {
      if (Status status = wait->charge->take(caller, of_call(0)); !status.ok())
        return Finish(to_grpc(status));
      if (wait->cancelled) return Finish({grpc::StatusCode::CANCELLED, "the caller has gone"});
      const Time asked = Clock::now();
      const std::uint64_t number =
          begin([this, wait, caller, asked, response](const Status& status, bool fresh) {
            wait->ended = true;
            if (fresh) wait->fresh = caller;
            response->set_waited_us(to_us(Clock::now() - asked));
            Finish(to_grpc(status));
          });
      if (!wait->ended) wait->number = number;
    });
  }

 private:
  struct Wait {  // the loop's thread
    std::shared_ptr<CallCharge> charge;
    std::uint64_t number = 0;
    bool ended = false;
    bool cancelled = false;
    std::optional<Caller> fresh = {};
  };

  void OnCancel() override {
    loop_.post([wait = wait_, forget = forget_, take_back = take_back_] {
      wait->cancelled = true;
      if (!wait->ended && wait->number != 0) forget(wait->number);
      if (wait->fresh) take_back(*wait->fresh);
    });
  }
  void OnDone() override { delete this; }

  EventLoop& loop_;
  const Forget forget_;
  const TakeBack take_back_;
  const std::shared_ptr<Wait> wait_;
};

}  // namespace amem
