// History: a node from its beginning to its end: the real broker on the simulated driver, ranks of
// three groups and an operator, in one thread and in a time of its own. In half of the histories
// the broker has a holder and dies now and then, and another one goes on. What happens when follows
// from a seed, so the same seed does the same again.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/world/coroutine.h"
#include "tests/world/dice.h"
#include "tests/world/node.h"
#include "tests/world/promises.h"
#include "tests/world/rank_process.h"

namespace amem::histories {

using world::Checkpoints;
using world::Coroutine;
using world::Mood;
using world::Node;
using world::Observer;
using world::Origin;
using world::RankProcess;
using world::Truths;
using world::Turn;

/// What all sizes are multiples of.
constexpr std::uint64_t kPage = 4096;

class History {
 public:
  /// `trace`: says what happens, a line each. `lies`: ranks say now and then that they have saved
  /// what they have not; that must be found.
  /// `without`: habits that it does not have.
  History(std::uint64_t seed, bool trace, bool lies, const std::vector<std::string>& without = {});
  ~History();
  History(const History&) = delete;

  /// Of so many events. What was wrong; empty: nothing. Call once.
  std::string play(int events);
  /// Of all that happened: two plays of one seed have the same.
  std::uint64_t hash() const { return hash_; }
  struct Transactions {
    std::uint64_t all = 0;
    std::uint64_t succeeded = 0;
  };
  /// Of the operator, but for those at the end.
  const Transactions& transactions() const { return transactions_; }
  /// Of brokers.
  std::uint64_t deaths() const { return deaths_; }
  const Checkpoints& checkpoints() const { return node_.checkpoints; }

  /// What people do that examples do not, and beside which operations.
  struct Habit {
    std::string name;
    void (History::*happens)();         // now and then; null: all along
    bool (History::*in_force)() const;  // just now
  };
  static const std::vector<Habit>& habits();
  static const std::vector<std::string>& doings();
  bool has(const char* habit) const;
  /// How often each doing met each habit in force, doing by doing.
  const std::vector<std::uint64_t>& met() const { return met_; }

  /// Resumes who waits when the broker's loop has gone round, or that of the next one.
  void go_on_later(std::coroutine_handle<> who);

 private:
  Turn<History> turn() { return {*this}; }

  Coroutine whole(int events);
  Coroutine settle();
  /// It must succeed; if not `strict`, or find no memory.
  Coroutine begin_and_wait(const Task& task, const std::string& group, bool strict = true);
  Coroutine look_at_everything();

  // ---- brokers ----
  void begin_life();
  /// The broker has died. The ranks notice.
  void end_life();
  void settle_death(std::uint64_t scale);
  void come_back(RankProcess& rank);
  void end_refused();

  // ---- one event ----
  void happen();
  RankProcess& somebody();
  void rank_does(RankProcess& rank);
  void handle(RankProcess& rank, Mood mood);
  void program_does(RankProcess& rank);
  void operator_asks();
  void driver_acts();
  Coroutine look_at_lost();
  void join(const std::string& group);
  void say(const std::string& what);
  bool read_all();

  // ---- habits ----
  void choose_habits(const std::vector<std::string>& without);
  bool habit_happens();
  void count(const char* doing);
  RankProcess* some_rank(bool (*may)(const RankProcess&));
  template <bool (RankProcess::*what)() const>
  bool any() const {
    for (const RankProcess& rank : ranks_)
      if (rank.lives() && (rank.*what)()) return true;
    return false;
  }
  bool always() const { return true; }
  void offload();
  bool is_slow(const RankProcess& rank) const;
  bool has_laggard() const;
  bool lags(const RankProcess& rank);
  Origin origin_of(const std::string& group, int number) const;
  bool has_hidden() const;
  bool has_owners() const;
  void pin();
  void join_late();
  bool has_late() const;
  void fork();
  void stop();
  void fill_a_device();
  bool is_full() const;
  void name_a_wrong_one();

  std::uint64_t below(std::uint64_t count) { return random_() % count; }
  /// Once in so many times, as long as things may go wrong.
  bool mishap(std::uint64_t in) { return mishaps_ && below(in) == 0; }
  void breaks(const std::string& what) {
    if (broken_.empty()) broken_ = what;
  }
  std::shared_ptr<Observer> observe();
  bool all_answered() const;
  /// Of all programs together.
  std::uint64_t pages() const;
  void check(bool all);
  world::GroupInfos groups() const { return node_.groups(); }
  bool fits(const v1::GroupInfo& group) const;

  static constexpr int kMostRanks = 9;

  const bool trace_;
  const bool lies_;
  Transactions transactions_;
  std::minstd_rand random_;
  std::uint64_t hash_ = 0;
  std::string broken_;
  bool mishaps_ = true;
  int joined_ = 0;

  world::Dice dice_;  // of the habits
  std::set<std::size_t> habits_;
  std::vector<std::uint64_t> met_;
  int late_ = -1;  // who has joined late last
  Node node_{random_};
  std::uint64_t deaths_ = 0;
  std::set<int> unknown_;  // ranks of a broker that died while no holder had everything
  std::coroutine_handle<> next_;
  Truths truths_;
  std::deque<RankProcess> ranks_;
  std::vector<std::shared_ptr<Observer>> observers_;
};

}  // namespace amem::histories
