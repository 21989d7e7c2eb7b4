#include "daemon/control/llm_d_service.h"

#include <string>
#include <utility>

namespace amem {
namespace {

/// Tells the operations how one ended.
class Watcher final : public OperationObserver {
 public:
  Watcher(Broker& broker, std::shared_ptr<LlmdOperations> operations, std::uint64_t number,
          Caller caller, std::string job)
      : broker_(broker),
        operations_(std::move(operations)),
        number_(number),
        caller_(std::move(caller)),
        job_(std::move(job)) {}

  void progress(const v1::Progress&) override {}
  void finished(const Status& status) override {
    v1::ListGroupsResponse groups;
    if (status.ok()) broker_.groups(caller_, groups);
    operations_->end(number_, status, group_of(groups, job_), Clock::now());
  }

 private:
  Broker& broker_;
  const std::shared_ptr<LlmdOperations> operations_;
  const std::uint64_t number_;
  const Caller caller_;
  const std::string job_;
};

}  // namespace

LlmdService::LlmdService(Broker& broker, Calls calls, bool deep,
                         std::shared_ptr<LlmdOperations> operations)
    : broker_(broker), calls_(std::move(calls)), deep_(deep), operations_(std::move(operations)) {}

Result<std::string> LlmdService::start(const Caller& caller, const Task& task,
                                       const std::string& job) {
  v1::ListGroupsResponse groups;
  broker_.groups(caller, groups);
  const v1::GroupInfo* const group = group_of(groups, job);
  const llm_d::JobState state =
      group != nullptr ? job_state(group->state()) : llm_d::JOB_STATE_UNSPECIFIED;
  if (state == llm_d::JOB_STATE_TRANSITIONING) return LlmdOperations::under_way(job);
  const Result<std::uint64_t> number = operations_->begin(caller, job, Clock::now());
  if (!number.ok()) return number.status();
  broker_.start_operation(
      caller, task, {job}, Duration::zero(),
      std::make_shared<Watcher>(broker_, operations_, number.value(), caller, job));
  const std::optional<amem::Status> ended = operations_->ended(number.value());
  if (!ended || ended->ok()) return operations_->id_of(number.value());
  // An operation that is refused at once has begun nothing. llm-d's own agent refuses the call,
  // too.
  operations_->drop(number.value());
  if (task.op == Operation::kResume && state == llm_d::JOB_STATE_RUNNING &&
      ended->code() == Code::kFailedPrecondition)
    return std::string(LlmdOperations::kAlreadyRunning);
  return *ended;
}

template <class Request, class Response>
amem::Status LlmdService::answer(const Caller& caller, const Task& task, const Request& request,
                                 Response& response) {
  amem::Status status = check(request.job_id(), request.backend_config());
  if (!status.ok()) return status;
  const Result<std::string> id = start(caller, task, request.job_id());
  if (id.ok()) response.set_operation_id(id.value());
  return id.status();
}

grpc::ServerUnaryReactor* LlmdService::Snapshot(grpc::CallbackServerContext* context,
                                                const llm_d::SnapshotRequest* request,
                                                llm_d::SnapshotResponse* response) {
  return calls_.on_loop(context, response, [=, this](const Caller& caller) {
    Task pause(Operation::kPause);
    pause.deep = deep_;
    return answer(caller, pause, *request, *response);
  });
}

grpc::ServerUnaryReactor* LlmdService::Restore(grpc::CallbackServerContext* context,
                                               const llm_d::RestoreRequest* request,
                                               llm_d::RestoreResponse* response) {
  return calls_.on_loop(context, response, [=, this](const Caller& caller) {
    return answer(caller, Task(Operation::kResume), *request, *response);
  });
}

grpc::ServerUnaryReactor* LlmdService::GetOperation(grpc::CallbackServerContext* context,
                                                    const llm_d::GetOperationRequest* request,
                                                    llm_d::GetOperationResponse* response) {
  return calls_.on_loop(context, response, [=, this](const Caller& caller) {
    const auto answer = operations_->get(caller, request->operation_id(), Clock::now());
    if (answer.ok()) *response = answer.value();
    return answer.status();
  });
}

grpc::ServerUnaryReactor* LlmdService::Status(grpc::CallbackServerContext* context,
                                              const llm_d::StatusRequest*,
                                              llm_d::StatusResponse* response) {
  return calls_.on_look(broker_, context, response, [=, this](const Caller& caller) {
    v1::NodeStatus node;
    broker_.status(caller, node);
    put(*response, node);
    return amem::Status();
  });
}

}  // namespace amem
