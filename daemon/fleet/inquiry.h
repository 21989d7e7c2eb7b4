// Inquiry: what a node that has lost its leader concludes from the other nodes' answers. It has
// asked whether it may go on with a side, and has not heard.
//
// - Go on, at once, if a node has gone on: the leader had decided so.
// - Give up, once the round has ended, if a node says why nobody was told to go on, and nobody will
//   be: it has given up, or has not asked and never will. A node that has had no part, by its
//   record, and takes none any more, says so, too; but only when all have been asked.
// - Give up, once all have been asked, if none has gone on, none has a leader still, and all have
//   answered but the one that is the leader's own: that is told last, when another has gone on.
// - Else ask again.
//
// What proves nothing: no answer; a node that does not know the transaction and has no record of
// before; one that has asked and has failed, or whose amemd has ended, before it heard.
//
// Of many nodes a few ask all others, and the others ask these few: they hear what those find out.
// If they do not, they ask all in the end. After each round the next one waits longer.
//
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "amem/v1/fleet.pb.h"
#include "daemon/base/clock.h"
#include "daemon/phases/task.h"

namespace amem {

class Inquiry {
 public:
  enum class Verdict : std::uint8_t { kGoOn, kGiveUp, kAskAgain };

  /// Node `own` of so many asks about the side. `leader`: which of them the leader's own is, as
  /// far as it is known.
  Inquiry(std::size_t nodes, std::size_t own, Side side, std::optional<std::size_t> leader);

  /// Those to ask in the next round, which begins.
  std::vector<std::size_t> next_round();
  /// Null: it has not answered.
  void heard(std::size_t node, const v1::FleetStanding* standing);
  /// Every node of the round has been heard.
  bool round_has_ended() const { return open_ == 0; }
  /// REQUIRES: the round has ended, or this is kGoOn.
  Verdict verdict() const;
  /// Returns the node that a verdict other than kAskAgain comes from; nothing: all others.
  const std::optional<std::size_t>& by() const { return gone_on_ ? gone_on_ : given_up_; }
  /// From the end of the round to the next.
  Duration pause() const;

 private:
  friend class ModelPeek;  // of the tests: says in what state it is
  bool asks_all() const;

  const std::size_t nodes_;
  const std::size_t few_;  // so many of them ask all from the beginning, and are asked by all
  const std::size_t own_;
  const Side side_;
  std::optional<std::size_t> leader_;
  unsigned round_ = 0;
  // The state of this round.
  std::size_t open_ = 0;             // questions without an answer
  std::vector<std::size_t> silent_;  // nodes whose state is not known
  bool led_ = false;                 // the leader lives, and will decide, or some node thinks so
  std::optional<std::size_t> gone_on_;
  std::optional<std::size_t> given_up_;
  bool never_ = false;  // given_up_ by one that has had no part
};

}  // namespace amem
