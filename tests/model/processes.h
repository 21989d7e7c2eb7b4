// Processes: the ranks' side of the model: what a process does with the broker's messages, what its
// program does to memory, how it ends. Stands for shim/phases as docs/protocol.md has it.
#pragma once

#include "tests/model/model.h"

namespace amem::model {

class Processes {
 public:
  explicit Processes(Model& model) : m_(model) {}

  /// Takes the next message. REQUIRES: there is one.
  void handle(int rank);
  void die(int rank);
  /// It learns that its session has ended.
  void sees_end(int rank);
  /// Programs that run write wherever they can.
  void write();

 private:
  void save(int rank, const Message& message);
  bool others_may_write(int rank, int i) const;
  void release(int rank, const Message& message);
  void make(int rank, const Message& message);
  void bring(int rank, const Message& message);
  void open(int rank, const Message& message);
  void answer(int rank, Kind kind, const Message& to, bool failed);
  /// One of its group's.
  Piece& piece(int rank, int index) {
    return m_.state.pieces[first(rank) + static_cast<std::size_t>(index)];
  }
  static std::size_t first(int rank) {
    return static_cast<std::size_t>(group_of_rank(rank) * kPiecesEach);
  }

  Model& m_;
};

}  // namespace amem::model
