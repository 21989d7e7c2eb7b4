// RankProcess: a rank of a history: the other end of a session, which does what the broker tells it
// with the bytes of the simulated driver's memory, well or badly, when it is told to go on; and its
// program, which writes to what it has and finds there what it should.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/packet.h"
#include "common/protocol.h"
#include "common/rank_phase.h"
#include "tests/world/checkpoints.h"

namespace amem::world {

/// Every allocation, and what its programs have written there last.
struct Truth {
  Token token{};
  std::string group;  // its address
  DeviceUuid device = {};
  std::uint8_t value = 0;
  std::uint8_t before = 0;
};
/// By their ids, which begin anew where a broker and its holder have died together.
using Truths = std::map<std::uint64_t, std::shared_ptr<Truth>>;

/// Whose process a rank is, which stage it names, and the devices that it sees; none: all.
struct Origin {
  uid_t user = 1001;
  std::string stage = {};
  std::set<DeviceUuid> sees = {};
};

/// kSlow: it begins a Save, and ends it with the next command. kLies: copies nothing.
enum class Mood : std::uint8_t { kWell, kFails, kSilent, kTwice, kSlow, kLies };

class RankProcess {
 public:
  RankProcess(Truths& truths, Checkpoints& checkpoints, std::string group, int number,
              Origin origin = {})
      : truths_(truths),
        checkpoints_(checkpoints),
        group_(std::move(group)),
        number_(number),
        origin_(std::move(origin)) {}

  /// Its process begins, and may connect later. What is readable once it has ended.
  int begin();
  void connect(const std::string& path);
  /// Says nothing by itself: somebody else sends what it says, whatever that is, by its socket. So
  /// what it has is what it is answered. It may find no place to connect.
  void connect_for_another(const std::string& path);
  /// Every packet of the broker is shown, before anything else comes of it.
  void show(std::function<void(const Packet&)> shown) { shown_ = std::move(shown); }
  /// Its broker has died. It takes what answers there are still, gives up what that one had told it
  /// to do, and may come back. One that has not been welcomed goes on without amem. A Save that it
  /// has begun goes on, also where its session ends.
  void lose_broker();
  void come_back(const std::string& path);
  /// Its process ends.
  void die();
  /// Its session ends; the process lives on, and its program stands still.
  void lose_session();
  /// A child of its process has its session's socket, too, until it ends.
  void fork();
  void child_ends() { child_.reset(); }
  bool has_child() const { return static_cast<bool>(child_); }
  /// By a signal, until it goes on.
  void stop(bool stops) { stopped_ = stops; }
  bool is_stopped() const { return stopped_; }
  /// Has begun a Save, and not ended it.
  bool saves() const { return saves_.has_value(); }
  void end_save();

  bool lives() const { return static_cast<bool>(process_); }
  bool connected() const { return static_cast<bool>(socket_); }
  /// To the broker; -1: none.
  int socket() const { return socket_.get(); }
  /// It has lost its broker and not come back.
  bool paused() const { return paused_; }
  /// The broker to which it came back does not know it.
  bool refused() const { return refused_; }
  const std::string& group() const { return group_; }
  /// By which an operator calls it: "a@1001".
  std::string address() const { return group_ + "@" + std::to_string(origin_.user); }
  uid_t user() const { return origin_.user; }
  bool sees(const DeviceUuid& device) const {
    return origin_.sees.empty() || origin_.sees.contains(device);
  }
  bool sees_all() const { return origin_.sees.empty(); }
  int number() const { return number_; }
  pid_t pid() const;
  /// As far as it knows.
  bool runs() const { return (connected() || paused_) && joined_ && !gate_shut_ && !is_lost(); }
  /// The driver has lost its process.
  bool is_lost() const { return lives() && checkpoints_.is_lost(pid()); }
  /// Its process is neither locked nor checkpointed, so its calls of the driver return.
  bool is_free() const { return checkpoints_.is_free(pid()); }
  /// It has done what comes before a checkpoint, or is to do that next.
  bool is_detached() const;
  /// Whether its process may be locked; empty: yes.
  std::string may_be_locked() const;
  /// Of what it has been told.
  const std::string& wrong() const { return wrong_; }
  bool waits() const { return pending_ > 0 || asked_ > 0; }
  /// As long as its group is paused: for memory that it wants back.
  bool waits_for_resume() const;
  /// Its group is paused, and no step is under way or to come: its program frees what it likes.
  bool rests() const { return (connected() || paused_) && rests_ && !detached_; }
  /// Adds what it has, and what it has asked for.
  void count(std::map<std::uint64_t, std::uint64_t>& sizes, std::uint64_t& asked) const;

  /// Takes in what has come. Replies count at once; false: nothing has come.
  bool read();
  bool has_command() const { return saves_ || !commands_.empty(); }
  /// Carries out the next command. REQUIRES: there is one.
  void handle(Mood mood);
  /// What the driver did not let go of it lets go of now.
  void drop_leftovers();
  /// Of its next command.
  std::string next_command() const;
  /// REQUIRES: has_command(), and no Save is under way.
  const Message& next_message() const { return commands_.front().message; }
  void forget_commands() { commands_.clear(); }

  // ---- turns ----
  /// Whether a call of it waits at the gate, and whether it has work: told where the broker wants
  /// to know, and it is news.
  void work(bool waiting, bool worked);
  /// A NIC knows this memory from now on, until its process ends. REQUIRES: runs(), and it has it.
  void pin(std::uint64_t id);
  struct Has {
    std::uint64_t id = 0;
    std::uint64_t size = 0;
    DeviceUuid device = {};
    std::string tag = {};
    bool guest = false;
    bool pinned = false;
    bool usable = false;
  };
  std::vector<Has> has() const;
  bool has_pins() const;

  // ---- its program; REQUIRES: runs(), but for frees ----
  /// `own`: it makes the memory itself, and gives it to the broker to keep. Nothing where there is
  /// no space.
  void create(const DeviceUuid& device, std::uint64_t size, const std::string& tag, bool own);
  void open(std::uint64_t id, const Token& token);
  /// Nothing where the one that chance takes is just being opened once more: to the broker it stays
  /// this rank's, as the shim sees to. `only_its_own`: nor where any other has it.
  void free_one(std::uint64_t chance, bool only_its_own = false);
  void free_guests();
  void write_one(std::uint64_t chance, std::uint8_t value);
  /// Not gated. `tag`: only its own memory of this tag; empty: all, together with the other ranks.
  void ask(bool pause, bool deep, const std::string& tag = "");
  /// Some of its memory is on no device, though it runs: it has asked for that itself.
  bool has_offloaded() const;
  /// Empty: everything that it has is there, with its bytes. `all`: nothing may be paused.
  std::string check(bool all) const;

 private:
  struct Memory {
    std::uint64_t size = 0;
    std::string tag;
    DeviceUuid device = {};
    bool own = false;  // of its making
    Fd made;           // in the resume under way, and not mapped yet
    Fd fd;             // what is mapped
    std::shared_ptr<Truth> truth;
    bool guest = false;       // another group's
    std::uint64_t opens = 0;  // not answered yet: the one that is asked for
    bool arrived = false;     // in the resume under way: not to be touched yet
    bool stale = false;       // the driver has not let go of it
    bool pinned = false;
    bool usable() const { return fd && !arrived && !stale; }
  };

  /// What has been read from a device, and where it is to be written.
  struct Write {
    const Fd* segment;
    std::uint64_t offset;
    std::string bytes;
  };
  /// What stands for the hashes of a piece: its bytes.
  struct Hashed {
    amem_v1_Copy place{};
    std::uint64_t epoch = 0;
    std::string bytes;
  };
  struct Saves {
    amem_v1_Copies what;
    std::vector<Write> writes;
    std::vector<Hashed> hashed;
  };

  bool connect_socket(const std::string& path);
  void take_unasked(Packet& packet);
  bool is_opening(std::uint64_t id) const;
  void say_hello();
  void say_holding();
  void say_work();
  void take(Packet packet);
  static std::string name_of(const Message& message);
  void reply(Packet& packet);
  void send(Message& message);
  /// It will be answered, if need be by another broker.
  void ask_for(Message& message, const std::vector<int>& fds = {});
  void send_bytes(const std::string& bytes, const std::vector<int>& fds = {}) const;
  void make(const amem_v1_Make& make, Mood mood);
  void drop_made();
  void report();
  void begin_save(const amem_v1_Copies& copies, bool well);
  void saved(const amem_v1_Copies& what, Mood mood);
  /// Of what the place has, by these hashes; null: they are not known.
  const std::string* known(const amem_v1_Copy& copy) const;
  void tell_hashed(const amem_v1_Copies& what);
  bool load(const amem_v1_Copies& copies);
  bool map(Packet& packet);
  void release(const amem_v1_Release& release, bool well);
  void take_word(const amem_v1_Ask& ask, bool well, Mood mood);
  void done(RankPhase phase, std::uint64_t epoch, std::uint32_t wave, bool well, Mood mood);

  Truths& truths_;
  Checkpoints& checkpoints_;
  const std::string group_;
  const int number_;
  const Origin origin_;
  Fd socket_;
  Fd process_;   // an eventfd: readable once it has ended
  Token key_{};  // with which it may come back
  bool joined_ = false;
  bool paused_ = false;
  bool refused_ = false;
  bool gate_shut_ = true;
  bool quiescing_ = false;
  bool rests_ = false;
  bool detached_ = false;
  bool reports_ = false;  // the broker wants to know of its work
  bool waiting_ = false;
  bool worked_ = false;
  bool speaks_for_another_ = false;
  bool stopped_ = false;
  Fd child_;  // its copy of the socket
  std::function<void(const Packet&)> shown_;
  std::string wrong_;
  bool copy_failed_ = false;
  bool map_failed_ = false;
  std::uint64_t epoch_ = 0;
  std::uint32_t steps_ = 0;
  std::uint64_t seq_ = 0;
  std::uint64_t hello_ = 0;                          // its number
  std::map<std::uint64_t, std::string> unanswered_;  // requests as they are sent, by number
  int pending_ = 0;                                  // calls that have passed the gate
  struct Asks {
    bool pause = false;
    std::string tag;
  };
  std::map<std::uint64_t, Asks> asks_;  // by sequence number
  int asked_ = 0;
  std::map<std::uint64_t, Memory> asking_for_;  // by sequence number
  std::map<std::uint64_t, Memory> memory_;
  std::map<std::uint32_t, Fd> segments_;
  std::deque<Packet> commands_;
  std::optional<Saves> saves_;  // just now
  std::vector<Hashed> taken_;   // of the Save under way, as far as it is written
  std::map<std::pair<std::uint64_t, std::uint64_t>, Hashed> hashes_;  // by allocation and offset
};

}  // namespace amem::world
