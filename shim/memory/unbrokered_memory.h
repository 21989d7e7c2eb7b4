// UnbrokeredMemory: memory of this process that went to the driver, and so stays through a pause:
// of devices, and of the host what is pinned.
//
// Counts only; pools are remembered, for the driver to be asked how much they hold (Report). Any
// thread.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace amem::shim {

/// What there is of one kind on one device; of the host's: allocated with this device current.
struct UnbrokeredAmount {
  std::string kind;
  int device = 0;
  std::uint64_t bytes = 0;
  std::uint32_t count = 0;
  bool host = false;  // no device's memory
  friend bool operator==(const UnbrokeredAmount&, const UnbrokeredAmount&) = default;
};

class UnbrokeredMemory {
 public:
  enum class Kind { kDevice, kManaged, kArray, kHost, kRegistered, kOpened };

  /// cuMemAlloc, managed memory, arrays, pinned memory: by address or handle. `of_nccl`: only of
  /// host memory, because NCCL's device memory is brokered.
  void add(Kind kind, std::uint64_t key, std::uint64_t bytes, int device, CUcontext context,
           bool of_nccl = false);
  /// False: it was not counted.
  bool remove(Kind kind, std::uint64_t key);
  /// All that was allocated under a context that is gone.
  void context_gone(CUcontext context);

  /// cuMemCreate: a handle's memory lives while the handle or a mapping of it does.
  void created(std::uint64_t handle, std::uint64_t bytes, int device);
  /// The same on the host.
  void created_on_host(std::uint64_t handle, std::uint64_t bytes, int device, bool of_nccl);
  /// Another process's memory, by a handle that went past the broker; kOpened is that by an
  /// address. It counts as nothing of this process's, but foreign() knows it.
  void imported(std::uint64_t handle);
  void referenced(std::uint64_t handle);
  void released(std::uint64_t handle);
  void mapped(std::uint64_t handle, std::uint64_t address);
  void unmapped(std::uint64_t address, std::uint64_t size);

  /// What the driver does not say of a pool again.
  struct Pool {
    int device = 0;
    std::uint64_t most = 0;  // bytes that it may hold; 0: no limit
    bool plain = false;      // no other process can import its memory, and it has no special use
  };
  void pool_created(CUmemoryPool pool, const Pool& made);
  /// Before the driver destroys it: it must not be asked about any more. Nothing when it is not
  /// known.
  std::optional<Pool> pool_goes(CUmemoryPool pool);
  /// Nothing: the process has not made it, or not on a device.
  std::optional<Pool> pool(CUmemoryPool pool);
  void device_reset(int device);
  /// Visits the pools that the process has made, with their devices. None is destroyed meanwhile.
  void each_pool(const std::function<void(CUmemoryPool, int)>& visit);

  /// By kind and device.
  std::vector<UnbrokeredAmount> amounts();
  /// How many pieces of other processes' memory this process has open or imported.
  std::size_t foreign();

 private:
  struct Counted {
    std::uint64_t bytes = 0;
    int device = 0;
    CUcontext context = nullptr;
    bool of_nccl = false;
  };
  struct CountedHandle {
    std::uint64_t bytes = 0;
    int device = 0;
    std::uint32_t refs = 1;
    std::uint32_t mappings = 0;
    bool host = false;
    bool of_nccl = false;
    bool imported = false;
  };
  using CountedHandles = std::map<std::uint64_t, CountedHandle>;

  void erase_if_unused(CountedHandles::iterator it);

  std::mutex mutex_;  // guards what follows, except pools_
  std::map<std::pair<Kind, std::uint64_t>, Counted> entries_;
  CountedHandles handles_;
  std::map<std::uint64_t, std::uint64_t> mapped_;  // handle by address
  std::mutex pools_mutex_;                         // guards pools_; held while they are visited
  std::map<CUmemoryPool, Pool> pools_;
};

}  // namespace amem::shim
