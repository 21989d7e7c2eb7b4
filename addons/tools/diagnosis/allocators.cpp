// The checks of allocators whose memory amem leaves on the GPU: what variables and arguments tell
// before a program starts. What a running rank has is in views/staying.h.
#include <string>

#include "addons/tools/diagnosis/checks.h"
#include "client/ctl/preload.h"

namespace amem::ctl {
namespace {

constexpr const char* kManaged =
    "allocates managed memory, which amem cannot broker, so it stays on the GPU in a pause";

bool is_true(const std::string& value) { return value == "1" || value == "true"; }
bool is_set(const std::string&) { return true; }

struct AllocatorChoice {
  const char* variable;
  bool (*chooses)(const std::string& value);
  const char* program;
};

constexpr AllocatorChoice kChoices[] = {
    {"TF_FORCE_UNIFIED_MEMORY", &is_true, "JAX or TensorFlow"},
    {"GGML_CUDA_ENABLE_UNIFIED_MEMORY", &is_set, "llama.cpp"},
};

Findings check_choices(const Environment& environment, const std::string& scope, bool block) {
  Findings findings;
  for (const AllocatorChoice& choice : kChoices) {
    const auto variable = environment.find(choice.variable);
    if (variable == environment.end() || !choice.chooses(variable->second) || scope != "heap")
      continue;
    findings.push_back({block, "allocator", std::string(choice.variable) + "=" + variable->second,
                        std::string(choice.program) + " then " + kManaged, "unset it"});
  }
  return findings;
}

}  // namespace

Findings check_allocators(const Environment& environment) {
  return check_choices(environment, value_in(environment, "AMEM_SCOPE"), true);
}

Findings check_allocators_of_jobs(const Environment& environment) {
  return check_choices(environment, "heap", false);
}

}  // namespace amem::ctl
