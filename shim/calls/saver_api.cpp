// What programs for torch_memory_saver call by name. Its Python package does the rest.
#include <cstdint>
#include <string>

#include "shim/base/log.h"
#include "shim/calls/memory_margin.h"
#include "shim/runtime/runtime.h"

namespace {

using amem::Status;
using amem::shim::Runtime;

/// The tag of what is in no region there, and of regions without a tag.
constexpr const char* kDefaultTag = "default";

/// No tag: all of its memory. NCCL's is none of it, and what lies outside of regions only when it
/// covers the whole process.
int operate(amem_v1_GroupOp op, const char* call, const char* tag) {
  if (Runtime::disabled()) return 0;
  Runtime& runtime = Runtime::get();
  const bool whole = runtime.options().whole_process;
  amem::shim::GroupRequest what;
  what.op = op;
  if (tag == nullptr || *tag == '\0') {
    what.except = {amem::shim::kNcclTag};
    if (!whole) what.except.emplace_back(amem::shim::kHeapTag);
  } else {
    what.tags = {whole && std::string(tag) == kDefaultTag ? amem::shim::kHeapTag : tag};
  }
  const Status status = group_request(runtime, what, 0);
  // Without such memory there is nothing to do.
  if (status.ok() || status.code() == amem::Code::kNotFound) return 0;
  amem::shim::log_error(std::string(call) + ": " + status.text());
  return 1;
}

}  // namespace

#define AMEM_PUBLIC extern "C" __attribute__((visibility("default")))

AMEM_PUBLIC int tms_pause(const char* tag) {
  return operate(amem_v1_GroupOp_GROUP_OP_PAUSE, "tms_pause", tag);
}

AMEM_PUBLIC int tms_resume(const char* tag) {
  return operate(amem_v1_GroupOp_GROUP_OP_RESUME, "tms_resume", tag);
}

AMEM_PUBLIC int amem_shim_memory_margin(std::uint64_t bytes) {
  if (!Runtime::disabled()) amem::shim::set_memory_margin(bytes);
  return 0;
}
