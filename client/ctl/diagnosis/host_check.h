// What amem asks of the host beside the driver: its kernel, its C library, and that no MPS stands
// between processes and GPUs. docs/getting-started.md has the table of requirements.
#pragma once

#include <string>

#include "client/ctl/diagnosis/finding.h"

namespace amem::ctl {

struct HostFacts {
  std::string kernel;    // "6.1.0-18-amd64"
  std::string glibc;     // "2.36"
  std::string mps_pipe;  // the socket of an MPS daemon; empty: none
};

/// Reads the facts of this host. `environment`: the variables of the processes that amem is to
/// broker; CUDA_MPS_PIPE_DIRECTORY counts.
HostFacts look_at_host(const Environment& environment);

/// Pure.
Findings check_host(const HostFacts& facts);

}  // namespace amem::ctl
