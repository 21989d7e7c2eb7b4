#include "shim/gate/wait_log.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "common/protocol.h"
#include "shim/base/log.h"

namespace amem::shim {
namespace {

thread_local std::uint64_t paused_by_this_thread = 0;  // which pause; 0: nothing

/// "2026-11-26 00:37:14 UTC".
std::string time_of(WaitLog::Clock::time_point then, WaitLog::Clock::time_point now) {
  const auto wall = std::chrono::system_clock::now() -
                    std::chrono::duration_cast<std::chrono::system_clock::duration>(now - then);
  const std::time_t seconds = std::chrono::system_clock::to_time_t(wall);
  std::tm parts{};
  char text[32];
  if (::gmtime_r(&seconds, &parts) == nullptr) return "?";
  text[std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts)] = '\0';
  return text;
}

}  // namespace

void WaitLog::prepare(const std::string& group, std::chrono::milliseconds interval) {
  group_ = group;
  interval_ = interval;
  last_.store(0, std::memory_order_relaxed);
}

void WaitLog::shut() {
  std::lock_guard lock(mutex_);
  if (!std::exchange(is_shut_, true)) shut_since_ = Clock::now();
}

void WaitLog::opened() {
  std::lock_guard lock(mutex_);
  if (std::exchange(is_shut_, false)) shut_before_ += Clock::now() - shut_since_;
}

std::chrono::milliseconds WaitLog::shut_time() const {
  std::lock_guard lock(mutex_);
  const Clock::duration now = is_shut_ ? Clock::now() - shut_since_ : Clock::duration();
  return std::chrono::duration_cast<std::chrono::milliseconds>(shut_before_ + now);
}

void WaitLog::paused_by(const std::string& who) {
  std::lock_guard lock(mutex_);
  who_ = who;
  ++pauses_;
}

bool WaitLog::paused_by_itself() const {
  std::lock_guard lock(mutex_);
  return who_ == kPausedByItself;
}

std::string WaitLog::awaited() const {
  std::lock_guard lock(mutex_);
  if (who_.starts_with("stage '"))
    return "for its turn in " + who_ + ": `amemctl turns` shows who runs";
  return "for the resume of group " + group_ + (who_.empty() ? "" : ", paused by " + who_) +
         ": amemctl resume " + group_;
}

WaitLog::Clock::time_point WaitLog::next(Clock::time_point began) const {
  const Clock::time_point last{Clock::duration(last_.load(std::memory_order_relaxed))};
  return std::max(began, last) + interval_;
}

bool WaitLog::begins(Clock::time_point now) {
  Clock::rep last = last_.load(std::memory_order_relaxed);
  if (last != 0 && now < Clock::time_point(Clock::duration(last)) + interval_) return false;
  return last_.compare_exchange_strong(last, now.time_since_epoch().count());
}

bool WaitLog::due(Clock::time_point began, Clock::time_point now) {
  return now >= began + interval_ && begins(now);
}

void WaitLog::still_waits(const std::string& what, Clock::time_point since,
                          Clock::time_point now) const {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - since);
  log_warn(what + " since " + time_of(since, now) + " (" + std::to_string(seconds.count()) +
           " s) " + awaited());
}

void WaitLog::paused_here() const {
  std::lock_guard lock(mutex_);
  paused_by_this_thread = pauses_;
}

void WaitLog::resumed_here() { paused_by_this_thread = 0; }

void WaitLog::waits_for_itself(const char* call) const {
  {
    std::lock_guard lock(mutex_);
    if (paused_by_this_thread == 0 || paused_by_this_thread != pauses_) return;
  }
  paused_by_this_thread = 0;
  log_warn(std::string(call != nullptr ? call : "a call that allocates, frees or maps memory") +
           " waits for the resume of group " + group_ +
           ", but its own thread has paused that group. Let this thread resume the group before "
           "this call (amem.resume(), ncclResume), or let another thread or an operator do so "
           "(amemctl resume " +
           group_ + ")");
}

WaitLog& wait_log() {
  static auto* const log = new WaitLog;
  return *log;
}

}  // namespace amem::shim
