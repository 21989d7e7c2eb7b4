// The checks of allocators whose memory amem leaves on the GPU: what variables and arguments tell
// before a program starts. What a running rank has is in views/staying.h.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string_view>

#include "addons/tools/diagnosis/checks.h"
#include "client/ctl/preload.h"

namespace amem::ctl {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFromPools =
    "allocates from the driver's stream-ordered pools, which amem cannot broker, so this memory "
    "stays on the GPU in a pause";
constexpr const char* kManaged =
    "allocates managed memory, which amem cannot broker, so it stays on the GPU in a pause";

/// The value of the last `backend:` in PyTorch's list; PyTorch ignores blanks.
std::string backend_of(std::string list) {
  std::erase_if(list, [](unsigned char c) { return std::isspace(c) != 0; });
  constexpr std::string_view kOption = "backend:";
  const std::size_t at = list.rfind(kOption);
  if (at == std::string::npos) return {};
  const std::size_t begin = at + kOption.size();
  return list.substr(begin, list.find(',', begin) - begin);
}

bool is_async_backend(const std::string& value) { return backend_of(value) == "cudaMallocAsync"; }
bool is_cuda_async(const std::string& value) { return value == "cuda_async"; }
bool is_cuda_malloc_async(const std::string& value) { return value == "cuda_malloc_async"; }
bool is_true(const std::string& value) { return value == "1" || value == "true"; }
bool is_set(const std::string&) { return true; }

struct AllocatorChoice {
  const char* variable;
  bool (*chooses)(const std::string& value);
  bool in_regions;  // also what a region allocates
  const char* program;
  const char* does;
  const char* remedy;
};

constexpr const char* kNative = "unset it, or use backend:native";
constexpr AllocatorChoice kChoices[] = {
    {"PYTORCH_ALLOC_CONF", &is_async_backend, true, "PyTorch", kFromPools, kNative},
    {"PYTORCH_CUDA_ALLOC_CONF", &is_async_backend, true, "PyTorch", kFromPools, kNative},
    {"XLA_PYTHON_CLIENT_ALLOCATOR", &is_cuda_async, false, "JAX", kFromPools, "unset it"},
    {"TF_GPU_ALLOCATOR", &is_cuda_malloc_async, false, "TensorFlow", kFromPools, "unset it"},
    {"TF_FORCE_UNIFIED_MEMORY", &is_true, false, "JAX or TensorFlow", kManaged, "unset it"},
    {"GGML_CUDA_ENABLE_UNIFIED_MEMORY", &is_set, false, "llama.cpp", kManaged, "unset it"},
};

/// Whether the scope, as the shim reads it, has what the allocator would have used otherwise.
bool has_memory_of(const std::string& scope, bool in_regions) {
  return scope == "heap" || (scope == "regions" && in_regions);
}

Findings check_choices(const Environment& environment, const std::string& scope, bool block) {
  Findings findings;
  for (const AllocatorChoice& choice : kChoices) {
    const auto variable = environment.find(choice.variable);
    if (variable == environment.end() || !choice.chooses(variable->second) ||
        !has_memory_of(scope, choice.in_regions))
      continue;
    findings.push_back({block, "allocator", std::string(choice.variable) + "=" + variable->second,
                        std::string(choice.program) + " then " + choice.does, choice.remedy});
  }
  return findings;
}

bool has(const std::vector<std::string>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

/// ComfyUI's script among the words: beside it is the module that chooses its allocator. Forks of
/// it have that module in a folder below.
std::string comfy_script(const std::vector<std::string>& command, const fs::path& working_dir) {
  for (const std::string& word : command) {
    if (!word.ends_with(".py")) continue;
    const fs::path folder = (working_dir / word).parent_path();
    std::error_code error;
    if (fs::exists(folder / "cuda_malloc.py", error)) return word;
  }
  return {};
}

}  // namespace

Findings check_allocators(const Environment& environment) {
  return check_choices(environment, value_in(environment, "AMEM_SCOPE"), true);
}

Findings check_allocators_of_jobs(const Environment& environment) {
  return check_choices(environment, "heap", false);
}

Findings check_arguments(const std::vector<std::string>& command, const std::string& working_dir,
                         const Environment& environment) {
  if (!has_memory_of(value_in(environment, "AMEM_SCOPE"), true) ||
      has(command, "--disable-cuda-malloc"))
    return {};
  const std::string script = comfy_script(command, working_dir);
  const bool asked = has(command, "--cuda-malloc");
  if (script.empty() && !asked) return {};
  const std::string why =
      std::string("it lets PyTorch use the backend cudaMallocAsync, which ") + kFromPools;
  if (asked)
    return {{true, "allocator", "the command has --cuda-malloc", why,
             "replace it by --disable-cuda-malloc"}};
  // Not on all GPUs, and not in versions that manage the GPU's memory themselves.
  return {{false, "allocator", script + " is ComfyUI, whose default is --cuda-malloc", why,
           "add --disable-cuda-malloc to the command"}};
}

}  // namespace amem::ctl
