// What ranks do and say, as daemon/broker has it.
#include <algorithm>
#include <utility>

#include "tests/model/broker_side.h"

namespace amem::model {
namespace {

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
    default:
      return RankPhase::kOpen;
  }
}

}  // namespace

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
    Job& it = job(group_of_rank(rank));
    if (it.pause && phase == RankPhase::kSave && message.undo &&
        epoch == machine(group_of_rank(rank)).epoch())
      it.failed_savers = u8(it.failed_savers | 1U << (rank % kRanksEach));
  }
  tell_answer(rank, message);
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

}  // namespace amem::model
