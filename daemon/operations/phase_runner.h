// PhaseRunner: carries out what a Group asks for: packets to its ranks, extents, physical memory.
//
// Reports back to the Group by the call that the action names, which may bring up further actions;
// the caller takes those in turn. Memory is created in slices, each of which is sent to its keepers
// at once; the loop serves others in between, and `resumed` is called when there is something to
// take up again.
//
// For the loop's thread; works on the Node's tables.
#pragma once

#include <functional>
#include <map>

#include "daemon/base/event_loop.h"
#include "daemon/memory/devices.h"
#include "daemon/memory/nvml.h"
#include "daemon/operations/node.h"
#include "daemon/operations/saved_bytes.h"
#include "daemon/sessions/messages.h"

namespace amem {

class PhaseRunner {
 public:
  using Resumed = std::function<void(GroupEntry&)>;

  PhaseRunner(Node& node, const Devices& devices, const Nvml& nvml, SessionServer& sessions,
              SavedBytes& saved, EventLoop& loop, Resumed resumed)
      : node_(node),
        devices_(devices),
        nvml_(nvml),
        sessions_(sessions),
        saved_(saved),
        loop_(loop),
        resumed_(std::move(resumed)) {}

  void run(GroupEntry& group, const action::Quiesce& quiesce);
  void run(GroupEntry& group, const action::Step& step);
  void run(GroupEntry& group, const action::Save& save);
  void run(GroupEntry& group, const action::Release& release);
  void run(GroupEntry& group, const action::Drop& drop);
  void run(GroupEntry& group, const action::Admit& admit);
  void run(GroupEntry& group, const action::Create& create);
  void run(GroupEntry& group, const action::Load& load);
  void run(GroupEntry& group, const action::Room& room);
  void run(GroupEntry& group, const action::Open& open);
  void run(GroupEntry& group, const action::Arrived& arrived);

  /// Lets the rank reach these segments of the pool.
  void give_segments(RankId rank, const std::vector<std::uint32_t>& segments);

 private:
  void send(RankId rank, const Message& message, std::vector<SharedFd> fds = {});
  void send_all(const std::vector<RankId>& ranks, const Message& message);
  /// After the segments that the rank does not reach yet. `last`: with nothing to follow, so that
  /// the rank answers; then a packet goes in any case.
  void send_copies(RankId rank, CopyKind kind, Epoch epoch, const std::vector<CopyRange>& copies,
                   bool last);
  /// Chooses what leaves next of a group that leaves in waves.
  void choose_wave(GroupEntry& group);
  /// Whether the pause under way has the bytes of this, as far as they are to be kept.
  bool can_be_released(const GroupEntry& group, const Allocation& a);
  /// The group that comes in for another has no room before that one leaves.
  bool lacks_room(GroupId arriving) const;
  /// So much of another group has left: the one that comes in for it may take as much.
  void give_room(const GroupEntry& leaving, const std::map<DeviceUuid, std::uint64_t>& bytes);
  void send_maps(RankId rank, Epoch epoch, const std::vector<const Allocation*>& maps, bool last);
  /// Creates a slice of what is missing and sends it; then created(), or the next one later, when
  /// there is room for it.
  void create_slice(GroupEntry& group, Epoch epoch);
  /// What finds no room while another group leaves is put back, and that is no failure.
  Status create_again(GroupEntry& group, const Creation::Item& item, Allocation& a);
  void create_later(GroupId group, Epoch epoch);

  Node& node_;
  const Devices& devices_;
  const Nvml& nvml_;
  SessionServer& sessions_;
  SavedBytes& saved_;
  EventLoop& loop_;
  Resumed resumed_;
};

}  // namespace amem
