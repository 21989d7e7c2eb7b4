// Broker: the daemon's core, put together from those who serve ranks and groups; the control API
// and the tests reach it through the calls below.
//
// Owns every table and the session socket. All calls are for the loop's thread; the host pool's
// thread is its own business.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "amem/v1/broker.pb.h"
#include "daemon/base/event_loop.h"
#include "daemon/broker/groups.h"
#include "daemon/broker/rank_requests.h"
#include "daemon/broker/ranks.h"
#include "daemon/memory/devices.h"
#include "daemon/memory/nvml.h"
#include "daemon/memory/pool.h"
#include "daemon/operations/events.h"
#include "daemon/operations/node.h"
#include "daemon/operations/operations.h"
#include "daemon/operations/outbox.h"
#include "daemon/operations/saved_bytes.h"
#include "daemon/sessions/session_server.h"
#include "daemon/settings/config.h"

namespace amem {

class Broker {
 public:
  /// Everything passed in outlives the broker.
  Broker(EventLoop& loop, const Config& config, const Devices& devices, const Nvml& nvml);
  ~Broker();

  /// Listens on session.sock in the runtime directory and begins to make the pool.
  Status start();
  /// Ends every operation, watch and session. Nothing is served afterwards.
  void shut();

  // ---- the control API ----
  void start_operation(const Task& task, const std::string& group, Duration timeout,
                       const Operations::Observer& observer);
  void swap(const std::string& out, const std::string& in, const std::set<std::string>& discard,
            Duration timeout, const Operations::Observer& observer);
  /// kNotFound, kFailedPrecondition (the tag is paused), kInvalidArgument (no such policy, or one
  /// that this tag cannot have).
  Status set_policy(const std::string& group, const std::string& tag, v1::Policy policy,
                    v1::SaveForm form = v1::SAVE_FORM_UNSPECIFIED);
  void status(v1::NodeStatus& status) const;
  void groups(v1::ListGroupsResponse& response) const;
  /// kNotFound: no such group. An empty name: all.
  Result<std::vector<v1::RankInfo>> ranks(const std::string& group) const;
  Result<std::vector<v1::AllocationInfo>> allocations(const std::string& group) const;
  EventHub& events() { return events_; }

 private:
  void pool_segment_ready(PoolSegment segment);
  void pool_finished(const std::string& error);

  EventLoop& loop_;
  const Config& config_;
  const Devices& devices_;
  const Nvml& nvml_;
  const Time began_ = Clock::now();
  Node node_;
  EventHub events_;
  SessionServer sessions_;
  SavedBytes saved_;
  Outbox outbox_;
  const Means means_;
  Operations operations_;
  Groups groups_;
  RankRequests requests_;
  Ranks ranks_;
  HostPool pool_;
};

}  // namespace amem
