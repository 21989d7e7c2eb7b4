// The broker dies at any instant and another takes up what it has left, as daemon/node (Records),
// daemon/broker (Recovery, Ranks) and daemon/record have it.
//
// What a piece says of itself is the broker's table and the record at once: each change that the
// next broker must know of is an effect, and the state as it was at the last of them is what is
// found.
#include <algorithm>
#include <utility>

#include "tests/model/broker_side.h"
#include "tests/model/insight.h"

namespace amem::model {
namespace {

Standing standing_of(const Row& row, bool has_rest) {
  Standing standing;
  standing.rest = row.paused ? GroupState::kPaused : GroupState::kRunning;
  standing.epoch = row.attempt;
  standing.by_operator = row.by_operator;
  standing.deep = row.deep;
  if (!row.under_way) return standing;
  standing.under_way.emplace();
  standing.under_way->task.op = row.resume ? Operation::kResume : Operation::kPause;
  if (row.tag != 0) standing.under_way->task.selection.tags = {std::string(1, row.tag)};
  standing.under_way->restart = static_cast<OnRestart>(row.restart);
  standing.under_way->loaded = row.loaded;
  standing.under_way->task.deep = row.is_to_be_deep && !has_rest;
  standing.under_way->task.partial = row.partial || has_rest;
  return standing;
}

bool takes(const Row& row, const Piece& piece) { return row.tag == 0 || row.tag == piece.tag; }

/// A pause goes on, and no rank was told to let go of this.
bool rests(const Row& row, const Piece& p) {
  return row.under_way && row.restart == u8(OnRestart::kRelease) && p.exists && p.held() &&
         p.on_device != 0 && !p.stayed && takes(row, p) && (!p.row || (row.waves && !p.leaves));
}

}  // namespace

bool BrokerSide::effect() {
  if (m_.dead) return false;
  if (m_.state.restarts == 0 || m_.choices->choose(2) == 0) return true;
  m_.choices->note("the broker dies in the middle of it, and another begins");
  --m_.state.restarts;
  m_.at_death = m_.state;
  m_.dead = true;
  return false;
}

void BrokerSide::record(int group, bool waves) {
  if (!effect()) return;
  const Standing standing = amem::standing_of(machine(group));
  Row& row = m_.state.rows[at(group)];
  row = {};
  row.paused = standing.rest == GroupState::kPaused;
  row.attempt = u8(standing.epoch.attempt);
  row.by_operator = standing.by_operator;
  row.deep = standing.deep;
  if (!standing.under_way) return;
  const Interrupted& what = *standing.under_way;
  row.under_way = true;
  row.resume = what.task.op == Operation::kResume;
  row.loaded = what.loaded;
  row.is_to_be_deep = what.task.deep;
  row.partial = what.task.partial;
  row.waves = waves;
  if (!what.task.selection.tags.empty()) row.tag = what.task.selection.tags.begin()->front();
  row.restart = u8(what.restart);
}

// ---- another broker -----------------------------------------------------------------------------

void BrokerSide::restart() {
  m_.state.by_operator = m_.state.limited =
      false;  // who has asked is told that the connection broke
  m_.state.jobs = {};
  for (Process& p : m_.state.ranks) {
    p.out.clear();
    p.saving = {};
    p.lost = false;
    p.expected = p.member;
    if (!p.member) continue;
    // One that has given up its session does not look for another broker.
    p.over = !p.lives || !p.connected;
    if (p.over) p.asked = 0;
  }
  for (Chunk& chunk : m_.state.chunks)
    if (chunk.owner == 0 && (chunk.limbo == 0 || !process(chunk.limbo - 1).lives)) chunk = {};
  for (int group = 0; group < m_.scenario.groups; ++group) take_up(group);
}

void BrokerSide::take_up(int group) {
  const Row row = m_.state.rows[at(group)];
  // The one before may have died between its last row and its answer.
  if (!row.under_way) m_.state.paused[at(group)] = row.paused;
  const bool calls_off =
      row.restart == u8(OnRestart::kCallOff) || row.restart == u8(OnRestart::kRollBack);
  const bool may_be_saving = row.under_way && !row.resume && (calls_off || row.waves);
  Members members;
  for (int rank = m_.first_rank(group); rank < m_.end_rank(group); ++rank) {
    if (!process(rank).member) continue;
    members.add(id_of(rank), rank_name(rank));
    if (may_be_saving) process(rank).saving[0] = packed(row.attempt);
  }
  bool has_rest = false;
  for (int i = m_.first_piece(group); i < m_.end_piece(group); ++i)
    has_rest = has_rest || rests(row, piece(i));
  const Group next(machine(group).name(), Deadlines(), now(group), {}, standing_of(row, has_rest),
                   std::move(members), Deadlines().save);
  Insight::put_back(*Insight::copy(next), machine(group));
  take_memory(group);
  drive(group);
}

void BrokerSide::take_memory(int group) {
  const Row row = m_.state.rows[at(group)];
  const auto goes_on_with = [&](OnRestart what) {
    return row.under_way && row.restart == u8(what);
  };
  for (int i = m_.first_piece(group); i < m_.end_piece(group); ++i) {
    Piece& p = piece(i);
    if (p.exists && !p.held()) p = {};  // whoever had it has let go of it, or ended
    for (Chunk& chunk : m_.state.chunks)
      if (chunk.owner == i + 1 && !(p.exists && p.row)) chunk = {};  // of no Saved
    if (!p.exists) continue;
    const bool left = p.row && !p.stayed;
    const bool undone = goes_on_with(OnRestart::kRollBack) && row.resume && left &&
                        p.kept == Kept::kIncoming && m_.bug != Bug::kTakesWhatIsUnloaded;
    if (undone) p.kept = Kept::kNot;
    if (p.kept == Kept::kNot) p.on_device = 0;
    if (p.on_device == 0 && !left)
      return m_.breaks("the next broker finds everything that was on a device");
    if (!p.row) p.chunk = p.saver = 0;
    const bool back = goes_on_with(OnRestart::kOpen) && row.loaded && takes(row, p);
    if (!p.stayed) p.paused = p.row && (p.on_device == 0 || back);
    p.loader = p.attempt = p.since = 0;
    p.sent = p.hashed = false;
    // Of a pause that goes on, what has been saved.
    const bool rest = rests(row, p);
    if (goes_on_with(OnRestart::kRelease) && p.leaves) p.saver = 0;
    if (!rest) continue;
    give_back(p);
    p.saver = 0;
    p.row = false;
  }
}

// ---- ranks --------------------------------------------------------------------------------------

void BrokerSide::come_back(int rank) {
  Process& p = process(rank);
  const int group = group_of_rank(rank);
  p.in.clear();
  p.out.clear();
  p.map_failed = p.copy_failed = p.expected = p.over = false;
  p.hashes = {};
  for (int i = m_.first_piece(group); i < m_.end_piece(group); ++i)
    if (piece(i).exists && piece(i).shared_by(rank) && !has(p.holds, i)) let_go(rank, i);
  const bool stays_shut = machine(group).join(id_of(rank), rank_name(rank));
  const bool is_told = !machine(group).waiting_for(id_of(rank)).empty();
  release_leftovers(rank);
  if (p.gate == Gate::kShut && !stays_shut && !is_told) {
    Message open;
    open.kind = Kind::kOpen;
    open.attempt = u8(machine(group).epoch().attempt);
    send(rank, open);
  }
  Message asks;
  asks.kind = Kind::kAsks;
  asks.undo = p.asks_resume;
  for (int i = 0; i < p.asked; ++i) p.out.push(asks);
  drive(group);
}

/// It has memory still that is paused: it has missed the command to let go of it.
void BrokerSide::release_leftovers(int rank) {
  const Process& p = process(rank);
  const int group = group_of_rank(rank);
  const Group& machine = *m_.groups[at(group)];
  const Standing is = amem::standing_of(machine);
  const bool ends_there = !is.under_way || is.under_way->restart == OnRestart::kRollBack;
  if (m_.bug == Bug::kLeavesWhatIsPaused) return;
  Message release;
  release.kind = Kind::kRelease;
  release.attempt = u8(machine.epoch().attempt);
  release.last = release.rests = is.rest == GroupState::kPaused && ends_there;
  for (int i = m_.first_piece(group); i < m_.end_piece(group); ++i) {
    const bool has_it = piece(i).exists && has(p.holds, i) && p.maps[at(i % kPiecesEach)] != 0;
    if (has_it && piece(i).paused && piece(i).on_device == 0) set_bit(release.pieces, i);
  }
  if (release.pieces != 0) send(rank, release);
}

}  // namespace amem::model
