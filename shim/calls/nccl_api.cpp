#include "shim/calls/nccl_api.h"

#include <nccl.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "common/numbers.h"
#include "common/protocol.h"
#include "shim/base/log.h"
#include "shim/calls/error_out.h"
#include "shim/gate/wait_log.h"
#include "shim/process/modules.h"
#include "shim/process/symbols.h"
#include "shim/runtime/runtime.h"

using amem::Code;
using amem::Status;
using amem::shim::GroupRequest;
using amem::shim::log_error;
using amem::shim::report;
using amem::shim::Runtime;
using amem::shim::turned_off;

namespace {

ncclResult_t nccl_result(const Status& status, const char* call) {
  if (status.ok()) return ncclSuccess;
  log_error(std::string(call) + ": " + status.text());
  switch (status.code()) {
    case Code::kInvalidArgument:
    case Code::kFailedPrecondition:
      return ncclInvalidUsage;
    case Code::kInternal:
      return ncclInternalError;
    default:
      return ncclSystemError;
  }
}

std::vector<std::string> names(const char* const* tags, std::size_t count) {
  std::vector<std::string> list;
  for (std::size_t i = 0; i < count; ++i) list.emplace_back(tags[i] != nullptr ? tags[i] : "");
  return list;
}

Status request(const GroupRequest& what, std::uint32_t timeout_ms) {
  if (Runtime::disabled()) return turned_off();
  return group_request(Runtime::get(), what, timeout_ms);
}

}  // namespace

#define AMEM_PUBLIC extern "C" __attribute__((visibility("default")))

// The argument of the first two is AMem's: it names no communicator, the whole group is paused.
// Turned off, all five succeed and do nothing, as AMem's do.
AMEM_PUBLIC ncclResult_t ncclPause(ncclComm_t* /*comm*/) {
  if (Runtime::disabled()) return ncclSuccess;
  return nccl_result(request({amem_v1_GroupOp_GROUP_OP_PAUSE}, 0), "ncclPause");
}

AMEM_PUBLIC ncclResult_t ncclResume(ncclComm_t* /*comm*/) {
  if (Runtime::disabled()) return ncclSuccess;
  return nccl_result(request({amem_v1_GroupOp_GROUP_OP_RESUME}, 0), "ncclResume");
}

AMEM_PUBLIC ncclResult_t ncclSetGroupID(int id) {
  if (Runtime::disabled()) return ncclSuccess;
  if (id < 0) {
    log_error("ncclSetGroupID: the id " + std::to_string(id) + " is negative");
    return ncclInvalidArgument;
  }
  return nccl_result(Runtime::get().set_group(std::to_string(id)), "ncclSetGroupID");
}

/// Gives -1 when the group has a name that is not a number.
AMEM_PUBLIC ncclResult_t ncclGetGroupID(int* id) {
  if (id == nullptr) return ncclInvalidArgument;
  *id = -1;
  if (Runtime::disabled()) return ncclSuccess;
  if (const auto number = amem::number_of_text<int>(Runtime::get().group())) *id = *number;
  return ncclSuccess;
}

AMEM_PUBLIC ncclResult_t ncclMemStats() {
  if (Runtime::disabled()) return ncclSuccess;
  Runtime& runtime = Runtime::get();
  const auto t = runtime.memory().brokered.totals();
  constexpr std::uint64_t kMiB = 1024 * 1024;
  amem::shim::say("memory of group " + runtime.group() +
                  " in this rank: " + std::to_string(t.owned_bytes / kMiB) + " MiB own, " +
                  std::to_string(t.imported_bytes / kMiB) + " MiB of peers, " +
                  std::to_string(t.allocations) + " allocations, " + std::to_string(t.mappings) +
                  " mappings");
  return ncclSuccess;
}

// ---- NCCL's own ----

namespace {

/// One that is answered here first.
struct Replaced {
  const char* name;
  const char* since;  // which NCCL has it
  std::atomic<void*> looked_up{nullptr};
};
constinit Replaced suspend{"ncclCommSuspend", "2.29.7"};
constinit Replaced window_register{"ncclCommWindowRegister", "2.27"};

/// NCCL's own, for this caller. One that is linked to NCCL has not looked it up, and may be alone
/// in seeing its NCCL, as PyTorch is. `ours`: the answer to `call`. Null: there is none.
void* theirs_for(const void* caller, const Replaced& call, const void* ours) {
  void* found = amem::shim::symbol_for(caller, call.name, nullptr);
  if (found == ours) found = nullptr;
  if (found == nullptr) found = call.looked_up.load();
  return found != nullptr ? found : amem::shim::next_symbol(call.name);
}

/// As above, but logs that there is none.
template <class Function>
Function* real(const void* caller, const Replaced& call, Function* ours) {
  void* found = theirs_for(caller, call, reinterpret_cast<const void*>(ours));
  if (found == nullptr)
    log_error(std::string(call.name) + ": this NCCL lacks this call. NCCL " + call.since +
              " and newer have it");
  return reinterpret_cast<Function*>(found);
}

/// Its library's buffers lie in slabs, or may.
bool has_buffers(const void* function) {
  if (Runtime::disabled()) return false;
  Runtime& runtime = Runtime::get();
  return runtime.options().slab_size != 0 && runtime.brokers(function) && runtime.connected();
}

/// The newest NCCL whose windows are known to be the program's buffers, and ncclMemAlloc's.
constexpr int kNewestKnown = 23007;

}  // namespace

/// NCCL would unmap its buffers and map new memory in their places, which buffers of a slab do not
/// have: what it could not map again would be lost.
AMEM_PUBLIC ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags) {
  auto* const theirs = real(__builtin_return_address(0), suspend, &ncclCommSuspend);
  if (theirs == nullptr) return ncclInvalidUsage;
  if (!has_buffers(reinterpret_cast<const void*>(theirs))) return theirs(comm, flags);
  log_error(
      "amem refuses ncclCommSuspend: a pause of the group (amemctl pause, amem.pause, ncclPause) "
      "frees the memory of all communicators at once. With AMEM_SHIM_WITHOUT=slabs in the "
      "environment, NCCL's "
      "own suspend and resume work too");
  return ncclInvalidUsage;
}

/// 2.32 makes small buffers of its own windows, too, when the first window is registered. They
/// would lie in slabs, and such buffers cannot be mapped once more. Which thread makes them is not
/// known here (a group's end may, or a thread of NCCL's), so nothing is packed from here on.
AMEM_PUBLIC ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buffer, std::size_t size,
                                                ncclWindow_t* window, int flags) {
  auto* const theirs = real(__builtin_return_address(0), window_register, &ncclCommWindowRegister);
  if (theirs == nullptr) return ncclInvalidUsage;
  const auto* const code = reinterpret_cast<const void*>(theirs);
  if (has_buffers(code)) {
    const int version = amem::shim::nccl_version_of(code);
    if (version == 0 || version > kNewestKnown)
      Runtime::get().slabs().stop_packing(amem::shim::nccl_name(version) +
                                          " may register its own buffers as windows");
  }
  return theirs(comm, buffer, size, window, flags);
}

// ---- for libamem_client (client/include/amem/amem.h) ----

/// No tags: everything that the group has.
AMEM_PUBLIC int amem_shim_pause(const char* const* tags, std::size_t tag_count,
                                std::uint32_t timeout_ms, char* error, std::size_t size) {
  return report(request({amem_v1_GroupOp_GROUP_OP_PAUSE, names(tags, tag_count)}, timeout_ms),
                error, size);
}

AMEM_PUBLIC int amem_shim_resume(const char* const* tags, std::size_t tag_count,
                                 std::uint32_t timeout_ms, char* error, std::size_t size) {
  return report(request({amem_v1_GroupOp_GROUP_OP_RESUME, names(tags, tag_count)}, timeout_ms),
                error, size);
}

/// A client of another version may call it: with other parameters it gets another name, which that
/// client does not find, and says so. `set`, with tags: the call is one operation, all or none,
/// with those of `set_ranks` ranks that pass the same; empty: there is no set. The rest is as of
/// amem_shim_request_4.
AMEM_PUBLIC int amem_shim_request_5(int op, const char* const* tags, std::size_t tag_count,
                                    const char* const* except, std::size_t except_count,
                                    const char* const* discard, std::size_t discard_count,
                                    int guests, int deep, int force, const char* set,
                                    std::uint32_t set_ranks, std::uint32_t timeout_ms, char* error,
                                    std::size_t size) {
  if (guests < _amem_v1_GuestRule_MIN || guests > _amem_v1_GuestRule_MAX)
    return report({Code::kInvalidArgument, "guests must be pin or refuse"}, error, size);
  return report(
      request({static_cast<amem_v1_GroupOp>(op), names(tags, tag_count),
               names(except, except_count), names(discard, discard_count),
               static_cast<amem_v1_GuestRule>(guests), deep != 0, force != 0, set, set_ranks},
              timeout_ms),
      error, size);
}

/// op: 1 a pause, 2 a resume. Of all but `except`, when there
/// are such; a pause drops the bytes of `discard`. guests: of a pause, 1 pin, 2 refuse, 0 what is
/// configured.
/// deep: of a pause, not 0: the processes are checkpointed afterwards. force: of a pause, not 0:
/// `discard` may have "heap".
AMEM_PUBLIC int amem_shim_request_4(int op, const char* const* tags, std::size_t tag_count,
                                    const char* const* except, std::size_t except_count,
                                    const char* const* discard, std::size_t discard_count,
                                    int guests, int deep, int force, std::uint32_t timeout_ms,
                                    char* error, std::size_t size) {
  return amem_shim_request_5(op, tags, tag_count, except, except_count, discard, discard_count,
                             guests, deep, force, "", 0, timeout_ms, error, size);
}

AMEM_PUBLIC int amem_shim_request_3(int op, const char* const* tags, std::size_t tag_count,
                                    const char* const* except, std::size_t except_count,
                                    const char* const* discard, std::size_t discard_count,
                                    int guests, int deep, std::uint32_t timeout_ms, char* error,
                                    std::size_t size) {
  return amem_shim_request_4(op, tags, tag_count, except, except_count, discard, discard_count,
                             guests, deep, 0, timeout_ms, error, size);
}

AMEM_PUBLIC int amem_shim_request_2(int op, const char* const* tags, std::size_t tag_count,
                                    const char* const* except, std::size_t except_count,
                                    const char* const* discard, std::size_t discard_count,
                                    int guests, std::uint32_t timeout_ms, char* error,
                                    std::size_t size) {
  return amem_shim_request_3(op, tags, tag_count, except, except_count, discard, discard_count,
                             guests, 0, timeout_ms, error, size);
}

/// The calling thread is the one that has had its group paused (1) or resumed (2), though another
/// thread made the call for it: what it waits for then is its own doing.
AMEM_PUBLIC int amem_shim_asked_here(int op) {
  if (Runtime::disabled()) return 0;
  if (op == amem_v1_GroupOp_GROUP_OP_PAUSE)
    amem::shim::wait_log().paused_here();
  else
    amem::shim::WaitLog::resumed_here();
  return 0;
}

/// The wait of this thread (gettid) for a pause or resume is over: one that has not begun ends with
/// kCancelled, one that has begun goes on.
AMEM_PUBLIC int amem_shim_withdraw(int thread) {
  if (!Runtime::disabled()) Runtime::get().withdraw(thread);
  return 0;
}

AMEM_PUBLIC int amem_shim_set_group(const char* group, char* error, std::size_t size) {
  const std::string name = group != nullptr ? group : "";
  if (Runtime::disabled()) return report(turned_off(), error, size);
  if (!amem::valid_group_name(name))
    return report(
        {Code::kInvalidArgument, "\"" + name +
                                     "\" is not a valid group name. Use 1 to 63 characters of "
                                     "[A-Za-z0-9._-], and do not begin with '.' or '-'"},
        error, size);
  return report(Runtime::get().set_group(name), error, size);
}

/// As snprintf. Empty when amem is turned off.
AMEM_PUBLIC int amem_shim_group(char* name, std::size_t size) {
  const std::string group = Runtime::disabled() ? "" : Runtime::get().group();
  return std::snprintf(name, size, "%s", group.c_str());
}

/// For how many milliseconds calls of this process have had to wait for its group so far: what a
/// program's own time limits should not count. Waits for nothing.
AMEM_PUBLIC std::uint64_t amem_shim_shut_ms() {
  const Runtime* const made = Runtime::disabled() ? nullptr : amem::shim::runtime_if_made();
  if (made == nullptr || made->forked()) return 0;
  return static_cast<std::uint64_t>(amem::shim::wait_log().shut_time().count());
}

AMEM_PUBLIC int amem_shim_active() {
  return !Runtime::disabled() && Runtime::get().connected() ? 1 : 0;
}

namespace amem::shim {

namespace {

struct Replacement {
  Replaced* call;
  void* ours;
};

/// nullptr: this call is not replaced.
const Replacement* replacement(const char* name) {
  static const Replacement kAll[] = {
      {&suspend, reinterpret_cast<void*>(&ncclCommSuspend)},
      {&window_register, reinterpret_cast<void*>(&ncclCommWindowRegister)}};
  for (const Replacement& each : kAll)
    if (std::strcmp(each.call->name, name) == 0) return &each;
  return nullptr;
}

}  // namespace

bool replaces_nccl_call(const char* name) { return replacement(name) != nullptr; }

SymbolAnswer replace_nccl_call(const char* name, void* found, const void* caller) {
  if (found == nullptr) return {};
  const auto [call, ours] = *replacement(name);
  // Looked up in the whole process, it is found here first, whether or not NCCL has it.
  if (found == ours) return {theirs_for(caller, *call, ours) != nullptr ? ours : nullptr, true};
  call->looked_up.store(found);
  return {ours, true};
}

void* find_nccl_call(const char* name) {
  static const struct {
    const char* name;
    void* function;
  } kCalls[] = {{"ncclPause", reinterpret_cast<void*>(&ncclPause)},
                {"ncclResume", reinterpret_cast<void*>(&ncclResume)},
                {"ncclSetGroupID", reinterpret_cast<void*>(&ncclSetGroupID)},
                {"ncclGetGroupID", reinterpret_cast<void*>(&ncclGetGroupID)},
                {"ncclMemStats", reinterpret_cast<void*>(&ncclMemStats)}};
  for (const auto& call : kCalls)
    if (std::strcmp(call.name, name) == 0) return call.function;
  return nullptr;
}

}  // namespace amem::shim
