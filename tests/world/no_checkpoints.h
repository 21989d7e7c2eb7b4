// Checkpoints in a tree without the add-on: there is no deep pause, so each process runs.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "daemon/operations/evictor.h"

namespace amem {

enum class CheckpointAction { kState, kLock, kCheckpoint, kRestore, kUnlock };
enum class ProcessState { kRunning, kLocked, kCheckpointed, kFailed, kUnknown };
inline const char* word_of(ProcessState) { return "running"; }

namespace world {

enum class Fate : std::uint8_t { kWell, kRefused, kHangs, kLost };

class Checkpoints {
 public:
  struct Step {
    pid_t pid = 0;
    CheckpointAction action = CheckpointAction::kState;
  };

  explicit Checkpoints(std::minstd_rand&) {}
  void tell(const std::function<void()>&) {}
  void begin(EventLoop&) {}
  void lose_client() {}
  void ends(pid_t) {}
  static ProcessState state(pid_t) { return ProcessState::kRunning; }
  static bool is_free(pid_t) { return true; }
  static bool is_lost(pid_t) { return false; }
  static std::vector<Step> steps() { return {}; }
  static bool busy() { return false; }
  static std::optional<Step> next() { return std::nullopt; }
  static std::string take(const Step&, Fate) { return {}; }
  static std::uint64_t taken() { return 0; }
  static std::uint64_t lost() { return 0; }
};

inline MakeEvictor evictor_by(Checkpoints&) { return nullptr; }

}  // namespace world
}  // namespace amem
