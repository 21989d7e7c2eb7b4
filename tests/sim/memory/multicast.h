// Multicast objects: a write to one reaches the memory that each device of its team has bound.
//
// An object is a memfd that every process of its team maps: devices added, memory bound, by whom. A
// binding names the descriptor that the binding process holds the memory by, so the memory stays
// allocated until it is unbound or that process ends. Writers reach it through /proc.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "tests/sim/memory/physical.h"

namespace sim {

/// What stands for the device of an address at which a multicast object is mapped.
inline constexpr int kMulticastDevice = 1 << 20;

class MulticastObject {
 public:
  struct State;

  static CUresult Create(const CUmulticastObjectProp& prop, std::shared_ptr<MulticastObject>* out);
  /// Null if the descriptor is no multicast object of this node.
  static std::shared_ptr<MulticastObject> Import(int fd);
  /// Whether this process holds one.
  static bool Any();
  /// What this process has bound is unbound.
  ~MulticastObject();
  MulticastObject(const MulticastObject&) = delete;
  MulticastObject& operator=(const MulticastObject&) = delete;

  int fd() const { return fd_; }
  size_t bytes() const;
  bool shareable() const;

  CUresult AddDevice(int device);
  /// Returns when every device of the team has been added. The caller holds no lock.
  void AwaitTeam() const;

  // REQUIRES for both: MemoryMutex held.
  CUresult Bind(const std::shared_ptr<Physical>& memory, size_t at, size_t from, size_t bytes);
  /// Takes out what this process bound there. It must not cut a binding, nor find none.
  CUresult Unbind(int device, size_t at, size_t bytes);

  /// Writes to the memory of every device. False if one of them has not bound all of the range.
  /// Reads, which reduce over the team, are not simulated. Any thread.
  bool Write(size_t at, const void* data, size_t bytes) const;

 private:
  MulticastObject(int fd, State* state);

  const int fd_;
  State* const state_;                               // shared; guarded by a lock of the node
  std::map<size_t, std::shared_ptr<Physical>> own_;  // by number of the binding
};

}  // namespace sim
