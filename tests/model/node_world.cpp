#include "tests/model/node_world.h"

#include <algorithm>
#include <utility>

namespace amem::model {

std::string rank_name(int rank) {
  return std::string("rank ") + std::to_string(rank % kRanksEach) + " of " +
         static_cast<char>('a' + group_of_rank(rank));
}

NodeWorld::NodeWorld(const Scenario& scenario, int faults, Bug bug)
    : m_(scenario, bug), promises_(m_), processes_(m_), broker_(m_, promises_) {
  m_.state.now.fill(Time(std::chrono::hours(1)));
  for (int group = 0; group < scenario.groups; ++group) {
    const auto any = [this, group](const Selection& what, auto is) {
      const Piece* const first = m_.state.pieces.data() + m_.first_piece(group);
      return std::any_of(first, first + kPiecesEach,
                         [&](const Piece& p) { return p.exists && what.takes({p.tag}) && is(p); });
    };
    const auto may_leave = [](const Piece& p) {
      return p.on_device != 0 && !p.paused && !p.stayed;
    };
    const MemoryView memory{
        [any, may_leave](const Selection& what) { return any(what, may_leave); },
        [any](const Selection& what) { return any(what, [](const Piece& p) { return p.left(); }); },
        [any, may_leave](const Selection& what) {
          return any(what, [&](const Piece& p) { return may_leave(p) && p.opened; });
        },
        [any, may_leave](const Selection& what) { return any(what, may_leave); }};
    m_.groups[at(group)] = std::make_unique<Group>(std::string(1, static_cast<char>('a' + group)),
                                                   Deadlines(), m_.state.now[0], memory);
    for (int rank = 0; rank < scenario.ranks; ++rank) broker_.join(group * kRanksEach + rank);
  }
  for (const PieceOf& piece : scenario.pieces) add_piece(piece);
  m_.state.chunk_count = scenario.chunks != 0 ? u8(scenario.chunks) : u8(scenario.pieces.size());
  m_.state.retain = scenario.retain;
  pause_first();
  m_.state.faults = u8(faults);
  m_.state.joins = u8(scenario.joins);
  m_.state.restarts = u8(scenario.restarts);
}

void NodeWorld::add_piece(const PieceOf& of) {
  int index = m_.first_piece(of.group);
  while (m_.state.pieces[at(index)].exists) ++index;
  Piece& piece = m_.state.pieces[at(index)];
  piece.exists = true;
  piece.keep = of.keep;
  piece.tag = of.tag;
  piece.opened = of.opened;
  if (of.made) piece.maker = u8(m_.first_rank(of.group) + of.sharers.front() + 1);
  piece.on_device = 1;
  piece.kept = Kept::kMemory;
  piece.bytes[1] = Bytes::kTrue;
  for (std::size_t i = 0; i < of.sharers.size(); ++i) {
    const int rank = m_.first_rank(of.group) + of.sharers[i];
    piece.sharers[i] = u8(rank + 1);
    set_bit(m_.state.ranks[at(rank)].holds, index);
    m_.state.ranks[at(rank)].maps[at(index % kPiecesEach)] = 1;
  }
}

void NodeWorld::pause_first() {
  m_.state.script_at = u8(m_.scenario.script.size());  // nothing of it yet
  Choices none;
  for (const int group : m_.scenario.paused) {
    Request pause{Request::kInsidePause, {group}};
    ask(pause);
    for (std::vector<Event> next = due(); !next.empty(); next = due()) apply(next.front(), none);
  }
  m_.state.script_at = 0;
}

// ---- states -------------------------------------------------------------------------------------

NodeWorld::Snapshot NodeWorld::save() const {
  Snapshot snapshot{m_.state, {}, {}};
  for (int group = 0; group < m_.scenario.groups; ++group)
    snapshot.groups[at(group)] = Insight::copy(*m_.groups[at(group)]);
  if (m_.state.by_operator) snapshot.transaction = m_.transaction;
  return snapshot;
}

void NodeWorld::restore(const Snapshot& snapshot) {
  m_.state = snapshot.state;
  for (int group = 0; group < m_.scenario.groups; ++group)
    Insight::put_back(*snapshot.groups[at(group)], *m_.groups[at(group)]);
  m_.transaction = snapshot.transaction;
  m_.broken.clear();
}

std::uint64_t NodeWorld::hash() const {
  Digest digest;
  add(m_.state, digest);
  for (int group = 0; group < m_.scenario.groups; ++group)
    Insight::add(*m_.groups[at(group)], m_.state.now[at(group)], digest);
  if (m_.state.by_operator) Insight::add(*m_.transaction, digest);
  return digest.hash();
}

// ---- events -------------------------------------------------------------------------------------

bool NodeWorld::asked() const {
  return std::any_of(m_.state.ranks.begin(), m_.state.ranks.end(),
                     [](const Process& p) { return p.lives && p.member && p.asked > 0; });
}

/// Something goes on, or will, that the broker before had begun.
bool NodeWorld::taken_up() const {
  return std::any_of(
      m_.groups.begin(), m_.groups.begin() + m_.scenario.groups,
      [](const auto& group) { return !group->members().empty() && standing_of(*group).under_way; });
}

std::vector<NodeWorld::Event> NodeWorld::due() const {
  std::vector<Event> events;
  for (int rank = 0; rank < kMostRanks; ++rank) {
    const Process& p = m_.state.ranks[at(rank)];
    const bool returns = p.lives && p.expected && !p.over;
    if (returns) events.push_back({Event::kComesBack, u8(rank)});
    if (p.lives && p.connected && p.in.count > 0 && !returns)
      events.push_back({Event::kHandle, u8(rank)});
    if (p.member && !p.lost && !p.expected && p.out.count > 0)
      events.push_back({Event::kRead, u8(rank)});
    if (p.member && p.over && (!p.lives || (!p.lost && !p.expected)))
      events.push_back({Event::kGone, u8(rank)});
    if (p.lives && p.connected && p.over) events.push_back({Event::kSeesEnd, u8(rank)});
  }
  for (int group = 0; group < m_.scenario.groups; ++group) {
    const Job& job = m_.state.jobs[at(group)];
    if (m_.groups[at(group)]->phase() == Phase::kCreate && job.creating && !job.awaits_space)
      events.push_back({Event::kSlice, u8(group)});
    if (wakes(group)) events.push_back({Event::kTick, u8(group)});
  }
  const bool more = m_.state.script_at < m_.scenario.script.size();
  if (more && !m_.state.by_operator && !asked() && !taken_up())
    events.push_back({Event::kTransaction});
  if (!events.empty()) return events;
  for (int group = 0; group < m_.scenario.groups; ++group)
    if (wakeup(group) != kNever) events.push_back({Event::kTick, u8(group)});
  return events;
}

std::vector<NodeWorld::Event> NodeWorld::possible() const {
  std::vector<Event> events;
  for (int rank = 0; rank < kMostRanks; ++rank) {
    const Process& p = m_.state.ranks[at(rank)];
    const int joiner = m_.scenario.ranks;
    const int group = group_of_rank(rank);
    const bool known = group < m_.scenario.groups && !m_.groups[at(group)]->members().empty();
    if (p.lives && p.over) events.push_back({Event::kEnds, u8(rank)});
    // One whose session has broken while its process was checkpointed, or it does not.
    if (p.lives && p.over && p.expected && p.connected)
      events.push_back({Event::kComesBack, u8(rank)});
    if (known && !p.over && !p.lives && rank % kRanksEach == joiner && m_.state.joins > 0)
      events.push_back({Event::kJoins, u8(rank)});
    // What it has been told it may still do, before it notices.
    if (p.expected && p.lives && !p.over && p.in.count > 0)
      events.push_back({Event::kHandle, u8(rank)});
    if (m_.state.faults == 0 || !p.lives || p.over) continue;
    events.push_back({Event::kDies, u8(rank)});
    if (!p.expected) events.push_back({Event::kDisconnects, u8(rank)});
    if (p.gate == Gate::kOpen && p.brought != 0) events.push_back({Event::kFrees, u8(rank)});
    if (p.rests && p.holds != 0) events.push_back({Event::kFreesAtRest, u8(rank)});
  }
  for (int i = 0; i < kMostPieces; ++i)
    if (m_.state.pieces[at(i)].exists && m_.state.pieces[at(i)].opened)
      events.push_back({Event::kGuestCloses, u8(i)});
  if (m_.state.restarts > 0) events.push_back({Event::kRestart});
  for (int group = 0; group < m_.scenario.groups && m_.state.faults > 0; ++group)
    if (wakeup(group) != kNever && !wakes(group)) events.push_back({Event::kTick, u8(group)});
  return events;
}

std::string NodeWorld::apply(Event event, Choices& choices) {
  m_.choices = &choices;
  m_.broken.clear();
  m_.dead = false;
  carry_out(event);
  if (std::exchange(m_.dead, false)) {
    m_.state = m_.at_death;
    broker_.restart();
  }
  processes_.write();
  tidy();
  promises_.always();
  if (quiet()) promises_.at_rest();
  return m_.broken;
}

std::string NodeWorld::at_rest() {
  m_.broken.clear();
  promises_.at_rest();
  return m_.broken;
}

void NodeWorld::ask(const Request& request) {
  const int group = request.groups.front();
  for (int rank = m_.first_rank(group); rank < m_.end_rank(group); ++rank) {
    Process& p = m_.state.ranks[at(rank)];
    if (!p.lives || p.over || !p.member) continue;
    Message message;
    message.kind = Kind::kAsks;
    message.undo = request.what == Request::kInsideResume;
    p.out.push(message);
    p.asks_resume = message.undo;
    ++p.asked;
  }
}

void NodeWorld::carry_out(Event event) {
  Process& p = m_.state.ranks[event.who % kMostRanks];
  switch (event.what) {
    case Event::kTransaction: {
      const Request& request = m_.scenario.script[m_.state.script_at++];
      const bool inside =
          request.what == Request::kInsidePause || request.what == Request::kInsideResume;
      return inside ? ask(request) : broker_.transaction(request);
    }
    case Event::kHandle:
      return processes_.handle(event.who);
    case Event::kRead:
      return broker_.read(event.who);
    case Event::kGone:
      return broker_.gone(event.who);
    case Event::kSeesEnd:
      return processes_.sees_end(event.who);
    case Event::kSlice:
      return broker_.create_more(event.who);
    case Event::kTick: {
      bool early = false;
      const bool at_once = wakes(event.who);
      for (const Event& other : due()) early = early || other.what != Event::kTick;
      if (early && !at_once) --m_.state.faults;
      return broker_.tick(event.who);
    }
    case Event::kRestart:
      --m_.state.restarts;
      return broker_.restart();
    case Event::kComesBack:
      return broker_.come_back(event.who);
    case Event::kGuestCloses:
      return broker_.guest_closes(event.who);
    case Event::kEnds:
      processes_.die(event.who);
      return broker_.process_ended(event.who);
    case Event::kJoins:
      --m_.state.joins;
      return broker_.join(event.who);
    case Event::kDies:
      --m_.state.faults;
      return processes_.die(event.who);
    case Event::kDisconnects:
      --m_.state.faults;
      p.over = true;
      return;
    case Event::kFrees:
      return frees(p, p.brought);
    case Event::kFreesAtRest:
      return frees(p, p.holds);
  }
}

/// The first of these pieces.
void NodeWorld::frees(Process& p, std::uint8_t of) {
  --m_.state.faults;
  Message message;
  message.kind = Kind::kFreed;
  while ((of >> message.place[0] & 1) == 0) ++message.place[0];
  p.maps[message.place[0]] = 0;
  clear_bit(p.brought, message.place[0]);
  clear_bit(p.holds, message.place[0]);
  p.hashes[message.place[0]] = {};
  p.out.push(message);
}

/// Copies that nobody has any more are gone; what counts for nothing is forgotten.
void NodeWorld::tidy() {
  for (int i = 0; i < kMostPieces; ++i)
    if (m_.state.pieces[at(i)].exists) broker_.forget_copies(i);
  if (!m_.state.limited) m_.state.space = 0;
}

bool NodeWorld::quiet() const {
  const std::vector<Event> events = due();
  return std::all_of(events.begin(), events.end(),
                     [](const Event& e) { return e.what == Event::kTransaction; });
}

std::string NodeWorld::text(Event event) const {
  const std::string rank = rank_name(event.who);
  const std::string group = std::string("group ") + static_cast<char>('a' + event.who);
  switch (event.what) {
    case Event::kTransaction:
      return "request " + std::to_string(m_.state.script_at + 1) + " is made";
    case Event::kHandle: {
      const Message& m = m_.state.ranks[event.who].in.messages[0];
      static constexpr std::string_view kNames[] = {"nothing", "Quiesce",   "Measure", "Save",
                                                    "Release", "Map, Load", "Open",    "Detach",
                                                    "Rest",    "Make"};
      return rank + " handles " + std::string(kNames[static_cast<std::size_t>(m.kind)]) + " of " +
             std::to_string(m.attempt) + "." + std::to_string(m.wave) + (m.undo ? " (undo)" : "");
    }
    case Event::kRead: {
      const Message& m = m_.state.ranks[event.who].out.messages[0];
      static constexpr std::string_view kNames[] = {"quiet",  "measured", "saved",  "released",
                                                    "mapped", "loaded",   "opened", "detached",
                                                    "rested", "freed",    "asks",   "made"};
      return "the broker reads of " + rank + ": " +
             std::string(kNames[static_cast<std::size_t>(m.kind) -
                                static_cast<std::size_t>(Kind::kQuiet)]) +
             " " + std::to_string(m.attempt) + "." + std::to_string(m.wave) +
             (m.undo ? " (failed)" : "");
    }
    case Event::kGone:
      return "the broker sees the end of " + rank;
    case Event::kSeesEnd:
      return rank + " sees the end of its session";
    case Event::kSlice:
      return "the next slice of " + group + " is created";
    case Event::kTick:
      return "a deadline of " + group + " passes";
    case Event::kGuestCloses:
      return "a guest closes piece " + std::to_string(event.who);
    case Event::kEnds:
      return "the process of " + rank + " ends";
    case Event::kJoins:
      return rank + " joins";
    case Event::kDies:
      return rank + " dies";
    case Event::kDisconnects:
      return "the session of " + rank + " breaks";
    case Event::kFrees:
      return rank + " frees what comes back";
    case Event::kFreesAtRest:
      return rank + " frees while it is paused";
    case Event::kRestart:
      return "the broker dies, and another begins";
    case Event::kComesBack:
      return rank + " comes back";
  }
  return "";
}

}  // namespace amem::model
