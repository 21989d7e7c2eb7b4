#include "tests/model/cut_world.h"

#include <algorithm>

#include "tests/model/model_peek.h"
#include "tests/world/digest.h"

namespace amem::model {
namespace {

using world::Digest;

constexpr Duration kStall = std::chrono::milliseconds(20);

template <class Number>
constexpr std::uint8_t u8(Number value) {
  return static_cast<std::uint8_t>(value);
}
template <class Number>
constexpr RankId id_of(Number rank) {
  return static_cast<RankId>(rank) + 1;
}
constexpr int rank_of(RankId id) { return static_cast<int>(id) - 1; }

DeviceUuid device_of(std::size_t rank) {
  DeviceUuid device;
  device.bytes[0] = u8(rank + 1);
  return device;
}

}  // namespace

CutWorld::CutWorld(std::size_t threads, std::uint8_t calls, int early, Bug bug)
    : threads_(threads), calls_(calls), bug_(bug) {
  s_.now = Time(std::chrono::hours(1));
  s_.early = early;
}

std::uint64_t CutWorld::hash() const {
  Digest digest;
  const auto add_report = [&](const std::optional<Report>& report) {
    digest.add(report.has_value());
    if (!report) return;
    for (const std::uint8_t part :
         {report->steps, u8(report->busy), report->waiting, report->ready})
      digest.add(part);
  };
  for (const Rank& rank : s_.ranks) {
    digest.add_all(rank.launched);
    digest.add_all(rank.ended);
    digest.add_all(rank.order);
    for (const std::uint8_t part : {rank.sent, u8(rank.in_turn), rank.used}) digest.add(part);
    add_report(rank.told);
    add_report(rank.on_its_way);
  }
  digest.add((s_.taken ? 1U : 0U) | (s_.moved ? 2U : 0U) | (s_.began_idle ? 4U : 0U));
  digest.add(u8(s_.early));
  if (s_.cut) ModelPeek::add(*s_.cut, s_.now, digest);
  return digest.hash();
}

CutWorld::Report CutWorld::report_of(const Rank& rank) const {
  Report report;
  report.steps = rank.used;
  for (std::size_t t = 0; t < threads_; ++t) {
    const bool busy = rank.ended[t] < rank.launched[t];
    report.busy = report.busy || (busy && bug_ != Bug::kSaysThatItIsIdle);
    if (!waits(rank, t)) continue;
    ++report.waiting;
    if (!busy) ++report.ready;
  }
  return report;
}

bool CutWorld::can_end(std::size_t rank, std::size_t thread) const {
  const std::uint8_t next = s_.ranks[rank].ended[thread];
  return std::all_of(s_.ranks.begin(), s_.ranks.end(),
                     [&](const Rank& r) { return next < r.launched[thread]; });
}

std::vector<CutWorld::Event> CutWorld::due() const {
  if (!s_.cut) return {{Event::kShut}};
  std::vector<Event> events;
  if (s_.taken) return events;
  for (std::size_t r = 0; r < kRanks; ++r) {
    const Rank& rank = s_.ranks[r];
    for (std::size_t t = 0; t < threads_; ++t)
      if (can_end(r, t)) events.push_back({Event::kEnds, u8(r), u8(t)});
    if (rank.sent > 0) events.push_back({Event::kPermits, u8(r)});
    if (rank.on_its_way)
      events.push_back({Event::kRead, u8(r)});
    else if (rank.told != report_of(rank))
      events.push_back({Event::kTells, u8(r)});
  }
  if (events.empty() && s_.cut->next_decision() != kNever) events.push_back({Event::kTick});
  return events;
}

std::vector<CutWorld::Event> CutWorld::possible() const {
  if (!s_.cut || s_.taken || s_.early == 0 || s_.cut->next_decision() == kNever) return {};
  return {{Event::kTick}};
}

std::string CutWorld::apply(Event event, Choices& choices) {
  Rank& rank = s_.ranks[event.rank];
  switch (event.what) {
    case Event::kShut:
      shut(choices);
      return "";
    case Event::kEnds:
      ++rank.ended[event.thread];
      return "";
    case Event::kPermits:
      step(rank);
      return "";
    case Event::kTells:
      rank.told = rank.on_its_way = report_of(rank);
      return "";
    case Event::kRead: {
      const Report read = *rank.on_its_way;
      rank.on_its_way.reset();
      s_.cut->report(
          id_of(event.rank),
          {read.steps, 0, {{device_of(event.rank), read.busy, read.waiting, read.ready}}}, s_.now);
      return decide();
    }
    case Event::kTick: {
      const std::vector<Event> now = due();
      if (now.front().what != Event::kTick) --s_.early;
      s_.now = std::max(s_.now, s_.cut->next_decision());
      return decide();
    }
  }
  return "";
}

/// Somewhere in what they launch, each thread on each rank.
void CutWorld::shut(Choices& choices) {
  s_.began_idle = true;
  for (std::size_t r = 0; r < kRanks; ++r)
    for (std::size_t t = 0; t < threads_; ++t) {
      s_.ranks[r].launched[t] = u8(choices.choose(calls_ + 1U));
      s_.ranks[r].order[t] = u8(t);
      choices.note("rank " + std::to_string(r) + " has launched " +
                   std::to_string(s_.ranks[r].launched[t]));
    }
  for (const Rank& rank : s_.ranks)
    if (rank.ended != rank.launched) s_.began_idle = false;
  s_.cut.emplace(std::vector<RankId>{id_of(0), id_of(1)}, kStall, s_.now);
}

/// Lets one caller pass: one whose stream is idle, if there is any and it is not somebody's turn;
/// else the one that has waited longest.
void CutWorld::step(Rank& rank) {
  --rank.sent;
  if (bug_ != Bug::kForgetsPermits) ++rank.used;
  const auto first = rank.order.begin();
  const auto end = first + static_cast<std::ptrdiff_t>(threads_);
  const auto waiting = [&](std::uint8_t t) { return waits(rank, t); };
  auto chosen = end;
  if (!rank.in_turn)
    chosen = std::find_if(first, end, [&](std::uint8_t t) {
      return waiting(t) && rank.ended[t] == rank.launched[t];
    });
  if (chosen == end) chosen = std::find_if(first, end, waiting);
  if (chosen == end) return;
  ++rank.launched[*chosen];
  std::rotate(chosen, chosen + 1, end);
}

std::string CutWorld::decide() {
  if (s_.cut->taken()) {
    s_.taken = true;
    for (const Rank& rank : s_.ranks)
      if (rank.ended != rank.launched || rank.sent > 0)
        return "the cut is taken when every device is idle and nobody may pass any more";
    return "";
  }
  for (const Cut::Permit& permit : s_.cut->decide(s_.now)) {
    Rank& rank = s_.ranks[static_cast<std::size_t>(rank_of(permit.rank))];
    if (rank.sent > 0) return "a device has one Permit outstanding at most";
    rank.sent = 1;
    rank.in_turn = permit.in_turn;
    s_.moved = true;
  }
  if (s_.moved && s_.began_idle) return "nobody is let through where nothing ran";
  return "";
}

std::string CutWorld::at_rest() const {
  return s_.taken ? "" : "the cut is taken where all can come to rest";
}

std::string CutWorld::text(Event event) const {
  const std::string rank = "rank " + std::to_string(event.rank);
  switch (event.what) {
    case Event::kShut:
      return "the gates shut";
    case Event::kEnds:
      return "a collective of thread " + std::to_string(event.thread) + " ends on " + rank;
    case Event::kPermits:
      return rank + " lets a caller pass";
    case Event::kTells:
      return rank + " reports";
    case Event::kRead:
      return "the broker reads the report of " + rank;
    case Event::kTick:
      return "the broker looks again";
  }
  return "";
}

}  // namespace amem::model
