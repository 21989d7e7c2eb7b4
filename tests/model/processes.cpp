#include "tests/model/processes.h"

namespace amem::model {

void Processes::handle(int rank) {
  Process& p = m_.state.ranks[at(rank)];
  const Message message = p.in.pop();
  p.rests = false;
  switch (message.kind) {
    case Kind::kQuiesce:
      p.gate = Gate::kShut;
      return answer(rank, Kind::kQuiet, message, false);
    case Kind::kMeasure:
      return answer(rank, Kind::kMeasured, message, m_.fault("it cannot look for zeros"));
    case Kind::kSave:
      return save(rank, message);
    case Kind::kRelease:
      return release(rank, message);
    case Kind::kBring:
      return bring(rank, message);
    case Kind::kMake:
      return make(rank, message);
    case Kind::kDetach: {
      const bool has_memory = p.maps != decltype(p.maps){};
      return answer(rank, Kind::kDetached, message, has_memory || m_.fault("it cannot detach"));
    }
    case Kind::kRest:
      p.rests = p.paused;
      return answer(rank, Kind::kRested, message, false);
    case Kind::kOpen:
      open(rank, message);
      return answer(rank, Kind::kOpened, message, m_.fault("it says that it could not open"));
    default:
      m_.breaks("ranks are sent what is theirs to do");
  }
}

void Processes::answer(int rank, Kind kind, const Message& to, bool failed) {
  Process& p = m_.state.ranks[at(rank)];
  if (p.out.full()) return m_.breaks("the model's queues are long enough");
  Message message;
  message.kind = kind;
  message.attempt = to.attempt;
  message.wave = to.wave;
  message.undo = failed;
  p.out.push(message);
}

void Processes::save(int rank, const Message& message) {
  Process& p = m_.state.ranks[at(rank)];
  const bool failed = m_.fault("it cannot save");
  // Where it has overwritten some of what was there.
  const bool half = m_.state.retain && !failed && m_.fault("it saves some of it");
  bool copied = !failed && !half;
  std::array<Hashes, kPiecesEach> taken{};
  for (int i = 0; i < kPiecesEach && !failed; ++i) {
    if ((message.pieces & bit_of(i)) == 0) continue;
    const std::uint8_t from = p.maps[at(i)];
    const int index = group_of_rank(rank) * kPiecesEach + i;
    Chunk& chunk = m_.state.chunks[message.place[at(i)] - 1U];
    const bool its_own = chunk.owner == index + 1 || chunk.limbo == rank + 1;
    if (!its_own) m_.breaks("a rank writes to no place in the pool that has become another's");
    if (from == 0) {
      copied = false;
      continue;
    }
    if (m_.bug == Bug::kAnswersBeforeItSaves) continue;
    const Hashes before = {message.since[at(i)], message.place[at(i)]};
    const bool known = before.attempt != 0 && p.hashes[at(i)] == before;
    // Some of it is as it was, and is skipped. It must be there indeed.
    const bool there = chunk.of == index + 1 && chunk.version == before.attempt && !chunk.torn;
    const bool good = !half && (!known || there);
    const bool kept = half && m_.bug == Bug::kKeepsHashesOfAFailedSave;
    if (!kept) p.hashes[at(i)] = {};
    taken[at(i)] = {message.attempt, message.place[at(i)]};
    chunk.bytes = good ? piece(rank, i).bytes[from] : Bytes::kWrong;
    chunk.of = static_cast<std::uint8_t>(index + 1);
    if (!m_.state.retain) continue;
    chunk.version = half ? std::uint8_t{0} : message.attempt;
    chunk.torn = !good || others_may_write(rank, i);
  }
  answer(rank, Kind::kSaved, message, !copied);
  if (!m_.state.retain || !copied || m_.fault("it has hashes of nothing")) return;
  for (std::size_t i = 0; i < kPiecesEach; ++i)
    if (taken[i].attempt != 0) p.hashes[i] = taken[i];
  p.out.messages[at(p.out.count - 1)].pieces = message.pieces;  // their hashes have been taken
}

/// A program whose session has ended runs on.
bool Processes::others_may_write(int rank, int i) const {
  const int group = group_of_rank(rank);
  for (int other = m_.first_rank(group); other < m_.end_rank(group); ++other) {
    const Process& q = m_.state.ranks[at(other)];
    const bool has_it = q.lives && q.maps[at(i)] == m_.state.ranks[at(rank)].maps[at(i)];
    if (other != rank && has_it && q.gate == Gate::kOpen) return true;
  }
  return false;
}

void Processes::release(int rank, const Message& message) {
  Process& p = m_.state.ranks[at(rank)];
  const bool failed = m_.fault("the driver does not let go of its memory");
  m_.state.not_let_go = m_.state.not_let_go || failed;
  const std::uint8_t what = message.undo ? p.brought : message.pieces;
  for (int i = 0; i < kPiecesEach; ++i)
    if ((what & bit_of(i)) != 0 && !failed) p.maps[at(i)] = 0;
  if (message.undo && !failed) p.brought = 0;  // calls about what is still there go on waiting
  p.copy_failed = p.map_failed = false;
  if (!message.undo && message.last) p.paused = true;
  p.rests = p.gate == Gate::kShut && message.rests;
  answer(rank, Kind::kReleased, message, failed);
}

/// What it has freed meanwhile it leaves out.
void Processes::make(int rank, const Message& message) {
  Process& p = m_.state.ranks[at(rank)];
  answer(rank, Kind::kMade, message, m_.fault("it cannot make its memory"));
  Message& made = p.out.messages[at(p.out.count - 1)];
  if (!made.undo) made.pieces = static_cast<std::uint8_t>(message.pieces & p.holds);
}

void Processes::bring(int rank, const Message& message) {
  Process& p = m_.state.ranks[at(rank)];
  if (!p.map_failed) p.map_failed = m_.fault("it cannot map");
  for (int i = 0; i < kPiecesEach && !p.map_failed; ++i) {
    if ((message.pieces & p.holds & bit_of(i)) == 0) continue;
    if (p.maps[at(i)] == message.place[at(i)]) continue;  // it has never left
    p.maps[at(i)] = message.place[at(i)];
    p.brought = static_cast<std::uint8_t>(p.brought | bit_of(i));
  }
  if (!p.copy_failed) p.copy_failed = p.map_failed || m_.fault("it cannot load");
  for (int i = 0; i < kPiecesEach && !p.copy_failed; ++i) {
    if ((message.loads & p.holds & bit_of(i)) == 0) continue;
    Piece& to = piece(rank, i);
    const Chunk* from = to.chunk != 0 ? &m_.state.chunks[to.chunk - 1U] : nullptr;
    const bool there = from != nullptr && from->of == first(rank) + static_cast<unsigned>(i) + 1;
    Bytes& bytes = to.bytes[p.maps[at(i)]];
    bytes = there ? from->bytes : Bytes::kWrong;
    if (!to.keep) bytes = Bytes::kTrue;  // zeros, as whoever dropped its bytes knows
  }
  if (!message.last) return;
  answer(rank, Kind::kMapped, message, p.map_failed);
  answer(rank, Kind::kLoaded, message, p.copy_failed);
  p.map_failed = p.copy_failed = false;
  if (m_.bug == Bug::kOpensWhenItHasLoaded) open(rank, message);
}

void Processes::open(int rank, const Message& message) {
  Process& p = m_.state.ranks[at(rank)];
  p.gate = Gate::kOpen;
  p.paused = false;
  p.brought = 0;
  const int group = group_of_rank(rank);
  if (!p.member) return;  // nobody counts on it any more
  const Job& job = m_.state.jobs[at(group)];
  const bool of_job = message.attempt == m_.groups[at(group)]->epoch().attempt;
  const bool resumes = of_job && job.under_way && !job.pause;
  for (int other = m_.first_rank(group); other < m_.end_rank(group); ++other) {
    const Process& q = m_.state.ranks[at(other)];
    if (!q.lives || !q.connected || !q.member || q.lost) continue;
    for (int i = 0; i < kPiecesEach; ++i) {
      const Piece& held = piece(rank, i);
      const bool comes_back = resumes && (job.selected & bit_of(i)) != 0;
      const bool expected = held.on_device != 0 && (!held.paused || comes_back);
      if ((q.holds & bit_of(i)) == 0 || !expected) continue;
      if (q.maps[at(i)] != held.on_device)
        m_.breaks("no rank opens before every rank has its memory");
      if (held.keep && held.bytes[held.on_device] != Bytes::kTrue)
        m_.breaks("no rank opens before every rank has loaded its bytes");
    }
  }
}

void Processes::die(int rank) {
  Process& p = m_.state.ranks[at(rank)];
  p.lives = p.connected = false;
  p.over = true;
  p.gate = Gate::kShut;
  p.checkpointed = false;
  p.maps = {};
  p.hashes = {};
  p.in.clear();
}

void Processes::sees_end(int rank) {
  Process& p = m_.state.ranks[at(rank)];
  p.connected = false;
  p.hashes = {};
  p.in.clear();
  if (p.paused) {
    p.gate = Gate::kFails;
    return;
  }
  for (int i = 0; i < kPiecesEach; ++i)
    if ((p.brought & bit_of(i)) != 0) p.maps[at(i)] = 0;
  p.brought = 0;
  p.gate = Gate::kOpen;
}

void Processes::write() {
  for (int index = 0; index < kMostPieces; ++index) {
    Piece& piece = m_.state.pieces[at(index)];
    if (!piece.exists) continue;
    const auto i = static_cast<std::size_t>(index % kPiecesEach);
    std::uint8_t written = 0;
    const int group = group_of_piece(index);
    for (int rank = m_.first_rank(group); rank < m_.end_rank(group); ++rank) {
      const Process& p = m_.state.ranks[at(rank)];
      // Calls about what is on its way back to a group that runs wait.
      if (!p.runs() || ((p.holds & ~p.brought) & bit_of(index)) == 0) continue;
      const std::uint8_t here = p.maps[i];
      if (here == 0 && !piece.paused)
        m_.breaks("no program runs without memory that it was not to lose");
      // Of a group that runs without it; the driver may not have let go.
      if (here == 0 || (piece.paused && here != piece.on_device)) continue;
      if (here != piece.on_device || (written != 0 && written != here))
        m_.breaks("ranks that run have the same memory, the broker's");
      written = here;
    }
    if (written == 0) continue;
    for (std::size_t copy = 1; copy <= kCopies; ++copy)
      if (piece.bytes[copy] != Bytes::kNone) piece.bytes[copy] = Bytes::kWrong;
    piece.bytes[written] = Bytes::kTrue;
    for (Chunk& chunk : m_.state.chunks)
      if (chunk.of == index + 1 && chunk.bytes == Bytes::kTrue) chunk.bytes = Bytes::kWrong;
  }
}

}  // namespace amem::model
