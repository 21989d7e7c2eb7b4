// The commands and options that this add-on has for amemctl.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "addons/tools/advice.h"
#include "addons/tools/bench/bench.h"
#include "addons/tools/doctor.h"
#include "addons/tools/forecast.h"
#include "client/ctl/add_on.h"
#include "client/ctl/conclusions/groups.h"
#include "client/ctl/exit_code.h"
#include "client/ctl/invocation.h"
#include "client/ctl/operations.h"
#include "client/ctl/options.h"

namespace amem::ctl {
namespace {

// ---- advise -------------------------------------------------------------------------------------

int advise(const Invocation& s) {
  const auto groups = s.broker.groups();
  if (!groups.ok()) return s.end(groups.status());
  const v1::GroupInfo* const group = group_called(groups.value().groups(), s.options.group);
  if (group == nullptr) return s.end(no_such_group(s.options.group));
  const auto ranks = s.broker.ranks(s.options.group);
  if (!ranks.ok()) return s.end(ranks.status());
  v1::ListHistoryRequest request;
  request.set_group(s.options.group);
  const auto history = s.broker.history(request);
  if (!history.ok()) return s.end(history.status());
  const auto advice = advice_for(*group, ranks.value(), history.value());
  s.console.out << (s.options.json ? to_json(*group, advice) + "\n" : advice_view(*group, advice));
  return kExitOk;
}

// ---- pause --dry-run ----------------------------------------------------------------------------

/// Asks, and begins nothing.
int dry_run(const Invocation& s) {
  const auto node = s.broker.status();
  if (!node.ok()) return s.end(node.status());
  CommandLine asked = s.options;
  if (asked.all)
    for (const v1::GroupInfo& group : node.value().groups())
      if (has_work(asked.command, group)) asked.groups.push_back(group.name());
  const auto ranks = s.broker.ranks("");
  if (!ranks.ok()) return s.end(ranks.status());
  const auto history = s.broker.history({});
  if (!history.ok()) return s.end(history.status());
  const auto forecast = forecast_pause(asked, {node.value(), ranks.value(), history.value()});
  if (!forecast.ok()) return s.end(forecast.status());
  s.console.out << (s.options.json ? to_json(forecast.value()) + "\n"
                                   : forecast_view(forecast.value()));
  return forecast.value().fit == Fit::kUnsure ? kExitResources : kExitOk;
}

std::string fault_of_dry_run(const CommandLine& o) {
  if (o.explain || !o.trace.empty())
    return "pause: --dry-run cannot be used with --explain or --trace";
  if (!o.nodes.empty())
    return "pause: --dry-run asks one broker only. Remove --nodes, or unset AMEM_NODES";
  return {};
}

// ---- doctor -------------------------------------------------------------------------------------

int doctor(const CommandLine& options) {
  Console console = process_console(options.no_color);
  return diagnose(options, current_context(), console);
}

std::string fault_of_doctor(const CommandLine& o) {
  const bool node = !o.separated && o.group.empty();
  if (!node || !o.socket.empty())
    if (std::string fault = fault_of_launch("doctor", o); !fault.empty()) return fault;
  if (o.group.empty() && (!o.scope.empty() || (!node && !o.runtime_dir.empty())))
    return "doctor: --scope and --runtime-dir require --group. Without it, doctor checks the "
           "environment as it is";
  return {};
}

// ---- bench --------------------------------------------------------------------------------------

CLI::Option* add_size(CLI::App& sub, std::uint64_t& bytes) {
  return sub.add_option("--size", bytes, "Memory on each GPU: 512MiB, 4GiB, ... (default: 4GiB)")
      ->type_name("SIZE")
      ->transform(CLI::AsSizeValue(true))
      ->check(CLI::Validator(
          [](std::string& text) {
            const std::uint64_t size = std::stoull(text);
            const bool fits = size >= 1ULL << 20U && size <= 1ULL << 40U;
            return std::string(fits ? "" : "the size must be 1MiB to 1TiB, not " + text + " bytes");
          },
          ""));
}

void add_bench(CLI::App& app, CommandLine& options) {
  const auto wanted = std::make_shared<BenchOptions>();
  AddedCommand measure;
  measure.asks = [wanted](const Invocation& s) { return bench(s, *wanted, current_context()); };
  CLI::App& sub = add(app, options, measure, "bench",
                      "Measure the pause and the resume of a test group on this node, and compare "
                      "with plain copies");
  add_size(sub, wanted->bytes);
  sub.add_option("--gpus", wanted->gpus, "Use the first N GPUs (default: all)")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  sub.add_option("--rounds", wanted->rounds, "Pause and resume N times (default: 5)")
      ->type_name("N")
      ->check(CLI::Range(1, 10'000));
  show(sub, kNode, "amemctl bench --size 8GiB --rounds 3");
  // What it becomes under the shim; of no use on its own.
  struct Rank {
    int gpu = 0;
    std::uint64_t bytes = BenchOptions().bytes;
  };
  const auto rank = std::make_shared<Rank>();
  AddedCommand become;
  become.alone = [rank](const CommandLine&) { return bench_rank(rank->gpu, rank->bytes); };
  CLI::App& hidden = add(app, options, become, "bench-rank", "A rank of bench");
  hidden.group("");
  add_size(hidden, rank->bytes);
  hidden.add_option("--gpu", rank->gpu)->check(CLI::Range(0, 1023));
}

}  // namespace

void add_tools(CLI::App& app, CommandLine& options) {
  AddedCommand say;
  say.asks = advise;
  CLI::App& advising =
      add(app, options, say, "advise",
          "Say how to make a group's pauses and resumes faster, in at most five lines");
  add_group(advising, options.group, true);
  show(advising, kJobs, "amemctl advise train");

  app.get_subcommand("pause")->add_flag_callback(
      "--dry-run",
      [&options] {
        options.added.asks = dry_run;
        options.added.fault = fault_of_dry_run;
      },
      "Change nothing. Say whether the bytes fit into the pool, how long the pause would take, and "
      "what would stay on the GPU. Exit code 7: the bytes may not fit");

  AddedCommand check;
  check.alone = doctor;
  check.fault = fault_of_doctor;
  CLI::App& checking = add(app, options, check, "doctor",
                           "Check this node, or check whether amem would broker the processes of "
                           "a command. Say what is wrong, why, and how to fix it");
  add_launch(checking, options,
             "Check the command as `run --group NAME` would start it (default: as this "
             "environment would start it)",
             false);
  show(checking, kNode, "amemctl doctor --group train -- python3 train.py");

  add_bench(app, options);
}

}  // namespace amem::ctl
