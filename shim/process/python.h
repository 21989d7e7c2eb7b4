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

  /// ending(), and the caller is to hear of it.
  static bool ending_for_caller() { return ending() && !ends_this_thread(); }

  /// The calling thread is Python's, but not the main one: whoever comes back to an interpreter
  /// that is being finalized is ended there, by pthread_exit before 3.14.
  static bool ends_this_thread();
};

}  // namespace amem::shim
