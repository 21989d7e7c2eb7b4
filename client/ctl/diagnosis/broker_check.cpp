#include "client/ctl/diagnosis/broker_check.h"

#include <sys/socket.h>

#include "client/core/control_client.h"
#include "client/core/endpoint.h"
#include "common/protocol.h"
#include "common/version.h"

namespace amem::ctl {

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

}  // namespace amem::ctl
