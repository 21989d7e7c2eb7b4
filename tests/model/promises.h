// Promises: what must hold of a node whatever happens (README.md), said of bytes, gates and
// answers and not of the machines' own tables.
#pragma once

#include "tests/model/model.h"

namespace amem::model {

class Promises {
 public:
  explicit Promises(Model& model) : m_(model) {}

  /// In each state.
  void always();
  /// Where nothing is under way and nothing can move any more.
  void at_rest();
  /// The group's first Release is about to be sent.
  void no_return(int group);
  /// REQUIRES: its Job is still as it was.
  void finished(int group, const Outcome& outcome, GroupState is);
  /// Of the operator's transaction.
  void by_operator(const Request& request, const Status& result);

 private:
  void bytes_are_safe();
  void programs_run_in_turns();
  void chunks_add_up();
  void what_is_retained(const Chunk& chunk);
  void hashes_are_of_saved_bytes();
  void whole_group(int group);

  Model& m_;
};

}  // namespace amem::model
