#include "daemon/broker/broker.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "daemon/base/units.h"
#include "daemon/operations/reports.h"
#include "daemon/sessions/messages.h"

namespace amem {
Broker::Broker(EventLoop& loop, const Config& config, const Devices& devices, const Nvml& nvml)
    : loop_(loop),
      config_(config),
      devices_(devices),
      nvml_(nvml),
      node_(config.pool_chunk),
      sessions_(loop, ranks_),
      saved_(node_, loop),
      outbox_(node_, sessions_),
      means_{node_, devices, nvml, outbox_, saved_, loop},
      operations_(means_, config.swap_duplex, [this](GroupEntry& group) { groups_.drive(group); }),
      groups_(node_, loop, config.deadlines, sessions_, events_, operations_),
      requests_(means_, sessions_, operations_, groups_),
      ranks_(means_, sessions_, events_, operations_, groups_, requests_),
      pool_(devices) {
  node_.pool_configured = config.pool_size;
  node_.pool_form = config.pool_save;
  node_.swap_wave = config.swap_wave;
}

Broker::~Broker() { shut(); }

Status Broker::start() {
  const std::string path = config_.runtime_dir + "/" + std::string(kSessionSocket);
  if (Status status = sessions_.listen(path, config_.session_mode); !status.ok()) return status;
  pool_.start(config_.pool_size, config_.segment(),
              {[this](PoolSegment segment) {
                 loop_.post([this, segment = std::move(segment)]() mutable {
                   pool_segment_ready(std::move(segment));
                 });
               },
               [this](std::string error) {
                 loop_.post([this, error = std::move(error)] { pool_finished(error); });
               }});
  return {};
}

void Broker::shut() {
  pool_.stop();
  operations_.close({Code::kUnavailable, "amemd is ending; the operation did not finish"});
  events_.close();
  sessions_.shut();
}

// ---- pool ---------------------------------------------------------------------------------------

void Broker::pool_segment_ready(PoolSegment segment) {
  node_.extents.add_segment(segment.size);
  node_.reach.add_segment(segment.size, segment.numa_node);
  node_.segments.push_back(std::move(segment));
  for (const auto& [id, rank] : node_.ranks) outbox_.give_segments(id, node_.reach.extend(id));
}

void Broker::pool_finished(const std::string& error) {
  node_.pool_error = error;
  events_.publish("", error.empty() ? "pool" : "error",
                  "pool: " + format_size(node_.extents.total()) + " of " +
                      format_size(node_.pool_configured) + " ready" +
                      (error.empty() ? "" : ": " + error));
}

// ---- the control API ----------------------------------------------------------------------------

void Broker::start_operation(const Task& task, const std::string& group, Duration timeout,
                             const Operations::Observer& observer) {
  spdlog::info("{} asked for", describe(task, printable(group.c_str())));
  operations_.start(task, group, timeout, observer);
}

void Broker::swap(const std::string& out, const std::string& in,
                  const std::set<std::string>& discard, Duration timeout,
                  const Operations::Observer& observer) {
  spdlog::info("swap asked for: '{}' out, '{}' in", printable(out.c_str()), printable(in.c_str()));
  operations_.swap(out, in, discard, timeout, observer);
}

Status Broker::set_policy(const std::string& name, const std::string& tag, v1::Policy policy,
                          v1::SaveForm form) {
  GroupEntry* group = node_.find_group(name);
  if (group == nullptr) return {Code::kNotFound, "no group '" + name + "'"};
  const bool sets_policy = policy == v1::POLICY_KEEP || policy == v1::POLICY_DISCARD;
  const std::optional<SaveForm> save_form = from_proto(form);
  if (!sets_policy && (policy != v1::POLICY_UNSPECIFIED || form == v1::SAVE_FORM_UNSPECIFIED))
    return {Code::kInvalidArgument, "a policy is keep or discard"};
  if (!save_form && form != v1::SAVE_FORM_UNSPECIFIED)
    return {Code::kInvalidArgument, "bytes are saved auto, dense or sparse"};
  if (Status status = groups_.may_set_policy(*group, tag, policy == v1::POLICY_DISCARD);
      !status.ok())
    return status;
  if (sets_policy) {
    group->tag_discards[tag] = policy == v1::POLICY_DISCARD;
    spdlog::info("group '{}': tag '{}' is {} by a pause", name, printable(tag.c_str()),
                 policy == v1::POLICY_DISCARD ? "discarded" : "kept");
  }
  if (save_form) {
    group->tag_forms[tag] = *save_form;
    spdlog::info("group '{}': tag '{}' is saved {}", name, printable(tag.c_str()),
                 to_string(*save_form));
  }
  return {};
}

void Broker::status(v1::NodeStatus& status) const {
  report_node(node_, devices_, nvml_, began_, status);
  report_times(groups_.histograms(), status);
}

void Broker::groups(v1::ListGroupsResponse& response) const {
  for (const auto& [id, group] : node_.groups) report_group(node_, group, *response.add_groups());
}

Result<std::vector<v1::RankInfo>> Broker::ranks(const std::string& group) const {
  if (!group.empty() && node_.find_group(group) == nullptr)
    return Status(Code::kNotFound, "no group '" + group + "'");
  return report_ranks(node_, group);
}

Result<std::vector<v1::AllocationInfo>> Broker::allocations(const std::string& group) const {
  if (!group.empty() && node_.find_group(group) == nullptr)
    return Status(Code::kNotFound, "no group '" + group + "'");
  return report_allocations(node_, group);
}

}  // namespace amem
