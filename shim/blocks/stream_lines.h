// StreamLines: how far the program's streams have come with the work that was in front of frees.
//
// Each stream in which the program frees memory of a pool has a line (PoolPieces). Its frees are
// counted, and the driver is asked only when somebody wants to know whether the stream has come to
// them: by an event that is recorded then, behind more than the frees. A stream that waits for no
// other has come to all of them when it has nothing left to do. Of the legacy default
// stream, and of those that wait for it, that says nothing: only something that is given to them
// waits for the others' work. A thread's own default stream can be named by that thread alone, so
// its event is recorded with each free. A stream that goes gets its event before it does.
//
// No lock: MemoryPools owns one and guards it. Any thread.
#pragma once

#include <cuda.h>

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

#include "common/driver.h"
#include "shim/blocks/pool_pieces.h"

namespace amem::shim {

class StreamLines {
 public:
  explicit StreamLines(const Driver& driver) : driver_(driver) {}

  struct Line {
    PoolPieces::Line number = 0;  // never used twice
    CUstream stream = nullptr;
    std::uint64_t thread = 0;  // 0: every thread can name the stream
    CUcontext context = nullptr;
    int device = 0;
    bool alone = false;  // it does not wait for the legacy default stream, nor that for it
    bool gone = false;   // the stream has been destroyed
    CUevent event = nullptr;
    // How many frees there were, at all, before the event was last recorded, and that the stream
    // has come to.
    std::uint64_t freed = 0;
    std::uint64_t recorded = 0;
    std::uint64_t passed = 0;
    unsigned users = 0;  // who have it still, perhaps without the lock
  };

  /// The line of a stream, which may be new. `per_thread`: stream 0 is the thread's own.
  CUresult find(CUstream stream, bool per_thread, Line*& line);
  /// The stream has freed memory again at once. Of the legacy default stream: what other streams do
  /// from now on comes behind what they have done before the free, as with an allocation of the
  /// driver's. False: the driver does not make it so.
  bool reuse_in(Line& line);
  /// The line has come to this point, or there is none such any more.
  bool has_passed(const PoolPieces::Point& point);
  /// Returns the point of a free that comes now.
  PoolPieces::Point free_in(Line& line);
  /// `waits` does what it does from now on behind all frees that `line` had so far. False: the
  /// driver does not make it so.
  bool wait_behind(Line& line, const Line& waits);
  /// nullptr: its context has gone.
  Line* of(PoolPieces::Line number);

  /// A line stays for a scope. REQUIRES: the lock is held at its beginning and end.
  class Use {
   public:
    Use(StreamLines& lines, Line& line) : lines_(lines), number_(line.number) { ++line.users; }
    ~Use() {
      if (Line* const line = lines_.of(number_); line != nullptr) --line->users;
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    Line* line() const { return lines_.of(number_); }

   private:
    StreamLines& lines_;
    PoolPieces::Line number_;
  };

  // REQUIRES, of these: no capture is open. What is recorded in a stream that is captured says
  // nothing of its work.
  /// Asks how far the streams have come, and reports those that have come further.
  using Passed = std::function<void(PoolPieces::Line line, std::uint64_t order)>;
  void ask(const Passed& passed);
  /// The same once all of them have come to all of their frees. Without the lock meanwhile.
  void wait(std::unique_lock<std::mutex>& lock, const Passed& passed);

  /// Some may not have come to all of their frees.
  bool any_behind() const;
  /// Before the driver destroys it. `captured`: it is part of a capture.
  void stream_goes(CUstream stream, bool captured);
  /// The context does nothing more. Its events have gone with it.
  void context_gone(CUcontext context, const Passed& passed);

 private:
  struct Name {
    CUstream stream = nullptr;
    CUcontext context = nullptr;  // of default streams
    std::uint64_t thread = 0;     // of threads' own
    auto operator<=>(const Name&) const = default;
  };
  using Lines = std::map<PoolPieces::Line, Line>;

  CUresult add(const Name& name, Line*& line);
  bool can_be_named(const Line& line) const;
  bool record(Line& line);
  void look_at(Line& line);
  bool unneeded(const Line& line) const;
  Lines::iterator forget(Lines::iterator line);

  const Driver& driver_;
  std::map<Name, Line*> by_name_;
  Lines lines_;
  PoolPieces::Line last_ = PoolPieces::kNoLine;
};

}  // namespace amem::shim
