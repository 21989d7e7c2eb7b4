// Ranks: who is connected: sessions, and ranks from their Hello to the end of their process.
//
// For the loop's thread; works on the Node's tables.
#pragma once

#include <map>
#include <string>

#include "daemon/base/event_loop.h"
#include "daemon/base/ids.h"
#include "daemon/base/log_limit.h"
#include "daemon/broker/groups.h"
#include "daemon/broker/rank_requests.h"
#include "daemon/operations/events.h"
#include "daemon/operations/operations.h"
#include "daemon/sessions/session_server.h"

namespace amem {

class Ranks final : public SessionHandler {
 public:
  /// Everything passed in outlives this object.
  Ranks(const Means& means, SessionServer& sessions, EventHub& events, Operations& operations,
        Groups& groups, RankRequests& requests);

  // SessionHandler
  void session_opened(SessionId session, const Peer& peer) override;
  void session_packet(SessionId session, Packet& packet) override;
  void session_closed(SessionId session, const std::string& why) override;

 private:
  struct Session {  // that has said Hello when rank is not 0
    Peer peer;
    RankId rank = 0;
    EventLoop::TimerId hello_timer;
  };

  void hello(SessionId session, std::uint64_t seq, const amem_v1_Hello& message);
  /// Its session has ended: it is removed, at once or when its process has ended too.
  void lose(RankId id, const std::string& why);
  /// It has memory that a rank with a session has too.
  bool shares(const Rank& rank) const;
  void process_ended(RankId id);
  /// Removes the lost that share nothing any more.
  void remove_harmless(GroupId group);
  void remove(RankId id, const std::string& why);

  Node& node_;
  EventLoop& loop_;
  SavedBytes& saved_;
  SessionServer& sessions_;
  EventHub& events_;
  Operations& operations_;
  Groups& groups_;
  RankRequests& requests_;
  LogLimit strangers_;  // of sessions that ended without a Hello
  std::map<SessionId, Session> sessions_by_id_;
  RankId next_rank_ = 1;
};

}  // namespace amem
