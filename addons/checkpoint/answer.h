// What amem-checkpoint is asked and what it answers: one line of JSON, which amemd reads.
//
// Plain values and pure functions: any thread.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "common/status.h"

namespace amem {

enum class CheckpointAction { kState, kLock, kCheckpoint, kRestore, kUnlock };
/// As words of the command line.
inline constexpr std::array<const char*, 5> kCheckpointActions = {"state", "lock", "checkpoint",
                                                                  "restore", "unlock"};

/// CUprocessState, or kUnknown: the driver does not say.
enum class ProcessState { kRunning, kLocked, kCheckpointed, kFailed, kUnknown };
inline constexpr std::array<const char*, 5> kProcessStates = {"running", "locked", "checkpointed",
                                                              "failed", "unknown"};

inline const char* word_of(CheckpointAction action) {
  return kCheckpointActions[static_cast<std::size_t>(action)];
}
inline const char* word_of(ProcessState state) {
  return kProcessStates[static_cast<std::size_t>(state)];
}

/// Nothing: no such word.
template <typename Kind, std::size_t kSize>
std::optional<Kind> kind_of(std::string_view word, const std::array<const char*, kSize>& words) {
  for (std::size_t i = 0; i < kSize; ++i)
    if (word == words[i]) return static_cast<Kind>(i);
  return std::nullopt;
}

struct CheckpointAnswer {
  CheckpointAction action = CheckpointAction::kState;
  int pid = 0;
  int result = 0;                               // the driver's, a CUresult
  std::string name;                             // of the result: "CUDA_SUCCESS"
  std::uint64_t us = 0;                         // what the call of the driver took
  ProcessState state = ProcessState::kUnknown;  // afterwards
};

/// Without a newline.
inline std::string line_of(const CheckpointAnswer& answer) {
  return std::string("{\"action\":\"") + word_of(answer.action) +
         "\",\"pid\":" + std::to_string(answer.pid) +
         ",\"result\":" + std::to_string(answer.result) + ",\"name\":\"" + answer.name +
         "\",\"us\":" + std::to_string(answer.us) + ",\"state\":\"" + word_of(answer.state) + "\"}";
}

/// Nothing: the line is no answer. A newer program may write more behind the state.
inline std::optional<CheckpointAnswer> answer_of(const std::string& line) {
  char action[16] = {};
  char name[64] = {};
  char state[16] = {};
  CheckpointAnswer answer;
  unsigned long long us = 0;
  const int found = std::sscanf(
      line.c_str(),
      R"({"action":"%15[a-z]","pid":%d,"result":%d,"name":"%63[A-Za-z0-9_]","us":%llu,"state":"%15[a-z]")",
      action, &answer.pid, &answer.result, name, &us, state);
  const auto what = kind_of<CheckpointAction>(action, kCheckpointActions);
  if (found != 6 || !what || line.back() != '}') return std::nullopt;
  answer.action = *what;
  answer.name = name;
  answer.us = us;
  answer.state = kind_of<ProcessState>(state, kProcessStates).value_or(ProcessState::kUnknown);
  return answer;
}

/// Lines of `amem-checkpoint target`; behind all but kRight comes a text.
namespace target_says {
inline constexpr std::string_view kRight = "right";
inline constexpr std::string_view kStep = "step ";       // what it does now
inline constexpr std::string_view kFile = "file ";       // of the driver or NCCL, that it uses
inline constexpr std::string_view kNccl = "nccl ";       // the version that it uses
inline constexpr std::string_view kNoNccl = "no nccl ";  // why it uses none
}  // namespace target_says

/// Of `amem-checkpoint target`, without a newline.
inline std::string failure_line_of(const Status& status) {
  return "failed " + std::to_string(static_cast<unsigned>(status.code())) + " " + status.text();
}
/// Nothing: the line says nothing of the kind.
inline std::optional<Status> failure_of(const std::string& line) {
  unsigned code = 0;
  int text = 0;
  if (std::sscanf(line.c_str(), "failed %u %n", &code, &text) != 1 || text == 0)
    return std::nullopt;
  return Status(static_cast<Code>(code), line.substr(static_cast<std::size_t>(text)));
}

/// What may be behind a refusal, and what to do: as measured (docs/decisions/deep-pause.md). Empty:
/// nothing is known.
inline std::string_view advice_on(const CheckpointAnswer& answer) {
  if (answer.name == "CUDA_ERROR_OPERATING_SYSTEM" && answer.action == CheckpointAction::kRestore)
    return ". The driver says so of a process that has mapped memory of a GPU that it does not see "
           "(CUDA_VISIBLE_DEVICES); it cannot restore such a process. Host memory of place "
           "host_numa belongs to amemd's first GPU: set without = [\"host_numa\"] and restart "
           "amemd, or start jobs so that they see that GPU. It also says so where amem-checkpoint "
           "may not "
           "act on the process: amemd needs the capabilities SYS_PTRACE and DAC_OVERRIDE for other "
           "users' processes (amemd-deep.conf)";
  if (answer.name == "CUDA_ERROR_OPERATING_SYSTEM")
    return ". amem-checkpoint may not act on this process. To do so for other users' processes, "
           "amemd needs the capabilities SYS_PTRACE and DAC_OVERRIDE (amemd-deep.conf)";
  if (answer.name == "CUDA_ERROR_NOT_SUPPORTED" && answer.action == CheckpointAction::kLock)
    return ". The driver does not checkpoint a process that is or was under a profiler";
  return {};
}

}  // namespace amem
