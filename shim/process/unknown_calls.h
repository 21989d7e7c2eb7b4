// Unknown calls: driver calls that the program asked for, or is linked to, and that amem does not
// know (docs/decisions/unknown-driver-calls.md). Each is noted once; the log and the broker hear
// of it.
//
// Any thread. One in a process; never destroyed.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "common/call_list.h"

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
/// Of a name like a driver call's. Defined with the table (shim/calls/driver_calls.cpp).
Knowledge knowledge_of(std::string_view name);

/// The driver's calls are named so; libcuda's other exports, such as cudbgApiInit, are not.
constexpr bool like_driver_call(const char* name) {
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

  /// Whether the program may have a call that the table does not know: the list has it. `version`:
  /// what the program asked for; 0: it did not say. `signable`: false of a call of which the table
  /// wraps an older version. Notes the call.
  bool may_have(const char* name, int version, bool signable = true);
  /// Whether a library may be linked to a driver call of this name. Notes nothing.
  bool may_be_linked(const char* name);
  void linked(const std::string& name, const std::string& library);

  /// All that was noted, in that order.
  std::vector<Call> noted();
  /// Called after a call was noted, by the thread that did so.
  void on_news(void (*news)());
  /// In a child of fork, where a thread that is not there may hold the lock.
  void reset_after_fork();

 private:
  UnknownCalls();
  bool listed(std::string_view name, int version) const;
  bool note(Call call);

  const std::string list_path_;
  std::vector<ListedCall> list_;
  std::mutex mutex_;  // guards what follows
  std::vector<Call> noted_;
  void (*news_)() = nullptr;
};

}  // namespace amem::shim
