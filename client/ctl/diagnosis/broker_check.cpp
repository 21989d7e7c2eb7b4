// The checks of the broker: whether ranks would find one that takes them, and whether amemd has
// what it needs on its node, as it says itself and as the kernel knows it.
#include <sys/socket.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "client/core/control_client.h"
#include "client/core/endpoint.h"
#include "client/ctl/diagnosis/checks.h"
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
                            format_bytes(pool.configured_bytes()) +
                            " it should have: " + pool.error(),
                        "a pause that needs more is called off",
                        "free host memory, or set a smaller pool.size, then restart amemd"});
  if (pool.ready_bytes() > pool.configured_bytes())
    findings.push_back(
        {false, "pool-larger",
         "the pool has " + format_bytes(pool.ready_bytes()) + " and pool.size is " +
             format_bytes(pool.configured_bytes()),
         "the host lacks the rest, and a container's memory request does not cover it",
         "it goes back to the host when the jobs that may have it mapped end"});
  if (pool.place() == "memfd" && pool.ready_bytes() > 0)
    findings.push_back({false, "pool-place", "the pool is of memfds",
                        "each rank has to register it by itself, which counts as its locked memory",
                        "it works as it is; a newer driver may share host memory itself"});
  return findings;
}

}  // namespace

Findings check_broker_in(const std::string& runtime_dir, std::chrono::milliseconds timeout) {
  const std::string session = runtime_dir + "/" + std::string(kSessionSocket);
  if (const Status status = client::probe(session, SOCK_SEQPACKET); !status.ok()) {
    // The text has what is the matter and, behind it, what to do.
    return {{true, "broker", "no broker takes the ranks",
             "they run as if amem were not there, or fail with AMEM_REQUIRED=1", status.text()}};
  }
  const auto control = client::control_socket(runtime_dir, "");
  if (!control.ok()) return {};  // too long by a few characters; ranks do not need it
  client::ControlClient broker(control.value(), timeout);
  const auto answer = broker.status();
  if (answer.status().code() == Code::kDeadlineExceeded)
    return {{true, "broker-hangs", "the broker in " + runtime_dir + " does not answer",
             "ranks wait for it, and run as if amem were not there", answer.status().text()}};
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
         "amemd is " + status.version() + ", and what is installed is " + std::string(kVersion),
         "the node does not run what it would after a restart",
         "`amemctl upgrade` replaces it without loss"});
  if (status.devices().empty())
    findings.push_back(
        {true, "no-devices", "amemd has no GPU", "no rank's memory is brokered",
         "start it where `nvidia-smi` lists them; CUDA_VISIBLE_DEVICES is not for it"});
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
          {true, "device-unknown", "amemd does not have " + gpu.name + " " + gpu.uuid,
           "memory on it is not brokered",
           "restart amemd with all GPUs of the node: it looks for them when it starts"});
  }
  if (open_files && *open_files < kFilesOfABroker)
    findings.push_back({false, "broker-files",
                        "amemd may have " + std::to_string(*open_files) + " open files",
                        "it has one for each allocation, and refuses more than it may have",
                        "LimitNOFILE=1048576 in its unit, or `ulimit -n` where it is started"});
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
                : "it is told that there are none, as on an older driver",
         "use a newer amem, or sign them off (docs/decisions/unknown-driver-calls.md)"});
  }
  return findings;
}

}  // namespace amem::ctl
