// Config: everything about amemd that can be set, where each value comes from, and what is wrong
// with it.
//
// One table of settings serves the TOML file, the environment and the flags: the key "pool.size" is
// `size` in the table [pool] of the file, AMEM_POOL_SIZE in the environment, and --pool-size. Later
// sources win: defaults, file, environment, flags. There may be many stages. They are in the file
// alone, as [stage.NAME]. Parsing needs no files: texts come in. Plain values; any thread.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/form.h"
#include "common/place.h"
#include "common/status.h"
#include "daemon/memory/allocations.h"
#include "daemon/memory/retained.h"
#include "daemon/owners/owner.h"
#include "daemon/phases/phases.h"
#include "daemon/phases/task.h"
#include "daemon/settings/quota_settings.h"
#include "daemon/settings/stage_settings.h"

namespace amem {

inline constexpr char kDefaultConfigFile[] = "/etc/amem/amemd.toml";

/// Whether descriptors are kept over amemd's death by another process.
/// kExternal: by one that somebody else starts, and that has to be there.
enum class HolderUse : std::uint8_t { kAuto, kRequired, kExternal, kOff };

struct Config {
  std::string runtime_dir;
  HolderUse holder = HolderUse::kAuto;
  std::string holder_socket;  // empty: in the folder runtime_dir + "-holder"

  std::uint64_t pool_size = 8ULL << 30;
  std::optional<std::uint64_t> pool_reserve;      // bytes that stay pinned; nothing: all of it
  Duration pool_idle = std::chrono::seconds(60);  // for which the rest stays without need
  std::uint64_t pool_segment = 0;                 // 0: segment() chooses
  std::uint64_t pool_chunk = 2ULL << 20;
  Form pool_save = Form::kAuto;
  Retain pool_retain = Retain::kAuto;
  std::optional<Place> pool_place;  // nothing: the first that this node can have

  Deadlines deadlines;
  GuestPolicy guests = GuestPolicy::kPin;

  bool deep_pauses = false;

  bool swap_duplex = true;
  std::uint64_t swap_wave = 1ULL << 30;  // bytes; 0: no waves
  bool swap_hand_on = true;
  Duration spare_idle{};

  std::string log_level = "info";
  std::string log_format = "text";  // or "json"
  std::string log_file;             // empty: stderr

  Isolation isolation = Isolation::kUid;
  std::string device_nodes;       // directory; empty: whoever may join may use every device
  bool device_nodes_set = false;  // by somebody: then each device has to have its node there
  QuotaSettings quotas;

  std::string socket_group;              // empty: amemd's own
  std::optional<gid_t> socket_group_id;  // of that name, once it has been looked up
  mode_t session_mode = 0600;
  mode_t control_mode = 0600;

  std::string operators;  // the group that may steer everybody's groups; empty: none
  bool see_all = false;   // everybody sees everybody's groups
  std::string listen;     // "host:port" of the control API; empty: no TCP
  std::string tls_dir;    // ca.crt, tls.crt and tls.key, for TCP

  bool llm_d = false;        // amemd starts amem-llm-d
  std::string llm_d_listen;  // its --listen besides; empty: none
  bool llm_d_deep = false;   // its --deep

  std::vector<StageSettings> stages;  // from the file alone; in its order by name

  std::string metrics_listen;  // "address:port" of metrics by HTTP; empty: none

  /// Retired settings that somebody has set, and the warning about each.
  std::map<std::string, std::string, std::less<>> retired;

  /// deadlines.end: for operations under way, when amemd is told to end.
  Duration end = std::chrono::seconds(30);

  /// Returns the bytes of the pool that stay pinned.
  std::uint64_t reserve() const;
  /// Returns the size of the pool's segments: as asked for, or small enough that a rank with little
  /// to save gets access to little, and large enough that no pool has thousands.
  std::uint64_t segment() const;

  /// The defaults of a broker for everybody (run by root) or of one user's.
  static Config defaults(bool system, std::string runtime_dir);
};

/// Errors, one line each: "amemd.toml:3: pool.size: …".
using ConfigErrors = std::vector<std::string>;

struct Setting {
  std::string_view key;   // "pool.size"
  std::string_view what;  // one line of help; of a retired one what to do instead
  Status (*set)(Config& config, std::string_view value);
  std::string (*get)(const Config& config);  // in a form that set() reads back
  bool live = false;                         // amemd can take another value while it runs
  bool retired = false;  // it works for one more version, with a warning, and is not shown

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

/// Adds a line to `errors` for all values that are fine alone but not together.
void check(const Config& config, ConfigErrors& errors);

/// Gives `running` what `next` has otherwise and amemd can take while it runs.
struct Reload {
  std::vector<std::string> taken;    // "log.level = debug"
  std::vector<std::string> waiting;  // as `taken`: what `running` does not have before amemd
                                     // restarts
};
Reload reload(Config& running, const Config& next);

/// All of it as TOML, which apply_toml reads back; of retired settings those that somebody has set.
std::string to_toml(const Config& config);

}  // namespace amem
