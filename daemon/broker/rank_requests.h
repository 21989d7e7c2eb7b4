// RankRequests: what ranks ask of the broker, and what they answer it.
//
// For the loop's thread; works on the Node's tables.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/packet.h"
#include "daemon/base/clock.h"
#include "daemon/base/log_limit.h"
#include "daemon/broker/groups.h"
#include "daemon/operations/operations.h"
#include "daemon/sessions/session_server.h"

namespace amem {

class RankRequests {
 public:
  /// Everything passed in outlives this object.
  RankRequests(const Means& means, SessionServer& sessions, Operations& operations, Groups& groups);

  /// One packet of a rank that has joined. The rank may be gone afterwards.
  void handle(Rank& rank, const Message& message);

 private:
  void create(Rank& rank, std::uint64_t seq, const amem_v1_Create& message, std::size_t tries = 0);
  /// Ranks are to free what they keep for later.
  void trim();
  Result<Allocation*> make(Rank& rank, const amem_v1_Create& message);
  void redeem(Rank& rank, std::uint64_t seq, const amem_v1_Redeem& message);
  Status may_allocate(const Rank& rank) const;
  void free(Rank& rank, AllocationId id);
  /// Its keeper may have to save it.
  void let_reach_pool(const Allocation& a);
  void pin(Rank& rank, AllocationId id);
  void group_request(Rank& rank, std::uint64_t seq, const amem_v1_GroupRequest& message);
  void set_policy(Rank& rank, std::uint64_t seq, const amem_v1_SetPolicy& message);
  void phase_done(Rank& rank, const amem_v1_PhaseDone& message);
  void unbrokered(Rank& rank, const amem_v1_Unbrokered& message);

  const Means& means_;
  Node& node_;
  SessionServer& sessions_;
  Operations& operations_;
  Groups& groups_;
  LogLimit complaints_;
  Time trimmed_{};
};

}  // namespace amem
