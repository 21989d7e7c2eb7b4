// Session: this rank's connection to the broker.
//
// Opened at the first brokered call. A service thread reads the socket: replies go to the threads
// that wait for them, commands to the Handler, one after another. call() and post() from any
// thread, but call() not from the handler, which runs on the thread that would read the answer.
//
// When the broker ends, the service thread tries to reconnect to the next one (docs/protocol.md,
// "Reconnecting"). Meanwhile calls wait, and are asked again; what has no Reply is dropped, because
// the rank tells anew what it holds. Once that has taken too long, or is refused, the session is
// lost: then calls fail at once, and the handler hears of it once. A handler that holds out makes
// that later: calls fail, and the thread goes on trying.
//
// A thread that waits for an answer that is due at once reads the socket, too: to wake the service
// thread and to be woken by it takes several times as long as the broker's answer. What it finds
// for others it leaves to the service thread, in order.
//
// Sending waits for nobody (send_queue.h); the service thread sees to what is left.
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "common/packet.h"
#include "common/protocol.h"
#include "shim/session/connection.h"
#include "shim/session/retries.h"
#include "shim/session/send_queue.h"

namespace amem::shim {

/// Why a packet may lack descriptors, for the end of an error: the kernel leaves out those that
/// have no space in the process's table.
inline constexpr const char* kNoSpaceForDescriptors =
    ". This process may have too many files open: raise the limit (ulimit -n)";

/// A Reply, and the descriptors that came with it.
struct ReplyPacket {
  amem_v1_Reply reply = amem_v1_Reply_init_zero;
  std::vector<Fd> fds;
};

/// The allocations that an answer gives the rank; none with most.
std::vector<std::uint64_t> given_by(const amem_v1_Reply& reply);

class Session {
 public:
  /// How long the broker may read nothing while messages wait for space in the socket.
  static constexpr std::chrono::milliseconds kSendDeadline{60'000};
  static constexpr std::chrono::milliseconds kEndDeadline{500};
  explicit Session(std::chrono::milliseconds send_deadline = kSendDeadline)
      : outgoing_(send_deadline) {}

  /// From here on messages are kept for the next broker: first these, then the requests that are
  /// waited for, then what comes. What came before is dropped. The result: what Replies have given
  /// callers who have not entered it yet (taken()).
  using Mark = std::function<std::vector<std::uint64_t>(std::vector<SendQueue::Parcel> first)>;

  /// All of it on the service thread.
  struct Handler {
    virtual ~Handler() = default;
    /// One command of the broker.
    virtual void command(Packet& packet) = 0;
    /// A Reply whose caller has given up.
    virtual void unclaimed(const Packet& reply) = 0;
    /// The broker has ended, and the session looks for another, which knows nothing of what was
    /// under way.
    virtual void disconnected() = 0;
    /// Returns what the rank says to the next broker, without its key. Calls `mark` once, under the
    /// locks that others hold when they change what the rank holds and post that.
    virtual Comeback comes_back(const Mark& mark) = 0;
    /// It has reconnected.
    virtual void returned() = 0;
    /// No broker has come in time; or, without `hope`, none will ever serve this rank. True: the
    /// session is to go on trying, which it does if there is hope.
    virtual bool waits_for_broker(const Status& why, bool hope) = 0;
    /// The session is lost; the service thread ends afterwards. Not called once the driver is about
    /// to end (stop()).
    virtual void lost() = 0;
  };

  using Identity = RankIdentity;

  /// Connects and says Hello. kUnavailable: no broker there. kPermissionDenied: somebody else plays
  /// one there (common/trusted_broker.h). Otherwise the broker's refusal. `reconnect`: for how long
  /// to try to reconnect when the broker has ended, or to join the next one when it ends before it
  /// answers.
  Status connect(const std::string& socket_path, const Identity& identity,
                 std::chrono::milliseconds reconnect = {});
  /// Starts the service thread; commands may come from now on. The handler must live until the
  /// process ends. REQUIRES: connect() succeeded.
  Status start(Handler& handler);
  /// Returns whether requests are answered, or wait for a broker. Returns false if they fail at
  /// once.
  bool alive() const { return alive_.load(std::memory_order_acquire); }
  /// A broker is connected now.
  bool online() const { return online_.load(std::memory_order_acquire); }
  /// The session is lost.
  bool ended() const { return ended_.load(std::memory_order_acquire); }
  /// See connect().
  std::chrono::milliseconds reconnect() const { return reconnect_; }

  /// Sends a request and waits for its Reply. A Reply with a code is returned as that Status.
  /// `soon`: for so long it may be worth a core to look for the answer without sleeping. `fd`: goes
  /// with the request, and stays the caller's.
  Result<ReplyPacket> call(Message& message, std::chrono::milliseconds deadline,
                           std::chrono::microseconds soon = {}, const Fd* fd = nullptr);
  /// Waits until the broker has done what was sent before, at most `deadline`, and what `what` asks
  /// for. Returns the bytes of spares on its device. kUnavailable: no broker is connected, or this
  /// one ended meanwhile; the next one hears of it at the reconnect.
  Result<std::uint64_t> await_closed(const amem_v1_AwaitClosed& what,
                                     std::chrono::milliseconds deadline,
                                     std::chrono::microseconds soon);
  /// Nobody waits any more for the GroupRequest that this thread (gettid) waits for: it is answered
  /// if it has not begun. Without effect if the thread waits for none, or the broker is too old.
  void withdraw(pid_t thread);
  /// Who made the call has entered what its Reply gave (given_by()). Once for each.
  /// Under the lock under which the handler marks.
  void taken(std::uint64_t id);
  /// Sends a message that has no Reply, and returns at once. It may be dropped, with a broker that
  /// ends.
  void post(const Message& message, std::vector<Fd> fds = {});
  using Clock = std::chrono::steady_clock;
  /// Runs a function on the service thread, between commands.
  void run(std::function<void()> task) { run_at({}, std::move(task)); }
  /// The same, not before the given time.
  void run_at(Clock::time_point when, std::function<void()> task);

  /// The process is ending: calls that wait for the broker, and later ones, wait at most
  /// kEndDeadline from here on.
  void end();
  bool ending();
  /// The driver is about to end. What uses it does not begin any more: tasks, commands, and what
  /// the handler does about a broker that ends. What is under way is waited for, at most until
  /// `deadline`.
  void stop(Clock::time_point deadline);

  std::uint32_t rank_id() const { return welcome_.rank_id; }
  /// The first one.
  const amem_v1_Welcome& welcome() const { return welcome_; }
  /// This broker may keep free memory for a resume.
  bool has_spares() const { return has_spares_; }
  /// This broker wants large blocks in parts.
  bool takes_parts() const { return takes_parts_; }

  /// In a child of fork: closes the child's copy of the socket, so that the parent's end stays the
  /// only one.
  void abandon_after_fork() noexcept;

 private:
  struct Unanswered {
    const Message* request = nullptr;
    const Fd* fd = nullptr;       // beside it
    std::uint64_t sent = 0;       // the send queue's
    bool of_this_broker = false;  // nobody waits for another broker's answer
    pid_t thread = 0;             // that waits
    bool withdrawn = false;       // guarded by mutex_
    std::atomic<bool> done{false};
    ReplyPacket answer;  // the caller's once done
  };

  struct DueTask {
    Clock::time_point when;
    std::function<void()> run;
  };

  Status join();
  void heed(const amem_v1_Welcome& welcome);
  Result<ReplyPacket> call(Message& message, std::chrono::milliseconds deadline,
                           std::chrono::microseconds soon, Unanswered& waiting);
  Status send(const Message& message, std::vector<Fd> fds, Unanswered* request);
  /// With mutex_ held.
  void post_withdraw(std::uint64_t request);
  void wake();
  void sleep(pollfd* fds, std::size_t count, int milliseconds);
  void serve();
  Status serve_broker();
  Status serve_next(bool readable);
  Status leave(const Status& end);
  bool come_back(const Status& end);
  Status try_to_come_back();
  std::vector<std::uint64_t> mark(std::vector<SendQueue::Parcel> first);
  bool idle_until(Clock::time_point when);
  void set_alive(bool alive);
  void look_for_answer(const Unanswered& waiting, Clock::time_point until);
  void run_due_tasks();
  template <class Function>
  void work(const Function& work);
  /// Marks the end of work(), however that comes.
  class Served {
   public:
    explicit Served(Session& session) : session_(session) {}
    ~Served();
    Served(const Served&) = delete;
    Served& operator=(const Served&) = delete;

   private:
    Session& session_;
  };
  int milliseconds_to_wait();
  bool deliver(Packet& packet);

  Fd socket_;  // its number stays the same: other threads may be about to use it
  Fd wake_;    // eventfd: tasks_ has something
  std::string path_;
  Identity identity_;
  std::chrono::milliseconds reconnect_{};
  amem_v1_Welcome welcome_ = amem_v1_Welcome_init_zero;
  Token key_{};  // the service thread's; zeros: the rank cannot reconnect
  Handler* handler_ = nullptr;
  std::atomic<bool> alive_{false};
  std::atomic<bool> ended_{false};
  std::atomic<bool> online_{false};  // changes while reading_ is held
  std::atomic<bool> has_spares_{false};
  std::atomic<bool> takes_parts_{false};
  std::atomic<int> joining_{-1};  // a socket that is not socket_ yet
  SendQueue outgoing_;

  /// What one receive() gave.
  struct Incoming {
    Status status;
    Packet packet;
  };
  std::mutex reading_;         // held to receive; taken before mutex_
  std::deque<Incoming> left_;  // for the service thread, read by others; guarded by reading_
  Incoming found_;  // what look_for_answer() has received; not on its stack; guarded by reading_

  std::mutex mutex_;  // guards what follows
  std::condition_variable answered_;
  std::uint64_t next_seq_ = 2;  // after Hello
  std::unordered_map<std::uint64_t, Unanswered*> waiting_;
  std::vector<DueTask> tasks_;
  bool withdraws_ = false;  // this broker takes Withdraw
  bool ending_ = false;
  bool serving_ = false;  // a task or command is under way
  bool stopped_ = false;  // none begins any more
  std::condition_variable served_;
  std::vector<std::uint64_t> given_;  // by Replies, and not taken() yet
};

}  // namespace amem::shim
