// Explorer: goes through every state that a world can come to, breadth first, so that the first
// broken promise is found by a shortest way. Then it looks at all of them together: from each, what
// comes by itself leads to rest, whatever the order, and never in a circle.
//
// A world: its Snapshot and Event, and save(), restore(), hash(), due(), possible(), apply(),
// faults_left(), at_rest(), text() as in node_world.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/model/explorer/choices.h"
#include "tests/model/explorer/circles.h"

namespace amem::model {

struct Found {
  std::size_t states = 0;
  std::size_t transitions = 0;
  std::size_t rests = 0;    // states in which nothing is due
  std::size_t depth = 0;    // events to the farthest state
  std::size_t longest = 0;  // events that come by themselves, one after another
  std::string broken;       // empty: no promise
  std::vector<std::string> trace;
};

template <class World>
class Explorer {
 public:
  /// Stops, with `broken` set, at more than `most` states.
  Explorer(World& world, std::size_t most) : world_(world), most_(most) {}

  Found explore() {
    first_ = world_.save();
    visit(kNone, {}, {});
    while (!open_.empty() && found_.broken.empty()) {
      auto [at, snapshot] = std::move(open_.front());
      open_.pop_front();
      expand(at, snapshot);
    }
    found_.states = ways_.size();
    if (found_.broken.empty()) look_for_circles();
    return std::move(found_);
  }

 private:
  using Snapshot = typename World::Snapshot;
  using Event = typename World::Event;
  static constexpr Number kNone = std::numeric_limits<Number>::max();
  struct Way {  // to a state
    Number from;
    Number depth;
    Event event;
    std::vector<std::uint8_t> choices;
  };

  /// The number of the state in which the world is.
  Number visit(Number from, Event event, const std::vector<std::uint8_t>& choices) {
    const auto [it, fresh] = known_.try_emplace(world_.hash(), static_cast<Number>(ways_.size()));
    if (!fresh) return it->second;
    const Number depth = from == kNone ? 0 : ways_[from].depth + 1;
    found_.depth = depth;
    ways_.push_back({from, depth, event, choices});
    open_.emplace_back(it->second, world_.save());
    if (ways_.size() > most_) breaks(it->second, "the world is larger than its bound");
    return it->second;
  }

  void expand(Number at, const Snapshot& snapshot) {
    world_.restore(snapshot);
    const std::vector<Event> due = world_.due();
    const std::vector<Event> possible = world_.possible();
    if (due.empty()) {
      ++found_.rests;
      if (const std::string broken = world_.at_rest(); !broken.empty()) return breaks(at, broken);
    }
    for (const Event& event : due) follow(at, snapshot, event, true);
    for (const Event& event : possible) follow(at, snapshot, event, false);
  }

  void follow(Number at, const Snapshot& snapshot, Event event, bool is_due) {
    Choices choices;
    do {
      if (!found_.broken.empty()) return;
      world_.restore(snapshot);
      const int faults = world_.faults_left();
      const std::string broken = world_.apply(event, choices);
      ++found_.transitions;
      if (!broken.empty()) {
        ways_.push_back({at, ways_[at].depth + 1, event, choices.taken()});
        return breaks(static_cast<Number>(ways_.size() - 1), broken);
      }
      const Number to = visit(at, event, choices.taken());
      if (is_due && world_.faults_left() == faults) by_itself_.emplace_back(at, to);
    } while (choices.next());
  }

  void breaks(Number at, const std::string& broken) {
    found_.broken = broken;
    found_.trace = trace(at);
  }

  std::vector<std::string> trace(Number at) {
    std::vector<Number> way;
    for (; ways_[at].from != kNone; at = ways_[at].from) way.push_back(at);
    std::vector<std::string> lines;
    world_.restore(first_);
    for (auto step = way.rbegin(); step != way.rend(); ++step) {
      Choices choices(ways_[*step].choices);
      const std::string text = world_.text(ways_[*step].event);
      world_.apply(ways_[*step].event, choices);
      lines.push_back(text + choices.notes());
    }
    return lines;
  }

  void look_for_circles() {
    const Onward onward = go_onward(ways_.size(), by_itself_);
    found_.longest = onward.longest;
    if (onward.in_a_circle) breaks(*onward.in_a_circle, kInACircle);
  }

  World& world_;
  const std::size_t most_;
  Found found_;
  Snapshot first_;
  std::vector<Way> ways_;
  // By hash: of ten million states two share one with a chance of three in a million.
  std::unordered_map<std::uint64_t, Number> known_;
  std::deque<std::pair<Number, Snapshot>> open_;
  std::vector<std::pair<Number, Number>> by_itself_;  // from, to
};

}  // namespace amem::model
