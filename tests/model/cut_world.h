// CutWorld: two ranks, each with a device and some threads that launch the same collectives on
// streams of their own, at the moment when the gates shut; and the real Cut, which has to bring
// them to rest together. For an explorer.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/phases/cut.h"
#include "tests/model/explorer/choices.h"
#include "tests/model/scenario.h"

namespace amem::model {

class CutWorld {
 public:
  static constexpr std::size_t kRanks = 2;
  static constexpr std::size_t kMostThreads = 2;

  struct Event {
    enum What : std::uint8_t { kShut, kEnds, kPermits, kTells, kRead, kTick };
    What what = kShut;
    std::uint8_t rank = 0;
    std::uint8_t thread = 0;
  };
  struct Report {
    std::uint8_t steps = 0;
    bool busy = false;
    std::uint8_t waiting = 0;
    std::uint8_t ready = 0;
    friend bool operator==(const Report&, const Report&) = default;
  };
  struct Rank {
    std::array<std::uint8_t, kMostThreads> launched{};  // collectives, of each thread
    std::array<std::uint8_t, kMostThreads> ended{};     // of these
    std::array<std::uint8_t, kMostThreads> order{};  // at the gate: who has waited longest, first
    std::uint8_t sent = 0;                           // Permits on their way
    bool in_turn = false;                            // the last of these
    std::uint8_t used = 0;                           // Permits
    std::optional<Report> told, on_its_way;
  };
  struct Snapshot {
    std::array<Rank, kRanks> ranks;
    std::optional<Cut> cut;
    Time now;
    bool taken = false;
    bool moved = false;  // some Permit was sent
    bool began_idle = false;
    int early = 0;  // times at which the broker may wake up before everybody has spoken
  };

  /// `threads` of each rank, which launch `calls` each. `early` as above.
  CutWorld(std::size_t threads, std::uint8_t calls, int early, Bug bug);

  Snapshot save() const { return s_; }
  void restore(const Snapshot& snapshot) { s_ = snapshot; }
  std::uint64_t hash() const;
  std::vector<Event> due() const;
  std::vector<Event> possible() const;
  std::string apply(Event event, Choices& choices);
  int faults_left() const { return s_.early; }
  std::string at_rest() const;
  std::string text(Event event) const;

 private:
  void shut(Choices& choices);
  void step(Rank& rank);
  Report report_of(const Rank& rank) const;
  bool can_end(std::size_t rank, std::size_t thread) const;
  bool waits(const Rank& rank, std::size_t thread) const { return rank.launched[thread] < calls_; }
  std::string decide();

  const std::size_t threads_;
  const std::uint8_t calls_;
  const Bug bug_;
  Snapshot s_;
};

}  // namespace amem::model
