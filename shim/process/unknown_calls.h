// Unknown calls: driver calls that the program asked for, or is linked to, and that amem does not
// know (docs/decisions/unknown-driver-calls.md). Each is noted once; the log and the broker hear
// of it.
//
// Any thread. One in a process; never destroyed.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "common/call_list.h"
#include "shim/process/symbols.h"

namespace amem::shim {

/// The newest CUDA whose calls the table has (shim/calls/driver_calls.inc). What the shim is built
/// with does not change it.
inline constexpr int kTableVersion = 13050;
/// The oldest whose headers the table has been compared with.
inline constexpr int kOldestVersion = 12040;

/// "13.5".
std::string cuda_version(int version);

/// What the table says of a name, as libcuda exports it or as cuGetProcAddress takes it.
enum class Knowledge : std::uint8_t { kKnown, kHidden, kUnknown };
/// Returns what is known of a name like a driver call's. Defined with the table
/// (shim/calls/driver_calls.cpp).
Knowledge knowledge_of(std::string_view name);

/// The driver's calls are named so; libcuda's other exports, such as cudbgApiInit, are not. For our
/// dlsym, which is called before a sanitizer's runtime has begun.
AMEM_RUNS_BEFORE_SANITIZERS constexpr bool like_driver_call(const char* name) {
  return name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
}

class UnknownCalls {
 public:
  enum class Fate : std::uint8_t {
    kHidden,  // the program got no function
    kListed,  // the list beside the shim lets it through
    kLinked,  // a library is linked to it, so that pauses fail
  };
  struct Call {
    std::string name;
    Fate fate = Fate::kHidden;
    std::string library;  // file name, of what is linked
    bool operator==(const Call&) const = default;
  };

  static UnknownCalls& get();

  /// Whether the function that the program would get is the driver's for this version, too.
  using IsOf = std::function<bool(int version)>;

  /// Returns whether the program may have a call that the table does not know: the list has it, and
  /// the function is from the version that was signed off. `signable`: false for a call with an
  /// older version that the table wraps. Notes the call.
  bool may_have(const char* name, const IsOf& is_of, bool signable = true);
  /// The same of an attribute of devices that is newer than the table, by its number.
  bool may_have_attribute(int attribute);
  /// Whether a library may be linked to a driver call of this name. Notes nothing.
  bool may_be_linked(const char* name);
  /// The libraries that are linked to unknown calls now, each with a fate of kLinked. What was
  /// linked before and is not any more, because its library was unloaded, is hidden since.
  void set_linked(const std::vector<Call>& calls);

  /// All that was noted, in that order.
  std::vector<Call> noted();
  /// Called after a call was noted, by the thread that did so.
  void on_news(void (*news)());
  /// In a child of fork: it has no broker yet.
  void reset_after_fork();

  // Around a fork, so that the child does not find a half-changed list.
  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

 private:
  UnknownCalls();
  bool answer(const std::string& name, const char* what, const IsOf& is_of, bool signable);
  std::vector<int> listed_versions(std::string_view name);
  bool note(Call call);

  const std::string shim_;       // its file
  const std::string list_path_;  // beside it
  std::mutex mutex_;             // guards what follows
  bool list_is_read_ = false;
  std::vector<ListedCall> list_;
  std::vector<Call> noted_;
  void (*news_)() = nullptr;
};

}  // namespace amem::shim
