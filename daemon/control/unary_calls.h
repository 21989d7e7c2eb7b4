// UnaryCalls: calls of gRPC with one answer, which is made on the loop's thread and charged to the
// caller's owner.
//
// gRPC's threads call; the rest happens on the loop's.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/status.h"
#include "daemon/base/event_loop.h"
#include "daemon/broker/broker.h"
#include "daemon/owners/account.h"
#include "daemon/owners/caller.h"

namespace amem {

inline grpc::Status to_grpc(const Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), status.text()};
}

inline const grpc::Status kGone(grpc::StatusCode::UNAVAILABLE, "the caller has disconnected");

/// What a call of the control API has of its owner's quotas until gRPC has done with it: the call
/// itself, and the messages that wait for its caller. For the loop's thread; any thread may let go
/// of it, and what it has is given back on the loop's.
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

/// A call with one answer, until gRPC has sent that.
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  explicit UnaryCall(EventLoop& loop) : charge_(CallCharge::make(loop)) {}

  // The loop's thread.
  Status begin(const Caller& caller) { return charge_->take(caller, of_call(0)); }
  /// With what `work` has put into `response`, which is charged for while it is on its way.
  template <class Function>
  Status end(const Caller& caller, google::protobuf::Message& response, const Function& work) {
    Status status = work(caller);
    Amounts bytes;
    bytes[Resource::kQueuedBytes] = response.SpaceUsedLong() + response.ByteSizeLong();
    if (status.ok()) status = charge_->take(caller, bytes);
    if (!status.ok()) response.Clear();
    return status;
  }

 private:
  void OnDone() override { delete this; }

  const std::shared_ptr<CallCharge> charge_;
};

class UnaryCalls {
 public:
  /// Both outlive the calls.
  UnaryCalls(Broker& broker, EventLoop& loop) : broker_(broker), loop_(loop) {}

  // `caller`: nothing: nobody any more.
  /// Answers a unary call with what `work` returns on the loop's thread. Request and response live
  /// until then, even when the caller has gone.
  template <class Response, class Function>
  grpc::ServerUnaryReactor* on_loop(std::optional<Caller> caller, Response* response,
                                    Function work) const {
    auto* call = new UnaryCall(loop_);
    if (!caller)
      call->Finish(kGone);
    else
      loop_.post([call, response, caller = *std::move(caller), work = std::move(work)] {
        Status status = call->begin(caller);
        if (status.ok()) status = call->end(caller, *response, work);
        call->Finish(to_grpc(status));
      });
    return call;
  }

  /// As on_loop(), once the devices have been looked at.
  template <class Response, class Function>
  grpc::ServerUnaryReactor* on_look(std::optional<Caller> caller, Response* response,
                                    Function work) const {
    // Finishes however it ends: an amemd that ends looks at no device any more.
    struct Finish {
      explicit Finish(UnaryCall* of) : call(of) {}
      ~Finish() { call->Finish(to_grpc(status)); }
      Finish(const Finish&) = delete;
      Finish& operator=(const Finish&) = delete;
      UnaryCall* call;
      Status status{Code::kUnavailable, "amemd is ending"};
    };
    auto* call = new UnaryCall(loop_);
    if (!caller) {
      call->Finish(kGone);
      return call;
    }
    const auto finish = std::make_shared<Finish>(call);
    loop_.post([this, finish, response, caller = *std::move(caller), work = std::move(work)] {
      if (Status status = finish->call->begin(caller); !status.ok()) {
        finish->status = status;
        return;
      }
      broker_.look_at_devices([finish, response, caller, work] {
        finish->status = finish->call->end(caller, *response, work);
      });
    });
    return call;
  }

 private:
  Broker& broker_;
  EventLoop& loop_;
};

}  // namespace amem
