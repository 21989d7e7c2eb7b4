// Plays a trace of a stage: the real broker on the simulated driver, in one thread and in a time
// of its own. Ranks work, wait, allocate, pin and die; others take memory; operators pause and
// resume; brokers die. What must hold is looked at all along (stage_checks.cpp).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/stage_traces/stage_trace.h"
#include "tests/world/coroutine.h"
#include "tests/world/node.h"
#include "tests/world/rank_process.h"

namespace amem::stage_traces {

struct Played {
  std::string broken;  // what does not hold; empty: all does
  std::uint64_t switches = 0;
  std::uint64_t failed = 0;  // of switches
  std::uint64_t waits = 0;   // of groups
  std::uint64_t deaths = 0;  // of amemd
};

class StagePlayer {
 public:
  struct Options {
    bool aloud = false;
  };
  StagePlayer(const StageTrace& trace, const Options& options);
  ~StagePlayer();
  StagePlayer(const StagePlayer&) = delete;

  /// Call once.
  Played play();

 private:
  using Rank = world::RankProcess;
  struct Group;
  /// A rank and its program.
  struct Program {
    Rank rank;
    Group* group;
    std::set<int> uses = {};                 // devices
    std::deque<Piece> wants = {};            // not allocated yet
    int refused = 0;                         // the first of these, how often
    bool asked = false;                      // for the first of these
    Time asks_again{};                       // not before
    std::map<DeviceUuid, Fd> contexts = {};  // what its process has beside its memory
    bool stopped = false;                    // by a signal
    bool handles = false;                    // the next command is being carried out
    Fd watched = {};                         // its socket, once more
    EventLoop::WatchId watch = 0;
    Duration left{};                 // of its work
    std::optional<Time> works = {};  // since
    Time worked_until{};             // looks as if it worked
    std::uint64_t token = 0;         // of what is to end this work
  };
  struct Group {
    const GroupPlan* plan;
    std::vector<Program*> programs = {};  // that live
    int lives = 0;                        // how often it has begun
    bool joining = false;                 // it is announced, or about to join
    std::uint64_t start = 0;              // number of StartGroup under way
    Fd process = {};                      // that waits for its start
    bool leasing = false;
    bool leased = false;
    bool has_run = false;   // with its ranks
    Time worked{};          // last
    bool promised = false;  // has a longest wait
  };

  // ---- time ----
  Time now() const { return Clock::now(); }
  void after(Duration time, std::function<void()> what);
  void arm();
  void run_due();
  struct Pause {
    StagePlayer& player;
    Duration time;
    bool await_ready() const { return false; }
    void await_suspend(std::coroutine_handle<> who) {
      player.after(time, [who] { who.resume(); });
    }
    void await_resume() const {}
  };
  Pause pass(Duration time) { return {*this, time}; }

  // ---- brokers ----
  void begin_life();
  void end_life();
  void lose_broker();

  // ---- groups ----
  void join(Group& group);
  void begin_ranks(Group& group);
  void begin_rank(Group& group, int number);
  void watch(Program& program);
  void unwatch(Program& program);
  void read(Program& program);
  void handle_next(Program& program);
  void look(Program& program);
  void allocate(Program& program);
  void finish(Program& program, std::uint64_t token);
  void begin_work(Group& group);
  void plan_work(Group& group);
  void lease(Group& group);
  void yield_if_done(Group& group);
  void die(Program& program);
  void end(Group& group);
  void end_process(Group& group);
  void open_guest(Group& group);
  void set_wishes(Group& group);

  // ---- the world ----
  struct View {
    v1::TurnsResponse turns = {};
    std::map<std::string, v1::TurnInfo> infos = {};
    std::map<std::string, v1::GroupInfo> groups = {};
    std::vector<std::uint64_t> free = {};  // of each device
  };
  void others_change();
  std::shared_ptr<world::Observer> observe(const std::string& what, const std::string& group);
  void operator_acts();
  void driver_acts();
  void stop_one();
  void fork_one();
  void name_a_wrong_one(const View& view);
  void churn();
  void kill();
  /// Again and again at random times, while the trace lasts.
  void again(Duration low, Duration high, const std::function<void()>& what);

  // ---- what must hold ----
  void check();
  void check_bytes(bool all);
  /// `asks`: the driver, which takes long, what is free. Else that is added up.
  View look_at_all(bool asks = false) const;
  bool takes_turns(const View& view, const std::string& name) const;
  /// What the group lacks on a device to run, has there, and keeps there while it is paused.
  std::uint64_t lacks(const View& view, const std::string& name, int device) const;
  std::uint64_t keeps(const std::string& name, int device) const;
  /// `alone`: when all others that take turns have left.
  bool fits(const View& view, const std::string& name, bool alone) const;
  /// When all others have left, as far as amemd can know.
  bool can_come_in(const View& view, const std::string& name) const;
  bool has_work(const std::string& name) const;
  Group* find(const std::string& name);
  const Group* find(const std::string& name) const;
  /// Each time before time passes.
  void look_at_switches();
  void say_all() const;
  void check_waits(const View& view);
  void check_end();
  void check_reason(const View& view, const v1::TurnInfo& info, bool can);
  void check_first_turns(const View& view);
  void check_names();
  /// What an operator was told of a group: that its stage resumes it.
  void check_promise(const std::string& name, const std::string& text);

  world::Coroutine whole();
  world::Coroutine the_end();
  void breaks(const std::string& what);
  void say(const std::string& what) const;
  void changes() { changed_ = now(); }
  bool over() const { return over_ || !played_.broken.empty(); }

  const StageTrace& trace_;
  const Options options_;
  Dice dice_;
  std::minstd_rand random_;
  Played played_;
  world::Node node_{random_};
  std::optional<world::Coroutine> story_;
  std::multimap<Time, std::function<void()>> due_;
  std::optional<EventLoop::TimerId> timer_;
  world::Truths truths_;
  std::deque<Group> groups_;
  std::deque<Program> programs_;
  int numbers_ = 0;
  bool over_ = false;  // nothing new happens
  bool driver_busy_ = false;
  Time began_{};
  Time changed_{};                      // the last time that anything but turns changed
  Time trouble_{};                      // the last time that anything went wrong on purpose
  Time last_switch_{};                  // begun or ended
  std::optional<Time> switch_began_{};  // that is under way
  std::uint64_t switches_ = 0;
  std::uint64_t failed_ = 0;
  std::map<std::string, Time> free_since_;    // of those who wait: they could come in
  std::map<std::string, Time> fits_since_;    // alone
  std::map<std::string, Time> untrue_since_;  // what is said of them
  std::map<std::string, std::string> turn_;   // as it was
  std::optional<Time> still_since_;           // nothing happens
};

}  // namespace amem::stage_traces
