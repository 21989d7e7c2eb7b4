// SendQueue: what a rank has to tell the broker, in the order in which it was given.
//
// Sending waits for nobody: what the socket has no space for stays here until it has. It is not
// bounded: messages without a Reply are few or follow an answer of the broker's, such as Free its
// Create. Without a connection nothing is kept: a rank that reconnects tells all anew (collect()).
// Any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/fd.h"
#include "common/status.h"

namespace amem::shim {

class SendQueue {
 public:
  using Clock = std::chrono::steady_clock;

  struct Parcel {
    std::string bytes;  // encoded
    std::vector<Fd> fds;
  };

  /// `deadline`: how long the broker may read nothing while messages wait.
  explicit SendQueue(std::chrono::milliseconds deadline) : deadline_(deadline) {}

  /// From now on to this socket, which does not block; first what has been collected for it. True:
  /// some of that is left, for flush().
  bool connect(int socket);
  /// The connection has ended: what is here is dropped, and what comes, too.
  void disconnect();
  /// Why sending has ended the connection, if not because the broker's end was closed; told once.
  Status failure();
  /// There may soon be another: what comes is kept for it from now on, behind `first`.
  void collect(std::vector<Parcel> first);

  /// Returns true if some is left. `request`: for a parcel that is sent once for each connection
  /// even if it is given twice; the place to note the connection; 0 before.
  bool add(Parcel parcel, std::uint64_t* request = nullptr);
  /// Sends what there is space for. False: the broker has read nothing for too long.
  bool flush();
  /// Something waits for space in the socket: until when at most.
  std::optional<Clock::time_point> full();

 private:
  void send_now();

  enum class State : std::uint8_t { kClosed, kCollecting, kOpen };

  const std::chrono::milliseconds deadline_;
  std::mutex mutex_;  // guards what follows; held over sends that do not wait
  State state_ = State::kClosed;
  int socket_ = -1;
  std::uint64_t connection_ = 1;  // the how-manieth there is, or is being made
  std::deque<Parcel> parcels_;
  std::optional<Clock::time_point> full_since_;  // the first of these found no space then
  Status failure_;
};

}  // namespace amem::shim
