#include "tests/model/fleet_orders.h"

#include <algorithm>
#include <random>

#include "tests/model/fleet_world.h"

namespace amem::model {
namespace {

constexpr std::size_t kNodes = 100;
constexpr int kManyFaults = 1'000'000;
/// The longest time, in events, from the decision to the leader's death: by then most have heard.
constexpr std::size_t kAfter = 300;
constexpr std::size_t kBefore = 900;

class FleetOrder {
 public:
  FleetOrder(std::uint64_t seed, Bug bug) : bug_(bug), chance_(seed), scenario_(draw_scenario()) {}

  std::string play(Orders& orders) {
    FleetWorld world(scenario_, kManyFaults, bug_);
    world.forget_history();
    const bool decided = below(3) != 0;  // when the leader dies
    const Side side = scenario_.in && (!scenario_.out || below(2) == 0) ? Side::kIn : Side::kOut;
    std::size_t left = decided ? below(kAfter) : below(kBefore);
    bool dead = false;
    const auto is_as_far = [&] { return world.committed() >= (side == Side::kIn ? 2 : 1); };
    while (const auto next = world.draw(drawn_)) {
      FleetWorld::Event event = *next;
      if (!dead && (!decided || is_as_far()) && left-- == 0) {
        dead = true;
        event = {FleetWorld::Event::kLeaderDies, 0};
      } else if (event.what == FleetWorld::Event::kAnswer && below(50) == 0) {
        event.what = FleetWorld::Event::kUnheard;
      } else if (below(2000) == 0) {
        event = trouble(world, event);
      }
      Choices choices(drawn_);
      if (std::string broken = world.apply(event, choices); !broken.empty()) return broken;
    }
    ++orders.played;
    if (world.timed_out() > 0)
      ++orders.in_vain;
    else if (world.gone_on(scenario_.in ? Side::kIn : Side::kOut) > 0)
      ++orders.gone_on;
    else
      ++orders.given_up;
    orders.questions = std::max<std::uint64_t>(orders.questions, world.questions());
    return world.at_rest();
  }

 private:
  std::size_t below(std::size_t count) { return chance_() % count; }
  FleetScenario draw_scenario() {
    const std::size_t what = below(3);
    return {"hundred", "", kNodes, what != 1, what != 0, below(4) != 0};
  }
  /// Another node dies, or fails, or its way breaks; but for what is drawn, where that cannot be.
  FleetWorld::Event trouble(const FleetWorld& world, FleetWorld::Event otherwise) {
    std::vector<FleetWorld::Event> possible = world.possible();
    std::erase_if(possible, [](const FleetWorld::Event& each) {
      return each.what == FleetWorld::Event::kLeaderDies ||
             each.what == FleetWorld::Event::kUnheard;
    });
    return possible.empty() ? otherwise : possible[below(possible.size())];
  }

  const Bug bug_;
  std::mt19937_64 chance_;
  const FleetScenario scenario_;
  const std::function<std::size_t(std::size_t)> drawn_ = [this](std::size_t n) { return below(n); };
};

}  // namespace

Orders play_orders(std::uint64_t first_seed, std::uint64_t count, Bug bug) {
  Orders orders;
  for (std::uint64_t seed = first_seed; seed < first_seed + count && orders.broken.empty(); ++seed)
    if (const std::string broken = FleetOrder(seed, bug).play(orders); !broken.empty())
      orders.broken = "seed " + std::to_string(seed) + ": " + broken;
  return orders;
}

}  // namespace amem::model
