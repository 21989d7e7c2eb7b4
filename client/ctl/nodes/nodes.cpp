#include "client/ctl/nodes/nodes.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <utility>

#include "client/core/control_client.h"
#include "client/core/json.h"
#include "client/ctl/exit_code.h"

namespace amem::ctl {
namespace {

constexpr std::size_t kAtATime = 64;
constexpr std::string_view kUnix = "unix:";

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
  client::ControlClient broker = client_of(options, node);
  Said answer;
  answer.code = execute(options, broker, console, nullptr);
  answer.out = out.str();
  answer.err = err.str();
  return answer;
}

}  // namespace

Result<std::vector<std::string>> nodes_of(const CommandLine& options) {
  if (options.nodes.empty() || !options.nodes.front().starts_with('@')) return options.nodes;
  const std::string path = options.nodes.front().substr(1);
  errno = 0;
  std::ifstream file(path);
  if (!file) return errno_status(Code::kInvalidArgument, "--nodes: reading " + path, errno);
  std::vector<std::string> nodes;
  for (std::string line; std::getline(file, line);) {
    line = line.substr(0, line.find('#'));
    std::erase_if(line, [](char c) { return c == ' ' || c == '\t' || c == '\r'; });
    if (!line.empty()) nodes.push_back(line);
  }
  if (nodes.empty()) return Status(Code::kInvalidArgument, "--nodes: no address is in " + path);
  return nodes;
}

bool asks_each_node(Command command) {
  return command == Command::kStatus || command == Command::kGroups ||
         command == Command::kHealth || command == Command::kVersion;
}

client::ControlClient client_of(const CommandLine& options, const std::string& node) {
  // The timeout of an operation says nothing of how long an answer takes.
  const auto timeout = asks_each_node(options.command)
                           ? options.timeout.value_or(client::kDefaultQueryTimeout)
                           : client::kDefaultQueryTimeout;
  if (node.starts_with(kUnix)) return client::ControlClient(node.substr(kUnix.size()), timeout);
  return client::ControlClient(client::Remote{node, options.tls_dir}, timeout);
}

void ask_all(std::size_t count, const std::function<void(std::size_t)>& ask) {
  for (std::size_t first = 0; first < count; first += kAtATime) {
    std::vector<std::jthread> asking;
    for (std::size_t i = first; i < std::min(first + kAtATime, count); ++i)
      asking.emplace_back([&ask, i] { ask(i); });
  }
}

int execute_on_each(const CommandLine& options, const std::vector<std::string>& nodes,
                    Console& console, Interrupt* interrupt) {
  int code = kExitOk;
  for (std::size_t first = 0; first < nodes.size(); first += kAtATime) {
    if (interrupt != nullptr && interrupt->happened()) return kExitInterrupted;
    std::vector<Said> answers(std::min(kAtATime, nodes.size() - first));
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
