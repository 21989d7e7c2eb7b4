// Puppet: what the commands work on. Each file has the commands of its subject.
//
// The device's context must be current. One thread; throws Failure.
#pragma once

#include <cuda.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <thread>

#include "tests/workload/base/commands.h"
#include "tests/workload/base/loop.h"
#include "tests/workload/nccl/nccl_calls.h"

namespace amem::workload {

/// Gives a descriptor of a handle to one puppet that takes it through a directory.
class Offering {
 public:
  ~Offering();
  /// In a thread; waits for the end of what was offered before.
  void Offer(Handle handle, const std::string& directory);
  /// Asks for a descriptor, at most 20 s, and imports it.
  static Handle Take(const std::string& directory);

 private:
  std::thread thread_;
};

/// The device memory of a puppet, by number. A block is mapped memory (cuMemCreate, cuMemMap),
/// memory of the older calls (cuMemAlloc), of a stream-ordered pool or another process's
/// (cuIpcOpenMemHandle; a descriptor). Its content is a function of a seed that the test names.
class Blocks {
 public:
  explicit Blocks(CUdevice device) : device_(device) {}

  enum class Kind { kMapped, kPlain, kShared, kPooled };
  struct Block {
    Kind kind = Kind::kMapped;
    CUdeviceptr address = 0;
    std::size_t bytes = 0;
    Handle handle = 0;  // kMapped; 0: only the address is left
  };
  const Block& At(std::uint64_t id) const;

  /// Each returns the new block's number.
  /// `whole`: as who asks for the recommended granularity, so that it is never packed.
  /// On the device, whose context need not be there.
  std::uint64_t Map(std::size_t bytes, bool whole, CUdevice device);
  std::uint64_t Allocate(std::size_t bytes, bool managed);
  std::uint64_t Open(const std::string& handle, unsigned flags);
  /// What a pool gave out.
  std::uint64_t AddPooled(CUdeviceptr address, std::size_t bytes);
  /// It has been freed by a call of its own.
  void Forget(std::uint64_t id) { blocks_.erase(id); }
  /// Of a mapped block of another puppet.
  std::uint64_t Import(Handle handle, std::size_t bytes);

  void Free(std::uint64_t id);
  /// Of a mapped block: all of Free but the last call, which frees its address.
  void Unmap(std::uint64_t id);
  /// Whether anything is mapped there or not; of the block nothing is left when that works.
  void FreeAddress(std::uint64_t id);

 private:
  std::uint64_t Add(const Block& block);

  const CUdevice device_;
  std::map<std::uint64_t, Block> blocks_;
  std::uint64_t next_id_ = 1;
};

/// A multicast object, of this puppet alone or shared with others. The calls come in NCCL's order.
struct Team {
  Handle object = 0;
  std::size_t bytes = 0;
  CUdeviceptr address = 0;
};

/// What is registered with the stand-ins of rdma/, by number, and transfers of files under way.
struct Nic {
  struct Region {
    std::string way;
    void* object = nullptr;
    unsigned long handle = 0;  // GDRCopy's
    std::size_t bytes = 0;
  };
  struct Transfer {
    int file = -1;
    std::size_t bytes = 0;
    off_t file_offset = 0;
    off_t offset = 0;
    ssize_t done = 0;
    CUstream stream = nullptr;
  };
  std::map<std::uint64_t, Region> regions;
  std::uint64_t next = 1;
  void* gdr = nullptr;
  void* batch = nullptr;
  Transfer read;
};

struct Streams {
  ~Streams() {
    if (busy != nullptr) cuStreamDestroy(busy);
    if (captured != nullptr) cuStreamDestroy(captured);
  }

  CUstream busy = nullptr;
  CUstream captured = nullptr;
};

/// Streams by number, from 1 on, and pools the same; 0 is what the driver takes for none.
struct Pools {
  std::map<std::uint64_t, CUstream> streams;
  std::map<std::uint64_t, CUmemoryPool> pools;
  std::map<std::uint64_t, std::atomic<std::uint64_t>> held;  // ms for which streams do not go on
  CUevent event = nullptr;
};

struct Puppet {
  explicit Puppet(CUdevice its_device) : device(its_device), blocks(its_device) {}

  const CUdevice device;
  CUcontext context = nullptr;
  Blocks blocks;
  Offering offering;
  Team team;
  Nic nic;
  Streams streams;
  Pools pools;
  CUfunction kernel = nullptr;
  std::atomic<std::uint64_t> launched{0};  // counted by the kernel
  Loop launches;
  Loop copies;
};

extern const Commands<Puppet> kBlockCommands;
extern const Commands<Puppet> kLookupCommands;
extern const Commands<Puppet> kNicCommands;
extern const Commands<Puppet> kOrderCommands;
extern const Commands<Puppet> kPoolCommands;
extern const Commands<Puppet> kTeamCommands;
extern const Commands<Puppet> kWorkCommands;
extern const Commands<Puppet> kExitCommands;

/// Says how a lookup of a driver call ended: "found", and what the way says besides. `way`:
/// "dlsym", "v1", "v2" (cuGetProcAddress, for this version of CUDA), "v2-by-dlsym" (as
/// cudaGetDriverEntryPoint of libcudart does it), or the path of a library that is loaded and
/// linked to it.
void* FindCall(const std::string& name, const std::string& way, int version, Answer* answer);

/// By cuGetProcAddress, which is linked. Throws Failure when there is none.
void* FindVersion(const char* name, int version);
template <class Function>
Function FindNewer(const char* name, int version) {
  return reinterpret_cast<Function>(FindVersion(name, version));
}

/// What "at-last" asks for comes after everything that is registered from now on, the driver's own
/// end among it. REQUIRES: the driver has not been initialised.
void PrepareLast();

}  // namespace amem::workload
