#include "client/ctl/nodes/nodes.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "client/core/control_client.h"
#include "client/core/json.h"
#include "client/ctl/exit_code.h"
#include "client/ctl/node_list.h"

namespace amem::ctl {
namespace {

/// What one node has answered.
struct Said {
  std::string out;
  std::string err;
  int code = kExitOk;
};

Said ask(const CommandLine& options, const std::string& node, const Console& like) {
  std::ostringstream out;
  std::ostringstream err;
  Console console{out, err, like.out_style, like.err_style};
  client::ControlClient broker =
      client_of(options, node, options.timeout.value_or(client::kDefaultQueryTimeout));
  Said answer;
  answer.code = execute(options, broker, console, nullptr);
  answer.out = out.str();
  answer.err = err.str();
  return answer;
}

}  // namespace

bool asks_each_node(Command command) {
  return command == Command::kStatus || command == Command::kGroups ||
         command == Command::kHealth || command == Command::kVersion;
}

int execute_on_each(const CommandLine& options, const std::vector<std::string>& nodes,
                    Console& console, Interrupt* interrupt) {
  int code = kExitOk;
  for (std::size_t first = 0; first < nodes.size(); first += kNodesAtATime) {
    if (interrupt != nullptr && interrupt->happened()) return kExitInterrupted;
    std::vector<Said> answers(std::min(kNodesAtATime, nodes.size() - first));
    ask_all(answers.size(),
            [&](std::size_t i) { answers[i] = ask(options, nodes[first + i], console); });
    for (std::size_t i = 0; i < answers.size(); ++i) {
      const std::string& node = nodes[first + i];
      const Said& answer = answers[i];
      if (options.json && !answer.out.empty())
        console.out << "{\"node\":" << client::text_of(node)
                    << ",\"answer\":" << answer.out.substr(0, answer.out.find('\n')) << "}\n";
      else if (!answer.out.empty())
        console.out << "node " << node << ":\n" << answer.out;
      if (answer.code == kExitOk) continue;
      console.err << "node " << node << ": " << answer.err;
      code = kExitFailed;
    }
  }
  console.out.flush();
  return code;
}

}  // namespace amem::ctl
