// RankProcess: a rank: the other end of a session, which does what the broker tells it with the
// bytes of the simulated driver's memory, well or badly, when it is told to go on; and its program,
// which writes to what it has and finds there what it should.
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

#include "common/form.h"
#include "common/packet.h"
#include "common/protocol.h"
#include "common/rank_phase.h"
#include "daemon/memory/devices.h"
#include "tests/world/checkpoints.h"
#include "tests/world/device_memory.h"
#include "tests/world/process.h"

namespace amem::world {

class Digest;

/// Every allocation, and what its programs have written there last.
struct Truth {
  Token token{};
  std::string group;  // its address
  DeviceUuid device = {};
  std::uint8_t value = 0;
  std::uint8_t before = 0;
  bool may_be_dropped = false;  // by a pause: zeros are right, too
};
/// By their ids, which begin anew where a broker and its holder have died together.
using Truths = std::map<std::uint64_t, std::shared_ptr<Truth>>;

/// Whose process a rank is, which stage it names, and the devices that it sees; none: all.
struct Origin {
  uid_t user = 1001;
  std::string stage = {};
  std::set<DeviceUuid> sees = {};
  std::string program = {};
};

/// kSlow: it begins a Save, and ends it with the next command. kLies: copies and makes nothing, and
/// says that it has. kDenies: does it, but for a Make, and says that it has not.
enum class Mood : std::uint8_t { kWell, kFails, kSilent, kTwice, kSlow, kLies, kDenies };

/// What ranks do differently.
struct Habits {
  bool fills = true;    // memory that it gets, with bytes by which it is known
  bool hashes = true;   // takes them where they are wanted
  bool keeps = true;    // descriptors; one that keeps none copies nothing
  bool unmaps = false;  // segments, when it is asked to; no: an older shim
  /// Not 0: pieces that may be sparse, and whose bytes are all the same, are saved in so many.
  std::uint64_t sparse_bytes = 0;
  std::uint64_t checksum = 0;               // told of each piece that it saves; 0: none
  std::optional<std::uint32_t> mask = {};   // finds it in each group of blocks; none: cannot look
  std::vector<amem_v1_DeviceCut> cut = {};  // what it says of devices while its gate is shut
  Code failure = Code::kInternal;           // with which it fails
  std::string why = {};
};

/// Memory that a rank asks for. `own`: it makes it itself, and gives it to the broker to keep.
struct Wish {
  DeviceUuid device = {};
  std::uint64_t size = 0;
  std::string tag = {};
  bool own = false;
  bool gpu_direct_rdma = false;
  amem_v1_RegionPolicy policy = amem_v1_RegionPolicy_REGION_POLICY_UNSPECIFIED;
  std::uint64_t part = 0;  // Create.part
};

class RankProcess {
 public:
  /// Of a simulated node.
  RankProcess(Truths& truths, Checkpoints& checkpoints, std::string group, int number,
              Origin origin = {});
  /// `driver`: what it makes memory with, and which devices there are; null: it says nothing of
  /// devices, as an older shim.
  RankProcess(Truths& truths, std::unique_ptr<Process> process, const Devices* driver,
              std::string group, int number, Origin origin = {})
      : process_(std::move(process)),
        driver_(driver),
        group_(std::move(group)),
        number_(number),
        origin_(std::move(origin)),
        truths_(&truths) {}

  /// From now on.
  void use(const Devices& driver) { driver_ = &driver; }
  /// Its process begins, and may connect later. What is readable once it has ended.
  int begin() { return process_->begin(); }
  void connect(const std::string& path);
  /// Says nothing by itself: somebody else sends what it says, whatever that is, by its socket. So
  /// what it has is what it is answered. It may find no place to connect.
  void connect_for_another(const std::string& path);
  /// Every packet of the broker is shown, before anything else comes of it.
  void show(std::function<void(const Packet&)> shown) { shown_ = std::move(shown); }
  /// Every reply is handed over when it has taken effect, also one to what it has not asked.
  void hear(std::function<void(Packet)> heard) { heard_ = std::move(heard); }
  /// Its broker has died. It takes what answers there are still, gives up what that one had told it
  /// to do, and may come back. One that has not been welcomed goes on without amem. A Save that it
  /// has begun goes on, also where its session ends.
  void lose_broker();
  /// The request's number.
  std::uint64_t come_back(const std::string& path);
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

  bool lives() const { return process_->lives(); }
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
  pid_t pid() const { return process_->pid(); }
  /// As the broker knows it; 0: it has not been welcomed.
  std::uint32_t id() const { return id_; }
  bool gate_shut() const { return gate_shut_; }
  /// As far as it knows.
  bool runs() const { return (connected() || paused_) && joined_ && !gate_shut_ && !is_lost(); }
  /// The driver has lost its process.
  bool is_lost() const { return lives() && process_->state() == ProcessState::kFailed; }
  /// Its process is neither locked nor checkpointed, so its calls of the driver return.
  bool is_free() const {
    const ProcessState state = process_->state();
    return state == ProcessState::kRunning || state == ProcessState::kFailed;
  }
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
  /// Adds what it is, and has: rank_digest.cpp.
  void add_to(Digest& digest) const;
  /// Adds what it has, and what it has asked for.
  void count(std::map<std::uint64_t, std::uint64_t>& sizes, std::uint64_t& asked) const;

  /// Takes in what has come. Replies count at once; false: nothing has come.
  bool read();
  /// One packet; false: none has come, or the session has ended.
  bool read_one();
  bool has_command() const { return saves_ || !commands_.empty(); }
  /// Carries out the next command. REQUIRES: there is one.
  void handle(Mood mood);
  /// What the driver did not let go of it lets go of now.
  void drop_leftovers();
  /// Of its next command.
  std::string next_command() const;
  /// REQUIRES: has_command(), and no Save is under way.
  const Message& next_message() const { return commands_.front().message; }
  void forget_commands() {
    commands_.clear();
    returned_.clear();
  }

  // ---- turns ----
  /// Whether a call of it waits at the gate, and whether it has work: told where the broker wants
  /// to know, and it is news.
  void work(bool waiting, bool worked);
  /// A NIC knows this memory from now on, until its process ends. REQUIRES: runs(), and it has it.
  void pin(std::uint64_t id);
  void unpin(std::uint64_t id);
  struct Has {
    std::uint64_t id = 0;
    std::uint64_t size = 0;
    DeviceUuid device = {};
    std::string tag = {};
    bool guest = false;
    bool pinned = false;
    bool usable = false;
    bool mapped = false;  // and the driver has not refused to let go of it
  };
  std::vector<Has> has() const;
  bool has_pins() const;

  // ---- its program; REQUIRES: runs(), but for frees ----
  /// `own`: it makes the memory itself, and gives it to the broker to keep. Nothing where there is
  /// no space. `part`: Create.part.
  void create(const DeviceUuid& device, std::uint64_t size, const std::string& tag, bool own,
              std::uint64_t part = 0);
  /// The request's number; 0: nothing.
  std::uint64_t ask_for_memory(const Wish& wish);
  std::uint64_t ask_to_open(std::uint64_t id, const Token& token);
  /// Nothing where it has it.
  void open(std::uint64_t id, const Token& token);
  /// Whether it has it or not.
  void free(std::uint64_t id);
  /// Nothing where the one that chance takes is just being opened once more: to the broker it stays
  /// this rank's, as the shim sees to. `only_its_own`: nor where any other has it.
  void free_one(std::uint64_t chance, bool only_its_own = false);
  void free_guests();
  void write_one(std::uint64_t chance, std::uint8_t value);
  /// Not gated. `tag`: only its own memory of this tag; empty: all, together with the other ranks.
  void ask(bool pause, bool deep, const std::string& tag = "");
  /// Some of its memory is on no device, though it runs: it has asked for that itself.
  bool has_offloaded() const;
  /// The memory that it has mapped, also what the driver has not let go of, by allocation.
  std::map<std::uint64_t, MemoryId> mapped() const;
  /// Empty: everything that it has is there, with its bytes. `all`: nothing may be paused.
  std::string check(bool all) const;

  Habits habits;

 protected:
  struct Memory {
    std::uint64_t size = 0;
    std::uint64_t part = 0;  // asked for in parts of this size
    std::string tag;
    DeviceUuid device = {};
    bool own = false;  // of its making
    bool gpu_direct_rdma = false;
    Fd made;  // in the resume under way, and not mapped yet
    Fd fd;    // what is mapped
    std::shared_ptr<Truth> truth;
    bool guest = false;       // another group's
    std::uint64_t opens = 0;  // not answered yet: the one that is asked for
    bool arrived = false;     // in the resume under way: not to be touched yet
    bool stale = false;       // the driver has not let go of it
    bool pinned = false;
    bool usable() const { return fd && !arrived && !stale; }
  };
  /// A piece that it tells of when it has saved it. What stands for its hashes: its bytes.
  struct Saved {
    amem_v1_Copy place{};
    std::uint64_t epoch = 0;
    std::string bytes;
    amem_v1_Saved_Piece told{};
  };

  /// As it was before it began, but for its habits and for who looks on, in another process.
  void begin_anew(std::unique_ptr<Process> process);
  bool connect_socket(const std::string& path);
  /// The request's number.
  std::uint64_t say_hello();
  /// Of a broker that is lost: what it was told to do, and what goes with that.
  void give_up();
  Packet next_packet();
  void carry_out(Packet packet, Mood mood);
  void done(RankPhase phase, std::uint64_t epoch, std::uint32_t wave, bool well, Mood mood);
  void tell_saved(std::uint64_t epoch, std::uint32_t wave,
                  const std::vector<amem_v1_Saved_Piece>& pieces);
  void tell_measured(std::uint64_t epoch, std::uint64_t id, std::uint64_t group,
                     const std::vector<std::uint32_t>& masks);
  /// As it is, or with the next number.
  void say(const Message& message, const std::vector<int>& fds = {});
  void send(Message& message, const std::vector<int>& fds = {});
  /// What the broker wants to know while the gate is shut.
  void report();
  void unmap(const amem_v1_UnmapSegment& asked, Mood mood);

  std::unique_ptr<Process> process_;
  const Devices* driver_;
  std::string group_;
  int number_;
  Origin origin_;
  Token key_{};  // with which it may come back
  std::map<std::uint64_t, Memory> memory_;
  std::map<std::uint32_t, Fd> segments_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, Saved> hashes_;  // by allocation and offset

 private:
  /// What has been read from a device, and where it is to be written.
  struct Write {
    const Fd* segment;
    std::uint64_t offset;
    std::string bytes;
  };
  struct Saves {
    amem_v1_Copies what;
    std::vector<Write> writes;
    std::vector<Saved> pieces;
  };

  void take_created(const amem_v1_Created& created, Memory& asked, std::vector<Fd>& fds);
  void take_unasked(Packet& packet);
  bool is_opening(std::uint64_t id) const;
  void say_inventory();
  void say_work();
  void take(Packet packet);
  static std::string name_of(const Message& message);
  void reply(Packet& packet);
  void look_at_returned();
  /// It will be answered, if need be by another broker.
  void ask_for(Message& message, const std::vector<int>& fds = {});
  void send_bytes(const std::string& bytes, const std::vector<int>& fds = {}) const;
  void make(const amem_v1_Make& make, Mood mood);
  void drop_made();
  void look(const amem_v1_Measure& measure);
  void begin_save(const amem_v1_Copies& copies, bool well);
  /// In which it stores these; nothing: its place is too small.
  std::optional<Form> form_of(const amem_v1_Copy& copy, const std::string& bytes) const;
  void saved(const amem_v1_Copies& what, Mood mood);
  /// Of what the place has, by these hashes; null: they are not known.
  const std::string* known(const amem_v1_Copy& copy) const;
  bool load(const amem_v1_Copies& copies);
  bool map(Packet& packet);
  void release(const amem_v1_Release& release, bool well);
  void take_word(const amem_v1_Ask& ask, bool well, Mood mood);

  Truths* truths_;
  Fd socket_;
  std::uint32_t id_ = 0;
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
  std::function<void(Packet)> heard_;
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
  std::deque<Packet> commands_;
  /// It was answered that this is there, behind so many commands that it has yet to do: until then
  /// its program's calls about it wait.
  struct Returned {
    std::string tag;
    std::size_t commands = 0;
  };
  std::vector<Returned> returned_;
  std::optional<Saves> saves_;  // just now
  std::vector<Saved> taken_;    // of the Save under way, as far as it is written
};

}  // namespace amem::world
