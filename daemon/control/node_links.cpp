#include "daemon/control/node_links.h"

#include <chrono>
#include <fstream>
#include <iterator>
#include <utility>

#include "amem/v1/fleet.grpc.pb.h"
#include "common/tls_files.h"
#include "daemon/control/talk.h"

namespace amem {
namespace {

constexpr auto kToAnswer = std::chrono::seconds(1);
constexpr auto kToEnd = std::chrono::seconds(2);

Status from_grpc(const grpc::Status& status) {
  return {static_cast<Code>(status.error_code()), status.error_message()};
}

std::string read(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Owns itself until gRPC has done with the call.
class TakeCall final : public Talk<grpc::ClientBidiReactor<v1::FleetCommands, v1::FleetReports>,
                                   v1::FleetReports, v1::FleetCommands> {
 public:
  TakeCall(EventLoop& loop, const std::shared_ptr<grpc::Channel>& channel, NodeLink::Heard heard,
           std::shared_ptr<GrpcNodeLinks::UnderWay> under_way)
      : loop_(loop),
        stub_(v1::Fleet::NewStub(channel)),
        heard_(std::make_shared<NodeLink::Heard>(std::move(heard))),
        under_way_(std::move(under_way)) {}

  void begin(std::shared_ptr<TakeCall> self) {
    self_ = std::move(self);
    under_way_->begin();
    stub_->async()->Take(&context_, this);
    this->AddHold();  // writes begin outside of gRPC's calls
    listen();
    this->StartCall();
  }
  /// Nothing is heard any more.
  void break_off() {
    {
      const std::lock_guard lock(mutex_);
      heard_ = nullptr;
    }
    context_.TryCancel();
  }

 private:
  void heard(v1::FleetReports reports) override {
    loop_.post([self = self_, reports = std::move(reports)]() mutable {
      if (const auto to = self->listener()) to->reports(std::move(reports));
    });
  }
  void silent() override {
    close();
    this->RemoveHold();
  }
  void OnDone(const grpc::Status& status) override {
    loop_.post([self = self_, status] {
      if (const auto to = self->listener()) to->over(from_grpc(status));
    });
    under_way_->end();
    self_.reset();  // may be the end of this object
  }
  std::shared_ptr<NodeLink::Heard> listener() {
    const std::lock_guard lock(mutex_);
    return heard_;
  }

  EventLoop& loop_;
  std::unique_ptr<v1::Fleet::Stub> stub_;
  grpc::ClientContext context_;
  std::mutex mutex_;
  std::shared_ptr<NodeLink::Heard> heard_;  // under mutex_; null: nobody listens
  const std::shared_ptr<GrpcNodeLinks::UnderWay> under_way_;
  std::shared_ptr<TakeCall> self_;
};

class GrpcLink final : public NodeLink {
 public:
  explicit GrpcLink(std::shared_ptr<TakeCall> call) : call_(std::move(call)) {}
  ~GrpcLink() override { call_->break_off(); }
  void send(v1::FleetCommand command) override { call_->push(std::move(command)); }

 private:
  std::shared_ptr<TakeCall> call_;
};

struct Question {
  grpc::ClientContext context;
  v1::FleetStandingRequest request;
  v1::FleetStanding standing;
  std::unique_ptr<v1::Fleet::Stub> stub;
};

}  // namespace

void GrpcNodeLinks::UnderWay::begin() {
  const std::lock_guard lock(mutex);
  ++calls;
}

void GrpcNodeLinks::UnderWay::end() {
  const std::lock_guard lock(mutex);
  if (--calls == 0) none.notify_all();
}

GrpcNodeLinks::GrpcNodeLinks(EventLoop& loop, std::string tls_dir)
    : loop_(loop), tls_dir_(std::move(tls_dir)) {}

GrpcNodeLinks::~GrpcNodeLinks() {
  std::unique_lock lock(under_way_->mutex);
  under_way_->none.wait_for(lock, kToEnd, [this] { return under_way_->calls == 0; });
}

Result<std::shared_ptr<grpc::Channel>> GrpcNodeLinks::channel(const std::string& address) const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kNodePingMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kNodePingMs);
  // A leader may have nothing to say for minutes. By default gRPC would stop after two pings.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Each way is a connection of its own: what one hears of a node's end the others hear, too.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (address.starts_with("unix:"))
    return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  if (address.rfind(':') == std::string::npos || address.ends_with(':'))
    return Status(Code::kInvalidArgument,
                  "\"" + address + "\" is no node's address; it is HOST:PORT, or unix:PATH");
  if (tls_dir_.empty())
    return Status(Code::kFailedPrecondition,
                  "other nodes are reached by mutual TLS, and control.tls is not set");
  if (const Status status = check_tls_files(tls_dir_); !status.ok())
    return Status(status.code(), "control.tls: " + status.text());
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = read(tls_dir_ + kTlsAuthority);
  options.pem_cert_chain = read(tls_dir_ + kTlsCertificate);
  options.pem_private_key = read(tls_dir_ + kTlsKey);
  return grpc::CreateCustomChannel(address, grpc::SslCredentials(options), arguments);
}

Result<std::unique_ptr<NodeLink>> GrpcNodeLinks::open(const std::string& address,
                                                      NodeLink::Heard heard) {
  const auto channel = this->channel(address);
  if (!channel.ok()) return channel.status();
  const auto call =
      std::make_shared<TakeCall>(loop_, channel.value(), std::move(heard), under_way_);
  call->begin(call);
  return std::unique_ptr<NodeLink>(std::make_unique<GrpcLink>(call));
}

void GrpcNodeLinks::ask(const std::string& address, const std::string& order, Answer answer) {
  const auto channel = this->channel(address);
  if (!channel.ok())
    return loop_.post([answer = std::move(answer), status = channel.status()] { answer(status); });
  const auto question = std::make_shared<Question>();
  question->stub = v1::Fleet::NewStub(channel.value());
  question->request.set_order(order);
  question->context.set_deadline(std::chrono::system_clock::now() + kToAnswer);
  under_way_->begin();
  question->stub->async()->GetStanding(&question->context, &question->request, &question->standing,
                                       [this, question, answer = std::move(answer),
                                        under_way = under_way_](const grpc::Status& status) {
                                         loop_.post([question, answer, status] {
                                           if (status.ok())
                                             answer(question->standing);
                                           else
                                             answer(from_grpc(status));
                                         });
                                         under_way->end();
                                       });
}

}  // namespace amem
