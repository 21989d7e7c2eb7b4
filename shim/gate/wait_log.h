// WaitLog: lines about callers that wait for their group, or for memory of it, to be resumed. A job
// that waits says once a minute that it does, since when, and who has paused it: one line for the
// process, however many threads wait, and however many calls wait one after the other.
//
// Any thread. One per process; never destroyed.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace amem::shim {

class WaitLog {
 public:
  using Clock = std::chrono::steady_clock;

  /// Before anybody waits. `interval`: between two lines.
  void prepare(const std::string& group, std::chrono::milliseconds interval);
  /// The gate was shut, or opened.
  void shut();
  void opened();
  /// How long it has been shut so far, all times together.
  std::chrono::milliseconds shut_time() const;
  /// A pause has begun. `who`, as the broker says it: "pid 12 of uid 1000", or
  /// "stage 'night'", which resumes it. Empty: it did not say.
  void paused_by(const std::string& who);
  /// It is a pause that this process and perhaps others of the group have asked for.
  bool paused_by_itself() const;

  /// A caller begins to wait. True: it says so, because no line was written for the interval.
  bool begins(Clock::time_point now);
  /// When a caller that has waited since `began` should ask due() again.
  Clock::time_point next(Clock::time_point began) const;
  /// A line is due, and nobody else writes it: the caller does. It has waited since `began`.
  bool due(Clock::time_point began, Clock::time_point now);
  /// The line. `what`: "calls wait", or a call and the memory that is paused.
  void still_waits(const std::string& what, Clock::time_point since, Clock::time_point now) const;

  /// The calling thread has paused its group from inside; or resumed it.
  void paused_here() const;
  static void resumed_here();
  /// It makes a call that waits for the group, which it has paused itself: an error of the program.
  /// Says so, once for each such pause. `call`: its name, or nullptr.
  void waits_for_itself(const char* call) const;
  /// Threads of this process wait for a resume that they have asked for.
  void resumes(bool begins) { resumes_ += begins ? 1U : -1U; }
  bool resumes() const { return resumes_ != 0; }

 private:
  /// What callers wait for, and what to do about it.
  std::string awaited() const;

  std::string group_;
  std::chrono::milliseconds interval_{std::chrono::minutes{1}};
  mutable std::mutex mutex_;  // guards what follows
  std::string who_;
  std::uint64_t pauses_ = 0;
  std::atomic<unsigned> resumes_{0};
  bool is_shut_ = false;
  Clock::time_point shut_since_;
  Clock::duration shut_before_{};    // without the present time
  std::atomic<Clock::rep> last_{0};  // when a line was written; 0: never
};

WaitLog& wait_log();

}  // namespace amem::shim
