// The checks of the broker: whether ranks would find one that takes them, and whether amemd has
// what it needs on its node, as it says itself and as the kernel knows it.
#include <sys/socket.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "addons/tools/diagnosis/checks.h"
#include "addons/tools/staying.h"
#include "client/core/control_client.h"
#include "client/core/endpoint.h"
#include "client/ctl/views/format.h"
#include "common/protocol.h"
#include "common/version.h"

namespace amem::ctl {
namespace {

constexpr std::uint64_t kFilesOfABroker =
    65'536;  // a descriptor for each allocation, and some more

Findings check_pool(const v1::PoolStatus& pool) {
  Findings findings;
  if (!pool.error().empty())
    findings.push_back({pool.ready_bytes() == 0, "pool",
                        "the pool has " + format_bytes(pool.ready_bytes()) + " of the " +
                            format_bytes(pool.configured_bytes() - pool.elastic_bytes()) +
                            " it should have: " + pool.error(),
                        "amemd refuses a pause that needs more",
                        "free host memory, or set a smaller pool.size, then restart amemd"});
  if (pool.ready_bytes() > pool.configured_bytes())
    findings.push_back(
        {false, "pool-larger",
         "the pool has " + format_bytes(pool.ready_bytes()) + ", but pool.size is " +
             format_bytes(pool.configured_bytes()),
         "the host lacks the difference, and a container's memory request does not cover it",
         "amemd returns it to the host when the jobs that may have it mapped end"});
  return findings;
}

}  // namespace

Findings check_broker_in(const std::string& runtime_dir, std::chrono::milliseconds timeout) {
  const std::string session = runtime_dir + "/" + std::string(kSessionSocket);
  if (const Status status = client::probe(session, SOCK_SEQPACKET); !status.ok()) {
    // The text has what is the matter and, behind it, what to do.
    return {{true, "broker", "no broker serves the ranks",
             "they run without amem, or fail with AMEM_REQUIRED=1", status.text()}};
  }
  const auto control = client::control_socket(runtime_dir, "");
  if (!control.ok()) return {};  // too long by a few characters; ranks do not need it
  client::ControlClient broker(control.value(), timeout);
  const auto answer = broker.status();
  if (answer.status().code() == Code::kDeadlineExceeded)
    return {{true, "broker-hangs", "the broker in " + runtime_dir + " does not answer",
             "ranks wait for it, then run without amem", answer.status().text()}};
  // Ranks may be allowed where steering is not: then the version stays unknown.
  if (!answer.ok() || answer.value().session_protocol() == kProtocolVersion) return {};
  return {
      {true, "broker-version",
       "the broker is amemd " + answer.value().version() + ", which speaks protocol " +
           std::to_string(answer.value().session_protocol()) + " with ranks; the shim of amem " +
           std::string(kVersion) + " speaks " + std::to_string(kProtocolVersion),
       "the broker refuses such a shim", "install the same version of both, and restart amemd"}};
}

std::optional<std::uint64_t> open_files_of(std::int64_t pid) {
  std::ifstream limits("/proc/" + std::to_string(pid) + "/limits");
  for (std::string line; std::getline(limits, line);) {
    constexpr std::string_view kLimitName = "Max open files";
    if (!line.starts_with(kLimitName)) continue;
    std::istringstream words(line.substr(kLimitName.size()));
    std::uint64_t soft = 0;
    if (words >> soft) return soft;
  }
  return std::nullopt;
}

Findings check_node(const v1::NodeStatus& status, const DriverFacts& driver,
                    std::optional<std::uint64_t> open_files) {
  Findings findings = check_pool(status.pool());
  if (status.version() != kVersion)
    findings.push_back(
        {false, "version",
         "amemd " + status.version() + " runs, but " + std::string(kVersion) + " is installed",
         "a restart changes the version", "`amemctl upgrade` replaces it without loss"});
  if (status.devices().empty())
    findings.push_back(
        {true, "no-devices", "amemd has no GPU", "amemd brokers no rank's memory",
         "start it where `nvidia-smi` lists GPUs. amemd ignores CUDA_VISIBLE_DEVICES"});
  for (const v1::DeviceStatus& device : status.devices())
    if (!device.trouble().empty())
      findings.push_back(
          {true, "device-hangs",
           "GPU " + std::to_string(device.ordinal()) + " " + device.uuid() + ": " +
               device.trouble(),
           "groups on it wait, and their operations fail",
           "the kernel's log (`dmesg | grep -i xid`) says more; reset the GPU, or restart the "
           "node"});
  for (const DriverFacts::Gpu& gpu : driver.gpus) {
    const bool known =
        std::any_of(status.devices().begin(), status.devices().end(),
                    [&](const v1::DeviceStatus& device) { return device.uuid() == gpu.uuid; });
    if (!known)
      findings.push_back(
          {true, "device-unknown", "amemd does not serve " + gpu.name + " " + gpu.uuid,
           "amemd does not broker memory on it",
           "restart amemd with all GPUs of the node. It looks for GPUs only when it starts"});
  }
  if (open_files && *open_files < kFilesOfABroker)
    findings.push_back({false, "broker-files",
                        "the limit of amemd's open files is " + std::to_string(*open_files),
                        "amemd opens one file for each allocation, and refuses allocations above "
                        "the limit",
                        "set LimitNOFILE=1048576 in its unit, or `ulimit -n` before you start it"});
  return findings;
}

Findings check_ranks(const v1::ListRanksResponse& ranks) {
  Findings findings;
  for (const v1::RankInfo& rank : ranks.ranks()) {
    std::string names;
    bool linked = false;
    for (const v1::UnknownCall& call : rank.unknown_calls()) {
      if (call.fate() == "listed") continue;  // somebody has signed it off
      names += (names.empty() ? "" : ", ") + call.name();
      linked = linked || call.fate() == "linked";
    }
    if (names.empty()) continue;
    findings.push_back(
        {linked, "driver-calls",
         "pid " + std::to_string(rank.pid()) + " of group '" + rank.group() +
             "' asks for driver calls that its shim does not know: " + names,
         linked ? "it is linked to one of them, so pauses of the group fail"
                : "the shim hides them from it, as an older driver would",
         "use a newer amem, or allow them (docs/decisions/unknown-driver-calls.md)"});
  }
  for (const Staying& each : what_stays(ranks))
    findings.push_back({false, "stays", "group '" + each.group + "': " + text_of(each),
                        "pauses do not free it, because " + each.why, each.remedy});
  return findings;
}

}  // namespace amem::ctl
