// Session: this rank's connection to the broker.
//
// Opened at the first brokered call. A service thread reads the socket: replies go to the threads
// that wait for them, commands to the Handler, one after another. call() and post() from any
// thread, but call() not from the handler, which runs on the thread that would read the answer. A
// lost session is never opened again: the handler hears of it once.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

#include "common/packet.h"
#include "common/protocol.h"

namespace amem::shim {

/// Why a packet may lack descriptors, for the end of an error: the kernel leaves out those that
/// have no room in the process's table.
inline constexpr const char* kNoRoomForDescriptors =
    "; has this process too many files open (ulimit -n)?";

class Session {
 public:
  /// How long a packet may wait for room in the socket, where hundreds wait that nobody reads.
  static constexpr std::chrono::milliseconds kSendDeadline{60'000};
  explicit Session(std::chrono::milliseconds send_deadline = kSendDeadline)
      : send_deadline_(send_deadline) {}

  struct Handler {
    virtual ~Handler() = default;
    /// One command of the broker. On the service thread.
    virtual void command(Packet& packet) = 0;
    /// A Reply whose caller has given up. On the service thread.
    virtual void unclaimed(const Packet& reply) = 0;
    /// The connection is gone. On the service thread, which ends afterwards.
    virtual void lost() = 0;
  };

  struct Identity {
    std::string group;
    int rank = -1;
    std::string program;
  };

  /// Connects and says Hello. kUnavailable: no broker there. kPermissionDenied: somebody else plays
  /// one there (common/peer.h). Otherwise the broker's refusal.
  Status connect(const std::string& socket_path, const Identity& identity);
  /// Starts the service thread; commands may come from now on. The handler must live as long as
  /// the process. REQUIRES: connect() succeeded.
  Status start(Handler& handler);
  bool alive() const { return alive_.load(std::memory_order_acquire); }

  /// Sends a request and waits for its Reply. A Reply with a code is returned as that Status.
  Result<Packet> call(Message& message, std::chrono::milliseconds deadline);
  /// Sends a message that has no Reply. Failure means that the session is lost, which the handler
  /// hears of.
  void post(const Message& message);
  using Clock = std::chrono::steady_clock;
  /// Runs a function on the service thread, between commands.
  void run(std::function<void()> task) { run_at({}, std::move(task)); }
  /// The same, not before the given time.
  void run_at(Clock::time_point when, std::function<void()> task);

  std::uint32_t rank_id() const { return welcome_.rank_id; }
  const amem_v1_Welcome& welcome() const { return welcome_; }

  /// In a child of fork: closes the child's copy of the socket, so that the parent's end stays the
  /// only one.
  void abandon_after_fork() noexcept;

 private:
  struct Waiting {
    bool done = false;
    Packet packet;
  };

  struct Task {
    Clock::time_point when;
    std::function<void()> run;
  };

  Status send(const Message& message);
  void serve();
  void run_due_tasks();
  int milliseconds_to_next_task();
  void deliver(Packet& packet);

  const std::chrono::milliseconds send_deadline_;
  Fd socket_;
  Fd wake_;  // eventfd: tasks_ has something
  amem_v1_Welcome welcome_ = amem_v1_Welcome_init_zero;
  Handler* handler_ = nullptr;
  std::atomic<bool> alive_{false};

  std::mutex mutex_;  // guards what follows
  std::condition_variable answered_;
  std::uint64_t next_seq_ = 1;
  std::unordered_map<std::uint64_t, Waiting*> waiting_;
  std::vector<Task> tasks_;
};

}  // namespace amem::shim
