// Bypass: which libraries of this process reach the CUDA driver past the shim. What these give the
// device passes no gate, so a pause would take the memory away under their work.
//
// A library that is loaded with RTLD_DEEPBIND, and what comes with it, prefers the functions of the
// libraries that it needs itself. So its dlsym is the C library's, and its driver calls are
// libcuda's. No call shows that. But the loader writes into a library's own memory where each of
// its calls leads to, and that can be read:
//   - A driver call that the shim exports, and that leads into libcuda, goes past the shim.
//   - A dlsym that is the C library's goes past the shim, but only matters if the library looks the
//     driver up: it has the text "libcuda.so" or "cuGetProcAddress", as the static CUDA runtime
//     has, or needs libcuda.so itself. Without such a sign it is somebody's extension that looks up
//     other things.
//   - A dlsym that was never called may not lead anywhere yet. Another thread calls it once, by way
//     of the library, for a name that everybody may ask for. That binds it as the library's own
//     call will.
//   - A driver call that was never made is not held against a library: it has no work under way. It
//     is read again at each pause.
//   - A driver call that amem does not know (unknown_calls.h), and that is libcuda's, goes past the
//     shim, also before it is made for the first time: then it would be too late.
// The C library, the driver's own parts, and tools that the driver loads (profilers, debuggers) may
// do this. So may what AMEM_BYPASS_ALLOWED names.
//
// One thread. It takes no lock under which the loader runs constructors, because one of these may
// wait at the gate until this thread has done its part. Only the thread that binds takes that lock.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "shim/process/references.h"

namespace amem::shim {

class Bypass {
 public:
  /// `allowed`: prefixes of file names.
  explicit Bypass(const std::vector<std::string>& allowed) : allowed_(allowed) {}

  struct Finding {
    std::string library;   // its path
    std::string symbol;    // by which it reaches the driver
    bool unknown = false;  // a driver call that amem does not know
  };
  /// All that are loaded now. Cheap when nothing was loaded or unloaded since the last time. While
  /// somebody loads a library, a dlsym that was never called may stay unbound: its library does not
  /// count then, and a later look finds it. Throws std::system_error when no thread can be started.
  std::vector<Finding> look();

 private:
  struct Object {
    LoadedObject loaded;
    std::vector<Reference> references;
    std::vector<void*> values;              // of the references' slots, as read last
    std::optional<bool> looks_driver_up{};  // once somebody needed to know
  };

  struct Binding;  // a thread that binds

  static int visit(dl_phdr_info* info, std::size_t size, void* self);
  void read(Object& object) const;
  bool bind_calls();
  bool in_driver(const void* code) const;
  bool leads_to_driver(const Object& object, const Reference& reference, const void* value) const;
  bool allowed(const LoadedObject& object) const;

  const std::vector<std::string>& allowed_;
  unsigned long long adds_ = 0;  // the loader's counts at the last look
  unsigned long long subs_ = 0;
  bool complete_ = false;             // false: that look ended early, as by bad_alloc
  bool all_ = false;                  // of the objects are seen in this look
  std::vector<Object> objects_;       // those that refer to what matters
  std::vector<MappedRange> libcuda_;  // the driver's code and data
  std::vector<link_map> drivers_;     // its tables (l_addr, l_ld)
  std::set<void* const*> given_;      // slots of objects_ that a thread has been given to bind
  std::shared_ptr<Binding> binding_;  // the last one
};

}  // namespace amem::shim
