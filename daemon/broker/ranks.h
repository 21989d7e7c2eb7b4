// Ranks: who is connected: sessions, and ranks from their Hello to the end of their process.
//
// For the loop's thread; works on the Node's tables.
#pragma once

#include <algorithm>
#include <map>
#include <string>

#include "daemon/base/event_loop.h"
#include "daemon/base/ids.h"
#include "daemon/broker/groups.h"
#include "daemon/broker/rank_requests.h"
#include "daemon/operations/operations.h"
#include "daemon/reports/events.h"
#include "daemon/sessions/session_server.h"
#include "daemon/stages/stages.h"

namespace amem {

/// Returns the rank's name in messages: "rank 3 (pid 123)".
std::string rank_label(const Rank& rank);

class Ranks final : public SessionHandler {
 public:
  /// Everything passed in outlives this object.
  Ranks(const OperationContext& context, SessionServer& sessions, EventHub& events,
        Operations& operations, Groups& groups, RankRequests& requests, Stages& stages);
  ~Ranks() override;
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  /// Adds a rank that another broker has served. It may reconnect, until its process has ended.
  /// REQUIRES: its group is there and expects it.
  void expect(Rank rank);
  /// The ids before this one have been used.
  void continue_at(RankId next) { next_rank_ = std::max(next_rank_, next); }

  // SessionHandler
  void session_opened(SessionId session, const PeerCredentials& peer) override;
  void session_packet(SessionId session, Packet& packet) override;
  void session_closed(SessionId session, const std::string& why) override;

 private:
  struct Session {  // that has said Hello when rank is not 0
    PeerCredentials peer;
    RankId rank = 0;
    EventLoop::TimerId hello_timer = {};
    bool refused = false;    // it must close: what it has sent still would make it miss why
    bool returning = false;  // it is saying what it holds
    bool gate_shut = false;  // as it has said
    bool unmaps_segments = false;
    std::map<AllocationId, amem_v1_Inventory_Item> inventory =
        {};                     // as far as it has said, and we know
    std::uint64_t unknown = 0;  // what it holds besides
  };

  void hello(SessionId session, std::uint64_t seq, const amem_v1_Hello& message);
  void forget_unwelcomed(const PeerCredentials& peer, const amem_v1_Hello& message);
  Status put_on_record(Rank& rank);
  void come_back(SessionId session, std::uint64_t seq, const amem_v1_Hello& message);
  /// One that reconnects says what it holds.
  void inventory(SessionId session, const amem_v1_Inventory& message);
  /// It has memory still that is paused, since it never heard the command to let go of it, or did
  /// not get to it: it is told so again. `inventory`: what it says that it has.
  void release_leftovers(const Rank& rank, bool gate_shut,
                         const std::map<AllocationId, amem_v1_Inventory_Item>& inventory);
  /// Its session has ended: it is removed, at once or when its process has ended too. One whose
  /// process may be checkpointed may reconnect before.
  void lose(RankId id, const std::string& why);
  /// It has memory that a rank with a session has too, of its group or another.
  bool shares(const Rank& rank) const;
  /// A rank without its session has this; null: nothing.
  bool has_lost(const Allocation* a) const;
  void process_ended(RankId id);
  /// Removes the lost that share nothing any more.
  void remove_harmless();
  void let_go_of_pool(const Rank& rank);
  void remove(RankId id, const std::string& why);
  void note_end(GroupEntry& group, int number, const std::string& label);
  void write_lost(GroupEntry& group);

  Node& node_;
  EventLoop& loop_;
  Workers& workers_;
  SavedBytes& saved_;
  Outbox& outbox_;
  SessionServer& sessions_;
  EventHub& events_;
  Operations& operations_;
  Groups& groups_;
  RankRequests& requests_;
  Stages& stages_;
  /// A process that may have some of the pool mapped although its rank has gone.
  struct Leaving {
    SharedFd process;  // of its own, since others may watch the rank's
    std::shared_ptr<Account> account;
    Charge charge;  // as for a session: who connects again and again has as many of these
    EventLoop::WatchId watch = 0;
  };
  void left(RankId id, const std::shared_ptr<Account>& account);

  std::map<SessionId, Session> sessions_by_id_;
  std::map<RankId, Leaving> leaving_;
  RankId next_rank_ = 1;
};

}  // namespace amem
