// LlmdService: llm-d's SnapshotAgentService, answered with pauses and resumes of groups by the
// control API (docs/llm-d.md). A job of llm-d is a group.
//
// gRPC's threads call. Each operation has a thread of its own, because the control API reports an
// operation's progress until its end; a call waits only for its beginning.
//
// Errors: those of amemd and of ControlClient, unchanged.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "addons/llm_d/operations.h"
#include "client/core/control_client.h"
#include "llm_d/snapshot_agent.grpc.pb.h"

namespace amem {

class LlmdService final : public llm_d::SnapshotAgentService::Service {
 public:
  /// `amemd` outlives this object. `deep`: snapshots are deep pauses. `run`: as of LlmdOperations.
  LlmdService(client::ControlClient& amemd, bool deep, std::uint64_t run);
  /// Stops waiting for operations, which go on in amemd. REQUIRES: no call is under way.
  ~LlmdService() override;

  grpc::Status Snapshot(grpc::ServerContext* context, const llm_d::SnapshotRequest* request,
                        llm_d::SnapshotResponse* response) override;
  grpc::Status Restore(grpc::ServerContext* context, const llm_d::RestoreRequest* request,
                       llm_d::RestoreResponse* response) override;
  grpc::Status GetOperation(grpc::ServerContext* context, const llm_d::GetOperationRequest* request,
                            llm_d::GetOperationResponse* response) override;
  grpc::Status Status(grpc::ServerContext* context, const llm_d::StatusRequest* request,
                      llm_d::StatusResponse* response) override;

 private:
  enum class What : std::uint8_t { kSnapshot, kRestore };

  template <class Request, class Response>
  grpc::Status answer(What what, const Request& request, Response& response);
  /// The id of what has begun.
  Result<std::string> start(What what, const std::string& job);
  /// Carries one out on a thread of its own. The future: OK once it has begun, else why it has not.
  Result<std::future<amem::Status>> carry_out(What what, const std::string& job,
                                              std::uint64_t number);
  /// On that thread: what it has come to.
  amem::Status operate(What what, const std::string& job, const client::OnProgress& on_progress);
  void end(std::uint64_t number, const std::string& job, const amem::Status& status);

  client::ControlClient& amemd_;
  const bool deep_;
  LlmdOperations operations_;
  std::mutex mutex_;  // guards what follows
  std::vector<std::future<void>> threads_;
};

}  // namespace amem
