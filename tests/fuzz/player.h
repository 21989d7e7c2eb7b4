// Player: a rank of the session and control targets. It sends what the input says, whatever that
// is, and does what the broker tells it, well or badly.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <string>

#include "tests/world/rank_process.h"

namespace amem::fuzz {

class Player {
 public:
  /// Every packet that the broker has sent is shown to `seen`.
  using Seen = std::function<void(const Player&, const Packet&)>;

  /// `number`: tells the players of a world apart. The others outlive this object.
  Player(int number, world::Truths& truths, world::Checkpoints& checkpoints, Seen seen)
      : number_(number), truths_(truths), checkpoints_(checkpoints), seen_(std::move(seen)) {}
  Player(const Player&) = delete;

  /// Begins a session, of a new process; one that is there ends.
  void connect(const std::string& path, uid_t uid);
  void hang_up();
  /// The processes of all its sessions end.
  void die();
  uid_t uid() const { return uid_; }

  /// Whatever it is. `beside`: chooses the descriptors.
  void send(const std::string& bytes, unsigned beside);
  /// Reads what has come; whether anything has.
  bool read() { return connected() && ranks_.back().read(); }
  /// Does what it has read and not done yet. `how`: 0 well; else in one of the other ways.
  void answer(unsigned how);
  /// Forgets it instead.
  void ignore();

 private:
  bool connected() const { return !ranks_.empty() && ranks_.back().connected(); }
  void send_message(const Message& message);
  void measured(const amem_v1_Measure& measure);
  void saved(const amem_v1_Copies& copies);

  const int number_;
  world::Truths& truths_;
  world::Checkpoints& checkpoints_;
  const Seen seen_;
  std::deque<world::RankProcess> ranks_;  // one for each session
  uid_t uid_ = 0;
};

}  // namespace amem::fuzz
