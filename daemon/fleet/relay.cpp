#include "daemon/fleet/relay.h"

#include <utility>
#include <vector>

namespace amem {

void Relay::begin(const v1::FleetBegin& begin) {
  const auto count = static_cast<std::uint32_t>(begin.nodes_size());
  if (begin.number() < count) name_ = begin.nodes(static_cast<int>(begin.number()));
  v1::FleetBegin theirs = begin;
  theirs.clear_passes_on();
  std::vector<std::pair<std::uint32_t, Status>> unreachable;
  for (const std::uint32_t node : begin.passes_on()) {
    if (node >= count || node == begin.number() || to_.contains(node)) continue;
    theirs.set_number(node);
    NodeLink::Heard heard;
    heard.reports = [self = weak_from_this(), node](v1::FleetReports reports) {
      const auto relay = self.lock();
      if (relay == nullptr || relay->report_ == nullptr) return;
      for (int i = 0; i < reports.each_size(); ++i) {
        v1::FleetReport& report = *reports.mutable_each(i);
        report.set_node(node);
        relay->report_(std::move(report), i + 1 < reports.each_size());
      }
    };
    heard.over = [self = weak_from_this(), node](const Status& why) {
      if (const auto relay = self.lock()) relay->over(node, why);
    };
    Result<std::unique_ptr<NodeLink>> link =
        links_.open(begin.nodes(static_cast<int>(node)), std::move(heard));
    if (!link.ok()) {
      to_[node] = nullptr;
      unreachable.emplace_back(node, link.status());
      continue;
    }
    v1::FleetCommand first;
    first.set_node(node);
    *first.mutable_begin() = theirs;
    (to_[node] = std::move(link).value())->send(std::move(first));
  }
  for (const auto& [node, why] : unreachable) over(node, why);
  if (to_.empty() && unreachable.empty()) idle_();
}

void Relay::pass(v1::FleetCommand command) {
  const auto to = to_.find(command.node());
  if (to != to_.end() && to->second != nullptr) to->second->send(std::move(command));
}

/// Said also of one that has ended: the leader knows that.
void Relay::over(std::uint32_t node, const Status& why) {
  const auto to = to_.find(node);
  if (to == to_.end()) return;
  // It may be what has called.
  loop_.post([gone = std::shared_ptr<NodeLink>(std::move(to->second))] {});
  to_.erase(to);
  if (report_) {
    v1::FleetReport report;
    report.set_node(node);
    const Status status = lost_by(why);
    report.mutable_lost()->set_code(static_cast<std::uint32_t>(status.code()));
    report.mutable_lost()->set_text(status.text() + " (it is reached through node '" + name_ +
                                    "')");
    report_(std::move(report), false);
  }
  if (to_.empty()) idle_();
}

void Relay::end() {
  report_ = nullptr;
  for (auto& [node, link] : std::exchange(to_, {}))
    loop_.post([gone = std::shared_ptr<NodeLink>(std::move(link))] {});
}

}  // namespace amem
