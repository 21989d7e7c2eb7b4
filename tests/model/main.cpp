// explore: goes through small worlds exhaustively (README.md).
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "tests/model/cut_world.h"
#include "tests/model/explorer/explorer.h"
#include "tests/model/fleet_orders.h"
#include "tests/model/fleet_world.h"
#include "tests/model/scenario.h"
#include "tests/model/search.h"
#include "tests/world/ground.h"

namespace amem::model {
namespace {

constexpr std::size_t kMostStates = 50'000'000;
/// In which what is made wrong on purpose has to show.
constexpr std::uint64_t kMostOrders = 5000;
constexpr std::string_view kOrdersOfHundred = "orders";

/// In CI.
std::vector<std::string_view> world_names() {
  std::vector<std::string_view> names;
  for (const Scenario& scenario : scenarios())
    if (scenario.in_ci) names.push_back(scenario.name);
  for (const CutScenario& scenario : cut_scenarios()) names.push_back(scenario.name);
  for (const FleetScenario& scenario : fleet_scenarios()) names.push_back(scenario.name);
  return names;
}

/// `faults` below 0: as in CI.
Found explore(std::string_view name, int& faults, Bug bug) {
  for (const CutScenario& scenario : cut_scenarios())
    if (scenario.name == name) {
      if (faults < 0) faults = scenario.early;
      CutWorld world(scenario.threads, scenario.calls, faults, bug);
      return Explorer<CutWorld>(world, kMostStates).explore();
    }
  for (const FleetScenario& scenario : fleet_scenarios())
    if (scenario.name == name) {
      if (faults < 0) faults = scenario.faults;
      FleetWorld world(scenario, faults, bug);
      return Explorer<FleetWorld>(world, kMostStates).explore();
    }
  Found found;
  found.broken = "there is such a world";
  return found;
}

const Scenario* find_scenario(std::string_view name) {
  const auto found = std::find_if(scenarios().begin(), scenarios().end(),
                                  [name](const Scenario& each) { return each.name == name; });
  return found != scenarios().end() ? &*found : nullptr;
}

bool broke(const Scenario& scenario, int faults, const std::vector<std::uint8_t>& way) {
  const std::string broken = replay(scenario, faults, way);
  if (broken.empty()) return false;
  std::printf("  broken: %s\n  again: explore %s --faults %d --replay %s\n", broken.c_str(),
              std::string(scenario.name).c_str(), faults, text_of(way).c_str());
  return true;
}

/// Of this process and of those that have ended.
double cpu_seconds() {
  double sum = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage used{};
    ::getrusage(who, &used);
    for (const timeval& time : {used.ru_utime, used.ru_stime})
      sum += static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  }
  return sum;
}

bool searches(const Scenario& scenario, int faults, const SearchLimits& limits) {
  if (faults < 0) faults = scenario.faults;
  const double before = cpu_seconds();
  const Searched found = search(scenario, faults, limits);
  std::printf("%-20s faults %d: %8llu states, %8llu plays, longest %3llu, %.1f CPU s\n",
              std::string(scenario.name).c_str(), faults,
              static_cast<unsigned long long>(found.states),
              static_cast<unsigned long long>(found.plays),
              static_cast<unsigned long long>(found.longest), cpu_seconds() - before);
  std::fflush(stdout);
  if (found.broken.empty()) return true;
  if (found.way.empty() || !broke(scenario, faults, found.way))
    std::printf("  broken: %s\n  way: %s\n", found.broken.c_str(), text_of(found.way).c_str());
  std::fflush(stdout);
  return false;
}

bool holds(std::string_view name, int faults) {
  const auto began = std::chrono::system_clock::now();
  const Found found = explore(name, faults, Bug::kNone);
  const std::chrono::duration<double> took = std::chrono::system_clock::now() - began;
  std::printf(
      "%-8s faults %d: %9zu states, %10zu transitions, %6zu at rest, depth %3zu, longest %3zu, "
      "%.1f s\n",
      std::string(name).c_str(), faults, found.states, found.transitions, found.rests, found.depth,
      found.longest, took.count());
  if (!found.broken.empty()) std::printf("  broken: %s\n", found.broken.c_str());
  for (std::size_t i = 0; i < found.trace.size(); ++i)
    std::printf("  %3zu %s\n", i + 1, found.trace[i].c_str());
  std::fflush(stdout);
  return found.broken.empty();
}

bool play(std::uint64_t seed, std::uint64_t count) {
  const auto began = std::chrono::system_clock::now();
  const Orders orders = play_orders(seed, count, Bug::kNone);
  const std::chrono::duration<double> took = std::chrono::system_clock::now() - began;
  std::printf(
      "%llu orders: all went on in %llu, all gave up in %llu, nobody who knew could be asked in "
      "%llu; at most %llu questions; %.1f s\n",
      static_cast<unsigned long long>(orders.played),
      static_cast<unsigned long long>(orders.gone_on),
      static_cast<unsigned long long>(orders.given_up),
      static_cast<unsigned long long>(orders.in_vain),
      static_cast<unsigned long long>(orders.questions), took.count());
  if (!orders.broken.empty()) std::printf("  broken: %s\n", orders.broken.c_str());
  return orders.broken.empty();
}

/// The fault is found, as the promise that it breaks.
bool is_found(const Mutation& mutation) {
  if (mutation.scenario == kOrdersOfHundred) {
    const Orders orders = play_orders(1, kMostOrders, mutation.bug);
    const bool is = orders.broken.find(mutation.found) != std::string::npos;
    std::printf("%s: %s, in %s: %s\n", is ? "found" : "NOT FOUND",
                std::string(mutation.name).c_str(), std::string(mutation.scenario).c_str(),
                orders.broken.c_str());
    return is;
  }
  int faults = -1;
  const Found found = explore(mutation.scenario, faults, mutation.bug);
  const bool is = !found.broken.empty() && found.broken.find(mutation.found) != std::string::npos;
  std::printf("%s: %s, in %s after %zu states, by %zu events: %s\n", is ? "found" : "NOT FOUND",
              std::string(mutation.name).c_str(), std::string(mutation.scenario).c_str(),
              found.states, found.trace.size(), found.broken.c_str());
  return is;
}

int run(int argc, char** argv) {
  spdlog::set_level(spdlog::level::off);  // what the parts of an operation say in the log
  CLI::App app("Goes through small worlds of groups, ranks and faults exhaustively.");
  std::vector<std::string> names;
  int faults = -1;
  bool broken = false;
  bool list = false;
  std::uint64_t orders = 0;
  std::uint64_t seed = 1;
  SearchLimits limits;
  std::vector<std::uint32_t> way;
  app.add_option("worlds", names, "which; those of CI if none is named");
  app.add_option("--faults", faults, "that may happen in one history; else as in CI");
  app.add_flag("--broken", broken, "with what is made wrong on purpose, which must be found");
  app.add_flag("--list", list, "says which worlds there are");
  app.add_option("--orders", orders,
                 "instead: so many orders of events in which 100 nodes lose their leader");
  app.add_option("--seed", seed, "of the first of these");
  app.add_option("--jobs", limits.jobs, "processes that play a world of a node")
      ->check(CLI::Range(1, 256));
  app.add_option("--most", limits.most_states, "states of such a world");
  app.add_option("--replay", way, "plays this way of one world, and says what happens")
      ->delimiter(',');
  CLI11_PARSE(app, argc, argv);
  if (list) {
    for (const Scenario& scenario : scenarios())
      std::printf("%-8s %s\n", std::string(scenario.name).c_str(),
                  std::string(scenario.about).c_str());
    for (const CutScenario& scenario : cut_scenarios())
      std::printf("%-8s the cut: two ranks of %zu threads, %u collectives each\n",
                  std::string(scenario.name).c_str(), scenario.threads, scenario.calls);
    for (const FleetScenario& scenario : fleet_scenarios())
      std::printf("%-8s %s\n", std::string(scenario.name).c_str(),
                  std::string(scenario.about).c_str());
    return 0;
  }
  if (orders > 0) return play(seed, orders) ? 0 : 1;
  bool good = true;
  if (broken) {
    for (const Mutation& mutation : mutations()) good = is_found(mutation) && good;
    return good ? 0 : 1;
  }
  if (names.empty())
    for (const std::string_view name : world_names()) names.emplace_back(name);
  // Small devices are much for a page.
  world::Ground::shape({.devices = 1, .memory = 262144});
  if (!way.empty()) {
    const Scenario* const scenario = find_scenario(names.front());
    if (scenario == nullptr) return 2;
    const std::vector<std::uint8_t> choices(way.begin(), way.end());
    return broke(*scenario, faults < 0 ? scenario->faults : faults, choices) ? 1 : 0;
  }
  for (const std::string& name : names) {
    const Scenario* const scenario = find_scenario(name);
    good =
        (scenario != nullptr ? searches(*scenario, faults, limits) : holds(name, faults)) && good;
  }
  return good ? 0 : 1;
}

}  // namespace
}  // namespace amem::model

int main(int argc, char** argv) { return amem::model::run(argc, argv); }
