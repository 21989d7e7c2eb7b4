// Player: a rank of the session and control targets: the other end of a session, which sends what
// the input says and does what the broker tells it, well or badly. It has no memory: the broker
// cannot tell.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "common/packet.h"
#include "common/rank_phase.h"

namespace amem::fuzz {

class Player {
 public:
  /// Every packet that the broker has sent is shown to `seen`.
  using Seen = std::function<void(const Player&, const Packet&)>;

  /// Begins a session; one that is there ends. `number`: tells the players of a world apart.
  void connect(const std::string& path, int number, uid_t uid);
  void hang_up() { socket_.reset(); }
  /// The processes of all its sessions end.
  void die();
  bool connected() const { return static_cast<bool>(socket_); }
  uid_t uid() const { return uid_; }

  /// Whatever it is. `beside`: chooses the descriptors.
  void send(const std::string& bytes, unsigned beside);
  /// Reads what has come; how many packets there were.
  int read(const Seen& seen);
  /// Does what it has read and not done yet. `how`: 0 well; else in one of the other ways.
  void answer(unsigned how);
  /// Forgets it instead.
  void ignore() { commands_.clear(); }

 private:
  void answer(const Message& command, unsigned how);
  void send_message(const Message& message);
  void report_cut();
  void done(RankPhase phase, std::uint64_t epoch, std::uint32_t wave, bool well);
  void measured(const amem_v1_Measure& measure);
  void saved(const amem_v1_Copies& copies);

  Fd socket_;
  std::vector<Fd> processes_;  // one for each session; eventfds: readable once they have ended
  uid_t uid_ = 0;
  std::uint64_t epoch_ = 0;
  std::uint32_t steps_ = 0;
  std::deque<Message> commands_;
};

}  // namespace amem::fuzz
