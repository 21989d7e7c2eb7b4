// Node: all of a node but its ranks: one broker after another on the simulated driver, the holder,
// the driver's checkpoints and processes without amem, in one thread and in a time of its own.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>

#include "daemon/broker/broker.h"
#include "daemon/broker/holder_supervisor.h"
#include "tests/world/checkpoints.h"
#include "tests/world/digest.h"
#include "tests/world/holder.h"

namespace amem::world {

/// What the caller of an operation hears: one end, and nothing after that. A broker that has died
/// says nothing.
class Observer final : public OperationObserver {
 public:
  using Told = std::function<void(const Status&)>;
  explicit Observer(Told told = {}) : told_(std::move(told)) {}
  void progress(const v1::Progress& what) override;
  void finished(const Status& how) override;

  bool ended = false;
  Status status;
  std::uint64_t handed_on = 0;  // bytes that changed hands

 private:
  const Told told_;
};

/// Memory of processes without amem.
class Neighbours {
 public:
  /// Nothing where there is no space; returns whether there is.
  bool take(const DeviceUuid& device, std::uint64_t bytes);
  void leave(const DeviceUuid& device) { memory_.erase(device); }
  void leave_all() { memory_.clear(); }
  std::uint64_t bytes(const DeviceUuid& device) const;

 private:
  struct Memory {
    std::uint64_t bytes;
    Fd fd;
  };
  std::multimap<DeviceUuid, Memory> memory_;
};

class Node {
 public:
  /// `random`: decides what driver and holder do where a broker dies; outlives this object.
  explicit Node(std::minstd_rand& random);
  Node(const Node&) = delete;

  /// Before the first begin(): brokers die, and have a holder.
  void let_brokers_die();
  bool lets_brokers_die() const { return holder_ != nullptr; }

  /// A broker begins. `attached`: is done before it takes up what the one before has left. `died`:
  /// where it dies; its loop ends then. What is wrong; empty: nothing.
  std::string begin(const std::function<void()>& attached, std::function<void()> died);
  /// It has died. `noticed`: before its sockets close.
  void end(const std::function<void()>& noticed);
  /// When the loop has gone round, and the pool is there: a thread of its own makes that. Not at
  /// all if the broker dies before.
  void later(std::function<void()> what);

  bool lives() const { return life_ != nullptr; }
  Broker& broker() const { return *life_->broker; }
  EventLoop& loop() const { return life_->loop; }
  /// Until another one has everything.
  void holder_dies();
  /// The holder has everything that this broker has.
  bool is_kept() const { return life_->is_kept; }
  /// Where ranks connect.
  std::string sessions() const;
  /// That is made by a thread of its own.
  bool has_pool() const { return *life_->has_pool; }
  v1::NodeStatus status() const;
  /// By their addresses.
  std::map<std::string, v1::GroupInfo> groups() const;
  /// Adds what others could see of it: what the broker says, but for times, notes and the driver's
  /// figures; its record; and what the holder has.
  void add_to(Digest& digest) const;
  /// REQUIRES: no rank lives. Groups, pool and devices are empty then. What is wrong; empty:
  /// nothing.
  std::string left_over() const;

  Config config;
  Checkpoints checkpoints;
  Neighbours neighbours;

 private:
  /// Of a broker, from its beginning to its end.
  struct Life {
    explicit Life(const Config& config) : supervisor(loop, config, Workers::Runs::kLoop) {}
    EventLoop loop;
    HolderSupervisor supervisor;
    std::unique_ptr<Broker> broker;
    std::shared_ptr<bool> has_pool = std::make_shared<bool>(false);
    bool is_kept = true;
  };

  std::minstd_rand& random_;
  std::unique_ptr<StandInHolder> holder_;
  std::unique_ptr<Life> life_;
};

}  // namespace amem::world
