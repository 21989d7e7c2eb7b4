#include "addons/llm_d/operations.h"

#include <string_view>
#include <utility>

#include "common/numbers.h"

namespace amem {
namespace {

constexpr std::string_view kPrefix = "amem-";
constexpr std::size_t kRunDigits = 16;
/// Of a group's name with its owner, which may be the path of a cgroup. Answers quote it.
constexpr std::size_t kLongestJob = 4096;

std::string hex(std::uint64_t value) {
  std::string text(kRunDigits, '0');
  for (auto digit = text.rbegin(); digit != text.rend(); ++digit, value >>= 4U)
    *digit = "0123456789abcdef"[value & 15U];
  return text;
}

/// "amem-0123456789abcdef-7"
struct Id {
  std::string_view run;
  std::uint64_t number;
};
std::optional<Id> read(std::string_view text) {
  if (!text.starts_with(kPrefix)) return std::nullopt;
  text.remove_prefix(kPrefix.size());
  if (text.size() <= kRunDigits + 1 || text[kRunDigits] != '-') return std::nullopt;
  const auto number = number_of_text<std::uint64_t>(text.substr(kRunDigits + 1));
  if (!number) return std::nullopt;
  return Id{text.substr(0, kRunDigits), *number};
}

llm_d::GetOperationResponse failed(const std::string& why) {
  llm_d::GetOperationResponse response;
  response.set_status(llm_d::OPERATION_STATUS_FAILED);
  response.set_error(why);
  return response;
}

std::int64_t ms(LlmdOperations::Time::duration duration) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
}

}  // namespace

llm_d::JobState job_state(v1::GroupState state) {
  switch (state) {
    case v1::GROUP_STATE_RUNNING:
      return llm_d::JOB_STATE_RUNNING;
    case v1::GROUP_STATE_PAUSING:
    case v1::GROUP_STATE_RESUMING:
      return llm_d::JOB_STATE_TRANSITIONING;
    case v1::GROUP_STATE_PAUSED:
      return llm_d::JOB_STATE_SAVED;
    default:
      return llm_d::JOB_STATE_UNSPECIFIED;
  }
}

void put(llm_d::StatusResponse& response, const v1::NodeStatus& node) {
  for (const v1::GroupInfo& group : node.groups()) {
    llm_d::JobStatus& job = *response.add_job_statuses();
    job.set_job_id(group.name());
    job.set_state(job_state(group.state()));
  }
  for (const v1::DeviceStatus& device : node.devices()) {
    llm_d::AcceleratorStatus& accelerator = *response.add_accelerator_statuses();
    accelerator.set_id(device.uuid());
    accelerator.set_memory_used_bytes(static_cast<std::int64_t>(
        device.usage_known() ? device.used_bytes() : device.brokered_bytes()));
    accelerator.set_memory_total_bytes(static_cast<std::int64_t>(device.total_bytes()));
  }
}

const v1::GroupInfo* group_of(const v1::ListGroupsResponse& groups, const std::string& job) {
  const v1::GroupInfo* found = nullptr;
  for (const v1::GroupInfo& group : groups.groups()) {
    if (group.address() == job) return &group;
    if (group.name() != job) continue;
    if (found != nullptr) return nullptr;
    found = &group;
  }
  return found;
}

Status check(const std::string& job, const llm_d::BackendConfig& backend) {
  if (job.empty()) return {Code::kInvalidArgument, "job_id is empty. Pass the name of a group"};
  if (job.size() > kLongestJob)
    return {Code::kInvalidArgument, "job_id is longer than " + std::to_string(kLongestJob) +
                                        " characters. Pass the name of a group"};
  switch (backend.backend_case()) {
    case llm_d::BackendConfig::BACKEND_NOT_SET:
    case llm_d::BackendConfig::kCuda:
      return {};
    default:
      return {Code::kUnimplemented,
              "amemd pauses whole groups, whatever runs in them. Pass no backend_config, or cuda"};
  }
}

Status LlmdOperations::under_way(const std::string& job) {
  return {Code::kAborted,
          "job '" + job + "' is pausing or resuming. Try again when that has ended"};
}

Result<std::uint64_t> LlmdOperations::begin(const std::string& job, Time now) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(jobs_[job].under_way, true)) return under_way(job);
  Entry entry;
  entry.job = job;
  entry.began = now;
  all_.emplace(++last_, std::move(entry));
  return last_;
}

void LlmdOperations::drop(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto it = all_.find(number);
  if (it == all_.end()) return;
  const auto job = jobs_.find(it->second.job);
  if (!it->second.status) job->second.under_way = false;
  std::erase(job->second.ended, number);
  if (!job->second.under_way && job->second.ended.empty()) jobs_.erase(job);
  all_.erase(it);
}

void LlmdOperations::end(std::uint64_t number, const Status& status, const v1::GroupInfo* group,
                         Time now) {
  const std::lock_guard lock(mutex_);
  const auto it = all_.find(number);
  if (it == all_.end() || it->second.status) return;
  it->second.status = status;
  it->second.until = now;
  if (group != nullptr) {
    it->second.saved = group->saved_bytes();
    it->second.allocated = group->allocated_bytes();
  }
  Job& job = jobs_.at(it->second.job);
  job.under_way = false;
  job.ended.push_back(number);
  if (job.ended.size() > kMostEnded) {
    all_.erase(job.ended.front());
    job.ended.pop_front();
  }
  forget_a_job();
}

void LlmdOperations::forget_a_job() {
  if (jobs_.size() <= kMostJobs) return;
  auto first = jobs_.end();
  for (auto it = jobs_.begin(); it != jobs_.end(); ++it)
    if (!it->second.under_way &&
        (first == jobs_.end() ||
         all_.at(it->second.ended.back()).until < all_.at(first->second.ended.back()).until))
      first = it;
  if (first == jobs_.end()) return;
  for (const std::uint64_t number : first->second.ended) all_.erase(number);
  jobs_.erase(first);
}

std::string LlmdOperations::id_of(std::uint64_t number) const {
  return std::string(kPrefix) + hex(run_) + "-" + std::to_string(number);
}

Result<llm_d::GetOperationResponse> LlmdOperations::get(const std::string& id, Time now) const {
  llm_d::GetOperationResponse response;
  if (id == kAlreadyRunning) {
    response.set_status(llm_d::OPERATION_STATUS_COMPLETE);
    response.set_storage_bytes(0);
    response.set_snapshot_device_bytes(0);
    return response;
  }
  const std::optional<Id> read_id = read(id);
  const bool of_this_run = read_id && read_id->run == hex(run_);
  const std::lock_guard lock(mutex_);
  if (!read_id || read_id->number == 0 || (of_this_run && read_id->number > last_))
    return Status(Code::kNotFound,
                  "no operation has this id. Pass one that Snapshot or Restore "
                  "has returned");
  const auto it = of_this_run ? all_.find(read_id->number) : all_.end();
  if (it == all_.end())
    return failed(
        "amem-llm-d does not know any more how this operation ended, for example because it was "
        "restarted. Ask for the state of the job");
  const Entry& entry = it->second;
  if (entry.status && !entry.status->ok())
    response = failed(entry.status->text());
  else
    response.set_status(entry.status ? llm_d::OPERATION_STATUS_COMPLETE
                                     : llm_d::OPERATION_STATUS_PENDING);
  response.set_elapsed_ms(ms((entry.status ? entry.until : now) - entry.began));
  if (response.status() == llm_d::OPERATION_STATUS_COMPLETE) {
    response.set_storage_bytes(static_cast<std::int64_t>(entry.saved));
    response.set_snapshot_device_bytes(static_cast<std::int64_t>(entry.allocated));
  }
  return response;
}

}  // namespace amem
