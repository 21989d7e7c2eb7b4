// amemctl's command line. parse() is pure: it neither prints nor exits. Any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "amem/v1/broker.pb.h"
#include "client/ctl/add_on.h"

namespace amem::ctl {

enum class Command {
  kStatus,
  kGroups,
  kRanks,
  kQuotas,
  kMetrics,
  kHealth,
  kReady,
  kHistory,
  kAllocations,
  kPause,
  kResume,
  kSwap,
  kPrepare,
  kPolicy,
  kTurns,
  kStage,
  kLease,
  kWatch,
  kTop,
  kRun,
  kUpgrade,
  kWait,
  kVersion,
  kAdded,  // of an add-on
};

/// How much of a list people see.
enum class Detail { kUsual, kWide, kNames };

enum class WaitFor { kGroup, kIdle, kPool };
/// The state of a group that somebody waits for.
enum class Goal { kRunning, kPaused, kGone };

/// What `wait` waits for.
struct WaitTarget {
  WaitFor what = WaitFor::kGroup;
  std::string group;
  Goal goal = Goal::kRunning;
  std::uint32_t ranks = 1;  // at least; for kRunning
};

struct CommandLine {
  Command command = Command::kStatus;

  // Global.
  std::string runtime_dir;         // empty: the default
  std::string socket;              // empty: in runtime_dir
  std::string address;             // "host:port"; empty: a socket
  std::string tls_dir;             // for the address, and for nodes
  std::vector<std::string> nodes;  // "host:port", "unix:PATH"; or one "@FILE" that lists them
  bool json = false;
  Detail detail = Detail::kUsual;  // status, groups, ranks
  bool no_color = false;
  std::optional<std::chrono::milliseconds> timeout;

  std::string group;                                      // empty: all, where a command allows it
  std::vector<std::string> groups;                        // pause, resume; swap: those that go out
  std::vector<std::string> into;                          // swap: those that come in
  std::string tag;                                        // policy
  std::vector<std::string> tags;                          // pause, resume, allocations; empty: all
  std::vector<std::string> except;                        // pause, resume
  std::vector<std::string> discard;                       // pause, swap
  v1::GuestPolicy guests = v1::GUEST_POLICY_UNSPECIFIED;  // pause, swap
  v1::Policy policy = v1::POLICY_UNSPECIFIED;
  bool explain = false;                  // pause, resume, swap
  bool deep = false;                     // pause, swap
  bool force = false;                    // pause, swap, policy: the heap may be discarded
  bool all = false;                      // pause, resume: every group, one after the other
  v1::Form form = v1::FORM_UNSPECIFIED;  // policy
  v1::MetricsFormat metrics = v1::METRICS_FORMAT_OPENMETRICS;
  bool summary = false;                      // allocations
  std::uint32_t most = 20;                   // history
  bool once = false;                         // top
  std::chrono::milliseconds interval{1000};  // top

  std::string trace;  // a file. run: of driver calls; pause, resume, swap, history: of operations

  WaitTarget awaited;  // wait

  std::string stage;        // turns: empty: all; run: empty: none
  v1::SetTurnRequest turn;  // stage
  bool yield = false;       // lease

  // run, and commands that examine what it would do
  std::string scope;  // empty: the environment's
  bool required = false;
  bool job_control = false;
  bool separated = false;            // there is "--"
  std::vector<std::string> program;  // what follows it

  AddedCommand added;  // of Command::kAdded
};

struct Parsed {
  std::optional<CommandLine> options;  // else there is nothing to do but write `text` and exit
  int exit_code = 0;
  std::string text;  // to standard output when exit_code is 0, else to standard error
};

/// All commands and options, which set `options`.
void add_commands(CLI::App& app, CommandLine& options);

/// `arguments` without the program's name.
Parsed parse(std::vector<std::string> arguments);

}  // namespace amem::ctl
