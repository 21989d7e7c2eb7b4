#include "client/core/control_client.h"

#include <google/protobuf/wrappers.pb.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <iterator>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "amem/v1/broker.grpc.pb.h"
#include "client/core/endpoint.h"
#include "common/protocol.h"
#include "common/tls_files.h"

namespace amem::client {
namespace {

using Clock = std::chrono::system_clock;  // gRPC's deadlines are on it
using std::chrono::milliseconds;

/// The messages of grpc.health.v1 have one field each, a text and a number, as these have. Under
/// their own names they would collide, in protobuf's registry, with those of a program that uses
/// this library and has them too.
using HealthRequest = google::protobuf::StringValue;
using HealthAnswer = google::protobuf::Int32Value;
constexpr int kServing = 1;

std::shared_ptr<grpc::Channel> open_channel(
    const std::string& target, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  // Trying again is cheap, and a broker that was restarted is there at once.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Two clients of one process stay independent of each other.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(-1);  // the broker is trusted, and lists may be long
  return grpc::CreateCustomChannel(target, credentials, arguments);
}

/// Both ends show a certificate of one authority. What cannot be read is empty, and then no
/// connection comes about; check_tls_files() says why.
std::shared_ptr<grpc::ChannelCredentials> mutual_tls(const std::string& dir) {
  const auto read = [&dir](const char* name) {
    std::ifstream file(dir + name);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = read(kTlsAuthority);
  options.pem_cert_chain = read(kTlsCertificate);
  options.pem_private_key = read(kTlsKey);
  return grpc::SslCredentials(options);
}

Status check_group(const std::string& group) {
  if (valid_group_address(group)) return {};
  return {Code::kInvalidArgument,
          "\"" + group +
              "\" is not a valid group name. Use 1 to 63 characters of [A-Za-z0-9._-], and do not "
              "begin with '.' or '-'. Another user's group is NAME@UID, a job's NAME:JOB"};
}

Status check_group_or_all(const std::string& group) {
  return group.empty() ? Status() : check_group(group);
}

Status check_groups(Groups groups) {
  if (groups.empty()) return {Code::kInvalidArgument, "no group is named"};
  for (const std::string& group : groups)
    if (Status status = check_group(group); !status.ok()) return status;
  std::sort(groups.begin(), groups.end());
  if (const auto twice = std::adjacent_find(groups.begin(), groups.end()); twice != groups.end())
    return {Code::kInvalidArgument, "group \"" + *twice + "\" is named twice"};
  return {};
}

Status check_tags(const std::vector<std::string>& tags) {
  if (tags.size() > kMaxTags)
    return {Code::kInvalidArgument, "a request can name at most " + std::to_string(kMaxTags) +
                                        " tags, not " + std::to_string(tags.size())};
  if (std::find(tags.begin(), tags.end(), "") != tags.end())
    return {Code::kInvalidArgument, "a tag is empty"};
  return {};
}

/// Fills in what a pause and a resume both have.
template <class Request>
Status choose(Request& request, const Groups& groups, const Choice& what,
              std::uint32_t timeout_ms) {
  if (Status status = check_groups(groups); !status.ok()) return status;
  if (!what.tags.empty() && !what.except.empty())
    return {Code::kInvalidArgument, "tags and excepted tags exclude each other. Pass one of them"};
  for (const auto* tags : {&what.tags, &what.except, &what.discard})
    if (Status status = check_tags(*tags); !status.ok()) return status;
  // A broker that is older than this client knows the first form alone, and refuses the other.
  if (groups.size() == 1)
    request.set_group(groups.front());
  else
    *request.mutable_groups() = {groups.begin(), groups.end()};
  *request.mutable_tags() = {what.tags.begin(), what.tags.end()};
  *request.mutable_except_tags() = {what.except.begin(), what.except.end()};
  request.set_timeout_ms(timeout_ms);
  return {};
}

std::string in_words(milliseconds time) {
  const auto ms = time.count();
  return ms % 1000 == 0 ? std::to_string(ms / 1000) + " s" : std::to_string(ms) + " ms";
}

}  // namespace

milliseconds operation_deadline(std::uint32_t timeout_ms, int parts) {
  constexpr milliseconds kConfiguredAtMost = std::chrono::minutes(5);
  constexpr milliseconds kMargin = std::chrono::minutes(5);
  return parts * ((timeout_ms != 0 ? milliseconds(timeout_ms) : kConfiguredAtMost) + kMargin);
}

struct ControlClient::Impl {
  Impl(std::string path, milliseconds timeout)
      : where(std::move(path)),
        query_timeout(timeout),
        channel(open_channel(grpc_target(where), grpc::InsecureChannelCredentials())),
        stub(v1::Broker::NewStub(channel)) {}
  Impl(Remote remote, milliseconds timeout)
      : where(std::move(remote.address)),
        tls_dir(std::move(remote.tls_dir)),
        query_timeout(timeout),
        channel(open_channel(where, mutual_tls(tls_dir))),
        stub(v1::Broker::NewStub(channel)) {}

  std::vector<std::string> nodes;  // that operations are about; empty: the broker's own

  /// Returns what prevents a connection, as far as it can be seen from outside of gRPC.
  Status look() const { return tls_dir.empty() ? probe(where) : check_tls_files(tls_dir); }

  class Call;

  /// A query with one answer, which may take `at_least` even where queries have less time.
  template <class Answer, class Request>
  Result<Answer> ask(grpc::Status (v1::Broker::Stub::*method)(grpc::ClientContext*, const Request&,
                                                              Answer*),
                     const Request& request, milliseconds at_least = {});
  /// One whose answer comes when something has happened, within the request's timeout_ms.
  template <class Answer, class Request>
  Result<Answer> wait(grpc::Status (v1::Broker::Stub::*method)(grpc::ClientContext*, const Request&,
                                                               Answer*),
                      const Request& request);

  /// Makes a call with one answer.
  template <class Answer, class Request>
  Result<Answer> one(Call& call,
                     grpc::Status (v1::Broker::Stub::*method)(grpc::ClientContext*, const Request&,
                                                              Answer*),
                     const Request& request);

  const std::string where;
  const std::string tls_dir;  // empty: `where` is a socket
  const milliseconds query_timeout;
  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<v1::Broker::Stub> stub;

  std::mutex mutex;
  std::vector<Call*> calls;  // under way; guarded by mutex
  bool cancelled = false;    // guarded by mutex
};

/// One call under way: its context, its deadline, and how its end is told.
class ControlClient::Impl::Call {
 public:
  enum class Kind { kQuery, kOperation, kWatch };

  Call(Impl& impl, Kind kind, std::optional<milliseconds> timeout)
      : impl_(impl), kind_(kind), timeout_(timeout) {
    if (timeout_) {
      deadline_ = Clock::now() + *timeout_;
      context_.set_deadline(deadline_);
    }
    const std::lock_guard lock(impl_.mutex);
    impl_.calls.push_back(this);
    if (impl_.cancelled) stop();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() {
    const std::lock_guard lock(impl_.mutex);
    std::erase(impl_.calls, this);
  }

  grpc::ClientContext* context() { return &context_; }

  /// Must come before the call is made. A channel that has failed to connect would refuse calls for
  /// a while even though the broker is back: so look at the socket, and wait for the connection
  /// when somebody listens there.
  Status prepare() {
    if (stopped_)
      return {Code::kCancelled, "this client was cancelled, which is for good. Open another one"};
    if (impl_.channel->GetState(false) == GRPC_CHANNEL_READY) return {};
    if (Status why = impl_.look(); !why.ok()) return why;
    const bool here = impl_.tls_dir.empty();
    if (!timeout_ || (here && kind_ == Kind::kOperation)) return connect();
    context_.set_wait_for_ready(here);
    return {};
  }

  void stop() {
    stopped_ = true;
    context_.TryCancel();
  }

  /// Reads to the end of a stream or until `on_item` returns false.
  template <class Item>
  Status read(grpc::ClientReader<Item>& reader, const std::function<bool(const Item&)>& on_item) {
    Item item;
    bool wanted = true;
    while (reader.Read(&item)) {
      answered_ = true;
      if (wanted && on_item && !on_item(item)) {
        wanted = false;  // what is still on its way is read, so that the call can end, and dropped
        stop();
      }
    }
    const grpc::Status status = reader.Finish();
    return wanted ? end(status) : stopped();
  }

  Status end(const grpc::Status& status) const {
    if (status.ok()) return {};
    if (stopped_) return stopped();
    switch (status.error_code()) {
      case grpc::StatusCode::UNAVAILABLE:
      case grpc::StatusCode::CANCELLED:  // not by this side: a broker that ends does so
        return unavailable(status.error_message());
      case grpc::StatusCode::DEADLINE_EXCEEDED:
        // The broker uses this code too, for a phase that took too long; then its text stands.
        // gRPC's own end of a call may come a little early: it measures on another clock, in
        // milliseconds.
        if (timeout_ && Clock::now() >= deadline_ - milliseconds(10)) return too_late();
        break;
      case grpc::StatusCode::UNIMPLEMENTED:
        return {Code::kUnimplemented,
                "amemd at " + impl_.where +
                    " does not support this call. It may be older than this client"};
      case grpc::StatusCode::UNAUTHENTICATED:  // the only code that amem::Code lacks
        return {Code::kPermissionDenied, status.error_message()};
      default:
        break;
    }
    return {static_cast<Code>(status.error_code()), status.error_message()};
  }

 private:
  /// For a call without a deadline, or with an operation's: it would wait as long for a broker that
  /// ends before it is connected.
  Status connect() {
    const auto until = Clock::now() + impl_.query_timeout;
    while (!impl_.channel->WaitForConnected(Clock::now() + milliseconds(50))) {
      if (stopped_) return stopped();
      if (Status why = impl_.look(); !why.ok()) return why;
      if (Clock::now() >= until) return too_late();
    }
    return {};
  }

  Status stopped() const {
    return {Code::kCancelled, kind_ == Kind::kOperation
                                  ? "the client stopped waiting. The broker continues the operation"
                                  : "stopped"};
  }

  /// gRPC's own text names neither the socket nor a remedy; looking at the socket does.
  Status unavailable(const std::string& text) const {
    if (!impl_.tls_dir.empty() && !answered_)
      return {Code::kUnavailable,
              "cannot connect to amemd at " + impl_.where + ": " + text +
                  ". Check that amemd listens there (control.listen), and that the certificates of "
                  "both ends are valid and of the same authority"};
    const std::string lost = "the connection to amemd at " + impl_.where + " was lost";
    if (const Status why = impl_.look(); !why.ok()) {
      return answered_ ? Status(why.code(), lost + ": " + why.text()) : why;
    }
    return {Code::kUnavailable,
            lost + ": " + text +
                (kind_ == Kind::kOperation ? ". `amemctl groups` shows the state of the operation"
                                           : "")};
  }

  Status too_late() const {
    return {Code::kDeadlineExceeded,
            "amemd at " + impl_.where + " did not answer within " +
                in_words(timeout_.value_or(impl_.query_timeout)) +
                (kind_ == Kind::kOperation
                     ? ". The operation may continue there; `amemctl groups` shows its state"
                     : "")};
  }

  Impl& impl_;
  const Kind kind_;
  const std::optional<milliseconds> timeout_;
  Clock::time_point deadline_{};
  grpc::ClientContext context_;
  std::atomic<bool> stopped_{false};
  bool answered_ = false;  // the broker has said something in this call
};

template <class Answer, class Request>
Result<Answer> ControlClient::Impl::one(
    Call& call,
    grpc::Status (v1::Broker::Stub::*method)(grpc::ClientContext*, const Request&, Answer*),
    const Request& request) {
  if (Status why = call.prepare(); !why.ok()) return why;
  Answer answer;
  if (Status status = call.end((stub.get()->*method)(call.context(), request, &answer));
      !status.ok())
    return status;
  return answer;
}

template <class Answer, class Request>
Result<Answer> ControlClient::Impl::ask(
    grpc::Status (v1::Broker::Stub::*method)(grpc::ClientContext*, const Request&, Answer*),
    const Request& request, milliseconds at_least) {
  Call call(*this, Call::Kind::kQuery, std::max(query_timeout, at_least));
  return one(call, method, request);
}

template <class Answer, class Request>
Result<Answer> ControlClient::Impl::wait(
    grpc::Status (v1::Broker::Stub::*method)(grpc::ClientContext*, const Request&, Answer*),
    const Request& request) {
  // The broker says when the time is up; this ends the wait for one that hangs.
  constexpr milliseconds kMargin{5000};
  std::optional<milliseconds> limit;
  if (request.timeout_ms() > 0) limit = milliseconds(request.timeout_ms()) + kMargin;
  Call call(*this, Call::Kind::kWatch, limit);
  return one(call, method, request);
}

/// amemd looks at the program first, for 10 s at most.
constexpr milliseconds kUpgradeTimeout{15'000};

ControlClient::ControlClient(std::string socket, milliseconds query_timeout)
    : impl_(std::make_unique<Impl>(std::move(socket), query_timeout)) {}
ControlClient::~ControlClient() = default;

ControlClient::ControlClient(Remote remote, milliseconds query_timeout)
    : impl_(std::make_unique<Impl>(std::move(remote), query_timeout)) {}

const std::string& ControlClient::where() const { return impl_->where; }

void ControlClient::over(std::vector<std::string> nodes) { impl_->nodes = std::move(nodes); }

Status ControlClient::health() {
  Impl::Call call(*impl_, Impl::Call::Kind::kQuery, impl_->query_timeout);
  if (Status why = call.prepare(); !why.ok()) return why;
  HealthRequest request;
  request.set_value(std::string(v1::Broker::service_full_name()));
  HealthAnswer answer;
  grpc::Status ended;
  static const std::string kMethod = "/grpc.health.v1.Health/Check";
  grpc::CompletionQueue queue;
  grpc::TemplatedGenericStub<HealthRequest, HealthAnswer> stub(impl_->channel);
  const auto asked = stub.PrepareUnaryCall(call.context(), kMethod, request, &queue);
  asked->StartCall();
  asked->Finish(&answer, &ended, nullptr);
  void* tag = nullptr;
  for (bool ok = false; !queue.Next(&tag, &ok);) {
  }
  // Not found: no broker has said yet that it serves.
  const bool known = ended.error_code() != grpc::StatusCode::NOT_FOUND;
  if (Status status = known ? call.end(ended) : Status(); !status.ok()) return status;
  if (known && answer.value() == kServing) return {};
  return {Code::kUnavailable,
          "amemd at " + impl_->where + " does not serve: its gRPC health service says so"};
}

Result<v1::NodeStatus> ControlClient::status() {
  return impl_->ask<v1::NodeStatus>(&v1::Broker::Stub::GetStatus, v1::GetStatusRequest());
}

Result<v1::ListGroupsResponse> ControlClient::groups() {
  return impl_->ask<v1::ListGroupsResponse>(&v1::Broker::Stub::ListGroups, v1::ListGroupsRequest());
}

Result<v1::ListQuotasResponse> ControlClient::quotas() {
  return impl_->ask<v1::ListQuotasResponse>(&v1::Broker::Stub::ListQuotas, v1::ListQuotasRequest());
}

Result<v1::GetMetricsResponse> ControlClient::metrics(v1::MetricsFormat format) {
  v1::GetMetricsRequest request;
  request.set_format(format);
  return impl_->ask<v1::GetMetricsResponse>(&v1::Broker::Stub::GetMetrics, request);
}

Result<v1::ListHistoryResponse> ControlClient::history(const v1::ListHistoryRequest& request) {
  if (Status status = check_group_or_all(request.group()); !status.ok()) return status;
  return impl_->ask<v1::ListHistoryResponse>(&v1::Broker::Stub::ListHistory, request);
}

Result<v1::UpgradeResponse> ControlClient::upgrade() {
  return impl_->ask<v1::UpgradeResponse>(&v1::Broker::Stub::Upgrade, v1::UpgradeRequest(),
                                         kUpgradeTimeout);
}

Result<v1::ListRanksResponse> ControlClient::ranks(const std::string& group) {
  if (Status status = check_group_or_all(group); !status.ok()) return status;
  v1::ListRanksRequest request;
  request.set_group(group);
  return impl_->ask<v1::ListRanksResponse>(&v1::Broker::Stub::ListRanks, request);
}

Status ControlClient::allocations(const std::string& group, const OnAllocation& on_allocation) {
  if (Status status = check_group_or_all(group); !status.ok()) return status;
  Impl::Call call(*impl_, Impl::Call::Kind::kQuery, impl_->query_timeout);
  if (Status why = call.prepare(); !why.ok()) return why;
  v1::ListAllocationsRequest request;
  request.set_group(group);
  const auto reader = impl_->stub->ListAllocations(call.context(), request);
  return call.read(*reader, on_allocation);
}

Status ControlClient::set_policy(const std::string& group, const std::string& tag,
                                 v1::Policy policy, v1::Form form, bool force) {
  if (Status status = check_group(group); !status.ok()) return status;
  if (tag.empty()) return {Code::kInvalidArgument, "the tag is empty"};
  const bool only_form = policy == v1::POLICY_UNSPECIFIED && form != v1::FORM_UNSPECIFIED;
  if (policy != v1::POLICY_KEEP && policy != v1::POLICY_DISCARD && !only_form) {
    return {Code::kInvalidArgument, "the policy must be keep or discard"};
  }
  v1::SetPolicyRequest request;
  request.set_group(group);
  request.set_tag(tag);
  request.set_policy(policy);
  request.set_form(form);
  request.set_force(force);
  return impl_->ask<v1::SetPolicyResponse>(&v1::Broker::Stub::SetPolicy, request).status();
}

Result<v1::TurnsResponse> ControlClient::turns(const std::string& stage) {
  v1::TurnsRequest request;
  request.set_stage(stage);
  return impl_->ask<v1::TurnsResponse>(&v1::Broker::Stub::Turns, request);
}

Status ControlClient::set_turn(const v1::SetTurnRequest& request) {
  if (Status status = check_group(request.group()); !status.ok()) return status;
  return impl_->ask<v1::SetTurnResponse>(&v1::Broker::Stub::SetTurn, request).status();
}

Result<v1::PrepareResponse> ControlClient::prepare(const v1::PrepareRequest& request) {
  for (const std::string& group : request.groups())
    if (Status status = check_group(group); !status.ok()) return status;
  return impl_->wait<v1::PrepareResponse>(&v1::Broker::Stub::Prepare, request);
}

Result<v1::LeaseResponse> ControlClient::lease(const v1::LeaseRequest& request) {
  if (Status status = check_group(request.group()); !status.ok()) return status;
  if (request.yield()) return impl_->ask<v1::LeaseResponse>(&v1::Broker::Stub::Lease, request);
  return impl_->wait<v1::LeaseResponse>(&v1::Broker::Stub::Lease, request);
}

Result<v1::StartResponse> ControlClient::start(const v1::StartRequest& request) {
  if (Status status = check_group(request.group()); !status.ok()) return status;
  return impl_->wait<v1::StartResponse>(&v1::Broker::Stub::Start, request);
}

/// What pause, resume and swap share. `start` makes the call; `groups` of them must report `done`.
template <class Start>
Status ControlClient::operate(std::uint32_t timeout_ms, int parts, std::size_t groups,
                              const OnProgress& on_progress, Start start) {
  Impl::Call call(*impl_, Impl::Call::Kind::kOperation, operation_deadline(timeout_ms, parts));
  if (Status why = call.prepare(); !why.ok()) return why;
  std::size_t done = 0;
  const OnProgress count = [&](const v1::Progress& progress) {
    if (progress.done()) ++done;
    return !on_progress || on_progress(progress);
  };
  Status status = call.read(*start(call.context()), count);
  if (status.ok() && done < groups * std::max<std::size_t>(1, impl_->nodes.size())) {
    return {Code::kInternal, "amemd at " + impl_->where + " ended the call without a result"};
  }
  return status;
}

Status ControlClient::pause(const Groups& groups, const Choice& what, std::uint32_t timeout_ms,
                            const OnProgress& on_progress) {
  v1::PauseRequest request;
  request.set_guests(what.guests);
  request.set_deep(what.deep);
  request.set_force(what.force);
  *request.mutable_discard() = {what.discard.begin(), what.discard.end()};
  *request.mutable_nodes() = {impl_->nodes.begin(), impl_->nodes.end()};
  if (Status status = choose(request, groups, what, timeout_ms); !status.ok()) return status;
  return operate(timeout_ms, 1, groups.size(), on_progress, [&](grpc::ClientContext* context) {
    return impl_->stub->Pause(context, request);
  });
}

Status ControlClient::resume(const Groups& groups, const Choice& what, std::uint32_t timeout_ms,
                             const OnProgress& on_progress) {
  if (!what.discard.empty())
    return {Code::kInvalidArgument, "a resume cannot drop bytes. Only a pause or a swap can"};
  if (what.guests != v1::GUEST_POLICY_UNSPECIFIED)
    return {Code::kInvalidArgument,
            "a resume does not support guests. Only a pause or a swap does"};
  if (what.deep)
    return {Code::kInvalidArgument, "a resume cannot be deep. Only a pause or a swap can"};
  v1::ResumeRequest request;
  *request.mutable_nodes() = {impl_->nodes.begin(), impl_->nodes.end()};
  if (Status status = choose(request, groups, what, timeout_ms); !status.ok()) return status;
  return operate(timeout_ms, 1, groups.size(), on_progress, [&](grpc::ClientContext* context) {
    return impl_->stub->Resume(context, request);
  });
}

Status ControlClient::swap(const Groups& out, const Groups& in, const Choice& what,
                           std::uint32_t timeout_ms, const OnProgress& on_progress) {
  if (!what.tags.empty() || !what.except.empty())
    return {Code::kInvalidArgument, "a swap is of whole groups. Pass no tags and no except_tags"};
  if (out.empty() || in.empty())
    return {Code::kInvalidArgument, "a swap requires groups to pause and groups to resume"};
  Groups all = out;
  all.insert(all.end(), in.begin(), in.end());
  if (Status status = check_groups(all); !status.ok()) return status;
  if (Status status = check_tags(what.discard); !status.ok()) return status;
  v1::SwapRequest request;
  if (out.size() == 1)
    request.set_out(out.front());
  else
    *request.mutable_out_groups() = {out.begin(), out.end()};
  if (in.size() == 1)
    request.set_in(in.front());
  else
    *request.mutable_in_groups() = {in.begin(), in.end()};
  *request.mutable_discard() = {what.discard.begin(), what.discard.end()};
  *request.mutable_nodes() = {impl_->nodes.begin(), impl_->nodes.end()};
  request.set_guests(what.guests);
  request.set_deep(what.deep);
  request.set_force(what.force);
  request.set_timeout_ms(timeout_ms);
  return operate(timeout_ms, 2, all.size(), on_progress,
                 [&](grpc::ClientContext* context) { return impl_->stub->Swap(context, request); });
}

Status ControlClient::watch(const std::string& group, const OnEvent& on_event) {
  if (Status status = check_group_or_all(group); !status.ok()) return status;
  Impl::Call call(*impl_, Impl::Call::Kind::kWatch, std::nullopt);
  if (Status why = call.prepare(); !why.ok()) return why;
  v1::WatchRequest request;
  request.set_group(group);
  const auto reader = impl_->stub->Watch(call.context(), request);
  Status status = call.read(*reader, on_event);
  if (!status.ok()) return status;
  return {Code::kUnavailable, "amemd at " + impl_->where + " ended the stream of events"};
}

void ControlClient::cancel() {
  const std::lock_guard lock(impl_->mutex);
  impl_->cancelled = true;
  for (Impl::Call* call : impl_->calls) call->stop();
}

void ControlClient::allow() {
  const std::lock_guard lock(impl_->mutex);
  impl_->cancelled = false;
}

}  // namespace amem::client
