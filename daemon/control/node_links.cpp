#include "daemon/control/node_links.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "amem/v1/fleet.grpc.pb.h"
#include "common/tls_files.h"
#include "daemon/control/talk.h"

namespace amem {
namespace {

constexpr auto kToAnswer = std::chrono::seconds(1);
constexpr auto kToEnd = std::chrono::seconds(2);
/// Questions in one turn of the loop.
constexpr std::size_t kAtOnce = 4;

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

/// Those that have not been asked yet, some in each turn of the loop: to make a way takes
/// milliseconds.
class GrpcQuestions final : public Questions {
 public:
  GrpcQuestions(EventLoop& loop, const std::string& tls_dir, const std::string& transaction,
                std::shared_ptr<GrpcNodeLinks::UnderWay> under_way)
      : all_(std::make_shared<All>(loop, tls_dir, transaction, std::move(under_way))) {}
  ~GrpcQuestions() override { all_->round.reset(); }

  void ask(std::vector<Question> round) override {
    all_->round = std::make_shared<Round>();
    all_->round->open = std::move(round);
    all_->keys.reset();
    go_on(all_, all_->round);
  }

 private:
  struct Round {
    std::vector<Question> open;
    std::size_t next = 0;
  };
  struct All {
    All(EventLoop& of, std::string dir, std::string name,
        std::shared_ptr<GrpcNodeLinks::UnderWay> calls)
        : loop(of),
          tls_dir(std::move(dir)),
          transaction(std::move(name)),
          under_way(std::move(calls)) {}
    EventLoop& loop;
    const std::string tls_dir;
    const std::string transaction;
    const std::shared_ptr<GrpcNodeLinks::UnderWay> under_way;
    std::optional<GrpcNodeLinks::Keys> keys;  // of this round, once they are needed
    std::map<std::string, std::shared_ptr<grpc::Channel>> channels;
    std::shared_ptr<Round> round;  // null: nobody listens any more
  };
  struct Call {
    grpc::ClientContext context;
    v1::FleetStandingRequest request;
    v1::FleetStanding standing;
    std::unique_ptr<v1::Fleet::Stub> stub;
  };

  static void go_on(const std::shared_ptr<All>& all, const std::shared_ptr<Round>& round) {
    if (all->round != round) return;
    const std::size_t end = std::min(round->next + kAtOnce, round->open.size());
    while (round->next < end) ask(all, round, round->next++);
    if (round->next < round->open.size())
      all->loop.at(Clock::now(), [all, round] { go_on(all, round); });
  }

  static void ask(const std::shared_ptr<All>& all, const std::shared_ptr<Round>& round,
                  std::size_t number) {
    const std::string& address = round->open[number].address;
    std::shared_ptr<grpc::Channel>& channel = all->channels[address];
    if (channel == nullptr) {
      if (!all->keys) all->keys.emplace(all->tls_dir);
      const auto made = all->keys->channel(address);
      if (!made.ok())
        return all->loop.post([all, round, number, status = made.status()] {
          if (all->round == round) round->open[number].answer(status);
        });
      channel = made.value();
    }
    const auto call = std::make_shared<Call>();
    call->stub = v1::Fleet::NewStub(channel);
    call->request.set_transaction(all->transaction);
    call->context.set_deadline(std::chrono::system_clock::now() + kToAnswer);
    all->under_way->begin();
    call->stub->async()->GetStanding(
        &call->context, &call->request, &call->standing,
        [all, round, number, call, under_way = all->under_way](const grpc::Status& status) {
          all->loop.post([all, round, number, call, status] {
            if (all->round == round) answered(all, round, number, call->standing, status);
          });
          under_way->end();
        });
  }

  static void answered(const std::shared_ptr<All>& all, const std::shared_ptr<Round>& round,
                       std::size_t number, const v1::FleetStanding& standing,
                       const grpc::Status& status) {
    const Question& question = round->open[number];
    if (status.ok()) return question.answer(standing);
    // gRPC would wait longer and longer before it connects again.
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE) all->channels.erase(question.address);
    question.answer(from_grpc(status));
  }

  const std::shared_ptr<All> all_;
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

GrpcNodeLinks::Keys::Keys(const std::string& tls_dir) {
  if (tls_dir.empty())
    status_ = {Code::kFailedPrecondition,
               "an operation over several nodes requires mutual TLS. Set control.tls"};
  else if (const Status status = check_tls_files(tls_dir); !status.ok())
    status_ = {status.code(), "control.tls: " + status.text()};
  if (!status_.ok()) return;
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = read(tls_dir + kTlsAuthority);
  options.pem_cert_chain = read(tls_dir + kTlsCertificate);
  options.pem_private_key = read(tls_dir + kTlsKey);
  credentials_ = grpc::SslCredentials(options);
}

Result<std::shared_ptr<grpc::Channel>> GrpcNodeLinks::Keys::channel(
    const std::string& address) const {
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
    return Status(
        Code::kInvalidArgument,
        "\"" + address + "\" is not a valid address of a node. Use HOST:PORT or unix:PATH");
  if (!status_.ok()) return status_;
  return grpc::CreateCustomChannel(address, credentials_, arguments);
}

Result<std::unique_ptr<NodeLink>> GrpcNodeLinks::open(const std::string& address,
                                                      NodeLink::Heard heard) {
  const auto channel = Keys(tls_dir_).channel(address);
  if (!channel.ok()) return channel.status();
  const auto call =
      std::make_shared<TakeCall>(loop_, channel.value(), std::move(heard), under_way_);
  call->begin(call);
  return std::unique_ptr<NodeLink>(std::make_unique<GrpcLink>(call));
}

std::unique_ptr<Questions> GrpcNodeLinks::questions(const std::string& transaction) {
  return std::make_unique<GrpcQuestions>(loop_, tls_dir_, transaction, under_way_);
}

}  // namespace amem
