// TargetDevice: what `amem-checkpoint target` has on one of its devices, as a rank keeps it through
// a deep pause: a context, memory with known bytes, an executable graph, registered and pinned
// memory of the host, reserved addresses, and threads with streams and events of their own.
//
// What goes wrong ends the process (end.h). For the main thread; its own threads work in
// TargetThreads::work().
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "addons/checkpoint/target_threads.h"
#include "common/driver.h"

namespace amem {

class TargetDevice {
 public:
  /// Of the pool, that each device uses.
  static constexpr std::size_t kPoolPiece = 32 << 10;

  /// Both outlive the process's last round. `name`: for messages.
  TargetDevice(const Driver& driver, CUdevice device, std::string name);
  TargetDevice(const TargetDevice&) = delete;
  TargetDevice& operator=(const TargetDevice&) = delete;

  /// Makes all of it, and the threads. The context stays current.
  void make(TargetThreads& threads);
  /// Uses all of it but the threads, and looks at every byte.
  void check();
  /// May use what is mapped there.
  void let_reach(CUdeviceptr at, std::size_t bytes) const;
  /// Copies as ranks save and load. The first call saves.
  void check_pool(CUdeviceptr at);

  CUdevice device() const { return device_; }
  CUstream stream() const { return stream_; }
  const std::string& name() const { return name_; }
  void use() const { did(driver_.cuCtxSetCurrent_(context_), "cuCtxSetCurrent"); }
  void synchronize() const { did(driver_.cuStreamSynchronize_(stream_), "cuStreamSynchronize"); }

 private:
  /// What a thread has for itself.
  struct Part {
    CUdeviceptr memory = 0;
    std::uint8_t* pinned = nullptr;
    CUstream stream = nullptr;
    CUevent before = nullptr;  // both measure time
    CUevent after = nullptr;
    CUevent done = nullptr;  // does not
  };

  void did(CUresult result, const std::string& what) const;
  void expect(const std::uint8_t* bytes, std::size_t count, unsigned seed,
              const std::string& what) const;
  void make_memory();
  void make_graph();
  void make_parts();
  void work(Part& part, unsigned round, bool by_event) const;
  /// Asks the driver again and again, as PyTorch's watchdog does, until an answer is wrong.
  void call_again_and_again();
  void check_reserved() const;

  const Driver& driver_;
  const CUdevice device_;
  const std::string name_;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  std::uint8_t* host_ = nullptr;  // registered: known bytes, and three pieces that are written
  CUdeviceptr memory_ = 0;
  CUgraphExec launchable_ = nullptr;
  CUmemAllocationProp properties_{};
  std::size_t unit_ = 0;
  CUdeviceptr reserved_ = 0;
  std::vector<Part> parts_;
  bool saved_ = false;  // there are bytes in the pool
  std::atomic<CUresult> wrong_answer_{CUDA_SUCCESS};
};

}  // namespace amem
