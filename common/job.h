// Job: what a launcher calls the run that a process belongs to. Two jobs of one owner may have a
// group of one name.
//
// A group's whole name is NAME, or NAME:JOB if its ranks are of a job. Pure functions; any thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace amem {

/// What the environment of a process says: nullptr for what is not set.
using Variables = std::function<const char*(const char* name)>;

/// Where a process runs, as far as names of jobs depend on it.
struct JobPlace {
  std::string host;           // its host name; of a pod: the pod's name
  std::string pid_namespace;  // "pid:[4026531836]": a process id is unique within it
};
JobPlace this_place();

/// Returns a valid group name, from AMEM_JOB or from what Slurm, Kubernetes, Ray and torchrun set.
/// Returns "" if nothing tells jobs apart, or if AMEM_JOB is empty or not a valid group name.
std::string job_of(const Variables& variables, const JobPlace& place);

/// "train:slurm-12"; NAME alone without a job.
std::string whole_group_name(std::string_view name, std::string_view job);
/// "train" of "train:slurm-12".
std::string_view name_of_group(std::string_view whole);
/// "slurm-12" of "train:slurm-12"; empty: of no job.
std::string_view job_of_group(std::string_view whole);

}  // namespace amem
