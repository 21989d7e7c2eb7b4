// Connection: how a rank gets a socket to the broker and says who it is: at its start, and when it
// reconnects to a broker that has begun again.
//
// Stateless functions. Each of their waits ends after ten seconds.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "common/fd.h"
#include "common/packet.h"
#include "common/protocol.h"

namespace amem::shim {

struct RankIdentity {
  std::string group;
  int rank = -1;
  std::string program;
  std::string stage = {};  // that the group is to take turns in; empty: none
  VisibleDevices devices = {};
  std::string job = {};  // of the group (common/job.h); empty: none
};

/// What a rank that reconnects says of itself.
struct Comeback {
  Token key{};  // of its session
  bool gate_shut = false;
  std::vector<amem_v1_Inventory_Item> items;
};

/// A socket that no session has yet. While it lives its number is in `number`, for a child of fork
/// to close.
class NewSocket {
 public:
  explicit NewSocket(std::atomic<int>& number) : number_(number) {}
  NewSocket(const NewSocket&) = delete;
  NewSocket& operator=(const NewSocket&) = delete;
  ~NewSocket() { number_.store(-1); }

  /// kUnavailable: nobody serves there. kPermissionDenied: somebody else plays the broker there.
  Status connect(const std::string& path);
  int get() const { return fd_.get(); }
  Fd take();

 private:
  std::atomic<int>& number_;
  Fd fd_;
};

/// Says Hello, and what a rank that reconnects holds. Afterwards the socket does not block.
/// kAborted: the broker has ended meanwhile. kDeadlineExceeded: it does not answer. kInternal: what
/// answers is not a broker. Otherwise the broker's refusal.
Result<amem_v1_Welcome> say_hello(int socket, const std::string& path, const RankIdentity& identity,
                                  const Comeback* comeback = nullptr);

}  // namespace amem::shim
