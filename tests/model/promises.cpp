#include "tests/model/promises.h"

#include <algorithm>

namespace amem::model {

void Promises::always() {
  bytes_are_safe();
  programs_run_in_turns();
  chunks_add_up();
  if (m_.state.retain) hashes_are_of_saved_bytes();
  for (int group = 0; group < m_.scenario.groups; ++group) {
    const Group& machine = *m_.groups[at(group)];
    const bool waits = standing_of(machine).under_way.has_value();  // for ranks to come back
    if (machine.phase() == Phase::kNone && !(waits && !machine.members().empty())) continue;
    if (machine.wakeup() == kNever) m_.breaks("what is under way has a deadline");
    for (const Operation op : {Operation::kPause, Operation::kResume})
      if (machine.can_start(op).code() !=
          (machine.phase() == Phase::kNone ? Code::kUnavailable : Code::kFailedPrecondition))
        m_.breaks("nothing begins while something is under way");
  }
}

void Promises::bytes_are_safe() {
  for (const Piece& piece : m_.state.pieces) {
    if (!piece.exists || !piece.keep) continue;
    const bool there = piece.on_device != 0 && piece.bytes[piece.on_device] == Bytes::kTrue;
    const bool saved = piece.chunk != 0 && m_.state.chunks[piece.chunk - 1U].bytes == Bytes::kTrue;
    const bool its_own = saved && m_.state.chunks[piece.chunk - 1U].of ==
                                      static_cast<std::size_t>(&piece - m_.state.pieces.data()) + 1;
    if (!there && !its_own) m_.breaks("no byte is dropped that has not been saved");
  }
}

void Promises::programs_run_in_turns() {
  bool out_may_run = false;
  const Request* swap = nullptr;
  if (m_.state.by_operator && m_.scenario.script[at(m_.state.script_at - 1)].what == Request::kSwap)
    swap = &m_.scenario.script[at(m_.state.script_at - 1)];
  if (swap != nullptr)
    for (const int group : swap->groups) {
      const Group& machine = *m_.groups[at(group)];
      const bool has_left = machine.state() == GroupState::kPaused ||
                            machine.phase() == Phase::kDetach ||
                            machine.phase() == Phase::kCheckpoint;
      out_may_run = out_may_run || (!machine.members().empty() && !has_left);
    }
  for (int rank = 0; rank < kMostRanks; ++rank) {
    const Process& p = m_.state.ranks[at(rank)];
    if (p.runs() && p.checkpointed) m_.breaks("no process that is checkpointed runs");
    if (!p.runs() || p.lost || !p.member) continue;
    const int group = group_of_rank(rank);
    const Group& machine = *m_.groups[at(group)];
    const Job& job = m_.state.jobs[at(group)];
    if (machine.state() == GroupState::kPaused) m_.breaks("no rank of a paused group runs");
    if (job.under_way && job.pause && job.whole && job.released)
      m_.breaks("no rank runs from the first Release to the next Open");
    const bool comes_in =
        swap != nullptr && std::count(swap->in.begin(), swap->in.end(), group) > 0;
    if (comes_in && out_may_run) m_.breaks("of a swap's groups only one side runs");
  }
}

void Promises::chunks_add_up() {
  for (std::size_t i = 0; i < m_.state.chunk_count; ++i) {
    const Chunk& chunk = m_.state.chunks[i];
    if (chunk.retained != 0) what_is_retained(chunk);
    if (chunk.owner == 0) continue;
    if (m_.state.pieces[chunk.owner - 1U].chunk != i + 1)
      m_.breaks("every place in the pool that is taken is some memory's");
  }
  for (std::size_t i = 0; i < kMostPieces; ++i) {
    const Piece& piece = m_.state.pieces[i];
    if (piece.chunk != 0 && m_.state.chunks[piece.chunk - 1U].owner != i + 1)
      m_.breaks("what has a place in the pool has it for itself");
  }
}

void Promises::what_is_retained(const Chunk& chunk) {
  if (chunk.owner != 0 || chunk.limbo != 0)
    return m_.breaks("a place in the pool with retained bytes is nobody's");
  const Piece& piece = m_.state.pieces[chunk.retained - 1U];
  if (!piece.exists || piece.chunk != 0)
    m_.breaks("nothing is retained of what has gone or has been saved again");
  if (chunk.of != chunk.retained || chunk.version != chunk.attempt || chunk.version == 0)
    m_.breaks("what is retained is what its pause has saved");
  if (!m_.state.ranks[chunk.saver - 1U].member)
    m_.breaks("nothing is retained that only a rank that has gone has hashes of");
  // A session has ended, and the broker does not know it yet: no pause can save before it does.
  const auto ended = [this](std::uint8_t sharer) {
    return sharer != 0 && m_.state.ranks[sharer - 1U].over && !m_.state.ranks[sharer - 1U].lost;
  };
  if (chunk.torn && std::none_of(piece.sharers.begin(), piece.sharers.end(), ended))
    m_.breaks("nothing is retained that somebody may have changed while it was saved");
}

void Promises::hashes_are_of_saved_bytes() {
  for (int rank = 0; rank < kMostRanks; ++rank)
    for (int i = 0; i < kPiecesEach; ++i) {
      const Hashes& hashes = m_.state.ranks[at(rank)].hashes[at(i)];
      if (hashes.attempt == 0) continue;
      const Chunk& chunk = m_.state.chunks[hashes.place - 1U];
      const int index = m_.first_piece(group_of_rank(rank)) + i;
      if (chunk.of == index + 1 && chunk.version != hashes.attempt)
        m_.breaks("a rank has no hashes of what it has overwritten since");
    }
}

void Promises::no_return(int group) {
  for (int rank = m_.first_rank(group); rank < m_.end_rank(group); ++rank)
    if (m_.state.ranks[at(rank)].lost)
      m_.breaks("no group goes beyond the point of no return with a rank that may still write");
  if (!m_.state.jobs[at(group)].by_operator) return;
  const Request& request = m_.scenario.script[at(m_.state.script_at - 1)];
  for (const int other : request.groups) {
    // Those of which everything or a first wave has been saved are at the same point.
    const Job& job = m_.state.jobs[at(other)];
    if (m_.groups[at(other)]->members().empty()) continue;
    for (int i = m_.first_piece(other); i < m_.end_piece(other); ++i) {
      const Piece& piece = m_.state.pieces[at(i)];
      const bool leaves = !job.in_waves || has(job.wave, i);
      if (!piece.exists || !piece.keep || !has(job.selected, i) || piece.on_device == 0) continue;
      if (!leaves || piece.stayed || piece.paused) continue;
      if (piece.chunk == 0 || m_.state.chunks[piece.chunk - 1U].bytes != Bytes::kTrue)
        m_.breaks("nothing is released before every group of the transaction has saved");
    }
    if (!job.under_way && !has(m_.state.deepens, other))
      m_.breaks("no group of a set releases anything when another has been called off");
  }
}

void Promises::finished(int group, const Outcome& outcome, GroupState is) {
  const Group& machine = *m_.groups[at(group)];
  const Job& job = m_.state.jobs[at(group)];
  if (machine.members().empty()) return;  // it has ended with its last rank
  const bool ok = outcome.status.ok();
  m_.state.paused[at(group)] = is == GroupState::kPaused;
  if (job.pause || is == GroupState::kRunning) m_.state.erred[at(group)] = job.pause && !ok;
  bool& partly = m_.state.partly[at(group)];
  const bool undone = job.pause && job.was_paused && !ok;
  partly = is == GroupState::kPaused && (job.partial || (partly && (!job.pause || undone)));
  if (is != GroupState::kRunning && is != GroupState::kPaused)
    m_.breaks("an operation ends with a group that runs or is paused");
  if (job.pause) {
    const bool left = (job.released && job.whole) || job.was_paused;
    if (is != (left ? GroupState::kPaused : GroupState::kRunning))
      m_.breaks("a pause ends running before the point of no return, else paused");
    if (ok && !job.released && !job.was_paused) m_.breaks("a pause that succeeds has released");
    if (ok && job.deep && !machine.deep()) m_.breaks("a deep pause that succeeds ends deep");
  } else {
    if (ok && is != GroupState::kRunning) m_.breaks("a resume that succeeds ends running");
    if (!ok && !job.opened && is == GroupState::kRunning && job.was_paused)
      m_.breaks("a resume that fails before it opens ends as it began");
    if (job.opened && is != GroupState::kRunning) m_.breaks("a group that has opened runs");
  }
}

void Promises::by_operator(const Request& request, const Status& result) {
  int ran[2] = {0, 0};  // of those that are named first, and of those that come in instead
  int paused[2] = {0, 0};
  for (const std::vector<int>* side : {&request.groups, &request.in})
    for (const int group : *side) {
      const std::size_t of = side == &request.in ? 1 : 0;
      const Group& machine = *m_.groups[at(group)];
      if (machine.members().empty()) continue;
      if (m_.state.jobs[at(group)].under_way)
        m_.breaks("a transaction ends after all that it began");
      if (of == 0 && has(m_.state.deepens, group)) continue;
      ++(machine.state() == GroupState::kPaused ? paused : ran)[of];
    }
  if (request.tag != 0) return;
  for (const std::size_t of : {0U, 1U})
    if (ran[of] > 0 && paused[of] > 0) m_.breaks("a set ends for all of its groups or for none");
  if (!request.in.empty() && ran[0] > 0 && ran[1] > 0)
    m_.breaks("of a swap's groups only one side runs");
  const bool comes = request.what == Request::kResume;
  if (result.ok() && ((comes ? paused : ran)[0] > 0 || paused[1] > 0))
    m_.breaks("a transaction that succeeds has done what was asked");
}

void Promises::at_rest() {
  if (m_.state.by_operator) m_.breaks("every transaction is answered");
  for (const Process& p : m_.state.ranks)
    if (p.lives && p.member && !p.lost && p.asked > 0)
      m_.breaks("every request from inside is answered");
  for (int group = 0; group < m_.scenario.groups; ++group) {
    const Group& machine = *m_.groups[at(group)];
    const bool waits = standing_of(machine).under_way && !machine.members().empty();
    if (machine.phase() != Phase::kNone || waits)
      m_.breaks("what is under way comes to an end");
    else
      whole_group(group);
  }
  for (const Chunk& chunk : m_.state.chunks)
    if (chunk.limbo != 0 && !m_.state.ranks[chunk.limbo - 1U].lives)
      m_.breaks("a place in the pool comes back when whoever wrote to it has ended");
}

/// Nothing of it is under way, and every message has been read.
void Promises::whole_group(int group) {
  const Group& machine = *m_.groups[at(group)];
  if (machine.members().empty()) return;
  const bool runs = machine.state() == GroupState::kRunning;
  const bool partly = m_.state.partly[at(group)];
  for (int i = m_.first_piece(group); i < m_.end_piece(group); ++i) {
    const Piece& piece = m_.state.pieces[at(i)];
    if (!piece.exists) continue;
    const bool there = piece.on_device != 0;
    if (runs && !piece.paused && (!there || piece.chunk != 0))
      m_.breaks("a group that runs has its memory, and no place in the pool");
    const bool erred = m_.scenario.waves && m_.state.erred[at(group)];
    if (partly && !erred && !piece.paused && (!there || piece.chunk != 0))
      m_.breaks("what a partial pause leaves is there, and has no place in the pool");
    if (!runs && !piece.paused && !erred && !partly)
      m_.breaks("a paused group has let go of everything");
    if (piece.paused && there && !piece.stayed) m_.breaks("what is paused has left its device");
    if (piece.paused && !there && piece.keep && piece.chunk == 0)
      m_.breaks("what is paused has its bytes in the pool");
  }
  for (int rank = m_.first_rank(group); rank < m_.end_rank(group); ++rank) {
    const Process& p = m_.state.ranks[at(rank)];
    if (p.lives && p.checkpointed && !(p.member && machine.deep()))
      m_.breaks("no process stays checkpointed that a resume would not restore");
    if (!p.lives || !p.connected || !p.member || p.lost) continue;
    if ((p.gate == Gate::kOpen) != runs) m_.breaks("the gates of a group are as the group is");
    for (int i = m_.first_piece(group); i < m_.end_piece(group); ++i) {
      const Piece& piece = m_.state.pieces[at(i)];
      if (!has(p.holds, i)) continue;
      const std::uint8_t here = p.maps[at(i % kPiecesEach)];
      if (!piece.paused && (runs || partly) && here != piece.on_device)
        m_.breaks("ranks that run have their memory");
      // What stays on its device a rank may keep that has missed its Release over a restart.
      const bool missed = m_.state.not_let_go || (piece.stayed && m_.scenario.restarts > 0);
      // What it has made itself it is to keep then.
      const bool may_keep = missed || (piece.stayed && piece.maker == rank + 1);
      if (piece.paused && here != 0 && !may_keep)
        m_.breaks("ranks hold on to nothing that is paused");
    }
  }
}

}  // namespace amem::model
