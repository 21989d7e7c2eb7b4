// Config: everything about amemd that can be set, where each value comes from, and what is wrong
// with it.
//
// One table of settings serves the TOML file, the environment and the flags: the key "pool.size" is
// `size` in the table [pool] of the file, AMEM_POOL_SIZE in the environment, and --pool-size. Later
// sources win: defaults, file, environment, flags. Parsing needs no files: texts come in. Plain
// values; any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "daemon/memory/allocations.h"
#include "daemon/phases/phases.h"

namespace amem {

inline constexpr char kDefaultConfigFile[] = "/etc/amem/amemd.toml";

struct Config {
  std::string runtime_dir;

  std::uint64_t pool_size = 8ULL << 30;
  std::uint64_t pool_segment = 0;  // 0: segment() chooses
  std::uint64_t pool_chunk = 2ULL << 20;
  SaveForm pool_save = SaveForm::kAuto;

  Deadlines deadlines;

  bool swap_duplex = true;
  std::uint64_t swap_wave = 1ULL << 30;  // bytes; 0: no waves

  std::string log_level = "info";
  std::string log_format = "text";  // or "json"
  std::string log_file;             // empty: stderr

  mode_t session_mode = 0600;
  mode_t control_mode = 0600;

  /// Of the pool: as asked for, or small enough that a rank with little to save gets access to
  /// little, and large enough that no pool has thousands.
  std::uint64_t segment() const;

  /// The defaults of a broker for everybody (run by root) or of one user's.
  static Config defaults(bool system, std::string runtime_dir);
};

/// What is wrong, one line each: "amemd.toml:3: pool.size: …".
using ConfigErrors = std::vector<std::string>;

struct Setting {
  std::string_view key;   // "pool.size"
  std::string_view what;  // one line of help
  Status (*set)(Config& config, std::string_view value);
  std::string (*get)(const Config& config);  // in a form that set() reads back

  std::string environment() const;  // "AMEM_POOL_SIZE"
  std::string flag() const;         // "--pool-size"
};

/// In the order in which they are printed; those of one TOML table follow each other.
const std::vector<Setting>& settings();
const Setting* find_setting(std::string_view key);

/// Each puts what it finds into `config` and what is wrong into `errors`; what is wrong is skipped.
void apply_toml(Config& config, std::string_view text, const std::string& file_name,
                ConfigErrors& errors);
using Environment = std::function<const char*(const char* name)>;
void apply_environment(Config& config, const Environment& environment, ConfigErrors& errors);
/// Flags: pairs of a setting's key and its value.
void apply_flags(Config& config, const std::vector<std::pair<std::string, std::string>>& flags,
                 ConfigErrors& errors);
/// Values that are fine alone but not together.
void check(const Config& config, ConfigErrors& errors);

/// All of it as TOML, which apply_toml reads back.
std::string to_toml(const Config& config);

}  // namespace amem
