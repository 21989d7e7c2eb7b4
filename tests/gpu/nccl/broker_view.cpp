#include "tests/gpu/nccl/broker_view.h"

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>

#include "tests/gpu/nccl/json.h"

namespace gpu_test {
namespace {

using amem::Code;
using amem::Result;
using amem::Status;

Result<std::string> run_amemctl(const std::string& arguments) {
  const char* program = std::getenv("AMEMCTL");
  // Without the shim: what the operator's tool says must not depend on it.
  const std::string command = std::string("LD_PRELOAD= ") +
                              (program != nullptr ? program : "amemctl") + " " + arguments +
                              " 2>&1";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return Status(Code::kInternal, "cannot run " + command);
  std::string out;
  std::array<char, 4096> piece{};
  for (std::size_t n = 0; (n = std::fread(piece.data(), 1, piece.size(), pipe)) > 0;)
    out.append(piece.data(), n);
  const int ended = ::pclose(pipe);
  if (!WIFEXITED(ended) || WEXITSTATUS(ended) != 0)
    return Status(Code::kInternal, "amemctl " + arguments + " failed: " + out);
  return out;
}

}  // namespace

Result<BrokerView> read_status(const std::string& text, const std::string& group) {
  Json json;
  if (!Json::parse(text, &json)) return Status(Code::kInternal, "not JSON: " + text);
  BrokerView view;
  for (const Json& device : json["devices"].items())
    view.brokered[device["uuid"].text()] = device["brokered_bytes"].number();
  for (const Json& candidate : json["groups"].items()) {
    if (candidate["name"].text() != group) continue;
    view.state = candidate["state"].text();
    view.allocated = candidate["allocated_bytes"].number();
    view.resident = candidate["resident_bytes"].number();
    for (const Json& device : candidate["devices"].items())
      view.group_resident[device["uuid"].text()] = device["resident_bytes"].number();
    return view;
  }
  return Status(Code::kNotFound, "the broker knows no group " + group + ": " + text);
}

Result<BrokerView> view_broker(const std::string& group) {
  const Result<std::string> text = run_amemctl("status --json");
  if (!text.ok()) return text.status();
  return read_status(text.value(), group);
}

Status operate(const char* verb, const std::string& group) {
  return run_amemctl(std::string(verb) + " " + group).status();
}

}  // namespace gpu_test
