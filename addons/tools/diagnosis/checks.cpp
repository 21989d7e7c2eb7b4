#include "addons/tools/diagnosis/checks.h"

#include <sys/stat.h>
#include <sys/xattr.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <sstream>
#include <string_view>

#include "addons/tools/diagnosis/nccl_library.h"
#include "client/ctl/preload.h"
#include "common/call_list.h"
#include "common/protocol.h"

namespace amem::ctl {
namespace {

constexpr const char* kUseRun = "start it with `amemctl run --group NAME -- COMMAND`";
constexpr NcclVersion kFirstWithCuMem = {2, 18};  // which can use cuMemCreate
constexpr const char* kNoSlabs =
    "NCCL allocates with cudaMalloc, so its buffers share no slabs, and it starts and pauses more "
    "slowly";
constexpr int kOldestPython = 10;            // of the package amem: 3.10
constexpr rlim_t kOpenFiles = 1024;          // a program's own and those of a resume's packet
constexpr rlim_t kLockedMemory = 8U << 20U;  // the kernel's default

/// As the shim reads a switch.
bool is_one_of(const std::string& value, std::initializer_list<std::string_view> values) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

/// The first of its exports that a library that wraps driver calls has; empty: it wraps none.
std::string wrapped_call(const ElfFacts& library) {
  for (const std::string& name : library.exports) {
    const bool driver_call = name.size() > 2 && name.starts_with("cu") &&
                             std::isupper(static_cast<unsigned char>(name[2])) != 0;
    if (driver_call || name == "dlsym") return name;
  }
  return {};
}

/// A path that says where the file is; other entries are searched for by the loader.
bool is_plain_path(const std::string& entry) {
  return entry.find('/') != std::string::npos && entry.find('$') == std::string::npos;
}

Findings check_shim_file(const std::string& shim) {
  if (!is_plain_path(shim)) return {};
  const char* why = "the loader skips it, and the command runs without amem";
  const Result<ElfFacts> elf = read_elf(shim);
  if (!elf.ok())
    return {{true, "shim-unreadable",
             "LD_PRELOAD names a shim that cannot be loaded: " + elf.status().text(), why,
             "install amem again, or set AMEM_SHIM to the right file"}};
  if (!elf.value().native)
    return {{true, "shim-architecture", shim + " is not for x86-64", why,
             "set AMEM_SHIM to the shim of this machine's architecture"}};
  if (wrapped_call(elf.value()).empty())
    return {{true, "shim-unreadable", shim + " exports no driver call", "it is not a shim of amem",
             "install amem again, or set AMEM_SHIM to the right file"}};
  struct stat st {};
  const std::string list = shim.substr(0, shim.rfind('/') + 1) + kCallListName;
  const Result<std::vector<ListedCall>> calls =
      read_call_list(list, ::stat(shim.c_str(), &st) == 0 ? st.st_uid : 0);
  if (!calls.ok() && calls.status().code() != Code::kNotFound)
    return {{false, "driver-calls", list + ": " + calls.status().text(),
             "the shim allows none of its driver calls", "write it again, or remove it"}};
  return {};
}

Findings check_before_shim(const std::string& entry) {
  const Result<ElfFacts> elf =
      is_plain_path(entry) ? read_elf(entry) : Status(Code::kNotFound, "not looked for");
  const std::string wrapped = elf.ok() ? wrapped_call(elf.value()) : "";
  if (!wrapped.empty())
    return {{false, "interposer",
             entry + " is before the shim in LD_PRELOAD and exports " + wrapped,
             "amem sees only the calls that it passes on, and amem recognizes NCCL's memory by the "
             "caller",
             "put it after the shim, or name it in AMEM_MODULES if all calls go through it"}};
  return {{false, "shim-order", entry + " is before the shim in LD_PRELOAD",
           "programs find the functions that it wraps there first",
           std::string("put the shim first, or ") + kUseRun}};
}

/// Returns 11 for a file "python3.11", also behind links. Returns 0 if the name is not a Python's
/// with its version.
int minor_of_python(const std::string& path) {
  std::error_code error;
  const std::filesystem::path file = std::filesystem::canonical(path, error);
  const std::string name = error ? path.substr(path.rfind('/') + 1) : file.filename().string();
  constexpr std::string_view kName = "python3.";
  int minor = 0;
  if (name.starts_with(kName))
    std::from_chars(name.data() + kName.size(), name.data() + name.size(), minor);
  return minor;
}

}  // namespace

Findings check_program(const CommandProgram& program, uid_t user, gid_t group) {
  const std::string& path = program.path;
  const std::string name =
      program.through.empty() ? path : path + ", which runs " + program.through.back() + ",";
  if (!program.elf.native)
    return {{true, "architecture", name + " is not for x86-64", "the shim is for x86-64 only",
             "use the program's x86-64 build"}};
  Findings findings;
  if (program.elf.interpreter.empty())
    findings.push_back({true, "static", name + " is statically linked",
                        "the loader preloads nothing into it, but amem may still broker the "
                        "programs that it starts",
                        "use a build that is linked to the C library dynamically"});
  const auto& needed = program.elf.needed;
  const bool musl = program.elf.interpreter.find("ld-musl") != std::string::npos ||
                    std::any_of(needed.begin(), needed.end(), [](const std::string& library) {
                      return library.starts_with("libc.musl");
                    });
  if (musl)
    findings.push_back({true, "musl", name + " is linked to musl",
                        "the shim does nothing there, as no CUDA driver is built for musl",
                        "use a build for glibc"});

  if (const int minor = minor_of_python(path); minor != 0 && minor < kOldestPython)
    findings.push_back({false, "python", name + " is older than 3.10",
                        "amem still brokers it, but it cannot import the package amem",
                        "use Python 3.10 or newer if the program uses `import amem`"});

  // What gains rights is started without LD_PRELOAD. Root gains none by capabilities.
  struct stat st {};
  const bool there = ::stat(path.c_str(), &st) == 0;
  if (there && (((st.st_mode & S_ISUID) != 0 && st.st_uid != user) ||
                ((st.st_mode & S_ISGID) != 0 && st.st_gid != group)))
    findings.push_back(
        {true, "setuid", name + " is setuid or setgid",
         "the loader ignores LD_PRELOAD in it, and the program may drop the variables",
         "change the user first, and start amemctl after it: `sudo amemctl run …`"});
  if (there && user != 0 && ::getxattr(path.c_str(), "security.capability", nullptr, 0) > 0)
    findings.push_back({true, "capabilities", name + " has file capabilities",
                        "the loader ignores LD_PRELOAD in it",
                        "remove them (`setcap -r " + path + "`), or use a copy without them"});
  return findings;
}

Findings check_preload(const Environment& environment) {
  const std::vector<std::string> entries = preload_entries(value_in(environment, "LD_PRELOAD"));
  const std::string named = value_in(environment, "AMEM_SHIM");
  const auto shim = std::find_if(entries.begin(), entries.end(),
                                 [&named](const auto& entry) { return is_shim(entry, named); });
  if (shim == entries.end())
    return {{true, "shim-missing", "LD_PRELOAD does not name " + std::string(kShimName),
             "the process does not load amem", kUseRun}};
  Findings findings = check_shim_file(*shim);
  for (auto before = entries.begin(); before != shim; ++before) {
    const Findings more = check_before_shim(*before);
    findings.insert(findings.end(), more.begin(), more.end());
  }
  return findings;
}

Environment with_hook_defaults(Environment environment) {
  for (const std::string& entry : preload_entries(value_in(environment, "LD_PRELOAD"))) {
    if (!is_shim(entry, value_in(environment, "AMEM_SHIM"))) continue;
    if (!is_hook(entry)) break;  // the first one acts
    if (value_in(environment, "AMEM_SCOPE").empty())
      environment["AMEM_SCOPE"] =
          is_one_of(value_in(environment, "TMS_INIT_ENABLE"), {"1", "true", "TRUE", "yes", "YES"})
              ? "heap"
              : "regions";
    if (value_in(environment, "AMEM_GROUP").empty() &&
        value_in(environment, "AMEM_GROUPID").empty()) {
      environment["AMEM_GROUP"] = "tms-PID-NUMBER";
      environment.erase("NCCL_CUMEM_ENABLE");  // NCCL's memory is the driver's, whatever it says
    }
    break;
  }
  return environment;
}

Findings check_variables(const Environment& environment) {
  Findings findings;
  const auto value = [&environment](const char* name) { return value_in(environment, name); };
  if (is_one_of(value("AMEM_DISABLE"), {"1", "true", "yes", "on"}) ||
      is_one_of(value("AMEM_ENABLE"), {"0", "false", "no", "off"}))
    findings.push_back({true, "disabled", "AMEM_DISABLE is set, or AMEM_ENABLE is 0",
                        "the shim does nothing", "unset both"});
  const std::string scope = value("AMEM_SCOPE");
  if (!is_one_of(scope, {"", "nccl", "regions", "heap"}))
    findings.push_back({true, "scope", "AMEM_SCOPE=" + scope + " is not a valid scope",
                        "the shim uses nccl, so amem brokers only NCCL's memory",
                        "set nccl, regions or heap"});
  const std::string group = value("AMEM_GROUP");
  if (!group.empty() && !valid_group_name(group))
    findings.push_back({false, "group", "AMEM_GROUP=" + group + " is not a valid group name",
                        "the shim uses the group \"default\"",
                        "use 1 to 63 characters of [A-Za-z0-9._-], and do not begin with . or -"});
  if (const std::string libraries = value("AMEM_BYPASS_ALLOWED"); !libraries.empty())
    findings.push_back({false, "bypass", "AMEM_BYPASS_ALLOWED=" + libraries,
                        "work that these libraries submit past the shim continues while the group "
                        "is paused, and must not touch brokered memory",
                        "unset it, or keep it for libraries that you know"});
  for (const char* retired :
       {"AMEM_DEEPBIND", "AMEM_GATE_TIMEOUT", "AMEM_SLAB", "AMEM_UNMAP_AHEAD"})
    if (!value(retired).empty())
      findings.push_back({false, "retired", std::string(retired) + " is set",
                          "the next version of amem will not have this variable",
                          "the shim's warning in the output of the job says what to set instead"});
  if (value("NCCL_CUMEM_ENABLE") == "0")
    findings.push_back(
        {false, "nccl-cumem", "NCCL_CUMEM_ENABLE is 0", kNoSlabs, "unset it, or set 1"});
  return findings;
}

Findings check_limits(rlim_t open_files, rlim_t locked_memory) {
  Findings findings;
  if (open_files < kOpenFiles)
    findings.push_back({false, "open-files",
                        "the limit of open files is " + std::to_string(open_files),
                        "a resume sends the rank one descriptor for each allocation",
                        "raise it: `ulimit -n " + std::to_string(kOpenFiles) + "` or more"});
  if (locked_memory < kLockedMemory)
    findings.push_back({false, "locked-memory",
                        "the limit of locked memory is " + std::to_string(locked_memory) + " bytes",
                        "pinning the pool's memory, or NCCL's for a NIC, may fail",
                        "raise it: `ulimit -l unlimited`, or --ulimit memlock=-1 for a container"});
  return findings;
}

Findings check_nccl(const std::string& libnccl) {
  const std::optional<NcclVersion> version = nccl_version(libnccl);
  if (!version || *version >= kFirstWithCuMem) return {};
  return {{false, "nccl-version",
           libnccl + " is NCCL " + std::to_string(version->major) + "." +
               std::to_string(version->minor),
           kNoSlabs, "use NCCL 2.19 or newer"}};
}

}  // namespace amem::ctl
