#include "daemon/control/fleet_service.h"

#include <memory>
#include <utility>

#include "daemon/control/talk.h"
#include "daemon/control/tasks.h"

namespace amem {
namespace {

/// A leader's call. Owns itself until gRPC has done with it.
class TakeServed final : public Talk<grpc::ServerBidiReactor<v1::FleetCommand, v1::FleetReport>,
                                     v1::FleetCommand, v1::FleetReport>,
                         public std::enable_shared_from_this<TakeServed> {
 public:
  TakeServed(Fleet& fleet, EventLoop& loop, std::optional<Caller> caller)
      : fleet_(fleet), loop_(loop), caller_(std::move(caller)) {}

  void begin(std::shared_ptr<TakeServed> self) {
    self_ = std::move(self);
    if (caller_) return listen();
    result_ = {grpc::StatusCode::UNAVAILABLE, "the caller has hung up"};
    close();
  }

 private:
  // ---- gRPC's threads ----
  void heard(v1::FleetCommand command) override {
    loop_.post([self = self_, command = std::move(command)] { self->handle(command); });
  }
  void silent() override {
    loop_.post([self = self_] {
      if (self->part_ != nullptr) self->part_->leader_lost();
      self->close();
    });
  }
  void written() override { this->Finish(result_); }
  void OnCancel() override {}  // the reading ends, too
  void OnDone() override { self_.reset(); }

  // ---- the loop's ----
  void handle(const v1::FleetCommand& command) {
    if (part_ != nullptr) return part_->handle(command);
    if (refused_) return;
    Result<FleetOrder> order = Status(Code::kInvalidArgument, "the first command is Begin");
    if (command.has_begin()) order = order_of(command.begin());
    if (!order.ok()) {
      refused_ = true;
      v1::FleetReport refused;
      refused.mutable_ended()->set_code(static_cast<std::uint32_t>(order.status().code()));
      refused.mutable_ended()->set_text(order.status().text());
      push(std::move(refused));
      return close();
    }
    part_ = fleet_.take(*caller_, command.begin(), order.value(),
                        [self = weak_from_this()](v1::FleetReport report) {
                          const auto call = self.lock();
                          if (call == nullptr) return;
                          const bool last = report.has_ended();
                          call->push(std::move(report));
                          if (last) call->close();
                        });
  }

  Fleet& fleet_;
  EventLoop& loop_;
  const std::optional<Caller> caller_;
  std::shared_ptr<Part> part_;
  bool refused_ = false;  // it has no part, and gets none
  grpc::Status result_;
  std::shared_ptr<TakeServed> self_;
};

}  // namespace

grpc::ServerBidiReactor<v1::FleetCommand, v1::FleetReport>* FleetService::Take(
    grpc::CallbackServerContext* context) {
  const auto call = std::make_shared<TakeServed>(fleet_, loop_, caller_of_(context));
  call->begin(call);
  return call.get();
}

grpc::ServerUnaryReactor* FleetService::GetStanding(grpc::CallbackServerContext* context,
                                                    const v1::FleetStandingRequest* request,
                                                    v1::FleetStanding* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const std::optional<Caller> caller = caller_of_(context);
  if (!caller || !caller->operates) {
    reactor->Finish({grpc::StatusCode::PERMISSION_DENIED, "only operators may ask that"});
    return reactor;
  }
  loop_.post([this, reactor, request, response] {
    *response = fleet_.standing(request->order());
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

}  // namespace amem
