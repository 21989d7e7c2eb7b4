// Broker: the daemon's core. Serves the ranks' sessions and drives the groups; the control API and
// the tests reach it through the calls below.
//
// Owns every table and the session socket. All calls are for the loop's thread; the host pool's
// thread is its own business.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "amem/v1/broker.pb.h"
#include "daemon/base/event_loop.h"
#include "daemon/base/log_limit.h"
#include "daemon/memory/devices.h"
#include "daemon/memory/nvml.h"
#include "daemon/memory/pool.h"
#include "daemon/operations/costs.h"
#include "daemon/operations/events.h"
#include "daemon/operations/histograms.h"
#include "daemon/operations/node.h"
#include "daemon/operations/operations.h"
#include "daemon/operations/outbox.h"
#include "daemon/operations/saved_bytes.h"
#include "daemon/sessions/session_server.h"
#include "daemon/settings/config.h"

namespace amem {

class Broker final : private SessionHandler {
 public:
  /// Everything passed in outlives the broker.
  Broker(EventLoop& loop, const Config& config, const Devices& devices, const Nvml& nvml);
  ~Broker() override;

  /// Listens on session.sock in the runtime directory and begins to make the pool.
  Status start();
  /// Ends every operation, watch and session. Nothing is served afterwards.
  void shut();

  // ---- the control API ----
  void start_operation(const Task& task, const std::string& group, Duration timeout,
                       const Operations::Observer& observer);
  void swap(const std::string& out, const std::string& in, Duration timeout,
            const Operations::Observer& observer);
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
  // SessionHandler
  void session_opened(SessionId session, const Peer& peer) override;
  void session_packet(SessionId session, Packet& packet) override;
  void session_closed(SessionId session, const std::string& why) override;

  // A rank's messages.
  void hello(SessionId session, std::uint64_t seq, const amem_v1_Hello& message);
  void handle(Rank& rank, const Message& message);
  void create(Rank& rank, std::uint64_t seq, const amem_v1_Create& message, std::size_t tries = 0);
  /// Ranks are to free what they keep for later.
  void trim();
  Result<Allocation*> make(Rank& rank, const amem_v1_Create& message);
  void redeem(Rank& rank, std::uint64_t seq, const amem_v1_Redeem& message);
  Status may_allocate(const Rank& rank) const;
  void free(Rank& rank, AllocationId id);
  /// Its keeper may have to save it.
  void let_reach_pool(const Allocation& a);
  void pin(Rank& rank, AllocationId id);
  void group_request(Rank& rank, std::uint64_t seq, const amem_v1_GroupRequest& message);
  void phase_done(Rank& rank, const amem_v1_PhaseDone& message);
  void unbrokered(Rank& rank, const amem_v1_Unbrokered& message);
  MemoryView memory_of(GroupId group) const;

  Result<GroupEntry*> join_group(const std::string& name, const Peer& peer);
  /// Its session has ended: it is removed, at once or when its process has ended too.
  void lose(RankId id, const std::string& why);
  /// It has memory that a rank with a session has too.
  bool shares(const Rank& rank) const;
  void process_ended(RankId id);
  /// Removes the lost that share nothing any more.
  void remove_harmless(GroupId group);
  void remove(RankId id, const std::string& why);
  void forget_group(GroupId id);
  void pool_segment_ready(PoolSegment segment);
  void pool_finished(const std::string& error);

  /// Carries out what the group wants, until it wants nothing; then it may be gone.
  void drive(GroupEntry& group);
  void act(GroupEntry& group, const action::Answer& answer);
  void act(GroupEntry& group, const action::StateChanged& changed);
  void act(GroupEntry& group, const action::Finished& finished);
  template <class What>
  void act(GroupEntry& group, const What& action) {
    operations_.run(group, action);
  }

  GroupEntry& group_of(const Rank& rank) { return node_.groups.at(rank.group); }
  const std::string& label(const Rank& rank) {
    return group_of(rank).machine.members().label(rank.id);
  }

  struct Session {  // that has said Hello when rank is not 0
    Peer peer;
    RankId rank = 0;
    EventLoop::TimerId hello_timer;
  };

  EventLoop& loop_;
  const Config& config_;
  const Devices& devices_;
  const Nvml& nvml_;
  const Time began_ = Clock::now();
  Node node_;
  EventHub events_;
  LogLimit strangers_;   // of sessions that ended without a Hello
  LogLimit complaints_;  // about what ranks ask for
  CostMeter meter_;
  Histograms histograms_;
  std::map<SessionId, Session> sessions_by_id_;
  Time trimmed_{};
  RankId next_rank_ = 1;
  GroupId next_group_ = 1;
  SessionServer sessions_;
  SavedBytes saved_;
  Outbox outbox_;
  Operations operations_;
  HostPool pool_;
};

}  // namespace amem
