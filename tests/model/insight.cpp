#include "tests/model/insight.h"

namespace amem {

std::shared_ptr<const Insight::GroupCopy> Insight::copy(const Group& group) {
  return std::make_shared<const GroupCopy>(GroupCopy{
      group.state_, group.rest_, group.deep_, group.by_operator_, group.epoch_, group.members_,
      group.requests_, group.course_, group.expected_, group.interrupted_, group.patience_});
}

void Insight::put_back(const GroupCopy& copy, Group& group) {
  group.actions_.clear();
  group.state_ = copy.state;
  group.rest_ = copy.rest;
  group.deep_ = copy.deep;
  group.by_operator_ = copy.by_operator;
  group.epoch_ = copy.epoch;
  group.members_ = copy.members;
  group.requests_ = copy.requests;
  group.course_.reset();
  if (copy.course) group.course_.emplace(*copy.course);
  group.expected_ = copy.expected;
  group.interrupted_ = copy.interrupted;
  group.patience_ = copy.patience;
}

std::uint64_t Insight::until(Time time, Time now) {
  if (time == kNever) return ~0ULL;
  return time < now ? 0 : static_cast<std::uint64_t>((time - now).count());
}

void Insight::add(const Group& group, Time now, model::Digest& digest) {
  digest.add(static_cast<std::uint64_t>(group.state_));
  digest.add((group.by_operator_ ? 1U : 0U) | (group.deep_ ? 2U : 0U));
  digest.add(group.epoch_.attempt);
  digest.add_all(group.members_.ids());
  const std::vector<Task> tasks = group.requests_.tasks();
  digest.add(tasks.size());
  for (const Task& task : tasks) {
    add(task, digest);
    digest.add_all(group.requests_.missing(task, group.members_.ids()));
    digest.add(until(group.requests_.deadline(task), now));
  }
  digest.add(group.course_.has_value());
  if (group.course_) add(*group.course_, now, digest);
  digest.add_all(group.expected_);
  digest.add(group.interrupted_.has_value());
  if (!group.interrupted_) return;
  add(group.interrupted_->task, digest);
  digest.add(static_cast<std::uint64_t>(group.interrupted_->restart));
  digest.add((group.interrupted_->loaded ? 1U : 0U) |
             (group.rest_ == GroupState::kPaused ? 2U : 0U));
  digest.add(until(group.patience_, now));
}

void Insight::add(const Course& course, Time now, model::Digest& digest) {
  add(course.terms_.task, digest);
  digest.add(static_cast<std::uint64_t>(course.terms_.rest));
  digest.add(static_cast<std::uint64_t>(course.terms_.before));
  digest.add(static_cast<std::uint64_t>(course.terms_.timeout.count()));
  digest.add((course.terms_.inside ? 1U : 0U) | (course.terms_.held != Held::kNo ? 2U : 0U) |
             (course.deep_ ? 4U : 0U) | (course.no_space_ ? 8U : 0U) | (course.more_ ? 16U : 0U) |
             (course.loaded_ ? 32U : 0U));
  digest.add(course.epoch_.attempt);
  digest.add(course.epoch_.wave);
  digest.add(static_cast<std::uint64_t>(course.phase_));
  digest.add(until(course.deadline_, now));
  digest.add_all(course.participants_);
  digest.add_all(course.waiting_);
  digest.add_all(course.mapped_);
  digest.add(static_cast<std::uint64_t>(course.trouble_.code()));
  digest.add(course.cut_.has_value());
  if (course.cut_) add(*course.cut_, now, digest);
}

void Insight::add(const Task& task, model::Digest& digest) {
  digest.add(static_cast<std::uint64_t>(task.op));
  digest.add(to_string(task.selection));
  digest.add(task.discard.size());
  for (const std::string& tag : task.discard) digest.add(tag);
  digest.add(static_cast<std::uint64_t>(task.guests));
  digest.add((task.deep ? 1U : 0U) | (task.partial ? 2U : 0U));
}

void Insight::add(const Cut& cut, Time now, model::Digest& digest) {
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
    digest.add(rank.last.steps);
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

void Insight::add(const Transaction& transaction, model::Digest& digest) {
  for (const Transaction::Member& member : transaction.members_) {
    digest.add(static_cast<std::uint64_t>(member.state));
    digest.add((member.held ? 1U : 0U) | (member.left ? 2U : 0U));
    digest.add(static_cast<std::uint64_t>(member.status.code()));
  }
  digest.add_all(transaction.failed_);
  digest.add((transaction.vacated_ ? 1U : 0U) | (transaction.broken_ ? 2U : 0U));
}

void Insight::add(const Conductor& conductor, model::Digest& digest) {
  digest.add(static_cast<std::uint64_t>(conductor.given_up_.code()));
  for (const Conductor::Barrier& barrier : conductor.barriers_) {
    digest.add(barrier.committed);
    for (const auto* nodes : {&barrier.asks, &barrier.told, &barrier.gone}) digest.add_all(*nodes);
  }
  for (const Conductor::Node& node : conductor.nodes_)
    digest.add((node.joined ? 1U : 0U) | (node.over ? 2U : 0U) | (node.status.ok() ? 4U : 0U));
}

void Insight::add(const Participant& participant, model::Digest& digest) {
  for (const Stage stage : kStages)
    digest.add((participant.asked_[stage] ? 1U : 0U) | (participant.went_on_[stage] ? 2U : 0U));
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
