#include "client/ctl/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <sstream>

#include "client/ctl/command_help.h"
#include "client/ctl/exit_code.h"
#include "client/ctl/options.h"
#include "client/ctl/views/format.h"
#include "common/form.h"
#include "common/protocol.h"
#include "common/version.h"

namespace amem::ctl {
namespace {

CLI::Option* add_duration(CLI::App& app, const std::string& name, const std::string& help,
                          std::function<void(std::chrono::milliseconds)> set) {
  return app
      .add_option_function<std::string>(
          name,
          [name, set = std::move(set)](const std::string& text) {
            const auto duration = parse_duration(text);
            if (!duration) {
              throw CLI::ValidationError(
                  name, "\"" + text +
                            "\" is not a valid time. Use 500ms, 30s, 2m, or a number of seconds");
            }
            set(*duration);
          },
          help)
      ->type_name("TIME");
}

std::vector<std::string> form_names() {
  std::vector<std::string> names;
  for (const FormRule& each : kForms)
    if (each.offered) names.emplace_back(each.name);
  return names;
}

/// In the order of the alphabet.
template <class Value>
std::vector<std::string> names_of(const std::map<std::string, Value>& values) {
  std::vector<std::string> names;
  for (const auto& [name, value] : values) names.push_back(name);
  return names;
}

void add_globals(CLI::App& app, CommandLine& options) {
  app.add_option("--runtime-dir", options.runtime_dir,
                 "The broker's runtime directory; see \"Where the broker is\"")
      ->type_name("DIR");
  app.add_option("--socket", options.socket,
                 "The broker's control socket, if it is not in the runtime directory")
      ->type_name("PATH");
  app.add_option("--address", options.address,
                 "The broker of another node, by TCP with mutual TLS, instead of a socket")
      ->type_name("HOST:PORT")
      ->envname("AMEM_ADDRESS");
  app.add_option("--tls", options.tls_dir,
                 "Directory with ca.crt, tls.crt and tls.key, for --address and --nodes")
      ->type_name("DIR")
      ->envname("AMEM_TLS");
  app.add_option("--nodes", options.nodes,
                 "Nodes: A,B,C, or @FILE with one address on each line. The local broker (or the "
                 "broker of --address) leads pause, resume and swap as one operation on all nodes. "
                 "amemctl asks each node for status, groups, health and version")
      ->type_name("HOST:PORT,...")
      ->delimiter(',')
      ->envname("AMEM_NODES");
  app.add_flag("--json", options.json, "Print JSON for programs, one object per line");
  add_duration(app, "--timeout", "How long to wait; see \"Times\"",
               [&options](std::chrono::milliseconds time) { options.timeout = time; });
  app.add_flag("--no-color", options.no_color,
               "Print no colours (also: NO_COLOR in the environment)");
}

void add_groups(CLI::App& sub, std::vector<std::string>& groups, const std::string& help) {
  sub.add_option("GROUP", groups, help)->type_name("")->check(group_name())->required();
}

/// Groups, or `--all`: see take_all().
void add_groups_or_all(CLI::App& sub, CommandLine& o, const std::string& help,
                       const std::string& all) {
  add_groups(sub, o.groups, help);
  sub.add_flag("--all", o.all, all);
}

/// `NAME TAG...`; may be given several times.
CLI::Option* add_tags(CLI::App& sub, const std::string& name, std::vector<std::string>& tags,
                      const std::string& help) {
  return sub.add_option(name, tags, help)
      ->type_name("TAG")
      ->check(CLI::Validator(
          [](std::string& text) { return std::string(text.empty() ? "a tag is empty" : ""); }, ""));
}

/// "kv_cache,weights", or "none".
void set_order(const std::string& text, google::protobuf::RepeatedPtrField<std::string>& tags) {
  tags.Clear();
  if (text == "none") return;
  std::istringstream words(text);
  for (std::string tag; std::getline(words, tag, ',');) *tags.Add() = tag;
}

/// `then`: what the group does afterwards.
void add_selection(CLI::App& sub, CommandLine& o, const std::string& then) {
  CLI::Option* tags =
      add_tags(sub, "--tag", o.tags, "Only memory with one of these tags; the group " + then);
  add_tags(sub, "--except", o.except, "All memory without these tags; the group " + then)
      ->excludes(tags);
}

constexpr const char* kDiscardHelp =
    "Drop the bytes of these tags in this pause, whatever their policy; a resume provides zeros";

/// Adds --force, with which `option` may name the heap.
void add_force(CLI::App& sub, CommandLine& o, const std::string& option) {
  sub.add_flag("--force", o.force,
               "Allow " + option +
                   " for tag heap: all memory that no region names, such as weights and optimizer "
                   "state. The job loses its bytes")
      ->needs(sub.get_option(option));
}

void add_trace(CLI::App& sub, CommandLine& o, const std::string& help) {
  sub.add_option("--trace", o.trace, help)->type_name("FILE");
}

void add_explain(CLI::App& sub, CommandLine& o) {
  sub.add_flag("--explain", o.explain,
               "Show where the time went: by phase, by rank and within each rank");
  add_trace(sub, o,
            "Write the times of each phase, copy and driver call to this file, with a lane for "
            "each rank. The file has Chrome's trace events; open it in ui.perfetto.dev");
}

void add_guests(CLI::App& sub, CommandLine& o) {
  sub.add_option_function<std::string>(
         "--guests",
         [&o](const std::string& text) {
           o.guests = text == "pin" ? v1::GUEST_POLICY_PIN : v1::GUEST_POLICY_REFUSE;
         },
         "What to do with memory that other groups still have open after a short wait. pin: leave "
         "it on its device; refuse: fail, and the group continues to run")
      ->type_name("POLICY")
      ->check(CLI::IsMember({"pin", "refuse"}));
}

void add_operations(CLI::App& app, CommandLine& o) {
  CLI::App& pause = add(app, o, Command::kPause, "pause",
                        "Pause groups: save their bytes and free their GPU memory");
  add_groups_or_all(
      pause, o, "The group, or several groups: the broker pauses all of them or none",
      "Pause every running group that you may see, one after another, each in its own operation");
  add_selection(pause, o, "continues to run");
  add_tags(pause, "--discard", o.discard, kDiscardHelp);
  add_force(pause, o, "--discard");
  add_guests(pause, o);
  pause.add_flag("--deep", o.deep,
                 "Leave nothing on the GPUs: the driver checkpoints the processes after the pause, "
                 "and a resume restores them first. Also for groups that are paused already");
  add_explain(pause, o);
  CLI::App& resume = add(app, o, Command::kResume, "resume",
                         "Resume groups: create their GPU memory again and restore its bytes");
  add_groups_or_all(resume, o,
                    "The group, or several groups: the broker resumes all of them or none",
                    "Resume every group that you may see and that has paused memory, one after "
                    "another, each in its own operation");
  add_selection(resume, o, "runs afterwards");
  add_explain(resume, o);
  CLI::App& swap = add(app, o, Command::kSwap, "swap",
                       "Pause one group and resume another: amemctl swap OUT IN");
  add_groups(
      swap, o.groups,
      "OUT, the group to pause, and IN, the group to resume. With --for: all groups to pause");
  swap.add_option("--for", o.into,
                  "The groups to resume, if there are several groups on either side")
      ->type_name("IN")
      ->check(group_name());
  add_tags(swap, "--discard", o.discard,
           std::string(kDiscardHelp) + ". Applies to the groups that pause");
  add_force(swap, o, "--discard");
  add_guests(swap, o);
  swap.add_flag(
      "--deep", o.deep,
      "Leave nothing of the groups that pause on the GPUs, as `amemctl pause --deep`. The "
      "groups that resume do not wait for that");
  add_explain(swap, o);
  CLI::App& prepare = add(app, o, Command::kPrepare, "prepare",
                          "Pin the host memory that a pause of groups needs, so that it need not "
                          "wait for that");
  add_groups(prepare, o.groups, "The group, or the groups that one pause will take");
  CLI::App& policy =
      add(app, o, Command::kPolicy, "policy", "Set what a pause does with the bytes of a tag");
  add_group(policy, o.group, true);
  policy.add_option("TAG", o.tag, "Label of allocations, e.g. nccl")->type_name("")->required();
  policy
      .add_option_function<std::string>(
          "POLICY",
          [&o](const std::string& text) {
            o.policy = text == "keep" ? v1::POLICY_KEEP : v1::POLICY_DISCARD;
          },
          "keep: copy to the pool and restore; discard: drop, and a resume provides zeros")
      ->type_name("")
      ->check(CLI::IsMember({"keep", "discard"}));
  add_force(policy, o, "POLICY");
  policy
      .add_option_function<std::string>(
          "--save",
          [&o](const std::string& text) {
            if (const std::optional<Form> form = form_named(text))
              o.form = static_cast<v1::Form>(*form);
          },
          "How to save kept bytes. dense: all of them; sparse: without blocks of zeros; auto: "
          "whichever suits the bytes")
      ->type_name("FORM")
      ->check(CLI::IsMember(form_names()));
}

const CLI::Validator& stage_name() {
  static const CLI::Validator validator(
      [](std::string& text) {
        return valid_group_name(text) ? std::string()
                                      : "\"" + text + "\" is not a valid name of a stage";
      },
      "", "stage name");
  return validator;
}

void add_turns(CLI::App& app, CommandLine& o) {
  CLI::App& stage = add(app, o, Command::kStage, "stage",
                        "Set in which stage a group takes turns, and what its turns depend on");
  add_group(stage, o.group, true);
  stage
      .add_option_function<std::string>(
          "STAGE",
          [&o](const std::string& text) {
            o.turn.set_set_stage(true);
            o.turn.set_stage(text == "none" ? "" : text);
          },
          "The stage, or none: the group leaves its stage")
      ->type_name("")
      ->check(stage_name());
  stage
      .add_option_function<std::uint32_t>(
          "--weight", [&o](std::uint32_t weight) { o.turn.set_weight(weight); },
          "In a stage with the policy slice, its turns are N times as long (1 to 100)")
      ->type_name("N")
      ->check(CLI::Range(1, 100));
  stage
      .add_option_function<std::int32_t>(
          "--priority",
          [&o](std::int32_t priority) {
            o.turn.set_set_priority(true);
            o.turn.set_priority(priority);
          },
          "In a stage with another policy, more comes first (-100 to 100)")
      ->type_name("N")
      ->check(CLI::Range(-100, 100));
  stage
      .add_option_function<std::string>(
          "--longest-wait",
          [&o](const std::string& text) {
            const auto wait = text == "none"
                                  ? std::chrono::milliseconds(0)
                                  : parse_duration(text).value_or(std::chrono::milliseconds(-1));
            if (wait.count() < 0)
              throw CLI::ValidationError(
                  "--longest-wait", "\"" + text + "\" is not a valid time. Use 30s, 5m or none");
            o.turn.set_set_longest_wait(true);
            o.turn.set_longest_wait_ms(static_cast<std::uint64_t>(wait.count()));
          },
          "It waits no longer than this for its turn; amemd refuses what it cannot promise")
      ->type_name("TIME");
  stage
      .add_option_function<std::string>(
          "--leave-first",
          [&o](const std::string& tags) {
            o.turn.set_set_leave_first(true);
            set_order(tags, *o.turn.mutable_leave_first());
          },
          "Tags with commas between them: at the end of its turn only their memory leaves, in this "
          "order, where that is enough; none: all memory leaves")
      ->type_name("TAGS");
  stage
      .add_option_function<std::string>(
          "--return",
          [&o](const std::string& tags) {
            o.turn.set_set_return_order(true);
            set_order(tags, *o.turn.mutable_return_order());
          },
          "Tags with commas between them: their memory returns before the rest, in this order; "
          "none: no order")
      ->type_name("TAGS");
  CLI::App& lease = add(app, o, Command::kLease, "lease",
                        "Ask for a group's turn in a stage with the policy lease, and wait for it");
  add_group(lease, o.group, true);
  lease.add_flag("--yield", o.yield, "End the group's turn instead");
}

void add_wait(CLI::App& app, CommandLine& o) {
  static const std::map<std::string, WaitFor> kWhat = {
      {"group", WaitFor::kGroup}, {"idle", WaitFor::kIdle}, {"pool", WaitFor::kPool}};
  static const std::map<std::string, Goal> kGoals = {
      {"running", Goal::kRunning}, {"paused", Goal::kPaused}, {"gone", Goal::kGone}};
  CLI::App& sub = add(app, o, Command::kWait, "wait",
                      "Wait until a group runs, is paused or is gone, until no operation runs, or "
                      "until the pool has its full size");
  sub.add_option_function<std::string>(
         "WHAT", [&o](const std::string& text) { o.awaited.what = kWhat.at(text); },
         "group: the group reaches the state of --for; idle: no pause, resume or swap runs; pool: "
         "amemd serves, and its pool has its full size")
      ->required()
      ->type_name("")
      ->check(CLI::IsMember(names_of(kWhat)));
  add_group_as(sub, o.awaited.group, "The group, for `wait group`", false);
  sub.add_option_function<std::string>(
         "--for", [&o](const std::string& text) { o.awaited.goal = kGoals.at(text); },
         "The state to wait for (default: running)")
      ->type_name("STATE")
      ->check(CLI::IsMember(names_of(kGoals)));
  sub.add_option("--ranks", o.awaited.ranks,
                 "The least number of ranks that the running group must have (default: 1)")
      ->type_name("N")
      ->check(CLI::Range(1, 1'000'000));
}

/// With `--all` no group is named. GROUP is required otherwise, as CLI11 then leaves the last word
/// of `resume --tag weights train` to it.
void take_all(CLI::App& app, const std::vector<std::string>& arguments) {
  if (std::find(arguments.begin(), arguments.end(), "--all") == arguments.end()) return;
  for (const char* name : {"pause", "resume"})
    app.get_subcommand(name)->get_option("GROUP")->required(false);
}

/// Returns what is wrong with this pause or resume; empty: nothing.
std::string fault_of_operation(const CommandLine& o) {
  const std::string name = o.command == Command::kPause ? "pause" : "resume";
  if (o.all && !o.groups.empty())
    return name + ": --all cannot be used with groups. Pass one of them";
  if (o.all && !(o.tags.empty() && o.except.empty() && o.discard.empty()))
    return name +
           ": --all cannot be used with --tag, --except or --discard. Name the groups that have "
           "these tags";
  if (o.all && !o.trace.empty())
    return name +
           ": --all runs several operations and cannot be used with --trace. `amemctl history "
           "--trace FILE` writes all of them";
  if (o.all && !o.nodes.empty())
    return name + ": --all asks one broker only. Remove --nodes, or unset AMEM_NODES";
  if (o.deep && !(o.tags.empty() && o.except.empty()))
    return name + ": --deep takes all memory of a group and cannot be used with --tag or --except";
  if (o.deep && !o.nodes.empty()) return name + ": --deep cannot be used with --nodes";
  return {};
}

/// Returns what is wrong with this wait; empty: nothing.
std::string fault_of_wait(const WaitTarget& awaited) {
  const bool group = awaited.what == WaitFor::kGroup;
  if (group && awaited.group.empty()) return "wait group requires a name: wait group NAME";
  if (!group && !awaited.group.empty())
    return "wait: only `wait group` takes a name. Remove \"" + awaited.group + "\"";
  if (!group && (awaited.goal != Goal::kRunning || awaited.ranks > 1))
    return "wait: only `wait group` supports --for and --ranks";
  if (awaited.goal != Goal::kRunning && awaited.ranks > 1)
    return "wait: --ranks requires --for running, which is the default";
  return {};
}

/// `wide`: what it shows more.
void add_output(CLI::App& sub, CommandLine& o, const std::string& wide, bool has_names) {
  std::vector<std::string> formats = {"wide", "json"};
  if (has_names) formats.emplace_back("name");
  sub.add_option_function<std::string>(
         "-o,--output",
         [&o](const std::string& text) {
           if (text == "json") o.json = true;
           if (text == "wide") o.detail = Detail::kWide;
           if (text == "name") o.detail = Detail::kNames;
         },
         "wide: adds " + wide + "; json: same as --json" +
             (has_names ? "; name: one name on each line and nothing else" : ""))
      ->type_name("FORMAT")
      ->check(CLI::IsMember(formats));
}

void add_queries(CLI::App& app, CommandLine& o) {
  add_output(
      add(app, o, Command::kStatus, "status", "Show the node: broker, pool, devices, groups"), o,
      "everything that `groups` shows", false);
  CLI::App& groups = add(app, o, Command::kGroups, "groups",
                         "Show groups: state, memory by device and tag, policies");
  add_group(groups, o.group, false);
  add_output(groups, o, "the owner and the address of each group", true);
  CLI::App& ranks =
      add(app, o, Command::kRanks, "ranks", "Show ranks, the processes of the groups");
  add_group(ranks, o.group, false);
  add_output(ranks, o,
             "the memory of each rank by tag, and the memory of other groups that it has opened",
             true);
  CLI::App& allocations =
      add(app, o, Command::kAllocations, "allocations", "List allocations, oldest first");
  add_group(allocations, o.group, false);
  add_tags(allocations, "--tag", o.tags, "Only memory with one of these tags");
  allocations.add_flag("--summary", o.summary,
                       "Show totals by group, tag, device and policy instead of a list");
  CLI::App& top = add(app, o, Command::kTop, "top", "Show a screen that refreshes; q quits");
  top.add_flag("--once", o.once, "Print one screen and exit");
  add_duration(top, "--interval", "Time between refreshes (default: 1s)",
               [&o](std::chrono::milliseconds time) { o.interval = time; });
  add_group(add(app, o, Command::kWatch, "watch", "Print events until interrupted"), o.group,
            false);
  add(app, o, Command::kTurns, "turns",
      "Show stages: which groups run, which wait for how long, and why the last switch was")
      .add_option("STAGE", o.stage, "Only this stage (default: all)")
      ->type_name("")
      ->check(stage_name());
  CLI::App& history = add(app, o, Command::kHistory, "history",
                          "Show the last pauses and resumes: durations and results");
  add_group(history, o.group, false);
  history
      .add_option("--most", o.most,
                  "Show the latest N operations (default: 20; 0: all that amemd remembers)")
      ->type_name("N");
  add_trace(history, o,
            "Also write them to this file as Chrome's trace events; open it in ui.perfetto.dev");
  add(app, o, Command::kQuotas, "quotas",
      "Show quotas: what each user uses of amemd's resources, and the limits");
  add(app, o, Command::kMetrics, "metrics",
      "Print metrics of the groups that you may see, as text for Prometheus")
      .add_option_function<std::string>(
          "--format",
          [&o](const std::string& text) {
            o.metrics = text == "prometheus" ? v1::METRICS_FORMAT_PROMETHEUS
                                             : v1::METRICS_FORMAT_OPENMETRICS;
          },
          "openmetrics (default), or prometheus: Prometheus's own text format, for promtool and "
          "the textfile collector of the node exporter")
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"openmetrics", "prometheus"}));
}

void add_run(CLI::App& app, CommandLine& o) {
  CLI::App& run = add(app, o, Command::kRun, "run",
                      "Run a command as a rank of a group: amemctl run --group NAME -- COMMAND...");
  add_launch(run, o, "The group that its processes join", true);
  run.add_option("--stage", o.stage,
                 "The stage in which the group takes turns on its GPUs. A new group waits for its "
                 "first turn before the command starts, for --timeout at most")
      ->type_name("NAME")
      ->check(stage_name());
  run.add_flag("--required", o.required, "Fail without a broker instead of running without amem");
  run.add_flag("--job-control", o.job_control,
               "Stay above the command, so that Ctrl-Z, `kill -TSTP` and Slurm's suspend free the "
               "GPU, and `fg` brings its memory back");
  run.add_option(
         "--trace", o.trace,
         "Record the driver calls of each process in this file; %p in the name becomes the pid")
      ->type_name("FILE");
}

/// Whether the command has the options of add_launch().
bool takes_program(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return std::any_of(chosen.begin(), chosen.end(), [](const CLI::App* command) {
    return command->get_option_no_throw("--scope") != nullptr;
  });
}

Parsed usage(const std::string& text) {
  return {std::nullopt, kExitUsage, "amemctl: " + text + "\nRun amemctl --help for usage.\n"};
}

}  // namespace

void add_commands(CLI::App& app, CommandLine& options) {
  app.name("amemctl")->description(
      "amemctl: show and control the groups whose GPU memory amemd owns");
  app.require_subcommand(1);
  app.fallthrough();  // global options may follow the subcommand
  app.set_version_flag("--version", std::string(kVersion));
  add_globals(app, options);
  // In the order of --help.
  add_run(app, options);
  add_wait(app, options);
  add_operations(app, options);
  add_turns(app, options);
  add_queries(app, options);
  add(app, options, Command::kHealth, "health",
      "Check whether amemd serves, for probes: exit code 0 if it answers in time");
  add_group(add(app, options, Command::kReady, "ready",
                "Check whether a group runs, for routers and probes: exit code 0 if it runs, 5 if "
                "it is paused"),
            options.group, true);
  add(app, options, Command::kUpgrade, "upgrade",
      "Replace the running amemd with the installed one. Ranks continue to run, and paused groups "
      "stay paused");
  add(app, options, Command::kVersion, "version", "Show the versions of amemctl and of the broker");
  add_tools(app, options);
  add_help(app);
}

Parsed parse(std::vector<std::string> arguments) {
  CommandLine options;
  CLI::App app;
  add_commands(app, options);

  // What follows "--" is another program's command line: CLI11 must not look at it.
  const auto separator = std::find(arguments.begin(), arguments.end(), "--");
  const bool separated = separator != arguments.end();
  options.separated = separated;
  if (separated) {
    options.program.assign(separator + 1, arguments.end());
    arguments.erase(separator, arguments.end());
  }
  take_all(app, arguments);
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
  try {
    app.parse(arguments);
  } catch (const CLI::Success& request) {  // --help, --version
    std::ostringstream out;
    std::ostringstream err;
    app.exit(request, out, err);
    return {std::nullopt, kExitOk, out.str()};
  } catch (const CLI::ExtrasError& error) {
    const bool missing = takes_program(app) && !separated;
    return usage(error.what() +
                 std::string(missing ? ". Write the command to run after \"--\"" : ""));
  } catch (const CLI::RequiredError& error) {
    // CLI11 misses the command before it minds a word that is none.
    if (app.get_subcommands().empty() && app.remaining_size() > 0) {
      return usage("there is no command \"" + app.remaining().front() + "\"");
    }
    return usage(error.what());
  } catch (const CLI::ParseError& error) {
    return usage(error.what());
  }
  if (!options.address.empty() && options.tls_dir.empty())
    return usage(
        "--address requires --tls DIR (or AMEM_TLS), the directory with ca.crt, tls.crt and "
        "tls.key");
  if (options.command == Command::kSwap && options.into.empty()) {
    if (options.groups.size() != 2) {
      return usage("swap requires two groups, OUT and IN, or OUT... --for IN...");
    }
    options.into = {options.groups.back()};
    options.groups.pop_back();
  }
  if (options.command == Command::kPolicy && options.policy == v1::POLICY_UNSPECIFIED &&
      options.form == v1::FORM_UNSPECIFIED) {
    return usage("policy: there is nothing to set. Pass POLICY, --save or both");
  }
  if (options.command == Command::kStage && !options.turn.set_stage() &&
      options.turn.weight() == 0 && !options.turn.set_priority() &&
      !options.turn.set_longest_wait() && !options.turn.set_leave_first() &&
      !options.turn.set_return_order())
    return usage(
        "stage: there is nothing to set. Pass STAGE, --weight, --priority, --longest-wait, "
        "--leave-first or --return");
  if (options.command == Command::kPause || options.command == Command::kResume) {
    if (const std::string fault = fault_of_operation(options); !fault.empty()) return usage(fault);
  }
  if (options.command == Command::kWait) {
    if (const std::string fault = fault_of_wait(options.awaited); !fault.empty())
      return usage(fault);
  }
  if (separated && !takes_program(app))
    return usage("only commands that start a program, such as run, take one after \"--\"");
  if (options.command == Command::kRun) {
    if (const std::string fault = fault_of_launch("run", options); !fault.empty())
      return usage(fault);
  }
  if (options.added.fault) {
    if (const std::string fault = options.added.fault(options); !fault.empty()) return usage(fault);
  }
  return {std::move(options), kExitOk, {}};
}

}  // namespace amem::ctl
