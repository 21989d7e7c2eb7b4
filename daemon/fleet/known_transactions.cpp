#include "daemon/fleet/known_transactions.h"

#include <algorithm>
#include <map>
#include <utility>

namespace amem {
namespace {

/// Nodes may ask until their deadlines end.
constexpr std::size_t kRemembered = 4096;

}  // namespace

KnownTransactions::KnownTransactions(const std::vector<FleetShare>& shares, bool complete)
    : complete_(complete) {
  std::map<std::string, v1::FleetStanding> had;  // several groups may have had a share of one
  for (const FleetShare& share : shares) {
    v1::FleetStanding& standing = had[share.transaction];
    standing.set_known(true);
    standing.set_given_up(standing.given_up() || share.given_up);
    if (share.side == Side::kOut) {
      standing.set_asked_out(standing.asked_out() || share.asked);
      standing.set_went_on_out(standing.went_on_out() || share.went_on);
    } else {
      standing.set_asked_in(standing.asked_in() || share.asked);
      standing.set_went_on_in(standing.went_on_in() || share.went_on);
    }
  }
  for (const auto& [transaction, standing] : had)
    known_.push_back({transaction, nullptr, standing});
}

Status KnownTransactions::refuses(const v1::FleetBegin& begin) const {
  if (std::any_of(known_.begin(), known_.end(),
                  [&](const Known& known) { return known.transaction == begin.transaction(); }))
    return {Code::kFailedPrecondition,
            "this node already takes part in that operation. It may be named by two addresses"};
  if (std::find(never_.begin(), never_.end(), begin.transaction()) != never_.end())
    return {Code::kAborted,
            "another node has lost the leader " + begin.leader() + " and has given up"};
  return {};
}

void KnownTransactions::add(const std::string& transaction,
                            std::shared_ptr<Participant> participant) {
  for (Known& known : known_)
    if (known.participant != nullptr && known.participant->ended())
      known.standing = std::exchange(known.participant, nullptr)->standing_for_others();
  known_.push_back({transaction, std::move(participant), {}});
  while (known_.size() > kRemembered && known_.front().participant == nullptr) known_.pop_front();
}

v1::FleetStanding KnownTransactions::standing(const std::string& transaction, bool leads) {
  v1::FleetStanding standing;
  for (const Known& known : known_)
    if (known.transaction == transaction)
      standing =
          known.participant != nullptr ? known.participant->standing_for_others() : known.standing;
  if (leads && !standing.known()) {  // it has no part, and so has nothing against it
    standing.set_known(true);
    standing.set_asked_out(true);
    standing.set_asked_in(true);
  }
  standing.set_leads(leads);
  // Without a record nobody knows what an amemd before this one has asked.
  if (standing.known() || !complete_) return standing;
  if (std::find(never_.begin(), never_.end(), transaction) == never_.end())
    never_.push_back(transaction);
  if (never_.size() > kRemembered) never_.pop_front();
  standing.set_never(true);
  return standing;
}

void KnownTransactions::shut() {
  known_.clear();
  complete_ = false;
}

}  // namespace amem
