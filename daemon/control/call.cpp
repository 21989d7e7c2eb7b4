#include "daemon/control/call.h"

namespace amem {

bool ControlCall::begins(std::optional<Caller> caller, std::uint64_t backlog) {
  if (gone_) return false;  // it ends by that
  Amounts amounts;
  amounts[Resource::kCalls] = 1;
  amounts[Resource::kQueuedBytes] = backlog;
  caller_ = std::move(caller);
  const Status status =
      caller_ ? charge(amounts) : Status(Code::kUnavailable, "the caller has disconnected");
  if (!status.ok()) end(status);
  return status.ok();
}

Status ControlCall::charge(const Amounts& amounts) {
  if (caller_->account == nullptr) return {};
  Result<Charge> charge = caller_->account->take(amounts);
  if (!charge.ok()) return charge.status();
  charges_.push_back(std::move(charge).value());
  return {};
}

void ControlCall::on_gone(std::function<void()> forget) {
  if (ended()) return forget();
  forget_ = std::move(forget);
}

void ControlCall::end(const Status& status) {
  if (ended()) return;
  status_ = grpc::Status(static_cast<grpc::StatusCode>(status.code()), status.text());
  forget_ = nullptr;
  next();
}

void ControlCall::cancelled() {
  gone_ = true;
  loop_.post([self = self_] {
    if (const auto forget = std::exchange(self->forget_, nullptr)) forget();
    self->end({Code::kCancelled, "the caller has disconnected"});
    self->next();  // what waits for a caller that has gone is dropped
  });
}

void ControlCall::done() {
  loop_.post([self = std::move(self_)] { self->charges_.clear(); });
}

}  // namespace amem
