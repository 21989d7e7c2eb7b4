// BrokerProcess: an amemd of the bench's own, in a directory of its own, and the calls to it.
//
// Ends amemd and removes the directory when it goes. For one thread; broker() for any.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/core/control_client.h"
#include "common/status.h"

namespace amem::bench {

class BrokerProcess {
 public:
  BrokerProcess() = default;
  ~BrokerProcess();
  BrokerProcess(const BrokerProcess&) = delete;
  BrokerProcess& operator=(const BrokerProcess&) = delete;

  /// Starts `amemd` with a pool of `pool` bytes and waits until that is ready. `preload`: a library
  /// for it, or empty.
  Status start(const std::string& amemd, const std::string& preload, std::uint64_t pool);

  const std::string& directory() const { return directory_; }
  client::ControlClient& broker() { return *broker_; }
  /// The end of its log.
  std::string log() const;

 private:
  Status await_pool(std::uint64_t pool);

  std::string directory_;
  pid_t pid_ = 0;
  std::unique_ptr<client::ControlClient> broker_;
};

}  // namespace amem::bench
