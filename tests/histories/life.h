// Life: a broker from its beginning to its death, with its loop and its tie to the holder.
#pragma once

#include <memory>
#include <string>

#include "daemon/broker/broker.h"
#include "daemon/broker/holder_supervisor.h"
#include "tests/histories/checkpoints.h"

namespace amem::histories {

class Life {
 public:
  /// All of it outlives this object.
  Life(const Config& config, Checkpoints& checkpoints)
      : config_(config),
        checkpoints_(checkpoints),
        supervisor_(loop, config, Workers::Runs::kLoop) {}
  Life(const Life&) = delete;

  /// Gets what the one before has left with the holder. Not empty: what is wrong; likewise below.
  std::string attach();
  /// Takes that up, and serves.
  std::string begin();
  /// By a thread of its own.
  bool has_pool() const { return *has_pool_; }
  /// The holder has everything, so far as this life has come; not so while another is given it.
  void holder_ends() { is_kept_ = false; }
  bool is_kept() const { return is_kept_; }
  /// REQUIRES: no rank lives. Groups, pool and devices are empty then.
  std::string left_over() const;
  Broker& broker() { return *broker_; }

  EventLoop loop;

 private:
  const Config& config_;
  Checkpoints& checkpoints_;
  HolderSupervisor supervisor_;
  std::unique_ptr<Broker> broker_;
  std::shared_ptr<bool> has_pool_ = std::make_shared<bool>(false);
  bool is_kept_ = true;
};

}  // namespace amem::histories
