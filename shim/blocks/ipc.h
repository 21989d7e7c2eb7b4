// Ipc: interprocess handles (cuIpcGetMemHandle and its kin) of the heap's blocks. To the driver
// these are mapped memory, for which it refuses such handles.
//
// A handle holds a ticket (common/ticket.h). Opening it redeems the ticket and maps the allocation,
// or all of the block's, at an address of ours; Memory keeps that through pauses like any other.
// Owns those addresses, and how often each block was opened.
//
// Any thread. open() and close() come through the gate. Only one thread opens at a time, and it may
// wait for the broker meanwhile. No lock that a question or a close takes is held over such a wait.
#pragma once

#include <cuda.h>

#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "common/driver.h"
#include "common/ticket.h"
#include "shim/driver/local_devices.h"
#include "shim/memory/memory.h"

namespace amem::shim {

class Ipc {
 public:
  Ipc(const Driver& driver, LocalDevices& devices, Memory& memory)
      : driver_(driver), devices_(devices), memory_(memory) {}

  /// The handle of a block of the heap's.
  CUresult get(CUipcMemHandle* handle, const AddressRange& block);
  /// What a handle holds; nothing when it is the driver's.
  static std::optional<IpcHandle> read(const CUipcMemHandle& handle);
  static CUipcMemHandle write(const IpcHandle& handle);

  /// Maps what the handle names and gives the address of its first byte: the same one each time,
  /// until it was closed as often as it was opened.
  CUresult open(CUdeviceptr* address, const IpcHandle& handle, unsigned flags);
  /// The address came from open() and is still open.
  bool opened(CUdeviceptr address);
  /// The block that contains the address, as its handle said.
  std::optional<AddressRange> block(CUdeviceptr address);
  /// What the driver does before it closes: waits until nobody's work may use the memory any more.
  /// Outside of the gate. REQUIRES: no stream capture is open, which the wait would break.
  CUresult wait_until_unused();
  /// Nothing: not one of ours. `unmap` false: what is open no more is unmapped by a later close.
  std::optional<CUresult> close(CUdeviceptr address, bool unmap);

  /// Some of what was closed waits to be unmapped.
  bool any_closed();
  /// Unmaps it. Inside the gate; REQUIRES: nobody's work uses it any more.
  CUresult unmap_closed();

 private:
  struct Opened {
    std::uint64_t size = 0;
    unsigned count = 0;
  };
  struct Mapped {
    CUdeviceptr base = 0;
    std::size_t size = 0;
    std::vector<int> devices;  // that were granted access
    // Pieces of one allocation are opened apart. Empty: it waits to be unmapped.
    std::map<CUdeviceptr, Opened> opens;
  };
  using MappedById = std::map<std::uint64_t, Mapped>;  // by the broker's id of the first part

  CUresult redeem(const IpcHandle& handle, std::vector<CUmemGenericAllocationHandle>& parts,
                  std::size_t& size);
  CUresult map(const IpcHandle& handle, Mapped& mapped);
  CUresult grant(std::uint64_t id, int device);
  MappedById::iterator at(CUdeviceptr address);
  std::optional<Mapped> take_closed(MappedById::iterator it);
  CUresult unmap(const Mapped& mapped);

  const Driver& driver_;
  LocalDevices& devices_;
  Memory& memory_;
  std::mutex opening_;  // held by the thread that opens; taken before mutex_
  std::mutex mutex_;    // guards what follows; never held over a wait
  MappedById mappings_;
  std::map<CUdeviceptr, std::uint64_t> by_base_;  // the ids of mappings_
};

}  // namespace amem::shim
