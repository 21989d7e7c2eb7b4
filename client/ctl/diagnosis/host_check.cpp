#include "client/ctl/diagnosis/host_check.h"

#include <gnu/libc-version.h>
#include <sys/utsname.h>

#include <charconv>
#include <filesystem>
#include <utility>

namespace amem::ctl {
namespace {

using Version = std::pair<int, int>;

constexpr Version kKernel{5, 3};  // pidfd_open
constexpr Version kGlibc{2, 35};  // what the wheel's and the packages' shim is linked to

/// The first two numbers of "6.1.0-18-amd64"; zeros where there are none.
Version version_of(const std::string& text) {
  Version version{0, 0};
  const char* const end = text.data() + text.size();
  const auto major = std::from_chars(text.data(), end, version.first);
  if (major.ec == std::errc() && major.ptr != end && *major.ptr == '.')
    std::from_chars(major.ptr + 1, end, version.second);
  return version;
}

}  // namespace

HostFacts look_at_host(const Environment& environment) {
  HostFacts facts;
  utsname name{};
  if (::uname(&name) == 0) facts.kernel = name.release;
  facts.glibc = ::gnu_get_libc_version();
  std::string pipe = value_in(environment, "CUDA_MPS_PIPE_DIRECTORY");
  pipe = (pipe.empty() ? "/tmp/nvidia-mps" : pipe) + "/control";
  std::error_code error;
  if (std::filesystem::exists(pipe, error)) facts.mps_pipe = pipe;
  return facts;
}

Findings check_host(const HostFacts& facts) {
  Findings findings;
  if (version_of(facts.kernel) < kKernel)
    findings.push_back(
        {false, "kernel", "the kernel is " + facts.kernel,
         "without pidfd_open a process counts as ended when its session ends, also one that runs "
         "on with memory of its group",
         "use Linux 5.3 or newer; docs/security.md says what follows"});
  if (version_of(facts.glibc) < kGlibc)
    findings.push_back({false, "glibc", "the C library is glibc " + facts.glibc,
                        "the shim of amem's packages and wheel needs 2.35 or newer",
                        "build amem from its source here, or use a newer distribution"});
  if (!facts.mps_pipe.empty())
    findings.push_back(
        {false, "mps", "an MPS daemon serves " + facts.mps_pipe,
         "amem has never run with CUDA's Multi-Process Service",
         "stop it (`echo quit | nvidia-cuda-mps-control`), unless you want to try that"});
  return findings;
}

}  // namespace amem::ctl
