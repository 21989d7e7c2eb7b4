#include "daemon/settings/config.h"

#include <toml++/toml.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>

#include "common/numbers.h"
#include "common/protocol.h"
#include "common/utf8.h"
#include "daemon/base/units.h"

namespace amem {
namespace {

template <std::uint64_t Config::*Member>
Status set_size(Config& config, std::string_view value) {
  Result<std::uint64_t> size = parse_size(value);
  if (!size.ok()) return size.status();
  config.*Member = size.value();
  return {};
}
template <std::uint64_t Config::*Member>
std::string get_size(const Config& config) {
  return exact_size(config.*Member);
}

Status set_segment(Config& config, std::string_view value) {
  std::uint64_t segment = 0;
  if (value != "auto") {
    Result<std::uint64_t> size = parse_size(value);
    if (!size.ok()) return size.status();
    segment = size.value();
    if (segment == 0) return {Code::kInvalidArgument, "a size, or auto"};
  }
  config.pool_segment = segment;
  return {};
}
std::string get_segment(const Config& config) {
  return config.pool_segment == 0 ? "auto" : exact_size(config.pool_segment);
}

Status set_duration(Duration& duration, std::string_view value) {
  Result<Duration> parsed = parse_duration(value);
  if (!parsed.ok()) return parsed.status();
  if (parsed.value() < std::chrono::milliseconds(1))
    return {Code::kInvalidArgument, "must be at least 1ms"};
  duration = parsed.value();
  return {};
}
template <Duration Deadlines::*Member>
Status set_deadline(Config& config, std::string_view value) {
  return set_duration(config.deadlines.*Member, value);
}
template <Duration Deadlines::*Member>
std::string get_deadline(const Config& config) {
  return format_duration(config.deadlines.*Member);
}

/// A try that fails is repeated after as long, so not at once.
Status set_deep_after(Config& config, std::string_view value) {
  Result<Duration> parsed = parse_duration(value);
  if (!parsed.ok()) return parsed.status();
  if (parsed.value() != Duration::zero() && parsed.value() < std::chrono::seconds(1))
    return {Code::kInvalidArgument, "must be 0 or at least 1s"};
  config.deadlines.deepen = parsed.value();
  return {};
}

Status set_reserve(Config& config, std::string_view value) {
  config.pool_reserve.reset();
  if (value == "all") return {};
  Result<std::uint64_t> size = parse_size(value);
  if (!size.ok()) return {size.status().code(), size.status().text() + ", or all"};
  config.pool_reserve = size.value();
  return {};
}
std::string get_reserve(const Config& config) {
  return config.pool_reserve ? exact_size(*config.pool_reserve) : "all";
}

/// The next pause pins it again, so not at once.
Status set_pool_idle(Config& config, std::string_view value) {
  Result<Duration> parsed = parse_duration(value);
  if (!parsed.ok()) return parsed.status();
  if (parsed.value() < std::chrono::seconds(1))
    return {Code::kInvalidArgument, "must be at least 1s"};
  config.pool_idle = parsed.value();
  return {};
}

Status set_spare_idle(Config& config, std::string_view value) {
  Result<Duration> parsed = parse_duration(value);
  if (!parsed.ok()) return parsed.status();
  config.spare_idle = parsed.value();
  return {};
}

template <mode_t Config::*Member>
Status set_mode(Config& config, std::string_view value) {
  const bool octal =
      !value.empty() && value.size() <= 4 &&
      std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '7'; });
  const unsigned long mode = octal ? std::strtoul(std::string(value).c_str(), nullptr, 8) : ~0UL;
  if (mode > 0777)
    return {Code::kInvalidArgument,
            "\"" + std::string(value) + "\" is not a valid file mode. Write for example \"0660\""};
  if ((mode & 07U) != 0)
    return {Code::kInvalidArgument,
            "\"" + std::string(value) +
                "\" opens the socket to every user of the node. Write \"0660\", and add the users "
                "who may use it to the group of sockets.group"};
  config.*Member = static_cast<mode_t>(mode);
  return {};
}
template <mode_t Config::*Member>
std::string get_mode(const Config& config) {
  char text[8];
  std::snprintf(text, sizeof text, "0%03o", static_cast<unsigned>(config.*Member));
  return text;
}

/// What a file cannot say, environment and command line may not either: what amemd prints with
/// --check-config has to be such a file.
Status not_utf8() { return {Code::kInvalidArgument, "the value is not UTF-8"}; }

template <std::string Config::*Member>
Status set_text(Config& config, std::string_view value) {
  if (!is_utf8(value)) return not_utf8();
  config.*Member = value;
  return {};
}
template <std::string Config::*Member>
std::string get_text(const Config& config) {
  return config.*Member;
}

template <std::string Config::*Member>
Status set_address(Config& config, std::string_view value) {
  const Result<std::string> address = value.empty() ? std::string() : parse_address(value);
  if (address.ok()) config.*Member = address.value();
  return address.status();
}

template <bool Config::*Member>
Status set_flag(Config& config, std::string_view value) {
  if (value != "true" && value != "false")
    return {Code::kInvalidArgument, "\"" + std::string(value) + "\" is neither true nor false"};
  config.*Member = value == "true";
  return {};
}
template <bool Config::*Member>
std::string get_flag(const Config& config) {
  return config.*Member ? "true" : "false";
}

/// The error for a value that is not among these names. `first`: a name in front of them.
template <class Choices, class NameOf>
Status none_of(std::string_view value, const Choices& choices, NameOf name_of,
               std::string_view first = "") {
  std::string text = "\"" + std::string(value) + "\" is not one of" + std::string(first);
  for (const auto& choice : choices) text += " " + std::string(name_of(choice));
  return {Code::kInvalidArgument, text};
}

Status one_of(std::string& target, std::string_view value,
              std::initializer_list<std::string_view> choices) {
  if (std::find(choices.begin(), choices.end(), value) == choices.end())
    return none_of(value, choices, [](std::string_view choice) { return choice; });
  target = value;
  return {};
}

/// Of a setting that is one of a few: what they are called.
template <class Value>
struct Named {
  std::string_view name;
  Value value;
};
constexpr Named<HolderUse> kHolders[] = {{"auto", HolderUse::kAuto},
                                         {"required", HolderUse::kRequired},
                                         {"external", HolderUse::kExternal},
                                         {"off", HolderUse::kOff}};
constexpr Named<Isolation> kIsolations[] = {{"uid", Isolation::kUid},
                                            {"userns", Isolation::kUserNamespace},
                                            {"cgroup", Isolation::kCgroup}};
constexpr Named<Retain> kRetain[] = {
    {"auto", Retain::kAuto}, {"always", Retain::kAlways}, {"off", Retain::kOff}};
constexpr Named<GuestPolicy> kGuests[] = {{"pin", GuestPolicy::kPin},
                                          {"refuse", GuestPolicy::kRefuse}};
template <auto Member, const auto& choices>
Status set_choice(Config& config, std::string_view value) {
  const auto* found = std::find_if(std::begin(choices), std::end(choices),
                                   [&](const auto& choice) { return choice.name == value; });
  if (found == std::end(choices))
    return none_of(value, choices, [](const auto& choice) { return choice.name; });
  config.*Member = found->value;
  return {};
}
template <auto Member, const auto& choices>
std::string get_choice(const Config& config) {
  const auto* found = std::find_if(std::begin(choices), std::end(choices), [&](const auto& choice) {
    return choice.value == config.*Member;
  });
  return std::string(found->name);
}
Status set_log_level(Config& config, std::string_view value) {
  return one_of(config.log_level, value, {"debug", "info", "warning", "error"});
}
Status set_log_format(Config& config, std::string_view value) {
  return one_of(config.log_format, value, {"text", "json"});
}
Status set_save(Config& config, std::string_view value) {
  const std::optional<Form> form = form_named(value);
  if (!form)
    return {Code::kInvalidArgument,
            "\"" + std::string(value) + "\" is not one of " + names_of_forms()};
  config.pool_save = *form;
  return {};
}
Status set_place(Config& config, std::string_view value) {
  config.pool_place = place_named(value);
  if (config.pool_place || value == "auto") return {};
  return none_of(
      value, kPlaces, [](const PlaceRule& each) { return each.name; }, " auto");
}
std::string get_place(const Config& config) {
  return config.pool_place ? std::string(to_string(*config.pool_place)) : "auto";
}
std::string get_save(const Config& config) { return std::string(to_string(config.pool_save)); }
template <Resource resource>
Status set_quota(Config& config, std::string_view value) {
  return config.quotas.set(resource, value);
}
template <Resource resource>
std::string get_quota(const Config& config) {
  return config.quotas.get(resource);
}
Status set_device_nodes(Config& config, std::string_view value) {
  if (Status status = set_text<&Config::device_nodes>(config, value); !status.ok()) return status;
  config.device_nodes_set = true;
  return {};
}
Status set_log_lines(Config& config, std::string_view value) {
  const auto lines = number_of_text<std::uint64_t>(value);
  if (!lines || *lines == 0)
    return {Code::kInvalidArgument,
            "\"" + std::string(value) + "\" is not a valid number of lines"};
  config.quotas.log_lines = *lines;
  return {};
}
std::string get_log_lines(const Config& config) { return std::to_string(config.quotas.log_lines); }
Status set_runtime_dir(Config& config, std::string_view value) {
  if (value.empty() || value.front() != '/')
    return {Code::kInvalidArgument, "\"" + std::string(value) + "\" is not an absolute path"};
  if (!is_utf8(value)) return not_utf8();
  config.runtime_dir = value;
  return {};
}

Status set_holder_socket(Config& config, std::string_view value) {
  if (!value.empty() && value.front() != '/')
    return {Code::kInvalidArgument, "\"" + std::string(value) + "\" is not an absolute path"};
  return set_text<&Config::holder_socket>(config, value);
}

// ---- fast paths ---------------------------------------------------------------------------------

/// What amemd can also do without, to find out whether it is at fault: a member that has `kOff`
/// then, and otherwise its default or what else it was set to.
template <auto Member, auto kOff>
bool is_off(const Config& config) {
  return config.*Member == kOff;
}
template <auto Member, auto kOff>
void switch_off(Config& config, bool off) {
  if (off)
    config.*Member = kOff;
  else if (is_off<Member, kOff>(config))
    config.*Member = Config().*Member;
}
struct FastPath {
  std::string_view name;
  bool (*is_off)(const Config& config);
  void (*switch_off)(Config& config, bool off);
};
template <auto Member, auto kOff>
constexpr FastPath fast_path(std::string_view name) {
  return {name, &is_off<Member, kOff>, &switch_off<Member, kOff>};
}
constexpr FastPath kFastPaths[] = {fast_path<&Config::swap_duplex, false>("duplex"),
                                   fast_path<&Config::swap_hand_on, false>("hand_on"),
                                   fast_path<&Config::pool_place, Place::kMemfd>("host_numa"),
                                   fast_path<&Config::pool_retain, Retain::kOff>("retain"),
                                   fast_path<&Config::pool_save, Form::kDense>("sparse"),
                                   fast_path<&Config::swap_wave, std::uint64_t{0}>("waves")};

Status set_without(Config& config, std::string_view value) {
  std::set<std::string_view> off;
  for (std::size_t at = 0; at < value.size();) {
    const std::size_t end = std::min(value.find_first_of(", ", at), value.size());
    const std::string_view name = value.substr(at, end - at);
    at = end + 1;
    if (name.empty()) continue;
    if (std::none_of(std::begin(kFastPaths), std::end(kFastPaths),
                     [&](const FastPath& path) { return path.name == name; }))
      return none_of(name, kFastPaths, [](const FastPath& path) { return path.name; });
    off.insert(name);
  }
  for (const FastPath& path : kFastPaths) path.switch_off(config, off.contains(path.name));
  return {};
}
std::string get_without(const Config& config) {
  std::string text;
  for (const FastPath& path : kFastPaths)
    if (path.is_off(config)) text += (text.empty() ? "" : ",") + std::string(path.name);
  return text;
}

/// The deadlines that deadlines.step stands for, and the retired settings of each alone.
struct StepSetting {
  std::string_view key;
  Duration Deadlines::*deadline;
};
constexpr StepSetting kSteps[] = {
    {"deadlines.save", &Deadlines::save},     {"deadlines.release", &Deadlines::release},
    {"deadlines.create", &Deadlines::create}, {"deadlines.load", &Deadlines::load},
    {"deadlines.open", &Deadlines::open},     {"deadlines.request", &Deadlines::request}};

Status set_step(Config& config, std::string_view value) {
  Deadlines deadlines = config.deadlines;
  for (const StepSetting& step : kSteps) {
    Duration& deadline = deadlines.*step.deadline;
    deadline = Deadlines().*step.deadline;
    if (value == "auto") continue;
    if (Status status = set_duration(deadline, value); !status.ok()) return status;
  }
  config.deadlines = deadlines;
  return {};
}
/// What the steps have that nobody has set alone.
std::string get_step(const Config& config) {
  std::set<Duration> set;
  for (const StepSetting& step : kSteps)
    if (!config.retired.contains(step.key)) set.insert(config.deadlines.*step.deadline);
  return set.size() == 1 ? format_duration(*set.begin()) : "auto";
}

std::string_view table_of(std::string_view key) {
  const std::size_t dot = key.find('.');
  return dot == std::string_view::npos ? std::string_view() : key.substr(0, dot);
}

std::string in_quotes(std::string_view text) {
  std::string result = "\"";
  for (char c : text) {
    char escaped[8];
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
      result += escaped;
    } else {
      result += c;
    }
  }
  return result + "\"";
}

/// The value as the text that Setting::set takes; nothing for a type that no setting has.
std::optional<std::string> as_text(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* number = node.as_floating_point()) {
    char text[64];
    std::snprintf(text, sizeof text, "%.9f", number->get());
    return text;
  }
  return std::nullopt;
}

/// A list is written as its elements with commas.
std::optional<std::string> as_list(const toml::node& node) {
  const toml::array* const array = node.as_array();
  if (array == nullptr) return as_text(node);
  std::string text;
  for (const toml::node& each : *array) {
    const std::optional<std::string> one = as_text(each);
    if (!one) return std::nullopt;
    text += (text.empty() ? "" : ",") + *one;
  }
  return text;
}

/// `from`: where a retired setting is set, for people. `instead`: what to do.
void warn_of(Config& config, const std::string& key, const std::string& from,
             std::string_view instead) {
  config.retired[key] = key + " is set in " + from +
                        ". The next version will not have this setting: " + std::string(instead);
}

Status set(Config& config, const Setting& setting, std::string_view value,
           const std::string& from) {
  Status status = setting.set(config, value);
  if (status.ok() && setting.retired) warn_of(config, std::string(setting.key), from, setting.what);
  return status;
}

void apply_stages(Config& config, const toml::node& stages, const std::string& file_name,
                  ConfigErrors& errors) {
  const auto wrong = [&](const toml::node& node, const std::string& what,
                         const std::string& problem) {
    errors.push_back(file_name + ":" + std::to_string(node.source().begin.line) + ": " + what +
                     ": " + problem);
  };
  const toml::table* const table = stages.as_table();
  if (table == nullptr) return wrong(stages, "stage", "must be tables, each written [stage.NAME]");
  for (const auto& [name, node] : *table) {
    const std::string key = "stage." + std::string(name.str());
    const toml::table* const its = node.as_table();
    if (its == nullptr) {
      wrong(node, key, "must be a table, written [" + key + "]");
      continue;
    }
    if (!valid_group_name(name.str()) || name.str() == "none") {
      wrong(node, key,
            "is not a valid name. Use 1 to 63 of the characters A-Z a-z 0-9 . _ -, and do not "
            "begin with . or -");
      continue;
    }
    StageSettings stage;
    stage.name = name.str();
    for (const auto& [setting, value] : *its) {
      const std::optional<std::string> text = as_list(value);
      const Status status =
          text ? stage.set(setting.str(), *text)
               : Status(Code::kInvalidArgument, "must be a string, a number or a list of these");
      const std::string its_key = key + "." + std::string(setting.str());
      if (!status.ok()) wrong(value, its_key, status.text());
      for (const StageKey& each : stage_keys())
        if (each.retired && each.key == setting.str())
          warn_of(config, its_key, file_name, each.what);
    }
    std::erase_if(config.stages,
                  [&](const StageSettings& each) { return each.name == stage.name; });
    config.stages.push_back(std::move(stage));
  }
}

/// The settings of a file in the order of settings(), in which one that stands for several comes
/// before each of these.
using Given = std::map<const Setting*, const toml::node*>;

void read_table(Config& config, Given& given, const toml::table& table, const std::string& prefix,
                const std::string& file_name, ConfigErrors& errors) {
  for (const auto& [name, node] : table) {
    const std::string key = prefix + std::string(name.str());
    auto wrong = [&, line = node.source().begin.line](const std::string& what) {
      errors.push_back(file_name + ":" + std::to_string(line) + ": " + key + ": " + what);
    };
    if (prefix.empty() && key == "stage") {
      apply_stages(config, node, file_name, errors);
      continue;
    }
    const bool is_table =
        prefix.empty() && std::any_of(settings().begin(), settings().end(),
                                      [&](const Setting& s) { return table_of(s.key) == key; });
    if (is_table) {
      if (const toml::table* inner = node.as_table())
        read_table(config, given, *inner, key + ".", file_name, errors);
      else
        wrong("must be a table, written [" + key + "]");
      continue;
    }
    const Setting* setting = find_setting(key);
    if (setting == nullptr) {
      wrong("this setting does not exist. amemd --check-config prints all settings");
      continue;
    }
    given[setting] = &node;
  }
}

void apply_given(Config& config, const Given& given, const std::string& file_name,
                 ConfigErrors& errors) {
  for (const auto& [setting, node] : given) {
    auto wrong = [&](const std::string& what) {
      errors.push_back(file_name + ":" + std::to_string(node->source().begin.line) + ": " +
                       std::string(setting->key) + ": " + what);
    };
    const bool list = setting->set == &set_without;
    const std::optional<std::string> text = list ? as_list(*node) : as_text(*node);
    if (!text) {
      wrong(list ? "must be a list of strings" : "must be a string, a number, true or false");
    } else if (Status status = set(config, *setting, *text, file_name); !status.ok()) {
      wrong(status.text());
    }
  }
}

std::string stages_as_toml(const Config& config) {
  std::string text;
  for (const StageSettings& stage : config.stages) {
    text += "\n[stage." + in_quotes(stage.name) + "]\n";
    for (const StageKey& each : stage_keys())
      if (!each.retired ||
          config.retired.contains("stage." + stage.name + "." + std::string(each.key)))
        text += std::string(each.key) + " = " + in_quotes(each.get(stage)) + "  # " +
                std::string(each.what) + "\n";
  }
  return text;
}

}  // namespace

/// One segment, so that a small pause waits for nothing: others need a desk's memory, too.
constexpr std::uint64_t kReserveOfUser = 64ULL << 20;

Config Config::defaults(bool system, std::string runtime_dir) {
  Config config;
  config.runtime_dir = std::move(runtime_dir);
  config.session_mode = system ? 0660 : 0600;
  if (system) config.socket_group = "amem";
  if (!system) config.pool_reserve = kReserveOfUser;
  if (system) config.device_nodes = "/dev";
  if (system) config.quotas = QuotaSettings::shared_node();
  config.control_mode = system ? 0660 : 0600;
  return config;
}

constexpr std::string_view kStepInstead =
    "deadlines.step stands for this and the other steps of a pause or resume";
constexpr std::string_view kQuotaInstead =
    "it will be what it is by default, which no job reaches. Remove it";

const std::vector<Setting>& settings() {
  static const std::vector<Setting> all = {
      {"runtime_dir", "directory of the sockets", set_runtime_dir, get_text<&Config::runtime_dir>},

      {"holder",
       "whether amem-holder keeps all memory while amemd restarts: auto, required, external or off",
       set_choice<&Config::holder, kHolders>, get_choice<&Config::holder, kHolders>},
      {"holder_socket",
       "socket of amem-holder, in a folder that no job can see; empty: "
       "RUNTIME_DIR-holder/holder.sock",
       set_holder_socket, get_text<&Config::holder_socket>},
      {"without",
       "fast paths to do without, to find out whether one is at fault: a list of duplex, hand_on, "
       "host_numa, retain, sparse and waves",
       set_without, get_without},
      {"guests", "what a pause does with memory that other groups have open: pin or refuse",
       set_choice<&Config::guests, kGuests>, get_choice<&Config::guests, kGuests>, true},

      {"pool.size", "most pinned host memory for saved bytes; 0: none",
       set_size<&Config::pool_size>, get_size<&Config::pool_size>},
      {"pool.reserve", "of pool.size, what stays pinned all the time; all: all of it", set_reserve,
       get_reserve},
      {"pool.idle", "how long pinned memory beyond pool.reserve stays when nothing needs it",
       set_pool_idle, [](const Config& config) { return format_duration(config.pool_idle); }, true},
      {"pool.chunk", "unit of the pool's space", set_size<&Config::pool_chunk>,
       get_size<&Config::pool_chunk>},
      {"pool.segment", "amemd chooses it by pool.size. Remove it", set_segment, get_segment, false,
       true},
      {"pool.place", "without = [\"host_numa\"] stands for memfd, and else amemd chooses it",
       set_place, get_place, false, true},
      {"pool.save",
       "without = [\"sparse\"] stands for dense, and amemctl policy sets the form of a tag",
       set_save, get_save, true, true},
      {"pool.retain", "without = [\"retain\"] stands for off, and else amemd chooses it",
       set_choice<&Config::pool_retain, kRetain>, get_choice<&Config::pool_retain, kRetain>, false,
       true},

      {"deadlines.quiesce", "for all ranks to become quiet", set_deadline<&Deadlines::quiesce>,
       get_deadline<&Deadlines::quiesce>},
      {"deadlines.step",
       "for each other step of a pause or resume, such as the copies; auto: 10s to 60s", set_step,
       get_step},
      {"deadlines.checkpoint", "for the driver to checkpoint or restore all processes of a group",
       set_deadline<&Deadlines::checkpoint>, get_deadline<&Deadlines::checkpoint>},
      {"deadlines.end", "for operations to end after amemd was told to end",
       [](Config& config, std::string_view value) { return set_duration(config.end, value); },
       [](const Config& config) { return format_duration(config.end); }},
      {"deadlines.guests", "it will be 500ms. Remove it", set_deadline<&Deadlines::guests>,
       get_deadline<&Deadlines::guests>, false, true},
      {"deadlines.stall", "it will be 20ms. Remove it", set_deadline<&Deadlines::stall>,
       get_deadline<&Deadlines::stall>, false, true},
      {"deadlines.save", kStepInstead, set_deadline<&Deadlines::save>,
       get_deadline<&Deadlines::save>, false, true},
      {"deadlines.release", kStepInstead, set_deadline<&Deadlines::release>,
       get_deadline<&Deadlines::release>, false, true},
      {"deadlines.create", kStepInstead, set_deadline<&Deadlines::create>,
       get_deadline<&Deadlines::create>, false, true},
      {"deadlines.load", kStepInstead, set_deadline<&Deadlines::load>,
       get_deadline<&Deadlines::load>, false, true},
      {"deadlines.open", kStepInstead, set_deadline<&Deadlines::open>,
       get_deadline<&Deadlines::open>, false, true},
      {"deadlines.request", kStepInstead, set_deadline<&Deadlines::request>,
       get_deadline<&Deadlines::request>, false, true},

      {"deep.enabled",
       "whether a pause may be deep, so that the driver checkpoints the processes: true or false",
       set_flag<&Config::deep_pauses>, get_flag<&Config::deep_pauses>},
      {"deep.after", "how long a group is paused before amemd makes it deep; 0: never",
       set_deep_after, get_deadline<&Deadlines::deepen>},
      {"spare.idle",
       "how long GPU memory that a pause frees waits for a resume of its owner; 0: not at all",
       set_spare_idle, [](const Config& config) { return format_duration(config.spare_idle); }},
      {"swap.duplex", "without = [\"duplex\"] stands for false", set_flag<&Config::swap_duplex>,
       get_flag<&Config::swap_duplex>, false, true},
      {"swap.hand_on", "without = [\"hand_on\"] stands for false", set_flag<&Config::swap_hand_on>,
       get_flag<&Config::swap_hand_on>, true, true},
      {"swap.wave", "without = [\"waves\"] stands for 0, and else it will be 1GiB",
       set_size<&Config::swap_wave>, get_size<&Config::swap_wave>, true, true},

      {"log.level", "debug, info, warning or error", set_log_level, get_text<&Config::log_level>,
       true},
      {"log.format", "text or json (one object per line)", set_log_format,
       get_text<&Config::log_format>},
      {"log.file", "log file, reopened on SIGHUP; empty: stderr", set_text<&Config::log_file>,
       get_text<&Config::log_file>},

      {"isolation.by", "what separates owners: uid, userns or cgroup",
       set_choice<&Config::isolation, kIsolations>, get_choice<&Config::isolation, kIsolations>},

      {"isolation.device_nodes",
       "directory of nvidia0, nvidia1, ...: amemd serves a device to processes that may open its "
       "node; empty: to all",
       set_device_nodes, get_text<&Config::device_nodes>},

      {"quotas.sessions", "processes that an owner may have at the same time; none: no limit",
       set_quota<Resource::kSessions>, get_quota<Resource::kSessions>, true},
      {"quotas.allocations", kQuotaInstead, set_quota<Resource::kAllocations>,
       get_quota<Resource::kAllocations>, true, true},
      {"quotas.device", "GPU memory that an owner may have, a size or a share of all devices",
       set_quota<Resource::kDeviceBytes>, get_quota<Resource::kDeviceBytes>, true},
      {"quotas.pool", "space in the pool that an owner may have, a size or a share",
       set_quota<Resource::kPoolBytes>, get_quota<Resource::kPoolBytes>, true},
      {"quotas.descriptors", kQuotaInstead, set_quota<Resource::kDescriptors>,
       get_quota<Resource::kDescriptors>, true, true},
      {"quotas.queue", kQuotaInstead, set_quota<Resource::kQueuedBytes>,
       get_quota<Resource::kQueuedBytes>, true, true},
      {"quotas.calls", kQuotaInstead, set_quota<Resource::kCalls>, get_quota<Resource::kCalls>,
       true, true},
      {"quotas.policies", kQuotaInstead, set_quota<Resource::kPolicies>,
       get_quota<Resource::kPolicies>, true, true},
      {"quotas.log_lines", kQuotaInstead, set_log_lines, get_log_lines, false, true},

      {"access.operators",
       "group of operators, who control all groups, besides root and amemd's own user; empty: none",
       set_text<&Config::operators>, get_text<&Config::operators>},
      {"access.see_all", "whether every user sees all groups: true or false",
       set_flag<&Config::see_all>, get_flag<&Config::see_all>},

      {"control.listen",
       "host:port of the control API for operators on other machines, with mutual TLS; empty: none",
       set_text<&Config::listen>, get_text<&Config::listen>},
      {"control.tls", "directory with ca.crt, tls.crt and tls.key, for control.listen",
       set_text<&Config::tls_dir>, get_text<&Config::tls_dir>},

      {"llm_d.enabled",
       "the program amem-llm-d answers llm-d, and control.sock does not any more. Run it by "
       "systemctl enable --now amem-llm-d, and remove this setting",
       set_flag<&Config::llm_d>, get_flag<&Config::llm_d>, false, true},
      {"llm_d.listen", "pass --listen to amem-llm-d", set_address<&Config::llm_d_listen>,
       get_text<&Config::llm_d_listen>, false, true},
      {"llm_d.deep", "pass --deep to amem-llm-d", set_flag<&Config::llm_d_deep>,
       get_flag<&Config::llm_d_deep>, false, true},

      {"metrics.listen",
       "port, or address:port, of metrics for Prometheus over HTTP, with the names of all groups; "
       "empty: none",
       set_address<&Config::metrics_listen>, get_text<&Config::metrics_listen>},

      {"sockets.group", "group of both sockets' files; empty: amemd's own",
       set_text<&Config::socket_group>, get_text<&Config::socket_group>},
      {"sockets.session_mode", "file mode of session.sock, for ranks",
       set_mode<&Config::session_mode>, get_mode<&Config::session_mode>},
      {"sockets.control_mode", "file mode of control.sock, for operators",
       set_mode<&Config::control_mode>, get_mode<&Config::control_mode>},
  };
  return all;
}

const Setting* find_setting(std::string_view key) {
  for (const Setting& setting : settings())
    if (setting.key == key) return &setting;
  return nullptr;
}

std::string Setting::environment() const {
  std::string name = "AMEM_";
  for (char c : key)
    name += c == '.' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

std::string Setting::flag() const {
  std::string name = "--";
  for (char c : key) name += c == '.' || c == '_' ? '-' : c;
  return name;
}

void apply_toml(Config& config, std::string_view text, const std::string& file_name,
                ConfigErrors& errors) {
  try {
    const toml::table table = toml::parse(text, file_name);
    Given given;
    read_table(config, given, table, "", file_name, errors);
    apply_given(config, given, file_name, errors);
  } catch (const toml::parse_error& error) {
    errors.push_back(file_name + ":" + std::to_string(error.source().begin.line) + ": " +
                     std::string(error.description()));
  }
}

void apply_environment(Config& config, const Environment& environment, ConfigErrors& errors) {
  for (const Setting& setting : settings()) {
    const std::string name = setting.environment();
    const char* value = environment(name.c_str());
    if (value == nullptr || *value == '\0') continue;
    if (Status status = set(config, setting, value, "the environment"); !status.ok())
      errors.push_back("environment: " + name + ": " + status.text());
  }
}

void apply_flags(Config& config, const std::vector<std::pair<std::string, std::string>>& flags,
                 ConfigErrors& errors) {
  for (const auto& [key, value] : flags) {
    const Setting* setting = find_setting(key);
    if (setting == nullptr) {
      errors.push_back(key + ": this setting does not exist");
    } else if (Status status = set(config, *setting, value, "the command line"); !status.ok()) {
      errors.push_back(setting->flag() + ": " + status.text());
    }
  }
}

std::uint64_t Config::reserve() const {
  return std::min(pool_reserve.value_or(pool_size), pool_size);
}

std::uint64_t Config::segment() const {
  constexpr std::uint64_t kSmallest = 64ULL << 20;
  constexpr std::uint64_t kLargest = 1ULL << 30;
  constexpr std::uint64_t kMany = 1024;
  if (pool_segment != 0) return pool_segment;
  const std::uint64_t wanted = std::bit_ceil(pool_size / kMany);
  return std::max(std::clamp(wanted, kSmallest, kLargest), pool_chunk);
}

void check(const Config& config, ConfigErrors& errors) {
  constexpr std::uint64_t kSmallestChunk = 64ULL << 10;
  constexpr std::uint64_t kPage = 2ULL << 20;  // of host memory that the driver pins
  const std::uint64_t chunk = config.pool_chunk;
  const bool chunk_is_good = chunk >= kSmallestChunk && (chunk & (chunk - 1)) == 0;
  if (!chunk_is_good)
    errors.push_back("pool.chunk: " + exact_size(chunk) +
                     " is not a power of two of at least 64KiB");
  const auto check_size = [&](const std::string& key, std::uint64_t size, std::uint64_t least) {
    if (size < least || size % kPage != 0)
      errors.push_back(key + ": " + exact_size(size) + " is not a multiple of 2MiB");
    else if (chunk_is_good && config.pool_size > 0 && size % chunk != 0)
      errors.push_back(key + ": " + exact_size(size) + " is not a multiple of pool.chunk, " +
                       exact_size(chunk));  // the rest would be pinned and never used
  };
  if (!config.listen.empty() && config.tls_dir.empty())
    errors.push_back("control.listen: " + config.listen +
                     " requires control.tls, the directory of certificates, because amemd serves "
                     "TCP only with mutual TLS");
  if (config.deadlines.deepen > Duration::zero() && !config.deep_pauses)
    errors.emplace_back("deep.after: requires deep.enabled = true");
  if (!config.llm_d && !config.llm_d_listen.empty())
    errors.emplace_back("llm_d.listen: requires llm_d.enabled = true");
  if (config.llm_d_deep && !config.deep_pauses)
    errors.emplace_back("llm_d.deep: requires deep.enabled = true");
  if (config.pool_segment != 0) check_size("pool.segment", config.pool_segment, kPage);
  check_size("pool.size", config.pool_size, 0);
  if (config.pool_reserve) check_size("pool.reserve", *config.pool_reserve, 0);
  const std::uint64_t segment = std::min(config.segment(), config.pool_size);
  const std::uint64_t most =
      config.quotas.resolve(config.pool_size, segment, 0).most[Resource::kPoolBytes];
  if (most > 0 && most < segment)
    errors.push_back("quotas.pool: " + exact_size(most) +
                     " is less than one segment, so nobody could use the pool. A segment has " +
                     exact_size(segment) + ". Set at least that, or a share such as 50%");
  std::map<std::string, std::string> stage_of;
  for (const StageSettings& stage : config.stages) {
    const std::string key = "stage." + stage.name;
    if (stage.devices.empty())
      errors.push_back(key + ".devices: name at least one GPU, by its number or UUID");
    for (const std::string& device : stage.devices) {
      const auto [it, added] = stage_of.emplace(device, stage.name);
      if (!added)
        errors.push_back(key + ".devices: GPU " + device + " is in stage '" + it->second +
                         "', too. A GPU can be in one stage");
    }
    // Its devices are not known yet; each has space.
    const std::vector<StageDevice> some = {{{}, 0, ~std::uint64_t{0}, 0}};
    if (const Status status = check_stage(stage.rules, some); !status.ok())
      errors.push_back(key + ": " + status.text());
  }
}

Reload reload(Config& running, const Config& next) {
  Reload result;
  for (const Setting& setting : settings()) {
    if (setting.set == &set_without || setting.set == &set_step) continue;  // others' values
    const std::string value = setting.get(next);
    if (value == setting.get(running)) continue;
    const std::string line = std::string(setting.key) + " = " + in_quotes(value);
    const bool takes = setting.live && setting.set(running, value).ok();
    (takes ? result.taken : result.waiting).push_back(line);
  }
  if (stages_as_toml(running) != stages_as_toml(next)) result.waiting.emplace_back("[stage.…]");
  return result;
}

std::string to_toml(const Config& config) {
  std::string text;
  std::string_view table;
  for (const Setting& setting : settings()) {
    if (setting.retired && !config.retired.contains(setting.key)) continue;
    const std::string_view its_table = table_of(setting.key);
    if (its_table != table) {
      table = its_table;
      text += "\n[" + std::string(table) + "]\n";
    }
    const std::string_view name =
        table.empty() ? setting.key : setting.key.substr(table.size() + 1);
    text += std::string(name) + " = " + in_quotes(setting.get(config)) + "  # " +
            std::string(setting.what) + "\n";
  }
  return text + stages_as_toml(config);
}

}  // namespace amem
