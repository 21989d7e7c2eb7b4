#include "daemon/control/fleet_service.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "daemon/control/talk.h"
#include "daemon/control/tasks.h"

namespace amem {
namespace {

/// A leader's call. Owns itself until gRPC has done with it.
class TakeServed final : public Talk<grpc::ServerBidiReactor<v1::FleetCommands, v1::FleetReports>,
                                     v1::FleetCommands, v1::FleetReports>,
                         public std::enable_shared_from_this<TakeServed> {
 public:
  TakeServed(Fleet& fleet, EventLoop& loop, std::optional<Caller> caller)
      : fleet_(fleet), loop_(loop), caller_(std::move(caller)) {}

  void begin(std::shared_ptr<TakeServed> self) {
    self_ = std::move(self);
    if (!caller_)
      result_ = {grpc::StatusCode::UNAVAILABLE, "the caller has disconnected"};
    else if (!caller_->operates)  // nobody else is charged for it
      result_ = {grpc::StatusCode::PERMISSION_DENIED,
                 "only operators of this node may include it in an operation over several nodes"};
    else
      return listen();
    close();
  }

 private:
  // ---- gRPC's threads ----
  void heard(v1::FleetCommands commands) override {
    loop_.post([self = self_, commands = std::move(commands)]() mutable {
      auto& each = *commands.mutable_each();
      // What others wait for first: this node's own work would delay it.
      if (self->participant_ != nullptr)
        std::stable_partition(each.begin(), each.end(), [&](const v1::FleetCommand& command) {
          return command.node() != self->number_;
        });
      for (v1::FleetCommand& command : each) self->handle(std::move(command));
    });
  }
  void silent() override {
    loop_.post([self = self_] {
      if (self->participant_ != nullptr) self->participant_->leader_lost();
      if (self->relay_ != nullptr) self->relay_->end();
      self->close();
    });
  }
  void written() override { this->Finish(result_); }
  void OnCancel() override {}  // the reading ends, too
  void OnDone() override { self_.reset(); }

  // ---- the loop's ----
  void handle(v1::FleetCommand command) {
    if (refused_) return;
    if (participant_ == nullptr) return begin(command);
    if (command.node() != number_) return relay_->pass(std::move(command));
    participant_->handle(command);
    if (command.has_hang_up()) part_ends();
  }

  void begin(const v1::FleetCommand& command) {
    Result<FleetTransaction> transaction =
        Status(Code::kInvalidArgument, "the first command must be Begin");
    if (command.has_begin()) transaction = transaction_of(command.begin());
    number_ = command.begin().number();
    if (!transaction.ok()) {
      refused_ = true;
      v1::FleetReport refused;
      refused.set_node(number_);
      refused.mutable_ended()->set_code(static_cast<std::uint32_t>(transaction.status().code()));
      refused.mutable_ended()->set_text(transaction.status().text());
      push(std::move(refused));
      return close();
    }
    relay_ = fleet_.relay(
        [self = weak_from_this()](v1::FleetReport report, bool more) {
          if (const auto call = self.lock()) call->push(std::move(report), more);
        },
        [self = weak_from_this()] {
          if (const auto call = self.lock()) call->relay_ends();
        });
    participant_ = fleet_.take(*caller_, command.begin(), transaction.value(),
                               [self = weak_from_this()](v1::FleetReport report, bool more) {
                                 const auto call = self.lock();
                                 if (call == nullptr) return;
                                 const bool last = report.has_ended();
                                 call->push(std::move(report), more);
                                 if (last) call->part_ends();
                               });
    // Who is refused passes nothing on.
    if (part_over_)
      relay_ends();
    else
      relay_->begin(command.begin());
  }

  void part_ends() {
    part_over_ = true;
    if (relay_over_) close();
  }
  void relay_ends() {
    relay_over_ = true;
    if (part_over_) close();
  }

  Fleet& fleet_;
  EventLoop& loop_;
  const std::optional<Caller> caller_;
  std::shared_ptr<Participant> participant_;
  std::shared_ptr<Relay> relay_;
  std::uint32_t number_ = 0;  // this node's
  bool part_over_ = false;
  bool relay_over_ = false;
  bool refused_ = false;  // it has no part, and gets none
  grpc::Status result_;
  std::shared_ptr<TakeServed> self_;
};

}  // namespace

grpc::ServerBidiReactor<v1::FleetCommands, v1::FleetReports>* FleetService::Take(
    grpc::CallbackServerContext* context) {
  const auto call = std::make_shared<TakeServed>(fleet_, loop_, calls_.caller_of(context));
  call->begin(call);
  return call.get();
}

grpc::ServerUnaryReactor* FleetService::GetStanding(grpc::CallbackServerContext* context,
                                                    const v1::FleetStandingRequest* request,
                                                    v1::FleetStanding* response) {
  return calls_.on_loop(context, response, [this, request, response](const Caller& caller) {
    if (!caller.operates) return Status(Code::kPermissionDenied, "only operators may ask that");
    *response = fleet_.standing(request->transaction());
    return Status();
  });
}

}  // namespace amem
