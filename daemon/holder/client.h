// HolderClient: amemd's end of the connection to amem-holder, which keeps descriptors over its
// death.
//
//   put/drop -> buffered, in order -> flush() -> in the kernel: what was put lives on if this
//   process is killed now, and what was dropped goes.
//
// The holder only keeps a second reference: memory is freed when its descriptor is closed here and
// dropped there. When the connection breaks nothing that is held here is lost, but it would not
// outlive this process any more: lost() is true, and everything that sends does nothing.
//
// For the loop's thread; after detach() a descriptor of held() may be destroyed on any.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/fd.h"
#include "common/status.h"
#include "daemon/base/clock.h"
#include "daemon/holder/wire.h"

namespace amem {

class HolderClient {
 public:
  using Key = HolderKey;
  static constexpr Duration kListLimit = std::chrono::seconds(10);
  static constexpr Duration kFlushLimit = std::chrono::seconds(1);
  static constexpr Duration kWelcomeLimit = std::chrono::seconds(5);

  /// Connects and says hello. kUnavailable: nobody listens at `path`, or it does not answer within
  /// `limit`. kAborted: it ended meanwhile; try again. kPermissionDenied: it is another user's.
  /// kFailedPrecondition: it serves another amemd, which the text names. kUnimplemented: it speaks
  /// another version.
  static Result<std::unique_ptr<HolderClient>> connect(const std::string& path,
                                                       Duration limit = kWelcomeLimit);

  ~HolderClient() { detach(); }
  HolderClient(const HolderClient&) = delete;
  HolderClient& operator=(const HolderClient&) = delete;

  /// All that is held. Flushes first. kResourceExhausted: this process has no space for so many
  /// descriptors.
  Result<std::map<Key, Fd>> list();

  /// Replaces what is there. The descriptor is kept open until it has been sent. `lane`: in which
  /// the holder closes it (wire.h).
  void put(Key key, SharedFd fd, std::uint32_t lane = 0);
  /// The same; the caller keeps the descriptor open until flush() has sent it.
  void put(Key key, int fd);
  void drop(Key key);

  /// Sends what is buffered. kDeadlineExceeded: the holder did not take all of it within `limit`
  /// (zero: without waiting); the rest stays buffered, in order. kUnavailable: lost(). Also what
  /// check() returns.
  Status flush(Duration limit = kFlushLimit);
  /// Whether something is buffered.
  bool behind() const { return !changes_.empty(); }
  /// Whether what was put lives on should this process end now. Not OK: why not.
  Status has_everything() const;

  /// Flushes, and asks: the holder says kAllClosed with this number when it has closed all that was
  /// dropped in this lane. Not OK: as flush(); it will not.
  Result<std::uint64_t> ask_closed(std::uint32_t lane, Duration limit = kFlushLimit);
  /// Sets the function that is called then, from whatever reads.
  void on_closed(std::function<void(std::uint64_t)> closed) { closed_ = std::move(closed); }

  /// Reads what the holder says unasked; to be called when fd() is readable or hung up.
  /// kResourceExhausted: the holder had no space for descriptors, and has nothing under their keys.
  /// kUnavailable: lost().
  Status check();

  /// From now on nothing is sent: this amemd ends and wants all kept. What is buffered is dropped;
  /// flush() first.
  void detach();

  bool lost() const { return lost_; }
  /// Where the holder listens.
  const std::string& path() const { return path_; }
  /// For the loop to watch.
  int fd() const { return socket_.get(); }

 private:
  struct Change {
    Key key;
    bool puts;
    int fd;
    SharedFd descriptor;  // may be null
    std::uint32_t lane;
  };

  HolderClient(std::string path, Fd socket) : path_(std::move(path)), socket_(std::move(socket)) {}
  Status greet(Duration limit);
  bool sends() const { return !lost_ && !detached_; }
  /// kUnavailable: lost; kFailedPrecondition: detached.
  Status cannot_send() const;
  void add(Change change);
  /// Sends the changes from `first` on that go into one packet, and moves `first` behind them.
  Status send_some(const std::vector<Change>& changes, std::size_t& first, Time until);
  Status send(const HolderPacket& packet, const std::vector<int>& fds, Time until);
  Status ask(HolderMessage message, std::uint64_t number, std::uint32_t detail, Time until);
  /// The next packet. kDeadlineExceeded: none came by then.
  Status receive(Time until, HolderPacket& packet, std::vector<Fd>& fds);
  /// Takes what came while nothing, or something else, was waited for.
  Status heard(const HolderPacket& packet);
  Status lose(const std::string& why);

  const std::string path_;
  Fd socket_;
  bool lost_ = false;
  bool detached_ = false;
  std::string why_;          // lost
  std::uint64_t asked_ = 0;  // number of the last question
  std::function<void(std::uint64_t)> closed_;
  std::vector<Change> changes_;
  std::set<Key> refused_;  // put, and the holder had no space for the descriptor
};

/// A descriptor whose key the holder drops when the last reference to it here goes. It puts
/// nothing: put() it, or take it from list(). Without a holder the descriptor alone.
SharedFd held(std::shared_ptr<HolderClient> holder, HolderKey key, SharedFd fd);
inline SharedFd held(std::shared_ptr<HolderClient> holder, HolderKey key, Fd fd) {
  return held(std::move(holder), key, std::make_shared<const Fd>(std::move(fd)));
}

}  // namespace amem
