// LlmdOperations: what has become of the snapshots and restores that llm-d's clients have asked
// for, by their numbers, and the words of llm-d for what amemd knows.
//
// Clients ask for an operation's end repeatedly, and without end if its id is not known. So the
// answer for an id that was given out, but whose end is not known any more, is failed; the client
// then asks for the state of the jobs.
//
// Pure: time is an argument. Any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "amem/v1/broker.pb.h"
#include "common/status.h"
#include "llm_d/snapshot_agent.pb.h"

namespace amem {

namespace llm_d = snapshot_agent::v1alpha1;

/// The state of a job whose group is in this one.
llm_d::JobState job_state(v1::GroupState state);
void put(llm_d::StatusResponse& response, const v1::NodeStatus& node);
/// The group of a job; null: none is called so, or several are.
const v1::GroupInfo* group_of(const v1::ListGroupsResponse& groups, const std::string& job);
/// kInvalidArgument, kUnimplemented: a request that a group cannot answer.
Status check(const std::string& job, const llm_d::BackendConfig& backend);

class LlmdOperations {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// The id of a restore of a group that runs, as llm-d's own agent calls it.
  static constexpr char kAlreadyRunning[] = "already-running";
  /// The most ends that are kept of a job, and the most jobs with kept ends: those that ended last.
  static constexpr std::size_t kMostEnded = 16;
  static constexpr std::size_t kMostJobs = 1024;

  /// `run`: differs from every other process's.
  explicit LlmdOperations(std::uint64_t run) : run_(run) {}

  /// kAborted: what is refused while the job is pausing or resuming.
  static Status under_way(const std::string& job);

  /// The number of an operation that begins. kAborted: the job has one that has not ended.
  Result<std::uint64_t> begin(const std::string& job, Time now);
  /// It has begun nothing.
  void drop(std::uint64_t number);
  /// `group`: as it is now; null: unknown. No effect on an operation that has ended.
  void end(std::uint64_t number, const Status& status, const v1::GroupInfo* group, Time now);

  std::string id_of(std::uint64_t number) const;
  /// kNotFound: no amem-llm-d has given out such an id.
  Result<llm_d::GetOperationResponse> get(const std::string& id, Time now) const;

 private:
  struct Entry {
    std::string job;
    Time began;
    Time until;
    std::optional<Status> status;  // nothing: it goes on
    std::uint64_t saved = 0;
    std::uint64_t allocated = 0;
  };
  struct Job {
    bool under_way = false;
    std::deque<std::uint64_t> ended;  // the first to end in front
  };

  /// Forgets the job whose last operation ended first, if there are too many.
  void forget_a_job();

  const std::uint64_t run_;
  mutable std::mutex mutex_;  // guards what follows
  std::uint64_t last_ = 0;
  std::map<std::uint64_t, Entry> all_;
  std::map<std::string, Job> jobs_;
};

}  // namespace amem
