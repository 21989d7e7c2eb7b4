#include "addons/tools/doctor.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "addons/tools/diagnosis/checks.h"
#include "addons/tools/diagnosis/nccl_library.h"
#include "addons/tools/diagnosis/program.h"
#include "client/core/control_client.h"
#include "client/core/endpoint.h"
#include "client/core/json.h"
#include "client/ctl/exit_code.h"
#include "client/ctl/views/format.h"

namespace amem::ctl {
namespace {

/// Checks the limits of this process, which the command would inherit.
Findings check_limits() {
  rlimit files{};
  rlimit locked{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0 || ::getrlimit(RLIMIT_MEMLOCK, &locked) != 0)
    return {};
  return ctl::check_limits(files.rlim_cur, locked.rlim_cur);
}

void add(Findings& findings, const Findings& more) {
  findings.insert(findings.end(), more.begin(), more.end());
}

bool blocks(const Findings& findings) {
  return std::any_of(findings.begin(), findings.end(), [](const Finding& f) { return f.blocks; });
}

struct Diagnosis {
  std::string command;  // as it was given
  std::string program;  // the file that would run; the same where that is not known
  Environment environment;
  std::string runtime_dir;
  Findings findings;

  bool brokered() const { return !blocks(findings); }
  /// A variable, as the shim takes it when it is not set.
  std::string chosen(const char* name, const char* otherwise) const {
    const std::string value = value_in(environment, name);
    return value.empty() ? otherwise : value;
  }
};

Diagnosis examine(const CommandLine& options, const RunContext& context) {
  Diagnosis d{options.program.front(), options.program.front(), context.environment, {}, {}};
  bool shim_is_known = true;
  if (!options.group.empty()) {
    const auto plan = plan_run(options, context);
    if (plan.ok()) {
      for (const auto& [name, value] : plan.value().environment) d.environment[name] = value;
    } else {
      shim_is_known = false;
      add(d.findings, {{true, "shim-missing", "amemctl run would not start the command",
                        "it requires the shim", plan.status().text()}});
    }
  }
  const auto program = find_program(options.program, d.environment);
  std::string runpath;
  if (program.ok()) {
    d.program = program.value().path;
    d.environment = program.value().environment;
    runpath = program.value().elf.runpath;
    add(d.findings, check_program(program.value(), ::geteuid(), ::getegid()));
  } else {
    add(d.findings, {{true, "command", program.status().text(), "the command does not start",
                      "name a program that this user may execute"}});
  }
  add(d.findings, check_host(look_at_host(d.environment)));
  d.environment = with_hook_defaults(std::move(d.environment));
  if (shim_is_known) add(d.findings, check_preload(d.environment));
  add(d.findings, check_variables(d.environment));
  add(d.findings, check_allocators(d.environment));
  d.runtime_dir = value_in(d.environment, "AMEM_RUNTIME_DIR");
  if (d.runtime_dir.empty()) d.runtime_dir = context.runtime_dir;
  add(d.findings,
      check_broker_in(d.runtime_dir, options.timeout.value_or(client::kDefaultQueryTimeout)));
  add(d.findings, check_nccl(find_nccl(d.program, runpath, d.environment)));
  add(d.findings, check_limits());
  return d;
}

std::string lines_of(const Findings& findings) {
  std::string text;
  for (const Finding& f : findings)
    text += (f.blocks ? "problem: " : "warning: ") +
            printable(f.what + ": " + f.why + "; " + f.remedy) + "\n";
  return text;
}

client::Json json_of(const Findings& findings) {
  client::Json list = client::Json::array();
  for (const Finding& f : findings)
    list.push_back({{"check", f.check},
                    {"blocks", f.blocks},
                    {"what", f.what},
                    {"why", f.why},
                    {"remedy", f.remedy}});
  return list;
}

/// Examines the node with this user's rights, and what amemd says of itself.
int diagnose_node(const CommandLine& options, const RunContext& context, Console& console) {
  const auto timeout = options.timeout.value_or(client::kDefaultQueryTimeout);
  const DriverFacts driver = look_at_driver(timeout);
  Findings findings = check_driver(driver, context.environment);
  const std::string dir = options.runtime_dir.empty() ? context.runtime_dir : options.runtime_dir;
  add(findings, check_host(look_at_host(context.environment)));
  add(findings, check_allocators_of_jobs(context.environment));
  add(findings, check_broker_in(dir, timeout));
  std::string summary;
  const auto control = client::control_socket(dir, "");
  if (control.ok() && !blocks(findings)) {
    client::ControlClient broker(control.value(), timeout);
    if (const auto status = broker.status(); status.ok()) {
      const v1::NodeStatus& node = status.value();
      add(findings, check_node(node, driver, open_files_of(node.pid())));
      if (const auto ranks = broker.ranks(""); ranks.ok())
        add(findings, check_ranks(ranks.value()));
      summary = "amemd " + node.version() + " in " + dir + " serves " +
                std::to_string(node.devices_size()) +
                (node.devices_size() == 1 ? " GPU" : " GPUs") + ", pool " +
                format_bytes(node.pool().ready_bytes()) + " (" + node.pool().place() + ")";
    }
  }
  add(findings, check_limits());
  const bool healthy = !blocks(findings);
  if (options.json)
    console.out << client::text_of({{"healthy", healthy},
                                    {"runtime_dir", dir},
                                    {"findings", json_of(findings)}})
                << '\n';
  else
    console.out << lines_of(findings)
                << (healthy ? (summary.empty() ? "no problem was found" : printable(summary))
                            : "amem would broker no ranks on this node, or not all of them")
                << "\n";
  console.out.flush();
  return healthy && console.out ? kExitOk : kExitFailed;
}

std::string as_text(const Diagnosis& d) {
  std::string text = lines_of(d.findings);
  text += printable(d.command + (d.program == d.command ? "" : " (" + d.program + ")"));
  if (!d.brokered()) return text + " would not be brokered\n";
  return text + " would be brokered: " +
         printable("group " + d.chosen("AMEM_GROUP", "default") + ", scope " +
                   d.chosen("AMEM_SCOPE", "nccl") + ", broker in " + d.runtime_dir) +
         "\n";
}

std::string as_json(const Diagnosis& d) {
  return client::text_of({{"program", d.program},
                          {"brokered", d.brokered()},
                          {"group", d.chosen("AMEM_GROUP", "default")},
                          {"scope", d.chosen("AMEM_SCOPE", "nccl")},
                          {"runtime_dir", d.runtime_dir},
                          {"findings", json_of(d.findings)}}) +
         "\n";
}

}  // namespace

int diagnose(const CommandLine& options, const RunContext& context, Console& console) {
  if (options.program.empty()) return diagnose_node(options, context, console);
  const Diagnosis diagnosis = examine(options, context);
  console.out << (options.json ? as_json(diagnosis) : as_text(diagnosis)) << std::flush;
  return diagnosis.brokered() && console.out ? kExitOk : kExitFailed;
}

}  // namespace amem::ctl
