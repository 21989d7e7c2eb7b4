// Session: this rank's connection to the broker.
//
// Opened at the first brokered call. A service thread reads the socket: replies go to the threads
// that wait for them, commands to the Handler, one after another. call() and post() from any
// thread, but call() not from the handler, which runs on the thread that would read the answer. A
// lost session is never opened again: the handler hears of it once.
//
// A thread that waits for an answer that is due at once reads the socket, too: to wake the service
// thread and to be woken by it takes several times as long as the broker's answer. What it finds
// for others it leaves to the service thread, in order.
//
// Sending waits for nobody. Messages go out in the order in which they were given; what the socket
// has no room for stays here until it has, and the service thread sees to that. It is not bounded:
// messages without a Reply are few or follow an answer of the broker's, such as Free its Create.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
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
  /// How long the broker may read nothing while messages wait for room in the socket.
  static constexpr std::chrono::milliseconds kSendDeadline{60'000};
  static constexpr std::chrono::milliseconds kEndDeadline{500};
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
  /// `soon`: for so long it may be worth a core to look for the answer without sleeping.
  Result<Packet> call(Message& message, std::chrono::milliseconds deadline,
                      std::chrono::microseconds soon = {});
  /// Sends a message that has no Reply, and returns at once. Failure means that the session is
  /// lost, which the handler hears of.
  void post(const Message& message);
  using Clock = std::chrono::steady_clock;
  /// Runs a function on the service thread, between commands.
  void run(std::function<void()> task) { run_at({}, std::move(task)); }
  /// The same, not before the given time.
  void run_at(Clock::time_point when, std::function<void()> task);

  /// The process is ending: what waits for the broker waits at most kEndDeadline from here on, and
  /// what asks it later likewise.
  void end();
  /// The driver is about to end. Tasks and commands, which use it, do not begin any more; the one
  /// that is under way is waited for, at most until `deadline`.
  void stop(Clock::time_point deadline);

  std::uint32_t rank_id() const { return welcome_.rank_id; }
  const amem_v1_Welcome& welcome() const { return welcome_; }

  /// In a child of fork: closes the child's copy of the socket, so that the parent's end stays the
  /// only one.
  void abandon_after_fork() noexcept;

 private:
  struct Unanswered {
    std::atomic<bool> done{false};
    Packet packet;  // the caller's once done
  };

  struct DueTask {
    Clock::time_point when;
    std::function<void()> run;
  };

  Status send(const Message& message);
  void flush();
  bool flush_in_time();
  bool is_full();
  void wake();
  void serve();
  bool serve_next(bool readable);
  void look_for_answer(const Unanswered& waiting, Clock::time_point until);
  void run_due_tasks();
  template <class Work>
  void work(const Work& work);
  int milliseconds_to_wait();
  bool deliver(Packet& packet);

  const std::chrono::milliseconds send_deadline_;
  Fd socket_;
  Fd wake_;  // eventfd: tasks_ has something
  amem_v1_Welcome welcome_ = amem_v1_Welcome_init_zero;
  Handler* handler_ = nullptr;
  std::atomic<bool> alive_{false};

  /// What one receive() gave.
  struct Incoming {
    Status status;
    Packet packet;
  };
  std::mutex reading_;         // held to receive; taken before mutex_
  std::deque<Incoming> left_;  // for the service thread, read by others; guarded by reading_

  std::mutex mutex_;  // guards what follows
  std::condition_variable answered_;
  std::uint64_t next_seq_ = 1;
  std::unordered_map<std::uint64_t, Unanswered*> waiting_;
  std::vector<DueTask> tasks_;
  bool ending_ = false;
  bool serving_ = false;  // a task or command is under way
  bool stopped_ = false;  // none begins any more
  std::condition_variable served_;

  std::mutex sending_;                // guards what follows; held over sends that do not wait
  std::deque<std::string> outgoing_;  // encoded
  std::optional<Clock::time_point> full_since_;  // the first of these found no room then
};

}  // namespace amem::shim
