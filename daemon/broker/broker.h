// Broker: the daemon's core, put together from those who serve ranks and groups; the control API
// and the tests reach it through the calls below.
//
// Owns every table and the session socket. All calls are for the loop's thread; the host pool's
// thread is its own business.
#pragma once

#include <chrono>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "amem/v1/broker.pb.h"
#include "daemon/base/event_loop.h"
#include "daemon/broker/groups.h"
#include "daemon/broker/rank_requests.h"
#include "daemon/broker/ranks.h"
#include "daemon/broker/recovery.h"
#include "daemon/memory/device_nodes.h"
#include "daemon/memory/devices.h"
#include "daemon/memory/nvml.h"
#include "daemon/memory/pool.h"
#include "daemon/memory/workers.h"
#include "daemon/node/node.h"
#include "daemon/operations/operations.h"
#include "daemon/operations/outbox.h"
#include "daemon/operations/saved_bytes.h"
#include "daemon/owners/account.h"
#include "daemon/reports/book.h"
#include "daemon/reports/events.h"
#include "daemon/reports/reports.h"
#include "daemon/sessions/session_server.h"
#include "daemon/settings/config.h"
#include "daemon/stages/stages.h"

namespace amem {

class Broker {
 public:
  /// Everything passed in outlives the broker. Without a record nothing outlives it. `runs`: where
  /// devices are called. `evictor`: null: none, so there are no deep pauses.
  Broker(EventLoop& loop, const Config& config, const Devices& devices, const Nvml& nvml,
         Record* record = nullptr, Workers::Runs runs = Workers::Runs::kThreads,
         const MakeEvictor& evictor = nullptr);
  ~Broker();

  /// Takes up what another amemd has left with the holder. Before start(). kDataLoss: it is not to
  /// be read; nothing has changed.
  Status recover(HolderDescriptors descriptors);
  /// Listens on session.sock in the runtime directory and begins to make the pool.
  Status start();
  /// The holder has ended, and another has nothing yet: gives it everything.
  void hold_again();
  /// The configuration has other values of settings that are live.
  void take_settings();
  /// Prepares the end: no operation begins any more, whoever asks. Everything else is served.
  void refuse_new_work();
  /// Ends every operation, watch and session. Nothing is served afterwards.
  void shut();

  // ---- the control API ----
  // Groups are named as in daemon/node/names.h; what the caller may not steer, or see, is refused.
  using Names = std::vector<std::string>;
  /// All of these groups, or none. As of Operations::start().
  std::uint64_t start_operation(const Caller& caller, const Task& task, const Names& groups,
                                Duration timeout, const Operations::Observer& observer,
                                std::shared_ptr<RemoteNodes> remote_nodes = nullptr);
  std::uint64_t swap(const Caller& caller, const Names& out, const Names& in, const Task& pause,
                     Duration timeout, const Operations::Observer& observer,
                     std::shared_ptr<RemoteNodes> remote_nodes = nullptr);
  /// Pins what a pause of these groups needs. Returns what ends the wait.
  std::function<void()> prepare(const Caller& caller, const Names& groups, Duration timeout,
                                ElasticPool::Done done);
  /// For what other nodes say of a transaction, and whether anything begins still.
  Operations& operations() { return operations_; }
  /// Returns the shares that groups have, or had, of transactions over several nodes.
  std::vector<FleetShare> shares() const;
  /// Has, by its record, what the amemd before it knew of them.
  bool remembers() const { return node_.records.record().has_log(); }
  /// kNotFound, kFailedPrecondition (the tag is paused), kInvalidArgument (no such policy, or one
  /// that this tag cannot have).
  Status set_policy(const Caller& caller, const std::string& group, const std::string& tag,
                    v1::Policy policy, v1::Form form = v1::FORM_UNSPECIFIED, bool force = false);
  /// Looks how much of the devices is in use, for the next status; then, or when a device does
  /// not answer soon, calls `done`, which is destroyed uncalled if the broker ends before.
  void look_at_devices(std::function<void()> done);
  /// The answers to queries. Use of devices as the last look_at_devices() has seen it.
  Reports reports() { return {node_, devices_, workers_, accounts_, began_}; }
  /// For what is asked of stages without a group.
  Stages& stages() { return stages_; }
  Status set_turn(const Caller& caller, const std::string& group, const Stages::Change& change);
  Stages::WaitId lease(const Caller& caller, const std::string& group, Duration timeout,
                       StageWaits::Done done);
  /// A process of the caller is to start this group: waits for its first turn. At once if the group
  /// runs, or if it needs none. `sees`: the devices that the process will see; none: not known.
  Stages::WaitId start_group(const Caller& caller, const std::string& group,
                             const std::string& stage, const std::set<DeviceUuid>& sees,
                             Duration timeout, StageWaits::Done done);
  /// The devices that a list in the form of CUDA_VISIBLE_DEVICES names; none: not known.
  std::set<DeviceUuid> devices_in(const std::string& visible) const;
  Status yield(const Caller& caller, const std::string& group);
  /// Use of devices as the last look_at_devices() has seen it.
  Families metrics(const Caller& caller);
  /// Whether another amemd may take over now: kPermissionDenied; kFailedPrecondition: without a
  /// holder; kUnavailable: this one is ending; kAborted: an operation is under way.
  Status may_hand_over(const Caller& caller);
  bool serves_groups() const { return !node_.groups.empty(); }
  /// Returns what it serves, in one line for people: groups, and how far the pool is.
  std::string summary() const;
  /// Returns what an end would call off, such as "group 'train' is pausing"; empty: nothing.
  std::string under_way() const;
  Accounts& accounts() { return accounts_; }
  EventHub& events() { return events_; }

 private:
  Status guard_devices();
  /// A stage switches one of the groups: has `start` called after that, with what is left of the
  /// timeout. False: it does not.
  bool waits_for_switch(const std::vector<NamedGroup>& groups, Duration timeout,
                        const Operations::Observer& observer, std::function<void(Duration)> start);
  /// Tells the observer, and the stages that groups which stay paused may come in again.
  Operations::Observer watched(const Operations::Observer& observer, const Operations::Groups& in);
  void refused(const Caller& caller, const std::string& what, const Status& status);
  /// As of MakeProofPool.
  void make_proof_pool(const VisibleDevices& visible, Duration limit,
                       const std::function<void(Result<ProofPool>)>& done);
  void pool_segment_ready(PoolSegment segment);
  void pool_finished(const std::string& error);
  /// The pool has more than is configured, or has shrunk to that.
  void look_at_excess();
  /// A segment more cannot be made.
  void pool_refused(std::uint64_t bytes, const Status& why);
  /// Notes why a segment cannot be made anew; empty: all can.
  void pool_troubled(const std::string& error);

  EventLoop& loop_;
  const Config& config_;
  const Devices& devices_;
  const Nvml& nvml_;
  const Time began_ = Clock::now();
  const std::chrono::system_clock::time_point began_at_ = std::chrono::system_clock::now();
  Workers workers_;  // before all that it has made memory for
  Record no_record_;
  DeviceNodes nodes_;
  Accounts accounts_;
  Node node_;
  EventHub events_;
  SessionServer sessions_;
  SavedBytes saved_;
  Outbox outbox_;
  const Duration evict_limit_;  // for all of a phase's driver calls; shorter than the phase
  const std::unique_ptr<Evictor> evictor_;
  RestoreSpace restore_space_;
  const OperationContext context_;
  Operations operations_;
  const Status stages_are_good_;
  Stages stages_;
  Groups groups_;
  RankRequests requests_;
  Ranks ranks_;
  HostPool pool_;
  std::uint64_t next_segment_ = 1;
  std::uint64_t excess_told_ = 0;
  std::string pool_made_;  // the error with which the pool was made
  Time trouble_told_{};    // when it was last told that segments cannot be made anew
  bool troubled_ = false;  // it was, and not yet that they have been
};

}  // namespace amem
