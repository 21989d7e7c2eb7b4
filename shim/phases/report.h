// Report: tells the broker, and the program that asks, which device memory of this process is
// brokered and which is not; and the broker, which driver calls the program asked for that amem
// does not know.
//
// changed(), amounts() and stats() from any thread; the rest on the service thread.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <vector>

#include "common/driver.h"
#include "shim/driver/local_devices.h"
#include "shim/memory/memory.h"
#include "shim/process/unknown_calls.h"
#include "shim/session/session.h"

namespace amem::shim {

class Report {
 public:
  Report(const Driver& driver, LocalDevices& devices, Memory& memory, Session& session)
      : driver_(driver), devices_(devices), memory_(memory), session_(session) {}

  /// What is not brokered, or the unknown calls, may have changed: the broker hears of it, at most
  /// once a second.
  void changed();
  /// Tells the broker what is not brokered; unless `always`, only when it is news and not deferred.
  void send(bool always);
  /// Adds for the next broker what the last one was told. Asks the driver nothing.
  void tell_again(std::vector<SendQueue::Parcel>& first);
  /// From here to go_on() the driver is not asked for news: the service thread has commands to see
  /// to, and who is inside the driver may wait there for what one of them lets through.
  void defer() { deferred_ = true; }
  void go_on();

  /// Returns what is not brokered, as counted and as the driver says of pools and graphs.
  /// REQUIRES: the driver table and the devices are loaded.
  std::vector<UnbrokeredAmount> amounts();

  /// One JSON object. The process may have no session, and even no driver. `ask`: the driver; else
  /// what is not brokered is as last told to the broker.
  std::string stats(const std::string& group, std::uint32_t rank_id, const char* scope, bool ask);

 private:
  Message message(const std::vector<UnbrokeredAmount>& amounts);
  static Message message(const std::vector<UnknownCalls::Call>& calls);

  const Driver& driver_;
  LocalDevices& devices_;
  Memory& memory_;
  Session& session_;
  std::atomic<bool> due_{false};
  std::atomic<std::chrono::steady_clock::time_point> next_{};  // not before then
  std::mutex mutex_;                                           // guards sent_
  std::vector<UnbrokeredAmount> sent_;                         // changed on the service thread
  std::vector<UnknownCalls::Call> sent_calls_;                 // service thread
  bool deferred_ = false;                                      // service thread
  bool missed_ = false;  // service thread; changed while deferred
};

}  // namespace amem::shim
