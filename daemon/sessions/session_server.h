// SessionServer: session.sock, one connection per rank.
//
// Accepts, reads packets and hands them to a SessionHandler; sends packets with their descriptors,
// queueing what a socket does not take, so that the broker never blocks on a rank. A session that
// sends what does not decode, or that lets its queue pass kMaxQueue or kMaxAnswers, is closed;
// nobody else notices.
//
// For the loop's thread only. The handler may send and close from inside its calls;
// session_closed() always comes from the loop, never from within send() or close().
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "common/packet.h"
#include "daemon/base/event_loop.h"
#include "daemon/base/ids.h"
#include "daemon/base/log_limit.h"
#include "daemon/base/unix_listener.h"
#include "daemon/owners/account.h"
#include "daemon/owners/peer_credentials.h"

namespace amem {

class SessionHandler {
 public:
  virtual ~SessionHandler() = default;
  virtual void session_opened(SessionId session, const PeerCredentials& peer) = 0;
  /// The handler may take the packet's descriptors.
  virtual void session_packet(SessionId session, Packet& packet) = 0;
  /// `why` is empty when the peer closed it; the id is not used again.
  virtual void session_closed(SessionId session, const std::string& why) = 0;
};

class SessionServer {
 public:
  static constexpr std::size_t kMaxQueue = 64ULL << 20;  // bytes that what waits for one rank takes
  /// Replies among that. A thread of a rank waits for one before it asks again, so no rank that
  /// reads has so many; one that does not could have us keep a descriptor with each.
  static constexpr std::size_t kMaxAnswers = 4096;
  /// Of all owners; one that has quotas gets another while more are free than it has.
  static constexpr std::size_t kMaxSessions = 4096;

  /// Everything passed in outlives this object. Sessions, their descriptors and what waits for them
  /// are charged to their owners.
  SessionServer(EventLoop& loop, SessionHandler& handler, Accounts& accounts, Isolation isolation)
      : loop_(loop),
        handler_(handler),
        accounts_(accounts),
        isolation_(isolation),
        refusals_(loop, "sessions refused"),
        listener_(loop, [this](Fd socket) { take(std::move(socket)); }) {}
  ~SessionServer();
  SessionServer(const SessionServer&) = delete;
  SessionServer& operator=(const SessionServer&) = delete;

  /// Creates the socket file, replacing one that nobody listens on.
  /// REQUIRES: the caller holds the runtime directory's lock.
  Status listen(const SocketFile& file) { return listener_.open(file, SOCK_SEQPACKET); }

  /// Takes no more sessions and closes all there are, without telling the handler.
  void shut();

  /// The descriptors stay open until they are sent. No effect on a session that is closed.
  void send(SessionId session, const Message& message, std::vector<SharedFd> fds = {});

  /// Reads no more from it, drops what is queued (what the kernel has taken still arrives) and
  /// closes it; session_closed() follows.
  void close(SessionId session, const std::string& why);

 private:
  struct Outgoing {
    std::string bytes;
    std::vector<SharedFd> fds;
    bool answer = false;
    Charge charge;  // while it waits

    /// Bytes of memory, the allocator's share included.
    std::size_t cost() const;
  };
  struct Session {
    Fd socket;
    std::shared_ptr<Account> account;
    Charge charge;
    EventLoop::WatchId watch = 0;
    std::deque<Outgoing> queue;
    std::size_t queued = 0;   // what the queue costs
    std::size_t answers = 0;  // in the queue
    bool closing = false;
  };

  void take(Fd socket);
  void on_events(SessionId id, std::uint32_t events);
  void read_some(SessionId id);
  void flush(SessionId id);
  static Status send_now(const Session& session, const Outgoing& out);

  EventLoop& loop_;
  SessionHandler& handler_;
  Accounts& accounts_;
  const Isolation isolation_;
  LogLimit refusals_;  // of those whose owner is not known, or who are too many together
  UnixListener listener_;
  SessionId next_id_ = 1;
  std::map<SessionId, Session> sessions_;
};

}  // namespace amem
