// Python: what the shim asks of a Python interpreter in its process, if there is one.
//
// Looked up by name: the shim is linked to no Python and needs none of its locks, so a thread that
// waits at the gate may ask.
#pragma once

namespace amem::shim {

class Python {
 public:
  /// Looks for an interpreter. The loader's lock is taken: not while anybody may wait for the
  /// caller.
  static void look();
  static bool found();

  /// The interpreter is being finalized, or has been: its non-daemon threads have ended and its
  /// atexit functions have run. Also after tell_ending().
  static bool ending();
  /// Its atexit functions are about to run; told by the package amem, which Python tells.
  static void tell_ending();

  /// Returns whether the calling thread is Python's, but not the main one. Such a thread is ended
  /// when it returns to an interpreter that is being finalized, by pthread_exit before 3.14.
  static bool ends_this_thread();
};

/// Whether a caller of the program's that waits is to hear that the process is ending. One that
/// ends with its interpreter is not, once that is ending: back there it would be ended in the
/// middle of C++ that may not expect it, and abort the process. Nobody waits for such a thread.
class EndOfCaller {
 public:
  /// Asked now: an interpreter that has ended no longer knows its threads.
  EndOfCaller() : with_interpreter_(Python::ends_this_thread()) {}
  /// `process_ends`: exit() has begun. Asked repeatedly: nobody reports an interpreter's end.
  bool is_here(bool process_ends) const {
    return Python::ending() ? !with_interpreter_ : process_ends;
  }

 private:
  const bool with_interpreter_;
};

}  // namespace amem::shim
