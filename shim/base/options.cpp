#include "shim/base/options.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <string_view>
#include <utility>

#include "common/job.h"
#include "common/numbers.h"
#include "common/protocol.h"

namespace amem::shim {
namespace {

std::string complain(const char* name, std::string_view value, const char* expected) {
  return std::string(name) + "=" + std::string(value) + " is not " + expected;
}

bool read_flag(Options::Getenv getenv, const char* name, bool otherwise,
               std::vector<std::string>& complaints) {
  const std::string_view value = value_of(getenv, name);
  if (value.empty()) return otherwise;
  if (value == "1" || value == "true" || value == "yes" || value == "on") return true;
  if (value == "0" || value == "false" || value == "no" || value == "off") return false;
  complaints.push_back(complain(name, value, "0 or 1. amem ignores it"));
  return otherwise;
}

void read_seconds(Options::Getenv getenv, const char* name, std::chrono::seconds& out,
                  std::vector<std::string>& complaints) {
  const std::string_view value = value_of(getenv, name);
  if (value.empty()) return;
  const auto seconds = number_of_text<unsigned>(value);
  if (seconds && *seconds > 0 && *seconds <= 31'536'000)
    out = std::chrono::seconds(*seconds);
  else
    complaints.push_back(
        complain(name, value, "a number of seconds from 1 to a year. amem ignores it"));
}

/// Seconds, or a number with ms, s or m behind it, up to a year; 0, too.
std::optional<std::chrono::milliseconds> duration_of(std::string_view value) {
  unsigned number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  const std::string_view unit(end, static_cast<std::size_t>(value.data() + value.size() - end));
  const std::int64_t factor = unit.empty() || unit == "s" ? 1000
                              : unit == "ms"              ? 1
                              : unit == "m"               ? 60'000
                                                          : 0;
  const std::chrono::milliseconds time(number * factor);
  if (error != std::errc() || factor == 0 || time > std::chrono::hours(24 * 365))
    return std::nullopt;
  return time;
}

void read_duration(Options::Getenv getenv, const char* name, std::chrono::milliseconds& out,
                   std::vector<std::string>& complaints) {
  const std::string_view value = value_of(getenv, name);
  if (value.empty()) return;
  if (const auto time = duration_of(value))
    out = *time;
  else
    complaints.push_back(
        complain(name, value, "a duration up to a year, such as 30s or 500ms. amem ignores it"));
}

void read_gate(Options::Getenv getenv, Options& options, std::vector<std::string>& complaints) {
  const std::string_view value = value_of(getenv, "AMEM_GATE");
  options.gate_waits = value != "error";
  if (value.empty() || value == "wait" || value == "error") return;
  const auto time = duration_of(value);
  if (time && *time >= std::chrono::seconds(1))
    options.gate_timeout = std::chrono::duration_cast<std::chrono::seconds>(*time);
  else
    complaints.push_back(
        complain("AMEM_GATE", value, "wait, error or a time such as 30s. amem uses wait"));
}

void read_slab_size(Options::Getenv getenv, std::optional<std::uint64_t>& out,
                    std::vector<std::string>& complaints) {
  const std::string_view value = value_of(getenv, "AMEM_SLAB");
  if (value.empty()) return;
  const auto mib = number_of_text<unsigned>(value);
  if (mib && *mib <= 1024 && *mib != 1)
    out = std::uint64_t{*mib} << 20U;
  else
    complaints.push_back(complain(
        "AMEM_SLAB", value, "a number of MiB from 2 to 1024, or 0 for none. amem ignores it"));
}

template <class Value>
void read_choice(Options::Getenv getenv, const char* name, Value& out,
                 std::initializer_list<std::pair<std::string_view, Value>> choices,
                 const char* expected, std::vector<std::string>& complaints) {
  const std::string_view value = value_of(getenv, name);
  const auto* found = std::find_if(choices.begin(), choices.end(),
                                   [&](const auto& choice) { return choice.first == value; });
  if (found != choices.end())
    out = found->second;
  else if (!value.empty())
    complaints.push_back(complain(name, value, expected));
}

std::vector<std::string> split(std::string_view list) {
  std::vector<std::string> parts;
  while (!list.empty()) {
    const std::size_t comma = list.find(',');
    if (comma != 0) parts.emplace_back(list.substr(0, comma));
    if (comma == std::string_view::npos) break;
    list.remove_prefix(comma + 1);
  }
  return parts;
}

void read_without(Options::Getenv getenv, Options& options, std::vector<std::string>& complaints) {
  for (const std::string& each : split(value_of(getenv, "AMEM_SHIM_WITHOUT"))) {
    if (each == "deepbind")
      options.clear_deepbind = true;
    else if (each == "slabs")
      options.slab_size = 0;
    else if (each == "unmap_ahead")
      options.unmap_ahead = false;
    else
      complaints.push_back(
          complain("AMEM_SHIM_WITHOUT", each, "deepbind, slabs or unmap_ahead. amem ignores it"));
  }
}

/// Variables that the next version will not have.
void read_retired(Options::Getenv getenv, Options& options, std::vector<std::string>& complaints) {
  const auto set = [&](const char* name, const char* instead) {
    const bool is = !value_of(getenv, name).empty();
    if (is)
      complaints.push_back(std::string(name) +
                           " is set. The next version will not have this variable: " + instead);
    return is;
  };
  if (set("AMEM_GATE_TIMEOUT", "set AMEM_GATE=30s for 30 seconds"))
    read_seconds(getenv, "AMEM_GATE_TIMEOUT", options.gate_timeout, complaints);
  if (set("AMEM_SLAB", "AMEM_SHIM_WITHOUT=slabs stands for 0, and else amem chooses the size"))
    read_slab_size(getenv, options.slab_size, complaints);
  if (set("AMEM_UNMAP_AHEAD", "AMEM_SHIM_WITHOUT=unmap_ahead stands for 0"))
    options.unmap_ahead &= read_flag(getenv, "AMEM_UNMAP_AHEAD", true, complaints);
  if (set("AMEM_DEEPBIND", "AMEM_SHIM_WITHOUT=deepbind stands for clear"))
    read_choice(getenv, "AMEM_DEEPBIND", options.clear_deepbind, {{"keep", false}, {"clear", true}},
                "keep or clear. amem uses keep", complaints);
}

/// As torch_memory_saver reads its switches.
bool flag(Options::Getenv getenv, const char* name, std::vector<std::string>& complaints) {
  const std::string_view value = value_of(getenv, name);
  constexpr std::string_view kOn[] = {"1", "true", "TRUE", "yes", "YES"};
  constexpr std::string_view kOff[] = {"", "0", "false", "FALSE", "no", "NO"};
  if (std::find(std::begin(kOn), std::end(kOn), value) != std::end(kOn)) return true;
  if (std::find(std::begin(kOff), std::end(kOff), value) == std::end(kOff))
    complaints.push_back(complain(name, value, "0 or 1. amem uses 0"));
  return false;
}

/// What torch_memory_saver's launchers say, by the name under which they preload the shim and by
/// their variables (TMS_*), where the AMEM_* variables, which have been read, leave it open.
/// `library`: the file name of the shim in this process.
void read_saver_options(Options::Getenv getenv, std::string_view library, Options& options,
                        std::vector<std::string>& complaints) {
  const bool hook = library.starts_with("torch_memory_saver_hook_mode_");
  const bool whole = flag(getenv, "TMS_INIT_ENABLE", complaints);
  if (hook && value_of(getenv, "AMEM_SCOPE").empty()) {
    options.scope = whole ? Scope::kHeap : Scope::kRegions;
    if (whole)
      options.heap_policy = flag(getenv, "TMS_INIT_ENABLE_CPU_BACKUP", complaints)
                                ? amem_v1_RegionPolicy_REGION_POLICY_KEEP
                                : amem_v1_RegionPolicy_REGION_POLICY_DISCARD;
  }
  options.whole_process = whole && options.scope == Scope::kHeap;
  options.alone =
      hook && value_of(getenv, "AMEM_GROUP").empty() && value_of(getenv, "AMEM_GROUPID").empty();
  if (!hook) return;
  if (flag(getenv, "TMS_INIT_ENABLE_DISK_BACKUP", complaints)) {
    complaints.push_back(
        "TMS_INIT_ENABLE_DISK_BACKUP is set, but amem does not save to disks. The broker's pool "
        "keeps the bytes");
    options.heap_policy = amem_v1_RegionPolicy_REGION_POLICY_KEEP;
  }
  const std::string_view margin = value_of(getenv, "TMS_MEMORY_MARGIN_BYTES");
  const auto bytes = number_of_text<std::uint64_t>(margin);
  options.memory_margin = bytes.value_or(0);
  if (!bytes && !margin.empty())
    complaints.push_back(
        complain("TMS_MEMORY_MARGIN_BYTES", margin, "a number of bytes. amem uses 0"));
}

}  // namespace

std::string_view value_of(Options::Getenv getenv, const char* name) {
  const char* value = getenv(name);
  return value != nullptr ? std::string_view(value) : std::string_view();
}

const char* to_string(Scope scope) {
  switch (scope) {
    case Scope::kRegions:
      return "regions";
    case Scope::kHeap:
      return "heap";
    case Scope::kNccl:
      break;
  }
  return "nccl";
}

Options Options::parse(Getenv getenv, std::vector<std::string>& complaints,
                       std::string_view library) {
  Options o;
  o.disabled = read_flag(getenv, "AMEM_DISABLE", false, complaints) ||
               !read_flag(getenv, "AMEM_ENABLE", true, complaints);
  o.required = read_flag(getenv, "AMEM_REQUIRED", false, complaints);

  o.nvls = read_flag(getenv, "AMEM_NVLS", false, complaints);
  o.verify = read_flag(getenv, "AMEM_VERIFY", false, complaints);
  read_without(getenv, o, complaints);
  read_gate(getenv, o, complaints);
  read_retired(getenv, o, complaints);

  const char* source = value_of(getenv, "AMEM_GROUP").empty() ? "AMEM_GROUPID" : "AMEM_GROUP";
  if (const std::string_view group = value_of(getenv, source); !group.empty()) {
    if (valid_group_name(group))
      o.group = group;
    else
      complaints.push_back(complain(source, group, "a valid group name. amem uses \"default\""));
  }
  o.job = job_of(getenv, this_place());
  if (const std::string_view job = value_of(getenv, "AMEM_JOB"); !job.empty() && o.job != job)
    complaints.push_back(
        complain("AMEM_JOB", job, "a valid name of a job. The group is of no job"));
  if (const std::string_view stage = value_of(getenv, "AMEM_STAGE"); !stage.empty()) {
    if (valid_group_name(stage))
      o.stage = stage;
    else
      complaints.push_back(
          complain("AMEM_STAGE", stage, "a valid name of a stage. The group takes no turns"));
  }
  o.runtime_dir = value_of(getenv, "AMEM_RUNTIME_DIR");
  if (o.runtime_dir.empty()) o.runtime_dir = default_runtime_dir();
  if (auto modules = split(value_of(getenv, "AMEM_MODULES")); !modules.empty()) o.modules = modules;
  o.bypass_allowed = split(value_of(getenv, "AMEM_BYPASS_ALLOWED"));
  read_choice(getenv, "AMEM_SCOPE", o.scope,
              {{"nccl", Scope::kNccl}, {"regions", Scope::kRegions}, {"heap", Scope::kHeap}},
              "nccl, regions or heap. amem uses nccl", complaints);
  o.trace = value_of(getenv, "AMEM_TRACE");

  if (std::chrono::seconds timeout{};
      read_seconds(getenv, "AMEM_TIMEOUT", timeout, complaints), timeout.count() > 0)
    o.timeout = timeout;
  read_duration(getenv, "AMEM_RECONNECT", o.reconnect, complaints);
  read_choice(
      getenv, "AMEM_ORPHAN", o.orphan,
      {{"wait", OrphanRule::kWait}, {"exit", OrphanRule::kExit}, {"restore", OrphanRule::kRestore}},
      "wait, exit or restore. amem uses wait", complaints);

  read_choice(getenv, "AMEM_LOG", o.log_level,
              {{"error", LogLevel::kError},
               {"warn", LogLevel::kWarn},
               {"info", LogLevel::kInfo},
               {"debug", LogLevel::kDebug}},
              "error, warn, info or debug. amem uses warn", complaints);
  if (value_of(getenv, "AMEM_NCCL_SCRATCH").empty() &&
      getenv("AMEM_NCCL_OFFLOAD_FREE_TAG") != nullptr)
    o.nccl_scratch = NcclScratch::kDrop;
  read_choice(
      getenv, "AMEM_NCCL_SCRATCH", o.nccl_scratch,
      {{"keep", NcclScratch::kKeep}, {"drop", NcclScratch::kDrop}, {"prove", NcclScratch::kProve}},
      "keep, drop or prove. amem uses keep", complaints);
  read_saver_options(getenv, library, o, complaints);
  return o;
}

}  // namespace amem::shim
