// Report: tells the broker, and the program that asks, which device memory of this process is
// brokered and which is not.
//
// changed(), amounts() and stats() from any thread; send() on the service thread.
#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <vector>

#include "common/driver.h"
#include "shim/devices.h"
#include "shim/memory.h"
#include "shim/session.h"
#include "shim/unbrokered.h"

namespace amem::shim {

class Report {
 public:
  Report(const Driver& driver, Devices& devices, Memory& memory, Unbrokered& unbrokered,
         Session& session)
      : driver_(driver),
        devices_(devices),
        memory_(memory),
        unbrokered_(unbrokered),
        session_(session) {}

  /// What is not brokered may have changed: the broker hears of it, at most once a second.
  void changed();
  /// Tells the broker what is not brokered; unless `always`, only when it is news.
  void send(bool always);

  /// What is not brokered, as counted and as the driver says of pools and graphs.
  /// REQUIRES: the driver table and the devices are loaded.
  std::vector<UnbrokeredAmount> amounts();

  /// One JSON object. The process may have no session, and even no driver.
  std::string stats(const std::string& group, std::uint32_t rank_id, const char* scope,
                    bool loaded);

 private:
  const Driver& driver_;
  Devices& devices_;
  Memory& memory_;
  Unbrokered& unbrokered_;
  Session& session_;
  std::atomic<bool> due_{false};
  std::atomic<std::chrono::steady_clock::time_point> next_{};  // not before then
  std::vector<UnbrokeredAmount> sent_;                         // service thread
};

}  // namespace amem::shim
