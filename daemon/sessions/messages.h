// The broker's side of the session protocol's messages: built from, and read into, the types that
// the logic works with. Stateless; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/packet.h"
#include "common/place.h"
#include "daemon/phases/actions.h"
#include "daemon/phases/cut.h"
#include "daemon/plans/plan.h"

namespace amem {

Message quiesce_message(Epoch epoch, const std::string& paused_by);
Message permit_message(Epoch epoch, const Cut::Permit& permit);
Message release_message(Epoch epoch, const Selection& what, bool undo);
/// A release of these alone; `more`: another packet follows. REQUIRES: at most
/// kMaxReleasesPerMessage.
inline constexpr std::ptrdiff_t kMaxReleasesPerMessage =
    sizeof(amem_v1_Release::ids) / sizeof(amem_v1_Release::ids[0]);
Message release_message(Epoch epoch, const AllocationId* begin, const AllocationId* end, bool more,
                        bool more_waves);
Message ask_message(Epoch epoch, RankPhase what);
/// `device`: to which the driver counts the segment's memory; zeros: to none.
Message pool_segment_message(std::uint32_t index, std::uint64_t size, Place place,
                             const DeviceUuid& device);
/// `number`: of the message, for the answer.
Message unmap_segment_message(std::uint32_t index, std::uint64_t number);

/// A Reply without a result; the caller fills in what else it carries.
Message reply_message(std::uint64_t seq, const Status& status);
Message all_closed_message(std::uint64_t seq, std::uint64_t spare_bytes);
/// What this amemd does or may ask for by its settings: the fields of Welcome.
struct Offers {
  bool hashes = false;
  bool has_spares = false;
  bool takes_parts = false;
};
/// `key`: with which the rank may reconnect to the next broker. `paused_by`: of a gate that is
/// shut.
/// `first_turn`: the group waits for it.
Message welcome_message(std::uint64_t seq, RankId rank, bool gate_shut, Epoch epoch,
                        const Offers& offers, const Token& key, const std::string& paused_by = {},
                        bool first_turn = false);
/// `first`: of so many with the same token, whose ids follow each other.
Message created_message(std::uint64_t seq, const Allocation& first, std::size_t count);
Message redeemed_message(std::uint64_t seq, const Allocation& allocation, bool guest);

/// An allocation to be looked at for zeros.
struct MeasureRange {
  AllocationId id = 0;
  std::uint64_t length = 0;
};
/// REQUIRES: at most kMaxRangesPerMessage.
Message measure_message(Epoch epoch, const MeasureRange* begin, const MeasureRange* end, bool last);

/// Ranges [begin, end) as one Save or Load packet. REQUIRES: at most kMaxCopiesPerMessage.
enum class CopyKind : std::uint8_t { kSave, kLoad };
Message copies_message(CopyKind kind, Epoch epoch, const CopyRange* begin, const CopyRange* end,
                       bool last);
/// REQUIRES: at most kMaxMapsPerMessage.
Message map_message(Epoch epoch, const Allocation* const* begin, const Allocation* const* end,
                    bool last);

/// Asks the rank to make these anew, which it has made before. REQUIRES: at most
/// kMaxMapsPerMessage.
Message make_message(Epoch epoch, std::uint64_t number, const std::vector<AllocationId>& ids);

CutReport cut_report(const amem_v1_CutStatus& message);
/// Returns kNone for an unknown number.
RegionPolicy region_policy(amem_v1_RegionPolicy policy);
/// Returns kUnknown for an unknown number.
PinReason pin_reason(amem_v1_PinReason reason);
/// A rank's PhaseDone as a status; a code that is none counts as kUnknown.
CommandTimes command_times(const amem_v1_Spent& spent);
Status phase_status(const amem_v1_PhaseDone& message);
/// The same for its Made.
Status made_status(const amem_v1_Made& message);

}  // namespace amem
