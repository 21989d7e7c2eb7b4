// Options that several commands have, for those that add commands to amemctl. Functions on the
// thread that parses.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <functional>
#include <string>

#include "client/ctl/command_line.h"

namespace amem::ctl {

const CLI::Validator& group_name();

/// A subcommand that sets `command` when it is chosen.
CLI::App& add(CLI::App& app, CommandLine& options, Command command, const std::string& name,
              const std::string& help);
/// The same, of an add-on.
CLI::App& add(CLI::App& app, CommandLine& options, AddedCommand command, const std::string& name,
              const std::string& help);

/// GROUP, with this help.
void add_group_as(CLI::App& sub, std::string& group, const std::string& help, bool required);
/// The same, for a command about one group, or about all if it is not required.
void add_group(CLI::App& sub, std::string& group, bool required);

/// `--group` and `--scope`, as `run` takes them. The command takes a program after "--", too.
void add_launch(CLI::App& sub, CommandLine& options, const std::string& group_help, bool required);
/// Why `run`, or a command that examines what it would do, is wrong usage; empty: it is right.
std::string fault_of_launch(const std::string& command, const CommandLine& options);

/// In --help of all commands: the group of commands, and an example.
void show(CLI::App& sub, const char* group, const char* example);
inline constexpr const char* kJobs = "Jobs";
inline constexpr const char* kViews = "State and history";
inline constexpr const char* kNode = "Node";

}  // namespace amem::ctl
