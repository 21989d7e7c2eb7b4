#include "tests/model/model_peek.h"

namespace amem {

void ModelPeek::add(const Cut& cut, Time now, world::Digest& digest) {
  const auto add_devices = [&](const std::set<DeviceUuid>& devices) {
    digest.add(devices.size());
    for (const DeviceUuid& device : devices) digest.add(device.bytes[0]);
  };
  digest.add(static_cast<std::uint64_t>(cut.patience_.count()));
  digest.add(static_cast<std::uint64_t>(cut.expiries_));
  digest.add(cut.pushed_ ? cut.pushed_->rank : 0U);
  digest.add(cut.pushed_ ? cut.pushed_->device.bytes[0] : 0U);
  digest.add(cut.pushes_left_);
  std::minstd_rand random = cut.random_;
  digest.add(random());  // its next number is its state
  digest.add(static_cast<std::uint64_t>((now - cut.last_change_).count()));
  for (const auto& [id, rank] : cut.ranks_) {
    digest.add(id);
    digest.add(rank.reported);
    digest.add(rank.sent);
    digest.add(rank.last.permits);
    digest.add(rank.last.captures);
    digest.add(rank.last.devices.size());
    for (const CutReport::Device& device : rank.last.devices) {
      digest.add(device.device.bytes[0]);
      digest.add(device.busy);
      digest.add(device.waiting);
      digest.add(device.ready);
    }
    add_devices(rank.moved);
    add_devices(rank.stuck);
  }
}

void ModelPeek::add(const Conductor& conductor, world::Digest& digest) {
  digest.add(static_cast<std::uint64_t>(conductor.given_up_.code()));
  for (const Conductor::Barrier& barrier : conductor.barriers_) {
    digest.add(barrier.committed);
    for (const auto* nodes : {&barrier.asks, &barrier.told, &barrier.gone}) digest.add_all(*nodes);
  }
  for (const Conductor::Node& node : conductor.nodes_)
    digest.add((node.joined ? 1U : 0U) | (node.over ? 2U : 0U) | (node.status.ok() ? 4U : 0U));
}

void ModelPeek::add(const Participant& participant, world::Digest& digest) {
  for (const Side side : kSides)
    digest.add((participant.asked_[side] ? 1U : 0U) | (participant.went_on_[side] ? 2U : 0U));
  digest.add((participant.report_ ? 1U : 0U) | (participant.withdrawn_ ? 2U : 0U) |
             (participant.promised_ ? 4U : 0U) | (participant.given_up_ ? 8U : 0U) |
             (participant.ended_ ? 16U : 0U));
  const auto add_node = [&](const std::optional<std::size_t>& node) {
    digest.add(node ? *node + 1 : 0);
  };
  add_node(participant.leader_);
  digest.add(participant.inquiry_ != nullptr);
  if (participant.inquiry_ == nullptr) return;
  const Inquiry& inquiry = *participant.inquiry_;
  add_node(inquiry.leader_);
  digest.add(inquiry.round_);
  digest.add(inquiry.open_);
  digest.add_all(inquiry.silent_);
  digest.add((inquiry.led_ ? 1U : 0U) | (inquiry.never_ ? 2U : 0U));
  add_node(inquiry.gone_on_);
  add_node(inquiry.given_up_);
}

}  // namespace amem
