// FakeBroker: a control service in this process, on a socket of its own, that answers as a test
// tells it to. TempDir: a directory that goes away with the test.
#pragma once

#include <grpcpp/grpcpp.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "amem/v1/broker.grpc.pb.h"

namespace amem::test {

class TempDir {
 public:
  TempDir() {
    std::string name = "/tmp/amem-test-XXXXXX";
    if (::mkdtemp(name.data()) != nullptr) path_ = name;
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() { std::filesystem::remove_all(path_); }

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

class FakeBroker final : public v1::Broker::Service {
 public:
  explicit FakeBroker(const std::string& socket) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + socket, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeBroker() override { stop(); }

  void stop() {
    stopping_ = true;
    if (server_) server_->Shutdown(std::chrono::system_clock::now());
  }

  // What to answer. Set before the call.
  v1::NodeStatus node;
  v1::ListRanksResponse rank_list;
  std::vector<v1::AllocationInfo> allocation_list;
  std::vector<v1::Progress> progress;  // pause, resume and swap
  std::vector<v1::Event> events;
  grpc::Status end;   // of every call
  bool hang = false;  // streams stay open after their messages until cancelled; queries too

  // What was asked.
  std::string asked_group;
  std::string asked_in;
  std::uint32_t asked_timeout_ms = 0;
  std::vector<std::string> asked_tags;
  v1::SetPolicyRequest asked_policy;
  std::atomic<bool> streaming{false};  // a stream has sent its messages

  grpc::Status GetStatus(grpc::ServerContext* context, const v1::GetStatusRequest*,
                         v1::NodeStatus* answer) override {
    *answer = node;
    return finish(context);
  }
  grpc::Status ListGroups(grpc::ServerContext*, const v1::ListGroupsRequest*,
                          v1::ListGroupsResponse* answer) override {
    *answer->mutable_groups() = node.groups();
    return grpc::Status::OK;  // also what a client asks after its operation has failed
  }
  grpc::Status ListRanks(grpc::ServerContext* context, const v1::ListRanksRequest* request,
                         v1::ListRanksResponse* answer) override {
    asked_group = request->group();
    *answer = rank_list;
    return finish(context);
  }
  grpc::Status ListAllocations(grpc::ServerContext* context,
                               const v1::ListAllocationsRequest* request,
                               grpc::ServerWriter<v1::AllocationInfo>* writer) override {
    asked_group = request->group();
    return stream(context, allocation_list, writer);
  }
  grpc::Status Pause(grpc::ServerContext* context, const v1::PauseRequest* request,
                     grpc::ServerWriter<v1::Progress>* writer) override {
    asked_group = request->group();
    asked_tags = {request->tags().begin(), request->tags().end()};
    asked_timeout_ms = request->timeout_ms();
    return stream(context, progress, writer);
  }
  grpc::Status Resume(grpc::ServerContext* context, const v1::ResumeRequest* request,
                      grpc::ServerWriter<v1::Progress>* writer) override {
    asked_group = request->group();
    asked_tags = {request->tags().begin(), request->tags().end()};
    asked_timeout_ms = request->timeout_ms();
    return stream(context, progress, writer);
  }
  grpc::Status Swap(grpc::ServerContext* context, const v1::SwapRequest* request,
                    grpc::ServerWriter<v1::Progress>* writer) override {
    asked_group = request->out();
    asked_in = request->in();
    asked_timeout_ms = request->timeout_ms();
    return stream(context, progress, writer);
  }
  grpc::Status SetPolicy(grpc::ServerContext* context, const v1::SetPolicyRequest* request,
                         v1::SetPolicyResponse*) override {
    asked_policy = *request;
    return finish(context);
  }
  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest* request,
                     grpc::ServerWriter<v1::Event>* writer) override {
    asked_group = request->group();
    return stream(context, events, writer);
  }

 private:
  grpc::Status finish(grpc::ServerContext* context) {
    if (!hang) return end;
    while (!stopping_ && !context->IsCancelled()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    if (stopping_) return end;
    // The call's deadline ends it here too, perhaps before the client's own clock: never an answer
    // then.
    return {grpc::StatusCode::DEADLINE_EXCEEDED, "Deadline Exceeded"};
  }
  template <class Item>
  grpc::Status stream(grpc::ServerContext* context, const std::vector<Item>& items,
                      grpc::ServerWriter<Item>* writer) {
    for (const Item& item : items) writer->Write(item);
    streaming = true;
    return finish(context);
  }

  std::atomic<bool> stopping_{false};
  std::unique_ptr<grpc::Server> server_;
};

inline v1::Progress make_progress(const std::string& group, const std::string& phase,
                                  std::uint32_t done, std::uint32_t total) {
  v1::Progress progress;
  progress.set_group(group);
  progress.set_phase(phase);
  progress.set_ranks_done(done);
  progress.set_ranks_total(total);
  return progress;
}

/// The last message of an operation on a group.
inline v1::Progress make_done(const std::string& group, std::uint64_t elapsed_us) {
  v1::Progress progress = make_progress(group, "", 2, 2);
  progress.set_elapsed_us(elapsed_us);
  progress.set_done(true);
  return progress;
}

inline v1::GroupInfo make_group(const std::string& name, v1::GroupState state) {
  v1::GroupInfo group;
  group.set_name(name);
  group.set_state(state);
  group.set_rank_count(2);
  return group;
}

}  // namespace amem::test
