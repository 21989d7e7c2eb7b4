// RankRequests: what ranks ask of the broker, and what they answer it.
//
// For the loop's thread; works on the Node's tables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/packet.h"
#include "daemon/base/clock.h"
#include "daemon/broker/groups.h"
#include "daemon/memory/device_nodes.h"
#include "daemon/operations/operations.h"
#include "daemon/sessions/session_server.h"
#include "daemon/stages/stages.h"

namespace amem {

class RankRequests {
 public:
  /// Everything passed in outlives this object.
  RankRequests(const OperationContext& context, const DeviceNodes& nodes, SessionServer& sessions,
               Operations& operations, Groups& groups, Stages& stages);

  /// One packet of a rank that has joined. The rank may be gone afterwards.
  void handle(Rank& rank, Packet& packet);
  /// The rank has the allocation no longer, as sharer or as guest.
  void free(Rank& rank, AllocationId id);
  /// Its keeper may have to save it.
  void let_reach_pool(const Allocation& a);

 private:
  struct PendingCreate {  // a Create that has not been answered
    std::uint64_t seq = 0;
    amem_v1_Create message{};
    std::size_t tries = 0;
    Time until = {};  // it waits for a restore; not set: it has not waited
    struct Part {
      std::uint64_t size = 0;
      Charge entry = {};
      Charge memory = {};
    };
    std::vector<Part> parts = {};  // as many allocations; one of all where it is not in parts
    std::vector<Fd> made = {};     // of memory that the rank has made
    Charge files = {};             // for these
  };
  using PendingCreatePtr = std::shared_ptr<PendingCreate>;
  void asked_to_create(Rank& rank, Packet& packet);
  void create(Rank& rank, const PendingCreatePtr& request);
  void create_in(const std::vector<std::uint64_t>& sizes, Rank& rank,
                 const PendingCreatePtr& request);
  /// A restore has the device to itself: the request waits, or has waited too long.
  bool waits_for_restore(Rank& rank, const PendingCreatePtr& request);
  /// Takes what it needs, except for the memory itself.
  Status admit(const Rank& rank, PendingCreate& request, const std::vector<std::uint64_t>& sizes);
  void created(Rank& rank, const PendingCreatePtr& request, Workers::AllMade made);
  /// Tries again, or tells the rank.
  void not_created(Rank& rank, const PendingCreatePtr& request, const Status& why);
  /// All of them, one after the other, or none. The first.
  Result<Allocation*> enter(Rank& rank, PendingCreate& request, Workers::AllMade made);
  void redeem(Rank& rank, std::uint64_t seq, const amem_v1_Redeem& message);
  /// The rank becomes a sharer of it, or a guest.
  Result<Allocation*> share(const Rank& rank, AllocationId id, const Token& token);
  /// Opens memory that is not its group's.
  Result<Allocation*> open(const Rank& rank, const Allocation& a, const Token& token);
  /// A pause takes it, also one that an earlier amemd has begun: nobody new may share it.
  bool leaves(const Allocation& a) const;
  Status may_allocate(const Rank& rank) const;
  /// kPermissionDenied: the rank has not shown the device's node.
  Status may_open(const Rank& rank, const DeviceUuid& device) const;
  void await_closed(Rank& rank, std::uint64_t seq, const amem_v1_AwaitClosed& message);
  void pin(Rank& rank, const amem_v1_Pin& message);
  void unpin(Rank& rank, const amem_v1_Unpin& message);
  void group_request(Rank& rank, std::uint64_t seq, const amem_v1_GroupRequest& message);
  void set_policy(Rank& rank, std::uint64_t seq, const amem_v1_SetPolicy& message);
  void phase_done(Rank& rank, const amem_v1_PhaseDone& message);
  void made(const Rank& rank, Packet& packet);
  void unbrokered(Rank& rank, const amem_v1_Unbrokered& message);
  void unknown_calls(Rank& rank, const amem_v1_UnknownCalls& message);

  const OperationContext& context_;
  const DeviceNodes& nodes_;
  Node& node_;
  SessionServer& sessions_;
  Operations& operations_;
  Groups& groups_;
  Stages& stages_;
};

}  // namespace amem
