#include "tests/model/broker_side.h"

#include <algorithm>
#include <utility>

#include "daemon/plans/waves.h"

namespace amem::model {
namespace {

bool has_saving(const Process& process) {
  return std::any_of(process.saving.begin(), process.saving.end(), [](auto e) { return e != 0; });
}

Message message_of(Kind kind, Epoch epoch) {
  Message message;
  message.kind = kind;
  message.attempt = u8(epoch.attempt);
  message.wave = epoch.wave == 0 ? std::uint8_t{0} : u8(epoch.wave);
  return message;
}

RankPhase phase_of(Kind kind) {
  switch (kind) {
    case Kind::kMeasured:
      return RankPhase::kMeasure;
    case Kind::kSaved:
      return RankPhase::kSave;
    case Kind::kReleased:
      return RankPhase::kRelease;
    case Kind::kMapped:
      return RankPhase::kMap;
    case Kind::kLoaded:
      return RankPhase::kLoad;
    case Kind::kDetached:
      return RankPhase::kDetach;
    case Kind::kRested:
      return RankPhase::kRest;
    default:
      return RankPhase::kOpen;
  }
}

}  // namespace

void BrokerSide::drive(int group) {
  while (std::optional<Action> next = machine(group).next_action())
    std::visit([&](const auto& what) { act(group, what); }, *next);
}

void BrokerSide::tell(int group, const Event& event) { machine(group).tell(event, now(group)); }

void BrokerSide::send(int rank, const Message& message) {
  Process& p = process(rank);
  if (!p.lives || p.over || p.expected || !effect()) return;
  if (p.in.full()) return m_.breaks("the model's queues are long enough");
  if (p.checkpointed) m_.breaks("nothing is asked of a process that is checkpointed");
  p.in.push(message);
}

// ---- a pause ------------------------------------------------------------------------------------

void BrokerSide::act(int group, const action::Begun& begun) {
  Job& it = job(group);
  const Row& before = m_.state.rows[at(group)];  // of the broker before, if anything is under way
  it.released = before.under_way && !before.resume && before.restart != u8(OnRestart::kCallOff) &&
                before.restart != u8(OnRestart::kRollBack);
  record(group);
  it.under_way = true;
  it.was_paused = m_.state.paused[at(group)];
  it.pause = begun.task.op == Operation::kPause;
  it.whole = begun.task.stops();
  it.deep = begun.task.deep;
  it.partial = begun.task.partial;
  for (int i = m_.first_piece(group); i < m_.end_piece(group); ++i)
    if (piece(i).exists && begun.task.selection.takes({piece(i).tag})) set_bit(it.selected, i);
  if (!it.pause || !begun.continues) return;
  // What the broker before had not come to is left for a later pause.
  for (int i = m_.first_piece(group); i < m_.end_piece(group); ++i)
    if (piece(i).on_device != 0 && !piece(i).stayed && !piece(i).row) clear_bit(it.selected, i);
}

bool BrokerSide::wait_for_guests(int group) {
  for (int i = m_.first_piece(group); i < m_.end_piece(group); ++i)
    if (has(job(group).selected, i) && piece(i).exists && piece(i).opened) return true;
  return false;
}

void BrokerSide::act(int group, const action::AwaitGuests& await) {
  const bool guests = wait_for_guests(group);
  if (!await.late && guests) return;
  event::GuestsLeft left;
  if (guests && m_.fault("the pause is refused because of guests"))
    left.status = {Code::kFailedPrecondition, "guests"};
  tell(group, left);
}

void BrokerSide::act(int, const action::Quiesce& quiesce) {
  for (const RankId id : quiesce.ranks)
    send(rank_of(id), message_of(Kind::kQuiesce, quiesce.epoch));
}

void BrokerSide::act(int group, const action::Measure& measure) {
  job(group).measured = true;
  for (const RankId id : measure.ranks)
    send(rank_of(id), message_of(Kind::kMeasure, measure.epoch));
}

bool BrokerSide::take_chunks(int group) {
  if (m_.fault("the pool has no space")) return false;
  for (int i = m_.first_piece(group); i < m_.end_piece(group); ++i) {
    Piece& p = piece(i);
    const bool again = p.exists && has(job(group).selected, i) && p.on_device != 0 && !p.paused;
    if (again && !p.stayed && p.chunk != 0) give_back(p);
  }
  std::vector<int> fresh;
  std::vector<std::pair<int, Chunk*>> again;
  for (int i = m_.first_piece(group); i < m_.end_piece(group); ++i) {
    const Piece& p = piece(i);
    const bool leaves = p.exists && has(job(group).selected, i) && p.on_device != 0;
    if (leaves && !p.keep) forget_retained(p);
    if (!leaves || !p.keep || p.paused || p.stayed || p.opened) continue;
    Chunk* const copy = retained(p);
    if (copy != nullptr && copy->saver == p.sharers[0] && !job(group).measured) {
      take_retained(*copy);
      copy->owner = u8(i + 1);  // nobody else's
      again.emplace_back(i, copy);
    } else {
      forget_retained(p);
      fresh.push_back(i);
    }
  }
  const bool enough = make_space(fresh.size());
  std::vector<Chunk*> places;
  for (std::size_t i = 0; i < m_.state.chunk_count; ++i)
    if (is_free(m_.state.chunks[i])) places.push_back(&m_.state.chunks[i]);
  for (const auto& [i, copy] : again) {
    copy->owner = 0;
    if (!enough) add_retained(*copy, i);
  }
  if (!enough) return false;
  const auto take = [&](int index, Chunk& chunk, std::uint8_t since) {
    if (!effect()) return;
    Piece& p = piece(index);
    p.row = true;
    chunk.owner = u8(index + 1);
    chunk.attempt = chunk.saver = 0;
    p.chunk = u8(&chunk - m_.state.chunks.data() + 1);
    p.saver = p.sharers[0];
    p.attempt = u8(machine(group).epoch().attempt);
    p.since = since;
    p.sent = p.hashed = false;
  };
  const bool by_name = m_.bug == Bug::kComparesWithAnotherPlace;
  for (std::size_t i = 0; i < fresh.size(); ++i)
    take(fresh[i], *places[i], by_name ? piece(fresh[i]).attempt : std::uint8_t{0});
  for (const auto& [i, copy] : again) take(i, *copy, copy->attempt);
  return true;
}

// ---- what is retained ---------------------------------------------------------------------------

bool BrokerSide::is_free(const Chunk& chunk) const {
  const bool retained = chunk.retained != 0 && m_.bug != Bug::kTakesRetainedSpace;
  return chunk.owner == 0 && chunk.limbo == 0 && !retained;
}

bool BrokerSide::make_space(std::size_t need) {
  const auto first = m_.state.chunks.begin();
  const auto end = first + m_.state.chunk_count;
  const auto free = [&](const Chunk& chunk) { return is_free(chunk); };
  while (static_cast<std::size_t>(std::count_if(first, end, free)) < need) {
    const auto oldest = std::find_if(first, end, [](const Chunk& c) { return c.age == 1; });
    if (oldest == end) return false;
    forget_retained(*oldest);
  }
  return true;
}

Chunk* BrokerSide::retained(const Piece& p) {
  const auto index = &p - m_.state.pieces.data();
  for (Chunk& chunk : m_.state.chunks)
    if (chunk.retained == index + 1) return &chunk;
  return nullptr;
}

void BrokerSide::add_retained(Chunk& chunk, int index) {
  chunk.retained = u8(index + 1);
  chunk.age = 1;
  for (const Chunk& other : m_.state.chunks)
    if (&other != &chunk && other.age >= chunk.age) chunk.age = u8(other.age + 1);
}

void BrokerSide::take_retained(Chunk& chunk) {
  const std::uint8_t age = std::exchange(chunk.age, std::uint8_t{0});
  chunk.retained = 0;
  for (Chunk& other : m_.state.chunks)
    if (other.age > age) --other.age;
}

void BrokerSide::forget_retained(Chunk& chunk) {
  take_retained(chunk);
  chunk = {};
}

void BrokerSide::forget_retained(const Piece& p) {
  if (Chunk* const chunk = retained(p)) forget_retained(*chunk);
}

std::uint8_t BrokerSide::hashed_by(const Piece& p) const {
  if (!p.sent || (m_.bug == Bug::kKeepsSince && p.since != 0)) return p.since;
  return p.hashed || m_.bug == Bug::kRetainsWhatIsNotSaved ? p.attempt : std::uint8_t{0};
}

void BrokerSide::may_have_written(int rank) {
  if (m_.bug == Bug::kRetainsWhatWasTorn) return;
  for (int i = m_.first_piece(group_of_rank(rank)); i < m_.end_piece(group_of_rank(rank)); ++i) {
    Piece& p = piece(i);
    if (!p.exists || !p.shared_by(rank)) continue;
    if (m_.bug != Bug::kRetainsWhatNobodyKnows) forget_retained(p);
    p.hashed = false;
  }
}

void BrokerSide::retain(Piece& p) {
  if (p.chunk == 0) return;
  const std::uint8_t attempt = hashed_by(p);
  const bool surely = p.saver != 0 && process(p.saver - 1).member &&
                      !has_saving(process(p.saver - 1)) && attempt != 0;
  if (!m_.state.retain || !surely || p.sharers[0] != p.saver || p.opened) return give_back(p);
  if (!effect()) return;
  Chunk& chunk = m_.state.chunks[std::exchange(p.chunk, std::uint8_t{0}) - 1U];
  chunk.owner = 0;
  chunk.attempt = attempt;
  chunk.saver = p.saver;
  add_retained(chunk, static_cast<int>(&p - m_.state.pieces.data()));
  p.row = false;
}

/// The rank says of what it has hashes now.
void BrokerSide::stored(int rank, const Message& message) {
  const int group = group_of_rank(rank);
  if (rule(machine(group).phase()).answer != RankPhase::kSave ||
      message.epoch() != machine(group).epoch())
    return;
  for (int i = m_.first_piece(group); i < m_.end_piece(group); ++i)
    if (has(message.pieces, i) && piece(i).chunk != 0 && piece(i).saver == rank + 1)
      piece(i).hashed = true;
}

bool BrokerSide::can_be_released(const Piece& p) const {
  if (p.saver == 0) return true;
  const int saver = p.saver - 1;
  const Process& of = m_.state.ranks[at(saver)];
  const Job& it = m_.state.jobs[at(group_of_rank(saver))];
  return of.member && (it.failed_savers >> (saver % kRanksEach) & 1) == 0 && !has_saving(of);
}

void BrokerSide::choose_wave(int group) {
  Job& it = job(group);
  std::vector<Waves::Item> items;
  for (int i = m_.first_piece(group); i < m_.end_piece(group); ++i)
    if (has(it.later, i) && piece(i).held())
      items.push_back({static_cast<AllocationId>(i), piece(i).sharers[0], 1});
  Waves waves(items, 1);
  it.wave = it.later = 0;
  const auto can_leave = [&](AllocationId id) {
    const Piece& p = piece(static_cast<int>(id));
    return p.on_device != 0 && can_be_released(p) && (p.saver == 0 || p.saver == p.sharers[0]);
  };
  for (const AllocationId id : waves.next(can_leave)) set_bit(it.wave, static_cast<int>(id));
  while (!waves.done())
    for (const AllocationId id : waves.next([](AllocationId) { return true; }))
      set_bit(it.later, static_cast<int>(id));
}

void BrokerSide::act(int group, const action::Save& save) {
  Job& it = job(group);
  event::SaveSent sent;
  if (save.epoch.wave == 0) {
    if (!take_chunks(group)) {
      if (!it.measured) {
        sent.measure = true;
        return tell(group, sent);
      }
      sent.status = {Code::kResourceExhausted, "the pool"};
      return tell(group, sent);
    }
    for (int i = m_.first_piece(group); i < m_.end_piece(group); ++i) {
      Piece& p = piece(i);
      const bool leaves = p.exists && p.on_device != 0 && !p.paused;
      if (leaves && has(it.selected, i) && p.opened && effect()) p.stayed = p.row = true;
      if (leaves && m_.scenario.waves && m_.transaction && m_.transaction->swaps())
        set_bit(it.later, i);
    }
    it.in_waves = it.later != 0;
  }
  if (it.in_waves) choose_wave(group);
  std::array<Message, kMostRanks> messages{};
  for (int i = m_.first_piece(group); i < m_.end_piece(group); ++i) {
    Piece& p = piece(i);
    if (!p.exists || p.on_device == 0 || p.chunk == 0 || (it.in_waves && !has(it.wave, i)))
      continue;
    Message& message = messages[at(p.keeper())];
    p.sent = true;
    set_bit(message.pieces, i);
    message.since[at(i % kPiecesEach)] = p.since;
    message.place[at(i % kPiecesEach)] = p.chunk;
  }
  for (int rank = m_.first_rank(group); rank < m_.end_rank(group); ++rank) {
    Message& message = messages[at(rank)];
    if (message.pieces == 0) continue;
    message.kind = Kind::kSave;
    message.attempt = u8(save.epoch.attempt);
    message.wave = u8(save.epoch.wave);
    auto& saving = process(rank).saving;
    *std::find(saving.begin(), saving.end(), 0) = packed(save.epoch);
    send(rank, message);
    sent.ranks.push_back(id_of(rank));
  }
  sent.more = it.later != 0;
  tell(group, sent);
}

void BrokerSide::act(int group, const action::Leaves&) {
  if (job(group).by_operator) carry_out(m_.transaction->leaves(job(group).member));
}

void BrokerSide::act(int group, const action::Ready&) {
  if (m_.bug == Bug::kGoesOnAlone) return tell(group, event::GoOn{});
  if (job(group).by_operator) carry_out(m_.transaction->ready(job(group).member));
}

void BrokerSide::act(int group, const action::Left&) {
  if (job(group).by_operator) carry_out(m_.transaction->left(job(group).member));
}

void BrokerSide::act(int group, const action::Unready&) {
  if (job(group).by_operator && m_.bug != Bug::kStaysReady)
    carry_out(m_.transaction->unready(job(group).member));
}

void BrokerSide::act(int group, const action::Release& release) {
  Job& it = job(group);
  if (it.pause && release.undo) return undo(group, release);
  if (it.pause && !std::exchange(it.released, true)) promises_.no_return(group);
  if (it.pause && it.in_waves)
    for (int i = m_.first_piece(group); i < m_.end_piece(group); ++i)
      if (has(it.wave, i) && (!piece(i).exists || !can_be_released(piece(i))))
        clear_bit(it.wave, i);
  for (int i = m_.first_piece(group); it.pause && i < m_.end_piece(group); ++i) {
    Piece& p = piece(i);
    const bool dropped = has(it.selected, i) && p.on_device != 0 && !p.stayed && p.chunk == 0;
    if (!p.exists || !(it.in_waves ? has(it.wave, i) : dropped) || !effect()) continue;
    p.row = true;
    p.leaves = it.in_waves;
  }
  const bool late = m_.bug == Bug::kWritesWhenItHasSent;
  if (it.pause && !late) record(group, it.in_waves);
  for (const RankId id : release.ranks) {
    Message message = message_of(Kind::kRelease, release.epoch);
    message.undo = !it.pause && m_.bug != Bug::kForgetsToUndo;
    message.last = it.pause && it.whole;
    message.rests = message.undo || (it.whole && it.later == 0);
    if (it.pause) message.pieces = it.in_waves ? it.wave : it.selected;
    for (int i = m_.first_piece(group); it.pause && i < m_.end_piece(group); ++i)
      if (piece(i).stayed && piece(i).maker == id) clear_bit(message.pieces, i);
    send(rank_of(id), message);
  }
  if (it.pause && late) record(group, it.in_waves);
}

/// Nothing leaves that has not left before.
void BrokerSide::undo(int group, const action::Release& release) {
  record(group);
  for (const RankId id : release.ranks) {
    Message message = message_of(Kind::kRelease, release.epoch);
    message.last = message.rests = true;
    if (m_.bug == Bug::kUndoesByReleasing) message.pieces = job(group).selected;
    send(rank_of(id), message);
  }
}

void BrokerSide::act(int group, const action::Drop&) {
  const Job& it = job(group);
  bool kept_one = m_.bug != Bug::kKeepsADescriptor;
  for (int i = m_.first_piece(group); i < m_.end_piece(group); ++i) {
    Piece& p = piece(i);
    const bool all = !it.in_waves || m_.bug == Bug::kDropsAllInAWave;
    const bool leaves = it.pause ? all || has(it.wave, i) : p.paused;
    if (!p.exists || p.on_device == 0 || !has(it.selected, i) || !leaves) continue;
    if (p.stayed && effect()) p.paused = p.row = true;
    if (p.stayed) continue;
    p.paused = true;
    if (!std::exchange(kept_one, true) || (p.kept != Kept::kNot && !effect())) continue;
    p.kept = Kept::kNot;
    p.on_device = 0;
    if (m_.bug == Bug::kGivesUpWhatIsSaved) give_back(p);
    if (it.pause && m_.state.limited) ++m_.state.space;
  }
  if (it.pause && m_.state.limited)
    for (Job& other : m_.state.jobs) other.awaits_space = false;
  tell(group, event::Dropped{});
}

// ---- a resume -----------------------------------------------------------------------------------

void BrokerSide::act(int group, const action::Admit&) {
  record(group);
  const bool after = job(group).by_operator && m_.transaction->swaps() && m_.scenario.duplex;
  if (after && m_.scenario.space >= 0 && !std::exchange(m_.state.limited, true))
    m_.state.space = u8(m_.scenario.space);
  Status status;
  if (m_.fault("there is no memory for it")) status = {Code::kResourceExhausted, "no memory"};
  tell(group, event::Admitted{status});
}

void BrokerSide::act(int group, const action::Create&) {
  Job& it = job(group);
  it.creating = true;
  for (int i = m_.first_piece(group); i < m_.end_piece(group); ++i) {
    piece(i).loader = 0;
    if (piece(i).exists && piece(i).paused && has(it.selected, i)) set_bit(it.to_create, i);
  }
  create_slice(group);
}

std::array<bool, kCopies + 1> BrokerSide::copies_in_use(int index) {
  std::array<bool, kCopies + 1> used{};
  used[piece(index).on_device] = true;
  const int group = group_of_piece(index);
  const std::size_t i = at(index % kPiecesEach);
  for (int rank = m_.first_rank(group); rank < m_.end_rank(group); ++rank) {
    const Process& p = process(rank);
    used[p.maps[i]] = true;
    for (int k = 0; k < p.in.count; ++k)
      if (p.in.messages[at(k)].kind == Kind::kBring) used[p.in.messages[at(k)].place[i]] = true;
  }
  return used;
}

std::uint8_t BrokerSide::new_copy(int index) {
  const std::array<bool, kCopies + 1> used = copies_in_use(index);
  for (std::uint8_t copy = 1; copy <= kCopies; ++copy)
    if (!used[copy]) return copy;
  m_.breaks("the model has copies enough");
  return 1;
}

void BrokerSide::forget_copies(int index) {
  const std::array<bool, kCopies + 1> used = copies_in_use(index);
  for (std::size_t copy = 1; copy <= kCopies; ++copy)
    if (!used[copy]) piece(index).bytes[copy] = Bytes::kNone;
}

void BrokerSide::create_more(int group) {
  create_slice(group);
  drive(group);
}

void BrokerSide::create_slice(int group) {
  Job& it = job(group);
  for (int i = m_.first_piece(group); i < m_.end_piece(group); ++i) {
    Piece& p = piece(i);
    if (!has(it.to_create, i)) continue;
    if (!p.exists) {  // its last sharer has died
      clear_bit(it.to_create, i);
      continue;
    }
    if (p.on_device == 0 && m_.state.limited) {
      if (m_.state.space == 0) continue;
      --m_.state.space;
    }
    clear_bit(it.to_create, i);
    if (p.on_device == 0 && p.maker != 0) {
      it.asked[at(i % kPiecesEach)] = p.maker;
      Message message = message_of(Kind::kMake, machine(group).epoch());
      set_bit(message.pieces, i);
      send(p.maker - 1, message);
      break;
    }
    if (p.on_device == 0) {
      if (m_.fault("the driver makes no memory")) {
        it.creating = false;
        return tell(group, event::Created{{Code::kResourceExhausted, "the driver"}});
      }
      p.on_device = new_copy(i);
      p.bytes[p.on_device] = Bytes::kWrong;
    }
    bring(group, i);
    break;
  }
  created(group);
}

void BrokerSide::act(int group, const action::Load& load) {
  for (const RankId id : load.ranks) {
    const int rank = rank_of(id);
    Message message = message_of(Kind::kBring, load.epoch);
    message.last = true;
    for (int i = m_.first_piece(group); i < m_.end_piece(group); ++i) {
      const Piece& p = piece(i);
      const bool comes = p.exists && p.paused && p.on_device != 0 && has(job(group).selected, i);
      if (!comes || p.loader == rank + 1 || !p.shared_by(rank)) continue;
      set_bit(message.pieces, i);
      message.place[at(i % kPiecesEach)] = p.on_device;
    }
    send(rank, message);
  }
  if (m_.bug == Bug::kKeepsNothingOfAResume) return;
  for (int i = m_.first_piece(group); i < m_.end_piece(group); ++i)
    if (piece(i).on_device != 0 && piece(i).kept == Kept::kNot && effect())
      piece(i).kept = Kept::kIncoming;
}

void BrokerSide::act(int group, const action::Vacated&) {
  m_.state.limited = false;
  if (std::exchange(job(group).awaits_space, false)) create_slice(group);
}

void BrokerSide::act(int group, const action::Ask& ask) {
  const Kind kind = ask.what == RankPhase::kOpen     ? Kind::kOpen
                    : ask.what == RankPhase::kDetach ? Kind::kDetach
                                                     : Kind::kRest;
  job(group).opened = kind == Kind::kOpen;
  record(group);
  for (const RankId id : ask.ranks) {
    const bool forgotten = m_.bug == Bug::kOpensAllButOne && id == ask.ranks.back();
    if (!forgotten) send(rank_of(id), message_of(kind, ask.epoch));
  }
}

// ---- a deep pause -------------------------------------------------------------------------------

/// All are locked first. Whoever makes the calls goes on with one that was under way when amemd
/// died.
void BrokerSide::act(int group, const action::Checkpoint& checkpoint) {
  if (m_.bug != Bug::kCheckpointsUnrecorded) record(group);
  const bool refused = m_.fault("the driver refuses a checkpoint");
  for (const RankId id : checkpoint.ranks) {
    Process& p = process(rank_of(id));
    if (!p.lives || !effect()) continue;
    if (p.gate == Gate::kOpen || p.in.count > 0)
      m_.breaks("only what is paused, and asked nothing, is checkpointed");
    p.checkpointed = true;
  }
  bool deep = !refused;
  Status status;
  if (refused) {
    status = {Code::kInternal, "the driver"};
    for (const RankId id : checkpoint.ranks) {
      Process& p = process(rank_of(id));
      if (!p.checkpointed || !effect()) continue;
      p.checkpointed = m_.fault("the driver does not bring it back");
      deep = deep || p.checkpointed;
    }
  }
  tell(group, event::Checkpointed{status, deep});
}

void BrokerSide::act(int group, const action::Restore& restore) {
  Status status;
  for (const RankId id : restore.ranks) {
    Process& p = process(rank_of(id));
    if (!p.checkpointed || !effect()) continue;
    if (m_.fault("the driver does not restore it"))
      status = {Code::kInternal, "the driver"};
    else
      p.checkpointed = false;
  }
  tell(group, event::Restored{status});
}

void BrokerSide::act(int group, const action::Arrived& arrived) {
  for (int i = m_.first_piece(group); i < m_.end_piece(group); ++i) {
    Piece& p = piece(i);
    const bool back = arrived.loaded && arrived.what.takes({p.tag});
    if (!p.exists || p.on_device == 0 || (p.paused && !back)) continue;
    if (m_.bug != Bug::kKeepsChunks) retain(p);
    if (p.row && !effect()) continue;
    p.saver = 0;
    p.paused = p.stayed = p.row = p.leaves = p.sent = p.hashed = false;
    p.since = 0;
    if (m_.bug != Bug::kComparesWithAnotherPlace) p.attempt = 0;
  }
}

// ---- the end ------------------------------------------------------------------------------------

void BrokerSide::act(int, const action::Answer& answer) {
  Process& p = process(rank_of(answer.rank));
  if (!p.lives || (m_.bug == Bug::kLosesAnAnswer && answer.rank == 2) || !effect()) return;
  if (p.asked == 0) return m_.breaks("a request from inside is answered once");
  --p.asked;
}

void BrokerSide::act(int, const action::Progress& progress) {
  if (progress.ranks_done > progress.ranks_total)
    m_.breaks("no more ranks have done their part than there are");
}

void BrokerSide::act(int group, const action::Finished& finished) {
  if (!job(group).under_way) return m_.breaks("an operation ends once");
  promises_.finished(group, finished.outcome, ended_in_);
  record(group);
  const Job ended = std::exchange(job(group), {});
  if (!ended.by_operator) return;
  carry_out(m_.transaction->ended(ended.member, finished.outcome.status));
  if (m_.bug == Bug::kEndsTwice)
    carry_out(m_.transaction->ended(ended.member, finished.outcome.status));
}

void BrokerSide::give_back(Piece& p) {
  forget_retained(p);
  if (p.chunk == 0 || !effect()) return;
  free_chunk(p);
  p.row = false;
}

void BrokerSide::free_chunk(Piece& p) {
  if (p.chunk == 0) return;
  Chunk& chunk = m_.state.chunks[std::exchange(p.chunk, std::uint8_t{0}) - 1U];
  const bool may_write = p.saver != 0 && process(p.saver - 1).member &&
                         has_saving(process(p.saver - 1)) && m_.bug != Bug::kGivesChunksBackAtOnce;
  // Whoever may write to it finds it as it is.
  if (m_.state.retain && may_write)
    chunk.owner = 0;
  else
    chunk = {};
  if (may_write) chunk.limbo = p.saver;
}

void BrokerSide::free_limbo(int rank) {
  for (Chunk& chunk : m_.state.chunks)
    if (chunk.limbo == rank + 1) chunk = {};
}

// ---- transactions -------------------------------------------------------------------------------

std::vector<int> members_of(const Request& request) {
  std::vector<int> all = request.groups;
  all.insert(all.end(), request.in.begin(), request.in.end());
  return all;
}

Task task_of(const Request& request, bool out) {
  Selection what;
  if (request.tag != 0) what.tags = {std::string(1, request.tag)};
  Task task(out ? Operation::kPause : Operation::kResume, what);
  task.deep = out && request.deep;
  task.partial = out && request.partial;
  return task;
}

Status BrokerSide::can_begin(int group, const Task& task) {
  bool any = false;
  for (int i = m_.first_piece(group); i < m_.end_piece(group); ++i)
    any = any || (piece(i).exists && task.selection.takes({piece(i).tag}));
  if (machine(group).members().empty() || !any) return {Code::kNotFound, "it has ended"};
  return machine(group).can_start(task);
}

void BrokerSide::transaction(const Request& request) {
  const bool swap = request.what == Request::kSwap;
  const bool out = swap || request.what == Request::kPause;
  for (const int group : request.groups)
    if (!can_begin(group, task_of(request, out)).ok()) return;
  for (const int group : request.in)
    if (!can_begin(group, task_of(request, false)).ok()) return;
  std::vector<std::string> names[2];
  for (const int group : request.groups) names[out ? 0 : 1].push_back(machine(group).name());
  for (const int group : request.in) names[1].push_back(machine(group).name());
  m_.transaction.emplace(names[0], names[1], task_of(request, out), m_.scenario.duplex);
  m_.state.by_operator = true;
  m_.state.limited = false;
  m_.state.deepens = 0;
  for (const int group : request.groups)
    if (out && machine(group).state() == GroupState::kPaused)
      m_.state.deepens = u8(m_.state.deepens | bit_of(group));
  carry_out(m_.transaction->start());
}

void BrokerSide::carry_out(const Transaction::Steps& steps) {
  steps_.insert(steps_.end(), steps.begin(), steps.end());
  if (std::exchange(stepping_, true)) return;
  while (!steps_.empty()) {
    const Transaction::Step step = steps_.front();
    steps_.pop_front();
    carry_out(step);
  }
  stepping_ = false;
}

void BrokerSide::carry_out(Transaction::Step step) {
  const Request& request = m_.scenario.script[at(m_.state.script_at - 1)];
  if (step.what == Transaction::Step::kFinish) {
    if (!std::exchange(m_.state.by_operator, false)) m_.breaks("a transaction is answered once");
    return promises_.by_operator(request, m_.transaction->result());
  }
  const int group = members_of(request)[step.member];
  if (step.what == Transaction::Step::kBegin) {
    const Task task = task_of(request, m_.transaction->goes_out(step.member));
    Status status = can_begin(group, task);
    if (status.ok())
      status = machine(group).start(task, {}, now(group), m_.transaction->hold(step.member));
    if (!status.ok()) return carry_out(m_.transaction->ended(step.member, status));
    job(group).by_operator = true;
    job(group).member = u8(step.member);
    return drive(group);
  }
  if (!job(group).under_way || !job(group).by_operator) return;  // it has ended
  if (step.what == Transaction::Step::kVacated)
    tell(group, event::AllLeft{});
  else if (step.what == Transaction::Step::kGoOn)
    tell(group, event::GoOn{});
  else
    tell(group, event::GiveUp{m_.transaction->why_given_up()});
  drive(group);
}

// ---- what ranks do and say, as daemon/broker has it ---------------------------------------------

void BrokerSide::join(int rank) {
  Process& p = process(rank);
  const int group = group_of_rank(rank);
  p.lives = p.connected = p.member = true;
  const bool shut = machine(group).join(id_of(rank), rank_name(rank));
  p.gate = shut ? Gate::kShut : Gate::kOpen;
  drive(group);
}

void BrokerSide::tick(int group) {
  if (m_.bug == Bug::kTicksNever) return;
  m_.state.now[at(group)] = std::max(now(group), machine(group).wakeup());
  machine(group).tick(now(group));
  drive(group);
}

void BrokerSide::guest_closes(int index) {
  piece(index).opened = false;
  const int group = group_of_piece(index);
  if (machine(group).phase() != Phase::kGuests) return;
  act(group, action::AwaitGuests{});
  drive(group);
}

// ---- messages -----------------------------------------------------------------------------------

void BrokerSide::read(int rank) {
  const Message message = process(rank).out.pop();
  const int group = group_of_rank(rank);
  switch (message.kind) {
    case Kind::kAsks: {
      const Operation op = message.undo ? Operation::kResume : Operation::kPause;
      machine(group).request(id_of(rank), 1, op, {}, now(group));
      return drive(group);
    }
    case Kind::kFreed: {
      const int index = m_.first_piece(group) + message.place[0];
      Piece& p = piece(index);
      const bool loads = job(group).under_way && !job(group).pause && p.loader == rank + 1;
      let_go(rank, index);
      if (p.exists && loads) tell(group, event::FreedUnloaded{id_of(rank)});
      return drive(group);
    }
    case Kind::kMade: {
      const bool twice = m_.fault("it comes twice");
      made(rank, message);
      return twice ? made(rank, message) : void();
    }
    default:
      break;
  }
  // What a rank says of a wave that is still to come is for the machine to ignore: one that says so
  // may as well say that it has saved what it has not.
  Message of_other = message;
  of_other.wave = u8(message.wave + 1);
  if (m_.fault("an answer of another wave comes before it")) tell_answer(rank, of_other);
  const bool twice = m_.fault("it comes twice");
  answered(rank, message);
  if (twice) answered(rank, message);
}

void BrokerSide::answered(int rank, const Message& message) {
  const RankPhase phase = phase_of(message.kind);
  const Epoch epoch = message.epoch();
  Process& p = process(rank);
  if (message.kind != Kind::kQuiet) {
    for (std::uint8_t& saving : p.saving) {
      const bool before = saving < packed(epoch) && phase != RankPhase::kSave;
      const bool this_one = saving == packed(epoch) && phase != RankPhase::kMeasure;
      if (before || this_one) saving = 0;
    }
    if (p.saving == decltype(p.saving){}) free_limbo(rank);
    if (phase == RankPhase::kSave && !message.undo) stored(rank, message);
    Job& it = job(group_of_rank(rank));
    if (it.pause && phase == RankPhase::kSave && message.undo &&
        epoch == machine(group_of_rank(rank)).epoch())
      save_failed(rank);
  }
  tell_answer(rank, message);
}

void BrokerSide::save_failed(int rank) {
  const int group = group_of_rank(rank);
  Job& it = job(group);
  it.failed_savers = u8(it.failed_savers | 1U << (rank % kRanksEach));
  for (int i = m_.first_piece(group); i < m_.end_piece(group); ++i)
    if (piece(i).saver == rank + 1 && piece(i).sent) piece(i).hashed = false;
}

void BrokerSide::tell_answer(int rank, const Message& message) {
  const int group = group_of_rank(rank);
  const Epoch epoch = m_.bug == Bug::kTakesAnyAnswer ? machine(group).epoch() : message.epoch();
  Status status;
  if (message.undo) status = {Code::kInternal, "it failed"};
  if (message.kind == Kind::kQuiet)
    tell(group, event::CutStatus{id_of(rank), epoch, {}});
  else
    tell(group, event::PhaseDone{id_of(rank), epoch, phase_of(message.kind), status});
  drive(group);
}

// ---- ends ---------------------------------------------------------------------------------------

void BrokerSide::let_go(int rank, int index) {
  Piece& p = piece(index);
  const auto end = std::remove(p.sharers.begin(), p.sharers.end(), rank + 1);
  std::fill(end, p.sharers.end(), std::uint8_t{0});
  if (p.maker == rank + 1) p.maker = 0;
  clear_bit(process(rank).holds, index);
  if (p.held() || !effect()) return;
  forget_retained(p);
  free_chunk(p);
  p = {};
}

bool BrokerSide::shares(int rank) {
  for (int i = m_.first_piece(group_of_rank(rank)); i < m_.end_piece(group_of_rank(rank)); ++i) {
    const Piece& p = piece(i);
    if (!p.shared_by(rank)) continue;
    if (p.opened) return true;
    for (const std::uint8_t sharer : p.sharers)
      if (sharer != 0 && sharer != rank + 1 && !process(sharer - 1).lost) return true;
  }
  return false;
}

void BrokerSide::gone(int rank) {
  Process& p = process(rank);
  p.out.clear();
  may_have_written(rank);
  if (p.lives && machine(group_of_rank(rank)).deep() && m_.bug != Bug::kForgetsWhatIsCheckpointed) {
    p.expected = true;
    machine(group_of_rank(rank)).expect(id_of(rank));
    return drive(group_of_rank(rank));
  }
  if (!p.lives || !shares(rank)) return remove(rank);
  p.lost = true;
  machine(group_of_rank(rank)).lose(id_of(rank), now(group_of_rank(rank)));
  drive(group_of_rank(rank));
}

void BrokerSide::process_ended(int rank) {
  if (!process(rank).member) free_limbo(rank);
}

void BrokerSide::remove(int rank) {
  Process& p = process(rank);
  const int group = group_of_rank(rank);
  bool leaves_unloaded = false;
  for (int i = m_.first_piece(group); i < m_.end_piece(group); ++i)
    if (piece(i).exists && piece(i).loader == rank + 1 && job(group).under_way && !job(group).pause)
      leaves_unloaded = leaves_unloaded || piece(i).sharers[1] != 0;
  if (m_.bug == Bug::kForgetsWhatIsUnloaded) leaves_unloaded = false;
  if (p.saving != decltype(p.saving){}) {
    for (int i = m_.first_piece(group); i < m_.end_piece(group); ++i) {
      const bool too_much =
          m_.bug == Bug::kGivesBackWhatComesBack && piece(i).on_device != 0 && piece(i).chunk != 0;
      if ((!piece(i).paused || too_much) && piece(i).saver == rank + 1) give_back(piece(i));
    }
    p.saving = {};
  }
  for (Chunk& chunk : m_.state.chunks)
    if (chunk.retained != 0 && chunk.saver == rank + 1 && m_.bug != Bug::kRetainsWhatNobodyKnows)
      forget_retained(chunk);
  if (!p.lives) free_limbo(rank);
  for (int i = m_.first_piece(group); i < m_.end_piece(group); ++i)
    if (piece(i).shared_by(rank)) let_go(rank, i);
  p.member = p.lost = p.expected = false;
  p.asked = 0;
  machine(group).leave(id_of(rank), leaves_unloaded, now(group));
  maker_gone(rank);
  drive(group);
  for (int other = m_.first_rank(group); other < m_.end_rank(group); ++other)
    if (process(other).lost && !shares(other)) return remove(other);
}

// ---- what ranks make themselves, as ResumeOperation has it --------------------------------------

void BrokerSide::created(int group) {
  Job& it = job(group);
  it.creating = it.to_create != 0;
  if (!it.creating && it.asked == decltype(it.asked){}) return tell(group, event::Created{});
  // The next slice in another turn of the loop, unless nothing of it has space now.
  it.awaits_space = m_.state.limited && m_.state.space == 0;
  for (int i = m_.first_piece(group); i < m_.end_piece(group); ++i)
    if (has(it.to_create, i) && piece(i).on_device != 0) it.awaits_space = false;
}

void BrokerSide::bring(int group, int index) {
  Piece& p = piece(index);
  p.loader = p.sharers[0];
  Message message;
  message.kind = Kind::kBring;
  message.attempt = u8(machine(group).epoch().attempt);
  set_bit(message.pieces, index);
  if (!p.stayed) set_bit(message.loads, index);
  message.place[at(index % kPiecesEach)] = p.on_device;
  send(p.keeper(), message);
}

void BrokerSide::made(int rank, const Message& message) {
  const int group = group_of_rank(rank);
  Job& it = job(group);
  if (machine(group).phase() != Phase::kCreate || message.epoch() != machine(group).epoch()) return;
  for (int i = m_.first_piece(group); i < m_.end_piece(group); ++i) {
    std::uint8_t& asked = it.asked[at(i % kPiecesEach)];
    if (asked != rank + 1) continue;
    asked = 0;
    Piece& p = piece(i);
    if (!p.exists || p.maker != rank + 1) {
      if (p.exists) set_bit(it.to_create, i);
      continue;
    }
    if (message.undo || !has(message.pieces, i)) {
      it.creating = false;
      tell(group, event::Created{{Code::kInternal, "its maker"}});
      return drive(group);
    }
    p.on_device = new_copy(i);
    p.bytes[p.on_device] = Bytes::kWrong;
    bring(group, i);
  }
  created(group);
  drive(group);
}

/// What it was to make the broker makes, if anybody holds it still.
void BrokerSide::maker_gone(int rank) {
  const int group = group_of_rank(rank);
  if (machine(group).phase() != Phase::kCreate) return;
  Job& it = job(group);
  bool any = false;
  for (int i = m_.first_piece(group); i < m_.end_piece(group); ++i) {
    std::uint8_t& asked = it.asked[at(i % kPiecesEach)];
    if (asked != rank + 1) continue;
    asked = 0;
    if (piece(i).exists) set_bit(it.to_create, i);
    any = true;
  }
  if (any) created(group);
}

}  // namespace amem::model
