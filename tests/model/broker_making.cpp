// What ranks make themselves, as ResumeOperation (daemon/operations) has it; and what is there, to
// its keeper.
#include "tests/model/broker_side.h"

namespace amem::model {

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
