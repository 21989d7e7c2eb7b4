#include "addons/llm_d/service.h"

#include <chrono>
#include <system_error>
#include <utility>

namespace amem {
namespace {

using Clock = std::chrono::steady_clock;

/// For amemd to begin an operation or to refuse it. It does either at once, unless it first proves
/// that a deep pause is possible. What is refused later has failed.
constexpr auto kBegins = std::chrono::seconds(2);

grpc::Status to_grpc(const Status& status) {
  // Of ControlClient alone: amemd's own calls are not cancelled by somebody else.
  if (status.code() == Code::kCancelled)
    return {grpc::StatusCode::UNAVAILABLE, "amem-llm-d is ending: " + status.text()};
  return {static_cast<grpc::StatusCode>(status.code()), status.text()};
}

}  // namespace

LlmdService::LlmdService(client::ControlClient& amemd, bool deep, std::uint64_t run)
    : amemd_(amemd), deep_(deep), operations_(run) {}

LlmdService::~LlmdService() { amemd_.cancel(); }  // the threads end, and the futures wait for that

amem::Status LlmdService::operate(What what, const std::string& job,
                                  const client::OnProgress& on_progress) {
  client::Choice choice;
  if (what == What::kRestore) return amemd_.resume({job}, choice, 0, on_progress);
  choice.deep = deep_;
  return amemd_.pause({job}, choice, 0, on_progress);
}

void LlmdService::end(std::uint64_t number, const std::string& job, const amem::Status& status) {
  const auto groups = status.ok() ? amemd_.groups() : status;
  operations_.end(number, status, groups.ok() ? group_of(groups.value(), job) : nullptr,
                  Clock::now());
}

Result<std::future<amem::Status>> LlmdService::carry_out(What what, const std::string& job,
                                                         std::uint64_t number) {
  const auto begun = std::make_shared<std::promise<amem::Status>>();
  const auto whole = [this, what, job, number, begun] {
    bool told = false;
    const amem::Status status = operate(what, job, [&](const v1::Progress&) {
      if (!std::exchange(told, true)) begun->set_value({});
      return true;
    });
    end(number, job, status);
    if (!told) begun->set_value(status);
  };
  const std::lock_guard lock(mutex_);
  std::erase_if(threads_, [](const std::future<void>& each) {
    return each.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  });
  try {
    threads_.push_back(std::async(std::launch::async, whole));
  } catch (const std::system_error& error) {
    return amem::Status(Code::kResourceExhausted,
                        "job '" + job + "': amem-llm-d cannot start a thread: " + error.what() +
                            ". Try again when other operations have ended");
  }
  return begun->get_future();
}

Result<std::string> LlmdService::start(What what, const std::string& job) {
  const auto groups = amemd_.groups();
  if (!groups.ok()) return groups.status();
  const v1::GroupInfo* const group = group_of(groups.value(), job);
  const llm_d::JobState state =
      group != nullptr ? job_state(group->state()) : llm_d::JOB_STATE_UNSPECIFIED;
  if (state == llm_d::JOB_STATE_TRANSITIONING) return LlmdOperations::under_way(job);
  const Result<std::uint64_t> number = operations_.begin(job, Clock::now());
  if (!number.ok()) return number.status();
  auto begun = carry_out(what, job, number.value());
  amem::Status refusal = begun.status();
  if (begun.ok() && begun.value().wait_for(kBegins) == std::future_status::ready)
    refusal = begun.value().get();
  if (refusal.ok()) return operations_.id_of(number.value());
  // An operation that is refused at once has begun nothing. llm-d's own agent refuses the call,
  // too.
  operations_.drop(number.value());
  if (what == What::kRestore && state == llm_d::JOB_STATE_RUNNING &&
      refusal.code() == Code::kFailedPrecondition)
    return std::string(LlmdOperations::kAlreadyRunning);
  return refusal;
}

template <class Request, class Response>
grpc::Status LlmdService::answer(What what, const Request& request, Response& response) {
  const amem::Status status = check(request.job_id(), request.backend_config());
  if (!status.ok()) return to_grpc(status);
  const Result<std::string> id = start(what, request.job_id());
  if (id.ok()) response.set_operation_id(id.value());
  return to_grpc(id.status());
}

grpc::Status LlmdService::Snapshot(grpc::ServerContext*, const llm_d::SnapshotRequest* request,
                                   llm_d::SnapshotResponse* response) {
  return answer(What::kSnapshot, *request, *response);
}

grpc::Status LlmdService::Restore(grpc::ServerContext*, const llm_d::RestoreRequest* request,
                                  llm_d::RestoreResponse* response) {
  return answer(What::kRestore, *request, *response);
}

grpc::Status LlmdService::GetOperation(grpc::ServerContext*,
                                       const llm_d::GetOperationRequest* request,
                                       llm_d::GetOperationResponse* response) {
  const auto found = operations_.get(request->operation_id(), Clock::now());
  if (found.ok()) *response = found.value();
  return to_grpc(found.status());
}

grpc::Status LlmdService::Status(grpc::ServerContext*, const llm_d::StatusRequest*,
                                 llm_d::StatusResponse* response) {
  const auto node = amemd_.status();
  if (node.ok()) put(*response, node.value());
  return to_grpc(node.status());
}

}  // namespace amem
