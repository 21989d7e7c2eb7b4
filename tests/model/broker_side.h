// BrokerSide: the broker's side of the model: drives the real machines (Group, Transaction, Waves)
// as daemon/operations and daemon/broker do, with messages, descriptors and places in the pool that
// are those of the model.
#pragma once

#include <deque>
#include <vector>

#include "tests/model/model.h"
#include "tests/model/promises.h"

namespace amem::model {

class BrokerSide {
 public:
  BrokerSide(Model& model, Promises& promises) : m_(model), promises_(promises) {}

  /// A rank of this group joins. From the beginning: with its gate open.
  void join(int rank);
  /// The operator asks for it. What is refused changes nothing.
  void transaction(const Request& request);
  /// The next message of this rank is read.
  void read(int rank);
  /// It is seen that its session has ended, or its process.
  void gone(int rank);
  /// What wakes up the group next.
  void tick(int group);
  /// The next slice is created, in a turn of its own.
  void create_more(int group);
  void guest_closes(int piece);
  /// It had no session any more.
  void process_ended(int rank);
  /// The broker has died, and another begins.
  void restart();
  void come_back(int rank);
  /// Those of this piece that nobody has, and nobody will be given.
  void forget_copies(int piece);

 private:
  void drive(int group);
  void act(int group, const action::Begun& begun);
  void act(int group, const action::AwaitGuests& await);
  void act(int group, const action::Quiesce& quiesce);
  void act(int group, const action::Measure& measure);
  void act(int group, const action::Save& save);
  void act(int group, const action::Leaves& leaves);
  void act(int group, const action::Ready& ready);
  void act(int group, const action::Left& left);
  void act(int group, const action::Unready& unready);
  void act(int group, const action::Release& release);
  void undo(int group, const action::Release& release);
  void act(int group, const action::Drop& drop);
  void act(int group, const action::Checkpoint& checkpoint);
  void act(int group, const action::Restore& restore);
  void act(int group, const action::Admit& admit);
  void act(int group, const action::Create& create);
  void act(int group, const action::Load& load);
  void act(int group, const action::Vacated& space);
  void act(int group, const action::Ask& open);
  void act(int group, const action::Arrived& arrived);
  void act(int group, const action::Answer& answer);
  void act(int group, const action::Progress& progress);
  void act(int group, const action::Finished& finished);
  void act(int, const action::Step&) {}
  void act(int, const action::Overdue&) {}
  void act(int, const action::Waits&) {}
  void act(int, const action::Reported&) {}  // no transaction of the model spans nodes
  void act(int, const action::StateChanged& changed) { ended_in_ = changed.state; }

  Group& machine(int group) { return *m_.groups[at(group)]; }
  Job& job(int group) { return m_.state.jobs[at(group)]; }
  Process& process(int rank) { return m_.state.ranks[at(rank)]; }
  Piece& piece(int index) { return m_.state.pieces[at(index)]; }
  Time now(int group) const { return m_.state.now[at(group)]; }

  // ---- what outlives the broker (broker_restart.cpp) ----
  /// Somebody else learns of what is done next. False: the broker is dead, and nobody does.
  bool effect();
  /// Writes the group's row.
  void record(int group, bool waves = false);
  void take_up(int group);
  void take_memory(int group);
  void release_leftovers(int rank);

  bool wait_for_guests(int group);
  /// False: the pool has no space.
  bool take_chunks(int group);
  bool can_be_released(const Piece& piece) const;
  void choose_wave(int group);
  void give_back(Piece& piece);
  /// As give_back(), of a piece that stays: its bytes stay where they are while nobody needs their
  /// place.
  void retain(Piece& piece);
  /// Of what it shares, while others have hashed and copied: a program whose session has ended runs
  /// on before the broker knows of it.
  void may_have_written(int rank);
  void forget_retained(Chunk& chunk);
  void forget_retained(const Piece& piece);
  /// What is retained of it; null: nothing.
  Chunk* retained(const Piece& piece);
  std::uint8_t hashed_by(const Piece& piece) const;
  void add_retained(Chunk& chunk, int piece);
  void take_retained(Chunk& chunk);
  bool is_free(const Chunk& chunk) const;
  /// Takes from what is retained, the oldest first.
  bool make_space(std::size_t chunks);
  void save_failed(int rank);
  void stored(int rank, const Message& message);
  void free_chunk(Piece& piece);
  void free_limbo(int rank);
  void create_slice(int group);
  /// It is on its device: to its keeper.
  void bring(int group, int index);
  void created(int group);
  /// A rank has made what it was asked for, as far as it says so.
  void made(int rank, const Message& message);
  void maker_gone(int rank);
  std::array<bool, kCopies + 1> copies_in_use(int index);
  std::uint8_t new_copy(int index);
  void send(int rank, const Message& message);
  void tell(int group, const Event& event);
  void let_go(int rank, int index);
  bool shares(int rank);
  void answered(int rank, const Message& message);
  void tell_answer(int rank, const Message& message);
  void remove(int rank);
  void carry_out(const Transaction::Steps& steps);
  void carry_out(Transaction::Step step);
  Status can_begin(int group, const Task& task);

  Model& m_;
  Promises& promises_;
  std::deque<Transaction::Step> steps_;
  bool stepping_ = false;
  GroupState ended_in_ = GroupState::kRunning;  // the operation that is about to be Finished
};

/// The groups of a transaction, as the Transaction counts them.
std::vector<int> members_of(const Request& request);
Task task_of(const Request& request, bool out);

}  // namespace amem::model
