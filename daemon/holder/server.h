// HolderServer: what amem-holder does. Keeps descriptors for one amemd at a time, over its death.
//
// It never waits for its client: what a socket does not take is queued. A client that breaks the
// rules of wire.h is told so and let go of; what it has put stays, as after its death. It ends when
// what it holds is worth nothing: no client is connected, and none of the processes that it has
// under HolderKind::kProcess lives. One that stays closes it instead.
//
// For the loop's thread; the loop does not run any more when this object goes.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/fd.h"
#include "common/status.h"
#include "daemon/base/event_loop.h"
#include "daemon/base/log_limit.h"
#include "daemon/base/unix_listener.h"
#include "daemon/holder/closer.h"
#include "daemon/holder/wire.h"

namespace amem {

struct HolderSettings {
  std::string path;  // whose folder is made where it is missing; not that one's
  Duration first_wait = std::chrono::seconds(60);  // for its first client
  Fd listener = {};   // listens at the path for somebody who starts us when it is needed
  bool stay = false;  // for whoever would take its end for a failure
};

class HolderServer {
 public:
  /// `over` is called once, when it is worth nothing any more. What is passed in outlives this.
  HolderServer(EventLoop& loop, HolderSettings settings, std::function<void()> over);
  ~HolderServer();
  HolderServer(const HolderServer&) = delete;
  HolderServer& operator=(const HolderServer&) = delete;

  /// kAlreadyExists: another one serves the path; the text names its pid.
  Status start();
  /// Takes no more clients, lets go of the one there is, and makes space for another holder.
  void shut();

  std::size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    SharedFd fd;
    EventLoop::WatchId watch = 0;  // of a process that lives
  };
  struct Outgoing {
    HolderHeader header;
    std::vector<HolderKey> keys;
    std::vector<SharedFd> fds;
  };
  struct AwaitClosed {
    std::uint64_t number = 0;
    std::uint32_t lane = 0;
  };
  struct Client {
    std::uint64_t id = 0;
    pid_t pid = 0;
    Fd socket;
    EventLoop::WatchId watch = 0;
    bool greeted = false;
    std::deque<Outgoing> queue;
    std::vector<AwaitClosed>
        awaiting_closed;  // wait for what is queued: it may have what was dropped
  };

  Status make_folder() const;
  Status lock();
  void take(Fd socket);
  void on_events(std::uint32_t events);
  /// At most so many packets; whether the client has said all that it had to.
  bool read(int packets);
  void handle(const HolderPacket& packet, std::vector<Fd> fds, bool lost);
  void greet(std::uint64_t version);
  void put(const HolderPacket& packet, std::vector<Fd> fds);
  void drop(HolderKey key);
  void list(std::uint64_t number);
  void await_closed(const AwaitClosed& asked);
  Closer& closer(std::uint32_t lane);
  void send(Outgoing out);
  void flush();
  void break_with(HolderRefusal why, std::uint64_t number);
  void leave(const std::string& why);
  /// Ends, or lets go of all, when what it holds is worth nothing.
  void weigh();

  EventLoop& loop_;
  HolderSettings settings_;
  const std::function<void()> over_;
  Fd lock_;
  LogLimit refusals_;
  UnixListener listener_;
  std::map<std::uint32_t, Closer> closers_;  // by lane; before entries_, which give them theirs
  std::map<HolderKey, Entry> entries_;
  std::size_t living_ = 0;  // processes
  std::optional<Client> client_;
  std::uint64_t last_id_ = 0;
  std::optional<EventLoop::TimerId> first_wait_;
  bool is_over_ = false;
};

}  // namespace amem
