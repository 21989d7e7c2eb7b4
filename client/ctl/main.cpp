// amemctl: see and steer the groups whose GPU memory amemd owns. Parses the command line, then
// becomes the command of `run`, does what an add-on has for a command, or asks the broker.
#include <algorithm>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "client/core/control_client.h"
#include "client/core/endpoint.h"
#include "client/ctl/command_line.h"
#include "client/ctl/commands.h"
#include "client/ctl/exit_code.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/node_list.h"
#include "client/ctl/nodes/nodes.h"
#include "client/ctl/output.h"
#include "client/ctl/run.h"

int main(int argc, char** argv) {
  using namespace amem;
  const ctl::Parsed parsed = ctl::parse(std::vector<std::string>(argv + 1, argv + argc));
  if (!parsed.options) {
    (parsed.exit_code == ctl::kExitOk ? std::cout : std::cerr) << parsed.text;
    return parsed.exit_code;
  }
  const ctl::CommandLine& options = *parsed.options;
  if (options.command == ctl::Command::kRun) return ctl::execute_run(options);
  if (options.added.alone) return options.added.alone(options);

  auto socket = client::control_socket(options.runtime_dir, options.socket);
  if (!socket.ok()) {
    ctl::write_error(socket.status(), options.json);
    return ctl::exit_code(socket.status().code());
  }
  const auto nodes = ctl::nodes_of(options);
  if (!nodes.ok()) {
    ctl::write_error(nodes.status(), options.json);
    return ctl::kExitUsage;
  }
  ctl::Interrupt interrupt;  // before gRPC starts its threads
  if (!nodes.value().empty() && ctl::asks_each_node(options.command)) {
    ctl::Console console = ctl::process_console(options.no_color);
    return ctl::execute_on_each(options, nodes.value(), console, &interrupt);
  }
  auto timeout = options.timeout.value_or(client::kDefaultQueryTimeout);
  // It asks again and again, so the broker may not take all of that for one answer.
  if (options.command == ctl::Command::kWait)
    timeout = std::min(timeout, client::kDefaultQueryTimeout);
  client::ControlClient broker =
      options.address.empty()
          ? client::ControlClient(std::move(socket).value(), timeout)
          : client::ControlClient(client::Remote{options.address, options.tls_dir}, timeout);
  broker.over(nodes.value());
  ctl::Console console = ctl::process_console(options.no_color);
  return ctl::execute(options, broker, console, &interrupt);
}
