// The nodes of --nodes: their list, the way to each of them, and how to ask all of them.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "client/core/control_client.h"
#include "client/ctl/command_line.h"
#include "common/status.h"

namespace amem::ctl {

/// So many nodes are asked at the same time.
constexpr std::size_t kNodesAtATime = 64;

/// Those of the options; of "@FILE" those in its lines, without empty ones and what follows a '#'.
/// kInvalidArgument: the file cannot be read, or has none.
Result<std::vector<std::string>> nodes_of(const CommandLine& options);

/// The broker of that node: "host:port", or "unix:" and a socket's path. `timeout`: of a question.
client::ControlClient client_of(const CommandLine& options, const std::string& node,
                                std::chrono::milliseconds timeout = client::kDefaultQueryTimeout);

/// Calls `ask` for each of 0 to `count` - 1, kNodesAtATime at the same time, each in a thread of
/// its own.
void ask_all(std::size_t count, const std::function<void(std::size_t)>& ask);

}  // namespace amem::ctl
