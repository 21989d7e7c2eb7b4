// Handles: the program's handles of brokered memory: made, passed to peers as tickets, released.
//
// Asks the broker for creation and for what tickets stand for. Any thread; results are what the
// driver would return.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/driver.h"
#include "common/fd.h"
#include "common/ticket.h"
#include "shim/base/region.h"
#include "shim/driver/local_devices.h"
#include "shim/driver/own_memory.h"
#include "shim/memory/brokered_memory.h"
#include "shim/session/session.h"

namespace amem::shim {

class Handles {
 public:
  /// The granularity of all devices so far.
  static constexpr std::uint64_t kUsualGranularity = 2ULL << 20U;

  Handles(const Driver& driver, LocalDevices& devices, Session& session, BrokeredMemory& brokered)
      : driver_(driver), devices_(devices), session_(session), brokered_(brokered) {}

  CUresult create(CUmemGenericAllocationHandle* handle, std::size_t size,
                  const CUmemAllocationProp& prop, const Label& label);
  /// The same as several allocations; all but the last have the size `part`. As one where `part` is
  /// 0, or the broker makes it one. Their ids follow each other, and one token is theirs.
  CUresult create(std::vector<CUmemGenericAllocationHandle>& handles, std::size_t size,
                  std::size_t part, const CUmemAllocationProp& prop, const Label& label);
  /// NCCL's, which it may bind to a multicast object: with AMEM_NVLS=1 this process makes the
  /// memory itself.
  CUresult create_bindable(CUmemGenericAllocationHandle* handle, std::size_t size,
                           const CUmemAllocationProp& prop, const Label& label);
  CUresult release(CUmemGenericAllocationHandle handle);
  CUresult export_ticket(int* fd, CUmemGenericAllocationHandle handle);
  /// A descriptor that holds the ticket.
  static CUresult write_ticket(int* fd, const Ticket& ticket);
  CUresult import_ticket(CUmemGenericAllocationHandle* handle, const Ticket& ticket);
  CUresult properties(CUmemAllocationProp* prop, CUmemGenericAllocationHandle handle);
  /// The driver's unit of such memory, in bytes.
  std::uint64_t granularity(int device) const;
  /// Nothing: the address is not brokered, ask the driver.
  std::optional<CUresult> retain(CUmemGenericAllocationHandle* handle, CUdeviceptr address);
  /// A ticket for the whole allocation that is mapped at the address; nothing when none is. All in
  /// the range counts as shared from here on.
  std::optional<Ticket> ticket_at(CUdeviceptr address, std::size_t size);

  struct Known {
    std::uint64_t size = 0;
    int device = 0;  // -1: not visible in this process
    bool imported = false;
    bool gpu_direct_rdma = false;
  };
  /// An allocation that this process has, by the broker's id.
  std::optional<Known> known(std::uint64_t id);

  /// What a trace says of a handle's allocation; zeros for a handle that is not known.
  struct TraceView {
    std::uint32_t number = 0;
    bool imported = false;
    std::uint32_t refs = 0;
    std::size_t mappings = 0;
  };
  TraceView trace_view(CUmemGenericAllocationHandle handle);
  /// The next number of this process's allocations, in traces.
  std::uint32_t take_number() { return next_number_.fetch_add(1); }
  /// The launcher's number of this rank, for tickets.
  void set_rank(int rank) { rank_ = rank; }
  /// AMEM_NVLS=1.
  void set_binding(bool binding) { binding_ = binding; }

  /// Adds what the next broker must know of the devices. Returns a lock, under which nobody else
  /// tells this broker.
  std::unique_lock<std::mutex> show_again(std::vector<SendQueue::Parcel>& first);

  /// An answer whose caller has given up: what it holds is given back. Service thread.
  void unclaimed(const amem_v1_Reply& reply);

 private:
  CUresult create_own(CUmemGenericAllocationHandle* handle, std::size_t size,
                      const CUmemAllocationProp& prop, const Label& label);
  CUresult make(std::size_t size, const CUmemAllocationProp& prop, const Label& label,
                OwnMemory& made);
  CUresult redeem(CUmemGenericAllocationHandle* handle, const Ticket& ticket);
  void show_device(int device);
  /// Asks again where the broker wants to see the node of a device that this process does not use.
  Result<ReplyPacket> ask_for_redeemed(Message& request);
  CUresult adopt(CUmemGenericAllocationHandle* handle, BrokeredAllocation allocation, const Fd& fd);
  void give_back(const amem_v1_Reply& reply, unsigned mine);
  CUresult refuse_empty(const amem_v1_Reply& reply, unsigned mine, const std::string& what);
  Ticket ticket_for(const BrokeredAllocation& a) const {
    return {a.id, 0, a.size, a.token, rank_, a.number};
  }

  const Driver& driver_;
  LocalDevices& devices_;
  Session& session_;
  BrokeredMemory& brokered_;
  std::atomic<std::uint32_t> next_number_{1};
  int rank_ = -1;
  bool binding_ = false;
  std::mutex showing_;
  std::atomic<std::uint64_t> shown_{0};  // bits of devices whose nodes the broker has been shown
};

}  // namespace amem::shim
