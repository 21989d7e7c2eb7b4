#include "client/ctl/options.h"

#include <utility>

#include "common/protocol.h"

namespace amem::ctl {

const CLI::Validator& group_name() {
  static const CLI::Validator validator(
      [](std::string& text) {
        return valid_group_address(text)
                   ? std::string()
                   : "\"" + text +
                         "\" is not a valid group name. Use 1 to 63 characters of [A-Za-z0-9._-], "
                         "and do not begin with '.' or '-'. Another user's group is NAME@UID, a "
                         "job's NAME:JOB";
      },
      "", "group name");
  return validator;
}

CLI::App& add(CLI::App& app, CommandLine& options, Command command, const std::string& name,
              const std::string& help) {
  CLI::App* sub = app.add_subcommand(name, help);
  sub->callback([&options, command] { options.command = command; });
  return *sub;
}

CLI::App& add(CLI::App& app, CommandLine& options, AddedCommand command, const std::string& name,
              const std::string& help) {
  CLI::App* sub = app.add_subcommand(name, help);
  sub->callback([&options, command = std::move(command)] {
    options.command = Command::kAdded;
    options.added = command;
  });
  return *sub;
}

void add_group_as(CLI::App& sub, std::string& group, const std::string& help, bool required) {
  sub.add_option("GROUP", group, help)->type_name("")->check(group_name())->required(required);
}

void add_group(CLI::App& sub, std::string& group, bool required) {
  add_group_as(sub, group, required ? "The group" : "Only this group (default: all)", required);
}

void add_launch(CLI::App& sub, CommandLine& o, const std::string& group_help, bool required) {
  sub.add_option("--group", o.group, group_help)
      ->type_name("NAME")
      ->check(group_name())
      ->required(required);
  sub.add_option("--scope", o.scope,
                 "The memory that amem brokers. nccl: NCCL's; regions: also what the program "
                 "allocates in regions; heap: all memory of the process")
      ->type_name("SCOPE")
      ->check(CLI::IsMember({"nccl", "regions", "heap"}));
  sub.footer("Write the command, with its own options, after \"--\".");
}

std::string fault_of_launch(const std::string& command, const CommandLine& o) {
  if (o.program.empty()) return command + ": there is no command. Write it after \"--\"";
  if (!o.socket.empty())
    return command +
           ": --socket is not supported, because ranks find the broker in its runtime directory. "
           "Use --runtime-dir";
  return {};
}

void show(CLI::App& sub, const char* group, const char* example) {
  const std::string note = sub.get_footer();
  sub.group(group);
  sub.footer(note + (note.empty() ? "" : "\n") + "Example:\n  " + example +
             "\nOptions for all commands, and exit codes: amemctl --help");
}

}  // namespace amem::ctl
