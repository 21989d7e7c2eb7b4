// ControlClient: the calls of the control API (broker.proto) on one control socket, with deadlines,
// clear errors and a way to stop waiting.
//
// Owns a gRPC channel, which connects with the first call and again after a loss. Every member
// function may be called from any thread, several at a time; the callbacks run on the caller's
// thread. Not usable in a child after fork().
//
// Errors: the broker's own come through unchanged. From this side: kUnavailable (no broker, or the
// connection was lost), kPermissionDenied (the socket), kDeadlineExceeded (no answer in time),
// kCancelled (stopped by a callback or cancel()), kInvalidArgument (a name that no group or tag can
// have, or too many tags).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "amem/v1/broker.pb.h"
#include "common/status.h"

namespace amem::client {

/// Return false to stop the call, which then ends with kCancelled.
using OnProgress = std::function<bool(const v1::Progress&)>;
using OnAllocation = std::function<bool(const v1::AllocationInfo&)>;
using OnEvent = std::function<bool(const v1::Event&)>;

inline constexpr std::chrono::milliseconds kDefaultQueryTimeout{5000};

/// The memory of a group that an operation is about, by tag: memory with one of `tags`, or memory
/// with none of `except`, or all of it.
struct Choice {
  std::vector<std::string> tags;
  std::vector<std::string> except;
  std::vector<std::string> discard;  // of a pause: tags whose bytes it drops, whatever their policy
  v1::GuestPolicy guests = v1::GUEST_POLICY_UNSPECIFIED;  // of a pause
  bool deep = false;   // of a pause: nothing of the processes stays on the devices
  bool force = false;  // of a pause: `discard` may have "heap"
};

/// Groups, each once.
using Groups = std::vector<std::string>;

/// How long a client waits for the broker to answer a pause or resume, or (`parts` 2) both, before
/// it gives up on it. Every phase has a deadline in the broker, so this only ends the wait for a
/// broker that hangs: the time asked for (0: a generous guess at the configured one) and a margin.
/// The groups of a set go through their phases together.
std::chrono::milliseconds operation_deadline(std::uint32_t timeout_ms, int parts);

/// A broker that is reached by TCP.
struct Remote {
  std::string address;  // "host:port"; the certificate is the host's
  std::string tls_dir;  // ca.crt, tls.crt and tls.key
};

class ControlClient {
 public:
  /// `socket` is a path; see control_socket().
  explicit ControlClient(std::string socket,
                         std::chrono::milliseconds query_timeout = kDefaultQueryTimeout);
  /// The files are read with the first call.
  explicit ControlClient(Remote remote,
                         std::chrono::milliseconds query_timeout = kDefaultQueryTimeout);
  ControlClient(const ControlClient&) = delete;
  ControlClient& operator=(const ControlClient&) = delete;
  ~ControlClient();

  /// The socket's path, or the address.
  const std::string& where() const;
  /// From now on a pause, resume or swap is one operation on the groups of all of these nodes
  /// ("host:port", "unix:PATH"), which the broker here leads. Empty: of its own node alone. Not
  /// while a call is under way.
  void over(std::vector<std::string> nodes);

  /// OK: gRPC's health service there says that the broker serves. kUnavailable: that it does not.
  /// gRPC answers without the broker, so the result may be OK for a broker that hangs.
  Status health();
  // An empty group means all groups.
  Result<v1::NodeStatus> status();
  Result<v1::ListGroupsResponse> groups();
  Result<v1::ListQuotasResponse> quotas();
  Result<v1::GetMetricsResponse> metrics(v1::MetricsFormat format);
  /// The call of the same name in broker.proto.
  Result<v1::ListHistoryResponse> history(const v1::ListHistoryRequest& request);
  /// OK: amemd ends now, and the one that is installed serves soon.
  Result<v1::UpgradeResponse> upgrade();
  Result<v1::ListRanksResponse> ranks(const std::string& group);
  Status allocations(const std::string& group, const OnAllocation& on_allocation);
  /// Sets what is not UNSPECIFIED; one of the two must be given.
  /// `force`: the policy of "heap" may be to discard.
  Status set_policy(const std::string& group, const std::string& tag, v1::Policy policy,
                    v1::Form form = v1::FORM_UNSPECIFIED, bool force = false);

  /// The stages, or one of them.
  Result<v1::TurnsResponse> turns(const std::string& stage);
  /// The call of the same name in broker.proto.
  Status set_turn(const v1::SetTurnRequest& request);
  /// Waits until the memory is pinned, `timeout_ms` at most (0: without a limit).
  Result<v1::PrepareResponse> prepare(const v1::PrepareRequest& request);
  /// Waits for the group's turn, `timeout_ms` at most (0: without a limit), or ends it.
  Result<v1::LeaseResponse> lease(const v1::LeaseRequest& request);
  /// This process is to start a group: waits for the group's first turn.
  Result<v1::StartResponse> start(const v1::StartRequest& request);

  // All groups take part, or none. Returns OK once the broker has reported the end. An operation
  // that is stopped or times out here goes on there.
  Status pause(const Groups& groups, const Choice& what, std::uint32_t timeout_ms,
               const OnProgress& on_progress);
  Status resume(const Groups& groups, const Choice& what, std::uint32_t timeout_ms,
                const OnProgress& on_progress);
  /// `what`: of the pause of `out`; without tags, as a swap is of whole groups.
  Status swap(const Groups& out, const Groups& in, const Choice& what, std::uint32_t timeout_ms,
              const OnProgress& on_progress);

  /// Never OK: events come until something ends the call.
  Status watch(const std::string& group, const OnEvent& on_event);

  /// Stops every call under way, and each that begins before allow(): also one that another thread
  /// is about to make.
  void cancel();
  /// Calls that begin from now on are made again.
  void allow();

 private:
  struct Impl;

  template <class Start>
  Status operate(std::uint32_t timeout_ms, int parts, std::size_t groups,
                 const OnProgress& on_progress, Start start);

  std::unique_ptr<Impl> impl_;
};

}  // namespace amem::client
