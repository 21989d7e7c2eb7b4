#include "daemon/control/control_service.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <set>
#include <string>
#include <utility>

#include "amem/v1/broker.grpc.pb.h"
#include "common/protocol.h"
#include "daemon/base/event_loop.h"
#include "daemon/broker/broker.h"
#include "daemon/control/stream.h"

namespace amem {
namespace {

constexpr std::size_t kMaxTagLength = sizeof(amem_v1_Create::tag) - 1;
constexpr std::size_t kWatchBacklog = 1024;  // events that a slow caller may fall behind
constexpr std::size_t kProgressBacklog = 1024;
/// For calls that come while we end; all others have been ended by then.
constexpr auto kShutdownPatience = std::chrono::milliseconds(500);

grpc::Status to_grpc(const Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), status.text()};
}

Duration timeout(std::uint32_t ms) { return std::chrono::milliseconds(ms); }

class StreamObserver final : public OperationObserver {
 public:
  explicit StreamObserver(std::shared_ptr<Stream<v1::Progress>> stream)
      : stream_(std::move(stream)) {}
  /// A caller that reads too slowly misses some, but not the last.
  void progress(const v1::Progress& progress) override {
    if (progress.done())
      stream_->push(progress);
    else
      stream_->try_push(progress, kProgressBacklog);
  }
  void finished(const Status& status) override { stream_->finish(to_grpc(status)); }

 private:
  std::shared_ptr<Stream<v1::Progress>> stream_;
};

class StreamSink final : public EventSink {
 public:
  void attach(std::shared_ptr<Stream<v1::Event>> stream) { stream_ = std::move(stream); }
  void event(const v1::Event& event) override {
    v1::Event copy = event;
    copy.set_lost(lost_);
    lost_ = !stream_->try_push(std::move(copy), kWatchBacklog);
  }
  void ended() override { stream_->finish({grpc::StatusCode::UNAVAILABLE, "amemd is ending"}); }

 private:
  std::shared_ptr<Stream<v1::Event>> stream_;
  bool lost_ = false;
};

}  // namespace

class ControlService final : public v1::Broker::CallbackService {
 public:
  ControlService(Broker& broker, EventLoop& loop) : broker_(broker), loop_(loop) {}

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest*,
                                      v1::NodeStatus* response) override {
    return on_loop(context, [this, response] {
      broker_.status(*response);
      return Status();
    });
  }

  grpc::ServerUnaryReactor* ListGroups(grpc::CallbackServerContext* context,
                                       const v1::ListGroupsRequest*,
                                       v1::ListGroupsResponse* response) override {
    return on_loop(context, [this, response] {
      broker_.groups(*response);
      return Status();
    });
  }

  grpc::ServerUnaryReactor* ListRanks(grpc::CallbackServerContext* context,
                                      const v1::ListRanksRequest* request,
                                      v1::ListRanksResponse* response) override {
    return on_loop(context, [this, request, response] {
      Result<std::vector<v1::RankInfo>> ranks = broker_.ranks(request->group());
      if (!ranks.ok()) return ranks.status();
      for (v1::RankInfo& rank : ranks.value()) response->add_ranks()->Swap(&rank);
      return Status();
    });
  }

  grpc::ServerUnaryReactor* SetPolicy(grpc::CallbackServerContext* context,
                                      const v1::SetPolicyRequest* request,
                                      v1::SetPolicyResponse*) override {
    return on_loop(context, [this, request] {
      return broker_.set_policy(request->group(), request->tag(), request->policy(),
                                request->form());
    });
  }

  grpc::ServerWriteReactor<v1::AllocationInfo>* ListAllocations(
      grpc::CallbackServerContext*, const v1::ListAllocationsRequest* request) override {
    auto stream = Stream<v1::AllocationInfo>::make();
    loop_.post([this, stream, group = request->group()] {
      Result<std::vector<v1::AllocationInfo>> allocations = broker_.allocations(group);
      if (!allocations.ok()) return stream->finish(to_grpc(allocations.status()));
      for (v1::AllocationInfo& allocation : allocations.value())
        stream->push(std::move(allocation));
      stream->finish(grpc::Status::OK);
    });
    return stream.get();
  }

  grpc::ServerWriteReactor<v1::Progress>* Pause(grpc::CallbackServerContext*,
                                                const v1::PauseRequest* request) override {
    return operation(Operation::kPause, *request);
  }

  grpc::ServerWriteReactor<v1::Progress>* Resume(grpc::CallbackServerContext*,
                                                 const v1::ResumeRequest* request) override {
    return operation(Operation::kResume, *request);
  }

  grpc::ServerWriteReactor<v1::Progress>* Swap(grpc::CallbackServerContext*,
                                               const v1::SwapRequest* request) override {
    auto stream = Stream<v1::Progress>::make();
    loop_.post([this, stream, swap = *request] {
      auto observer = std::make_shared<StreamObserver>(stream);
      const std::set<std::string> discard(swap.discard().begin(), swap.discard().end());
      if (Status status = check_tags(discard); !status.ok()) return observer->finished(status);
      broker_.swap(swap.out(), swap.in(), discard, timeout(swap.timeout_ms()), observer);
    });
    return stream.get();
  }

  grpc::ServerWriteReactor<v1::Event>* Watch(grpc::CallbackServerContext*,
                                             const v1::WatchRequest* request) override {
    auto sink = std::make_shared<StreamSink>();
    auto stream = Stream<v1::Event>::make([this, sink = sink.get()] {
      loop_.post([this, sink] { broker_.events().unsubscribe(sink); });
    });
    sink->attach(stream);
    loop_.post([this, sink, stream, group = request->group()] {
      broker_.events().subscribe(group, sink);
      stream->accept();
    });
    return stream.get();
  }

 private:
  /// Answers a unary call with what `work` returns on the loop's thread. Request and response live
  /// until then, even when the caller has gone.
  template <class Work>
  grpc::ServerUnaryReactor* on_loop(grpc::CallbackServerContext* context, Work work) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    loop_.post([reactor, work = std::move(work)] { reactor->Finish(to_grpc(work())); });
    return reactor;
  }

  /// `Request`: PauseRequest or ResumeRequest.
  template <class Request>
  grpc::ServerWriteReactor<v1::Progress>* operation(Operation op, const Request& request) {
    auto stream = Stream<v1::Progress>::make();
    loop_.post([this, stream, op, request] {
      auto observer = std::make_shared<StreamObserver>(stream);
      Task task(op);
      const bool except = request.except_tags_size() > 0;
      if (except && request.tags_size() > 0)
        return observer->finished(
            {Code::kInvalidArgument, "either tags, or the tags that are excepted; not both"});
      const auto& tags = except ? request.except_tags() : request.tags();
      task.selection = {{tags.begin(), tags.end()}, except};
      if constexpr (requires { request.discard(); })
        task.discard = {request.discard().begin(), request.discard().end()};
      for (const auto& each : {task.selection.tags, task.discard})
        if (Status status = check_tags(each); !status.ok()) return observer->finished(status);
      broker_.start_operation(task, request.group(), timeout(request.timeout_ms()), observer);
    });
    return stream.get();
  }

  static Status check_tags(const std::set<std::string>& tags) {
    if (tags.size() > kMaxTags)
      return {Code::kInvalidArgument,
              "an operation takes at most " + std::to_string(kMaxTags) +
                  " tags; choose fewer, or all but some, or none for everything"};
    for (const std::string& tag : tags)
      if (tag.empty() || tag.size() > kMaxTagLength)
        return {Code::kInvalidArgument,
                "a tag has 1 to " + std::to_string(kMaxTagLength) + " characters"};
    return {};
  }

  Broker& broker_;
  EventLoop& loop_;
};

ControlServer::ControlServer(Broker& broker, EventLoop& loop)
    : service_(std::make_unique<ControlService>(broker, loop)) {}

ControlServer::~ControlServer() = default;

Status ControlServer::start(const std::string& path, mode_t mode) {
  if (path.size() >= sizeof(sockaddr_un::sun_path))
    return {Code::kInvalidArgument, "the path of a socket may have " +
                                        std::to_string(sizeof(sockaddr_un::sun_path) - 1) +
                                        " characters, this one has more: " + path};
  ::unlink(path.c_str());
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + path, grpc::InsecureServerCredentials());
  builder.RegisterService(service_.get());
  // Health and reflection are synchronous services; they need no more than this.
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, 2);
  // Nobody may connect before the mode is right: the file is created closed to all.
  const mode_t before = ::umask(0777);
  server_ = builder.BuildAndStart();
  ::umask(before);
  if (server_ == nullptr)
    return {Code::kInternal, "cannot listen on " + path + "; see the messages above"};
  path_ = path;
  if (::chmod(path.c_str(), mode) != 0)
    return errno_status(Code::kInternal, "chmod " + path, errno);
  if (auto* health = server_->GetHealthCheckService())
    health->SetServingStatus(std::string(v1::Broker::service_full_name()), true);
  return {};
}

void ControlServer::shut() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now() + kShutdownPatience);
  server_->Wait();
  ::unlink(path_.c_str());
}

}  // namespace amem
