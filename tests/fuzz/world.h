// World: a whole broker on the simulated driver for the length of one input, with players for
// ranks and those who ask, all in one thread; and what must hold of it whatever they do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "daemon/broker/broker.h"
#include "tests/fuzz/askers.h"
#include "tests/fuzz/player.h"
#include "tests/fuzz/script.h"
#include "tests/world/node.h"

namespace amem::fuzz {

class World {
 public:
  World();
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// Takes the steps one after another, then ends all players and looks whether the broker has
  /// forgotten them. Call once.
  void play(std::vector<Step> steps);

 private:
  /// On the loop; one after another, with a turn of the loop between them.
  void next();
  void take(const Step& step);
  void control(std::uint8_t more, const std::string& request);
  /// One of the askers wants to steer these, by `ask`: it does what it may, and no more.
  void steered(unsigned asker, const std::vector<std::string>& names,
               const std::function<void(const std::shared_ptr<world::Observer>&)>& ask);
  void answer_all(unsigned how);
  void end_all();
  void seen(const Player& player, const Packet& packet);

  /// Whatever has happened, after each step.
  void check_groups();
  /// After the last one: it asks the driver, which takes long.
  void check_node();
  /// After the last rank's process has ended.
  void check_empty();

  Player& player(std::uint8_t more) { return players_[more % players_.size()]; }

  std::minstd_rand random_;
  world::Node node_{random_};
  std::unique_ptr<Askers> askers_;
  world::Truths truths_;
  std::deque<Player> players_;
  std::map<std::uint64_t, uid_t> owners_;  // of allocations, as the broker tells an operator
  std::vector<std::shared_ptr<world::Observer>> observers_;
  std::vector<Step> steps_;
  std::size_t at_ = 0;
  int turns_ = 0;  // of the loop until the next step
};

/// A world from its beginning to its end, of which nothing must be left.
void play_whole(std::vector<Step> steps);

}  // namespace amem::fuzz
