// StageSettings: a stage as [stage.NAME] of the configuration has it. Plain values; any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "daemon/base/clock.h"
#include "daemon/turns/terms.h"

namespace amem {

struct StageSettings {
  std::string name;
  std::vector<std::string> devices;  // "0", "GPU-…"
  TurnRules rules;
  std::uint64_t margin = 512ULL << 20;
  std::optional<Duration> min_residency;  // nothing: by what switches cost
  std::vector<uid_t> users;   // whose groups may join; neither users nor groups: everybody's
  std::vector<gid_t> groups;  // as users

  /// kNotFound: no such key. kInvalidArgument: the text says what is wrong with the value.
  Status set(std::string_view key, std::string_view value);
};

struct StageKey {
  std::string_view key;
  std::string_view what;  // one line of help; of a retired one what to do instead
  Status (*set)(StageSettings& stage, std::string_view value);
  std::string (*get)(const StageSettings& stage);  // in a form that set() reads back
  bool retired = false;  // it works for one more version, with a warning, and is not shown
};
const std::vector<StageKey>& stage_keys();

}  // namespace amem
