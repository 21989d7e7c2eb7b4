// TargetNccl: the node's own NCCL in `amem-checkpoint target`: a communicator over its devices.
//
// It is the libnccl.so.2 that the loader finds alone, never one that a job has brought: this
// process has amemd's rights. Where there is none, or it does not work here, the proof goes on
// without it and says why. Once it has worked, what goes wrong ends the process (end.h). For the
// main thread.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "addons/checkpoint/target_device.h"
#include "common/driver.h"

namespace amem {

class TargetNccl {
 public:
  using Devices = std::vector<std::unique_ptr<TargetDevice>>;

  /// Both outlive this object. The devices have been made; by their ordinals.
  TargetNccl(const Driver& driver, const Devices& devices) : driver_(driver), devices_(devices) {}
  TargetNccl(const TargetNccl&) = delete;
  TargetNccl& operator=(const TargetNccl&) = delete;

  /// Finds NCCL and makes the communicator. Says what it uses, or why none.
  void make();
  /// An all-reduce, and a look at its bytes.
  void check();

 private:
  using Comm = void*;
  struct Calls {
    int (*version)(int*) = nullptr;
    int (*init_all)(Comm*, int, const int*) = nullptr;
    int (*all_reduce)(const void*, void*, std::size_t, int, int, Comm, CUstream) = nullptr;
    int (*group_start)() = nullptr;
    int (*group_end)() = nullptr;
    const char* (*error)(int) = nullptr;
  };
  struct Part {
    Comm comm = nullptr;
    CUdeviceptr from = 0;
    CUdeviceptr to = 0;
  };

  /// Empty: it is there.
  std::string load();
  bool full() const;
  void did(int result, const std::string& what) const;

  const Driver& driver_;
  const Devices& devices_;
  Calls calls_;
  std::vector<Part> parts_;  // empty: without NCCL
  std::uint8_t* host_ = nullptr;
};

}  // namespace amem
