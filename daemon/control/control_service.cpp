#include "daemon/control/control_service.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/server_posix.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "amem/v1/broker.grpc.pb.h"
#include "common/status.h"
#include "common/tls_files.h"
#include "daemon/base/event_loop.h"
#include "daemon/broker/broker.h"
#include "daemon/control/call.h"
#include "daemon/control/fleet_service.h"
#include "daemon/control/node_links.h"
#include "daemon/control/tasks.h"
#include "daemon/control/upgrades.h"
#include "daemon/owners/caller.h"

namespace amem {
namespace {

constexpr std::size_t kAllocationsAtOnce = 128;  // of a list, while the one before is being read
/// Of a connection: calls under way, and the bytes of a request.
struct Limits {
  int calls;
  int request;
};
constexpr Limits kOfOperators = {100, 1 << 20};
constexpr Limits kOfOthers = {8, 64 << 10};
/// Of gRPC's reflection, whose every call takes one while it lasts.
constexpr int kThreads = 8;
constexpr int kPingsAtMostEveryMs = 1000;
/// For calls that come while we end; all others have been ended by then.
constexpr auto kShutdownPatience = std::chrono::milliseconds(500);

constexpr std::string_view kLeads = "this node leads an operation over several nodes";

void put(v1::FleetBegin& begin, const v1::PauseRequest& request) {
  *begin.mutable_pause() = request;
  begin.mutable_pause()->clear_nodes();
}
void put(v1::FleetBegin& begin, const v1::ResumeRequest& request) {
  *begin.mutable_resume() = request;
  begin.mutable_resume()->clear_nodes();
}
void put(v1::FleetBegin& begin, const v1::SwapRequest& request) {
  *begin.mutable_swap() = request;
  begin.mutable_swap()->clear_nodes();
}

class StreamObserver final : public OperationObserver {
 public:
  explicit StreamObserver(std::shared_ptr<Stream<v1::Progress>> call) : call_(std::move(call)) {}
  /// A caller that reads too slowly misses some, but not the last.
  void progress(const v1::Progress& progress) override {
    if (progress.done())
      call_->push(progress);
    else
      call_->try_push(progress);
  }
  void on_wait(std::function<void()> forget) override { call_->on_gone(std::move(forget)); }
  void finished(const Status& status) override { call_->end(status); }

 private:
  const std::shared_ptr<Stream<v1::Progress>> call_;
};

class StreamSink final : public EventSink {
 public:
  explicit StreamSink(std::shared_ptr<Stream<v1::Event>> call) : call_(std::move(call)) {}
  void event(const v1::Event& event) override {
    v1::Event copy = event;
    copy.set_lost(missed_ > 0);
    copy.set_missed(missed_);
    missed_ = call_->try_push(std::move(copy)) ? 0 : missed_ + 1;
  }
  void ended() override { call_->end({Code::kUnavailable, "amemd is ending"}); }

 private:
  const std::shared_ptr<Stream<v1::Event>> call_;
  std::uint64_t missed_ = 0;  // since the last that was queued
};

namespace tls = grpc::experimental;
constexpr unsigned kReadAgainSeconds = 60;

void limit(grpc::ServerBuilder& builder, const Limits& limits) {
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kNodePingMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kNodePingMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kPingsAtMostEveryMs);
  builder.SetMaxReceiveMessageSize(limits.request);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, limits.calls);
  // Health and reflection are synchronous services; they need no more than this.
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, 2);
  builder.SetResourceQuota(grpc::ResourceQuota().SetMaxThreads(kThreads));
}

/// For TCP: both ends show a certificate of one authority. `dir` has ca.crt, tls.crt and tls.key,
/// as a Secret of Kubernetes does. They are read again every minute, so that certificates can be
/// renewed. kInvalidArgument: a file is missing or empty.
Result<std::shared_ptr<grpc::ServerCredentials>> mutual_tls(const std::string& dir) {
  if (const Status status = check_tls_files(dir); !status.ok())
    return Status(status.code(), "control.tls: " + status.text());
  const auto files = std::make_shared<tls::FileWatcherCertificateProvider>(
      dir + kTlsKey, dir + kTlsCertificate, dir + kTlsAuthority, kReadAgainSeconds);
  tls::TlsServerCredentialsOptions options(files);
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return tls::TlsServerCredentials(options);
}

}  // namespace

class ControlService final : public v1::Broker::CallbackService {
 public:
  ControlService(Broker& broker, EventLoop& loop, const Callers& callers, Upgrades* upgrades)
      : broker_(broker),
        calls_(loop, [this](const auto* context) { return caller_of(context); }),
        callers_(callers),
        upgrades_(upgrades) {}

  /// Before it serves.
  void use(Fleet& fleet) {
    fleet_ = &fleet;
    if (upgrades_ != nullptr)
      upgrades_->ask_also([this] {
        return fleet_->leads() ? Status(Code::kAborted, std::string(kLeads) + ". Try again")
                               : Status();
      });
  }
  /// As Broker::under_way(), with what this node leads.
  std::string under_way() const {
    const std::string own = broker_.under_way();
    return own.empty() && fleet_ != nullptr && fleet_->leads() ? std::string(kLeads) : own;
  }
  /// Who calls; nothing: nobody any more.
  std::optional<Caller> caller_of(const grpc::CallbackServerContext* context) const {
    const std::string peer = context->peer();
    if (!peer.starts_with("ipv4:") && !peer.starts_with("ipv6:")) return callers_.of(peer);
    if (!context->auth_context()->IsPeerAuthenticated()) return std::nullopt;
    Caller operator_elsewhere;  // who has shown a certificate
    operator_elsewhere.who = peer;
    return operator_elsewhere;
  }

  const Calls& calls() const { return calls_; }

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest*,
                                      v1::NodeStatus* response) override {
    return calls_.on_look(broker_, context, response, [this, response](const Caller& caller) {
      broker_.reports().status(caller, *response);
      return Status();
    });
  }

  grpc::ServerUnaryReactor* GetMetrics(grpc::CallbackServerContext* context,
                                       const v1::GetMetricsRequest* request,
                                       v1::GetMetricsResponse* response) override {
    return calls_.on_look(broker_, context, response,
                          [this, request, response](const Caller& caller) {
                            const auto text = metrics_writer(request->format());
                            if (!text.ok()) return text.status();
                            response->set_text(text.value()(broker_.metrics(caller)));
                            return Status();
                          });
  }

  grpc::ServerUnaryReactor* ListGroups(grpc::CallbackServerContext* context,
                                       const v1::ListGroupsRequest*,
                                       v1::ListGroupsResponse* response) override {
    return calls_.on_loop(context, response, [this, response](const Caller& caller) {
      broker_.reports().groups(caller, *response);
      return Status();
    });
  }

  grpc::ServerUnaryReactor* ListRanks(grpc::CallbackServerContext* context,
                                      const v1::ListRanksRequest* request,
                                      v1::ListRanksResponse* response) override {
    return calls_.on_loop(context, response, [this, request, response](const Caller& caller) {
      Result<std::vector<v1::RankInfo>> ranks = broker_.reports().ranks(caller, request->group());
      if (!ranks.ok()) return ranks.status();
      for (v1::RankInfo& rank : ranks.value()) response->add_ranks()->Swap(&rank);
      return Status();
    });
  }

  grpc::ServerUnaryReactor* SetPolicy(grpc::CallbackServerContext* context,
                                      const v1::SetPolicyRequest* request,
                                      v1::SetPolicyResponse* response) override {
    return calls_.on_loop(context, response, [this, request](const Caller& caller) {
      return broker_.set_policy(caller, request->group(), request->tag(), request->policy(),
                                request->form(), request->force());
    });
  }

  grpc::ServerUnaryReactor* Turns(grpc::CallbackServerContext* context,
                                  const v1::TurnsRequest* request,
                                  v1::TurnsResponse* response) override {
    return calls_.on_loop(context, response, [this, request, response](const Caller& caller) {
      return broker_.stages().report(caller, request->stage(), *response);
    });
  }

  grpc::ServerUnaryReactor* SetTurn(grpc::CallbackServerContext* context,
                                    const v1::SetTurnRequest* request,
                                    v1::SetTurnResponse* response) override {
    return calls_.on_loop(context, response, [this, request](const Caller& caller) {
      return broker_.set_turn(caller, request->group(), change_of(*request));
    });
  }

  grpc::ServerUnaryReactor* Lease(grpc::CallbackServerContext* context,
                                  const v1::LeaseRequest* request,
                                  v1::LeaseResponse* response) override {
    if (request->yield())
      return calls_.on_loop(context, response, [this, request](const Caller& caller) {
        return broker_.yield(caller, request->group());
      });
    const auto begin = [this, request](const Caller& caller, StageWaits::Done done) {
      return broker_.lease(caller, request->group(),
                           std::chrono::milliseconds(request->timeout_ms()), std::move(done));
    };
    return turn(context, response, begin);
  }

  grpc::ServerUnaryReactor* Prepare(grpc::CallbackServerContext* context,
                                    const v1::PrepareRequest* request,
                                    v1::PrepareResponse* response) override {
    return calls_.begin<AnswerCall>(
        context, [this, request, response](const std::shared_ptr<AnswerCall>& call) {
          const Broker::Names groups(request->groups().begin(), request->groups().end());
          const auto done = [call, response](const Status& status,
                                             const ElasticPool::Prepared& prepared) {
            if (call->ended()) return;
            response->set_pinned_bytes(prepared.pinned);
            response->set_us(to_us(prepared.took));
            response->set_needed_bytes(prepared.needed);
            response->set_available_bytes(prepared.available);
            call->end(status);
          };
          call->on_gone(broker_.prepare(call->caller(), groups,
                                        std::chrono::milliseconds(request->timeout_ms()), done));
        });
  }

  grpc::ServerUnaryReactor* Start(grpc::CallbackServerContext* context,
                                  const v1::StartRequest* request,
                                  v1::StartResponse* response) override {
    const auto begin = [this, request](const Caller& caller, StageWaits::Done done) {
      std::set<DeviceUuid> sees;
      if (request->has_visible_devices()) sees = broker_.devices_in(request->visible_devices());
      return broker_.start_group(caller, request->group(), request->stage(), sees,
                                 std::chrono::milliseconds(request->timeout_ms()), std::move(done));
    };
    return turn(context, response, begin);
  }

  grpc::ServerUnaryReactor* ListQuotas(grpc::CallbackServerContext* context,
                                       const v1::ListQuotasRequest*,
                                       v1::ListQuotasResponse* response) override {
    return calls_.on_loop(context, response, [this, response](const Caller& caller) {
      broker_.reports().quotas(caller, *response);
      return Status();
    });
  }

  grpc::ServerUnaryReactor* ListHistory(grpc::CallbackServerContext* context,
                                        const v1::ListHistoryRequest* request,
                                        v1::ListHistoryResponse* response) override {
    return calls_.on_loop(context, response, [this, request, response](const Caller& caller) {
      return broker_.reports().history(caller, *request, *response);
    });
  }

  grpc::ServerUnaryReactor* Upgrade(grpc::CallbackServerContext* context, const v1::UpgradeRequest*,
                                    v1::UpgradeResponse* response) override {
    return calls_.begin<AnswerCall>(
        context, [this, response](const std::shared_ptr<AnswerCall>& call) {
          if (upgrades_ == nullptr) return call->end({Code::kUnimplemented, ""});
          upgrades_->ask(call->caller(),
                         [call, response](const Status& status, const v1::UpgradeResponse& answer) {
                           call->give(*response, [&](const Caller&) {
                             *response = answer;
                             return status;
                           });
                         });
        });
  }

  grpc::ServerWriteReactor<v1::AllocationInfo>* ListAllocations(
      grpc::CallbackServerContext* context, const v1::ListAllocationsRequest* request) override {
    using List = Stream<v1::AllocationInfo>;
    return calls_.begin<List>(context, [this, request](const std::shared_ptr<List>& call) {
      const Result<AllocationList> asked =
          broker_.reports().list_allocations(call->caller(), request->group());
      if (!asked.ok()) return call->end(asked.status());
      // Each part is made when the one before has been written, so that a caller that does not read
      // has us keep no more than one.
      call->feed([this, list = asked.value()](List& to) mutable {
        auto part =
            broker_.reports().allocations(to.caller(), list, kAllocationsAtOnce, List::kBacklog);
        if (part.empty()) return to.end({});
        for (v1::AllocationInfo& each : part) to.push(std::move(each));
      });
    });
  }

  grpc::ServerWriteReactor<v1::Progress>* Pause(grpc::CallbackServerContext* context,
                                                const v1::PauseRequest* request) override {
    return operation(context, *request);
  }

  grpc::ServerWriteReactor<v1::Progress>* Resume(grpc::CallbackServerContext* context,
                                                 const v1::ResumeRequest* request) override {
    return operation(context, *request);
  }

  grpc::ServerWriteReactor<v1::Progress>* Swap(grpc::CallbackServerContext* context,
                                               const v1::SwapRequest* request) override {
    return operation(context, *request);
  }

  grpc::ServerWriteReactor<v1::Event>* Watch(grpc::CallbackServerContext* context,
                                             const v1::WatchRequest* request) override {
    using Events = Stream<v1::Event>;
    return calls_.begin<Events>(context, [this, request](const std::shared_ptr<Events>& call) {
      const auto sink = std::make_shared<StreamSink>(call);
      call->on_gone([this, sink] { broker_.events().unsubscribe(sink.get()); });
      broker_.events().subscribe(call->caller(), request->group(), sink);
      call->accept();
    });
  }

 private:
  /// `begin` begins to wait for a turn. `Response`: with waited_us.
  template <class Response, class Begin>
  grpc::ServerUnaryReactor* turn(grpc::CallbackServerContext* context, Response* response,
                                 Begin begin) {
    return calls_.begin<AnswerCall>(context, [=, this](const std::shared_ptr<AnswerCall>& call) {
      const Time asked = Clock::now();
      const auto done = [call, response, asked](const Status& status) {
        if (call->ended()) return;
        response->set_waited_us(to_us(Clock::now() - asked));
        call->end(status);
      };
      const Stages::WaitId wait = begin(call->caller(), done);
      call->on_gone([this, wait] { broker_.stages().forget(wait); });
    });
  }

  /// `Request`: PauseRequest, ResumeRequest or SwapRequest.
  template <class Request>
  grpc::ServerWriteReactor<v1::Progress>* operation(grpc::CallbackServerContext* context,
                                                    const Request& request) {
    using Progress = Stream<v1::Progress>;
    return calls_.begin<Progress>(context, [this, &request](const std::shared_ptr<Progress>& call) {
      const Caller& caller = call->caller();
      const auto observer = std::make_shared<StreamObserver>(call);
      const Result<FleetTransaction> read = transaction_of(request);
      if (!read.ok()) return call->end(read.status());
      const FleetTransaction& transaction = read.value();
      if (request.nodes_size() > 0) return lead(caller, request, observer);
      if (transaction.swap)
        broker_.swap(caller, transaction.groups, transaction.in, transaction.task,
                     transaction.timeout, observer);
      else
        broker_.start_operation(caller, transaction.task, transaction.groups, transaction.timeout,
                                observer);
    });
  }

  template <class Request>
  void lead(const Caller& caller, const Request& request, const Operations::Observer& observer) {
    if (const Status& why = broker_.operations().refusal(); !why.ok())
      return observer->finished(why);
    v1::FleetBegin begin;
    put(begin, request);
    *begin.mutable_nodes() = request.nodes();
    fleet_->lead(caller, std::move(begin), observer);
  }

  Broker& broker_;
  const Calls calls_;
  const Callers& callers_;
  Upgrades* const upgrades_;
  Fleet* fleet_ = nullptr;
};

ControlServer::ControlServer(Broker& broker, EventLoop& loop, Upgrades* upgrades)
    : broker_(broker),
      loop_(loop),
      log_(loop),
      callers_(loop),
      service_(std::make_unique<ControlService>(broker, loop, callers_, upgrades)) {}

ControlServer::~ControlServer() {
  server_.reset();
  others_server_.reset();
}

Status ControlServer::start(const ControlSettings& settings) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  const auto prepare = [this](grpc::ServerBuilder& builder, const Limits& limits) {
    builder.RegisterService(service_.get());
    builder.RegisterService(fleet_service_.get());
    limit(builder, limits);
  };
  grpc::ServerBuilder builder;
  int port = 0;
  if (!settings.listen.empty()) {
    const auto credentials = mutual_tls(settings.tls_dir);
    if (!credentials.ok()) return credentials.status();
    builder.AddListeningPort(settings.listen, credentials.value(), &port);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // else two amemds share the port
  }
  links_ = std::make_unique<GrpcNodeLinks>(loop_, settings.tls_dir);
  fleet_ = std::make_unique<Fleet>(broker_, loop_, *links_, settings.deadlines);
  fleet_service_ = std::make_unique<FleetService>(*fleet_, loop_, service_->calls());
  service_->use(*fleet_);
  prepare(builder, kOfOperators);
  server_ = builder.BuildAndStart();
  grpc::ServerBuilder for_others;
  prepare(for_others, kOfOthers);
  others_server_ = for_others.BuildAndStart();
  if (server_ == nullptr || others_server_ == nullptr || (!settings.listen.empty() && port == 0))
    return {Code::kInternal, "amemd cannot serve the control API" +
                                 (settings.listen.empty() ? ""
                                                          : " on " + settings.listen +
                                                                ". Check that the port is free") +
                                 ". See the messages above"};
  for (grpc::Server* server : {server_.get(), others_server_.get()})
    if (auto* health = server->GetHealthCheckService())
      health->SetServingStatus(std::string(v1::Broker::service_full_name()), true);
  entrance_ = std::make_unique<Entrance>(loop_, broker_.accounts(), callers_, settings.isolation,
                                         settings.access, [this](Fd socket, bool operates) {
                                           grpc::AddInsecureChannelFromFd(
                                               operates ? server_.get() : others_server_.get(),
                                               socket.release());
                                         });
  return entrance_->open(settings.socket);
}

std::string ControlServer::under_way() const { return service_->under_way(); }

void ControlServer::close() {
  if (fleet_ != nullptr) fleet_->shut();
  if (entrance_ != nullptr) entrance_->shut();
}

void ControlServer::shut() {
  const auto until = std::chrono::system_clock::now() + kShutdownPatience;
  for (grpc::Server* server : {server_.get(), others_server_.get()}) {
    if (server == nullptr) continue;
    server->Shutdown(until);
    server->Wait();
  }
}

}  // namespace amem
