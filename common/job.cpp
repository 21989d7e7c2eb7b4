#include "common/job.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>

#include "common/protocol.h"

namespace amem {
namespace {

constexpr std::size_t kLongest = 63;  // of a job

/// FNV-1a. It keeps names short and apart; nobody has to be kept from guessing it.
std::string digest(std::string_view text) {
  std::uint32_t hash = 2166136261U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  std::array<char, 9> digits{};
  std::snprintf(digits.data(), digits.size(), "%08x", hash);
  return digits.data();
}

bool is_this_host(std::string_view address) {
  return address.empty() || address == "localhost" || address == "::1" ||
         address.starts_with("127.") || address == "0.0.0.0";
}

/// Characters that a group's name cannot have become '-'.
std::string job_name(std::string text) {
  const std::string whole = text;
  for (char& c : text)
    if (!valid_group_name(std::string_view(&c, 1)) && c != '.') c = '-';
  if (text.size() <= kLongest && text == whole) return text;
  // Two texts may differ only in what is lost here.
  return text.substr(0, kLongest - 9) + "-" + digest(whole);
}

}  // namespace

JobPlace this_place() {
  std::array<char, 256> text{};
  JobPlace place;
  if (::gethostname(text.data(), text.size() - 1) == 0) place.host = text.data();
  const ssize_t length = ::readlink("/proc/self/ns/pid", text.data(), text.size());
  if (length > 0) place.pid_namespace.assign(text.data(), static_cast<std::size_t>(length));
  return place;
}

std::string job_of(const Variables& variables, const JobPlace& place) {
  const auto value = [&](const char* name) {
    const char* text = variables(name);
    return std::string(text != nullptr ? text : "");
  };
  if (variables("AMEM_JOB") != nullptr) {
    const std::string job = value("AMEM_JOB");
    return valid_group_name(job) ? job : "";
  }
  std::string job;
  const auto add = [&](const std::string& part) { job += (job.empty() ? "" : ".") + part; };
  // A job of one launcher may run in a job of another one.
  if (const std::string id = value("SLURM_JOB_ID"); !id.empty()) add("slurm-" + id);
  const std::string meets = value("MASTER_ADDR") + "-" + value("MASTER_PORT");
  const bool meets_others = !is_this_host(value("MASTER_ADDR"));
  const std::string run = value("TORCHELASTIC_RUN_ID");
  const std::string ray = value("RAY_JOB_ID");
  // Pods whose ranks meet at one address are of one job.
  if (!value("KUBERNETES_SERVICE_HOST").empty() && ray.empty()) {
    if (!meets_others) add("pod-" + place.host);
    if (meets_others && run.empty()) add("pods-" + meets);
  }
  // Each cluster numbers its jobs from 1.
  if (!ray.empty()) add("ray-" + ray + "-" + digest(value("RAY_RAYLET_PID") + place.pid_namespace));
  if (!run.empty()) add("torchrun-" + (run == "none" ? meets : run));
  return job.empty() ? job : job_name(job);
}

std::string whole_group_name(std::string_view name, std::string_view job) {
  return std::string(name) + (job.empty() ? "" : ":") + std::string(job);
}

std::string_view name_of_group(std::string_view whole) { return whole.substr(0, whole.find(':')); }

std::string_view job_of_group(std::string_view whole) {
  const std::size_t colon = whole.find(':');
  return colon == std::string_view::npos ? std::string_view() : whole.substr(colon + 1);
}

}  // namespace amem
