#include "daemon/fleet/inquiry.h"

#include <algorithm>

#include "daemon/fleet/fan_out.h"

namespace amem {
namespace {

constexpr Duration kFirstPause = std::chrono::milliseconds(500);
constexpr Duration kLongestPause = std::chrono::seconds(4);
/// In which the few have had time to find out, and the others ask all.
constexpr unsigned kPatientRounds = 3;

}  // namespace

Inquiry::Inquiry(std::size_t nodes, std::size_t own, Side side, std::optional<std::size_t> leader)
    : nodes_(nodes),
      few_(nodes <= kMaxNodes ? fan_out(nodes).size() : nodes),
      own_(own),
      side_(side),
      leader_(leader) {}

bool Inquiry::asks_all() const { return own_ < few_ || round_ > kPatientRounds; }

std::vector<std::size_t> Inquiry::next_round() {
  ++round_;
  silent_.clear();
  led_ = never_ = false;
  gone_on_ = given_up_ = std::nullopt;
  std::vector<std::size_t> to_ask;
  for (std::size_t node = 0; node < (asks_all() ? nodes_ : few_); ++node)
    if (node != own_) to_ask.push_back(node);
  open_ = to_ask.size();
  return to_ask;
}

void Inquiry::heard(std::size_t node, const v1::FleetStanding* standing) {
  --open_;
  if (standing == nullptr) return silent_.push_back(node);
  const v1::FleetStanding& it = *standing;
  if (it.has_leader() && it.leader().number() < nodes_) leader_ = it.leader().number();
  led_ = led_ || it.leads() || it.led();
  const bool out = side_ == Side::kOut;
  if (out ? it.went_on_out() : it.went_on_in()) {
    gone_on_ = node;
  } else if (it.known() && (it.given_up() || !(out ? it.asked_out() : it.asked_in()))) {
    given_up_ = node;
    never_ = false;
  } else if (!it.known() && it.never()) {
    if (given_up_) return;
    given_up_ = node;
    never_ = true;
  } else if (!it.known()) {
    silent_.push_back(node);
  }
}

Inquiry::Verdict Inquiry::verdict() const {
  if (gone_on_) return Verdict::kGoOn;
  if (given_up_ && (!never_ || asks_all())) return Verdict::kGiveUp;
  const bool all_known = std::all_of(silent_.begin(), silent_.end(),
                                     [this](std::size_t node) { return node == leader_; });
  return asks_all() && !led_ && all_known ? Verdict::kGiveUp : Verdict::kAskAgain;
}

Duration Inquiry::pause() const {
  return std::min(kFirstPause * (1U << std::min(round_ - 1, 8U)), kLongestPause);
}

}  // namespace amem
