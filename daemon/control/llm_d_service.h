// LlmdService: llm-d's SnapshotAgentService, answered with pauses and resumes of groups
// (docs/llm-d.md). A job of llm-d is a group.
//
// gRPC's threads call; the rest happens on the loop's.
#pragma once

#include <memory>

#include "daemon/control/call.h"
#include "daemon/control/llm_d_operations.h"
#include "llm_d/snapshot_agent.grpc.pb.h"

namespace amem {

class LlmdService final : public llm_d::SnapshotAgentService::CallbackService {
 public:
  /// The broker outlives this object. `deep`: snapshots are deep pauses.
  LlmdService(Broker& broker, Calls calls, bool deep, std::shared_ptr<LlmdOperations> operations);

  grpc::ServerUnaryReactor* Snapshot(grpc::CallbackServerContext* context,
                                     const llm_d::SnapshotRequest* request,
                                     llm_d::SnapshotResponse* response) override;
  grpc::ServerUnaryReactor* Restore(grpc::CallbackServerContext* context,
                                    const llm_d::RestoreRequest* request,
                                    llm_d::RestoreResponse* response) override;
  grpc::ServerUnaryReactor* GetOperation(grpc::CallbackServerContext* context,
                                         const llm_d::GetOperationRequest* request,
                                         llm_d::GetOperationResponse* response) override;
  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* context,
                                   const llm_d::StatusRequest* request,
                                   llm_d::StatusResponse* response) override;

 private:
  /// Of Snapshot and Restore.
  template <class Request, class Response>
  amem::Status answer(const Caller& caller, const Task& task, const Request& request,
                      Response& response);
  /// The id of what has begun.
  Result<std::string> start(const Caller& caller, const Task& task, const std::string& job);

  Broker& broker_;
  const Calls calls_;
  const bool deep_;
  const std::shared_ptr<LlmdOperations> operations_;
};

}  // namespace amem
