#include "client/ctl/node_list.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string_view>
#include <thread>

namespace amem::ctl {

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

client::ControlClient client_of(const CommandLine& options, const std::string& node,
                                std::chrono::milliseconds timeout) {
  constexpr std::string_view kUnix = "unix:";
  if (node.starts_with(kUnix)) return client::ControlClient(node.substr(kUnix.size()), timeout);
  return client::ControlClient(client::Remote{node, options.tls_dir}, timeout);
}

void ask_all(std::size_t count, const std::function<void(std::size_t)>& ask) {
  for (std::size_t first = 0; first < count; first += kNodesAtATime) {
    std::vector<std::jthread> asking;
    for (std::size_t i = first; i < std::min(first + kNodesAtATime, count); ++i)
      asking.emplace_back([&ask, i] { ask(i); });
  }
}

}  // namespace amem::ctl
