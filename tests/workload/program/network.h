// Network: communicators' buffers in memory of the host that the ranks of several nodes share, as
// NCCL's are that go over sockets. A file in the rendezvous directory; one for all ranks.
//
// Mapped until the process ends: kernels use it. Any thread.
#pragma once

#include <string>

#include "tests/workload/nccl/collective.h"

namespace amem::workload {

class Network {
 public:
  /// Throws Failure when the file cannot be made.
  Network(const std::string& rendezvous, int ranks, unsigned communicators);

  /// Zero at first; the rank's own is its to fill, before it meets the others.
  CommunicatorBuffer* buffer(unsigned communicator, int rank) const {
    return buffers_ + communicator * static_cast<unsigned>(ranks_) + static_cast<unsigned>(rank);
  }

 private:
  int ranks_;
  CommunicatorBuffer* buffers_;
};

}  // namespace amem::workload
