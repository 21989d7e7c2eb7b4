// Wrappers of the calls that pass device memory between processes by handle. Handles and addresses
// of brokered memory are answered by Ipc, everything else by the driver.

#include "shim/base/log.h"
#include "shim/calls/driver_calls.h"
#include "shim/gate/deep_calls.h"
#include "shim/memory/free_pass.h"
#include "shim/runtime/runtime.h"

namespace amem::shim {
namespace {

template <CallRow row>
CUresult open(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  const std::optional<IpcHandle> ours = Ipc::read(handle);
  Runtime& runtime = Runtime::get();
  if (!ours || address == nullptr) {
    const CUresult r = real<row>()(address, handle, flags);
    if (r == CUDA_SUCCESS && !runtime.forked() && runtime.devices() != nullptr)
      runtime.memory().unbrokered.add(UnbrokeredMemory::Kind::kOpened, *address, 0,
                                      runtime.devices()->current(),
                                      runtime.devices()->current_context());
    return r;
  }
  if (runtime.forked()) return CUDA_ERROR_NOT_INITIALIZED;
  if (!runtime.connected()) {
    log_error(
        "a peer passed an IPC handle of brokered memory, but this process has no broker that can "
        "redeem it");
    return CUDA_ERROR_SYSTEM_NOT_READY;
  }
  close_deferred(0);
  const Pass pass(*the_gate);
  if (pass.result() != CUDA_SUCCESS) return pass.result();
  const CUresult r = runtime.ipc().open(address, *ours, flags);
  trace("ipc open owner=rank%d n=%llu rc=%d", ours->ticket.owner_rank,
        static_cast<unsigned long long>(ours->ticket.size), r);
  return r;
}

}  // namespace

void close_deferred(std::uint32_t captures) {
  Runtime& runtime = Runtime::get();
  if (runtime.forked() || !runtime.ipc().any_closed() || the_gate->captures() > captures) return;
  if (runtime.ipc().wait_until_unused() != CUDA_SUCCESS) return;
  const FreePass pass(*the_gate, runtime.memory().brokered);
  if (pass.result() == CUDA_SUCCESS) runtime.ipc().unmap_closed();
}

/// Only memory of cuMemAlloc's has such a handle. Of pools' and of mapped memory the driver refuses
/// it, and a program that asks then takes another way. A handle of one mapping would be a part of
/// what the program means: PyTorch's expandable segments are many mappings side by side.
CUresult answer_cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  Runtime& runtime = Runtime::get();
  if (handle != nullptr && !runtime.forked()) {
    std::optional<Heap::Block> block;
    if (Heap* heap = runtime.heap(); heap != nullptr) block = heap->find(address);
    if (block && block->pool == nullptr) {
      const CUresult r = runtime.ipc().get(handle, {block->address, block->size});
      trace("ipc get va=%llx rc=%d", address, r);
      return r;
    }
    // Also between two blocks, and what another process has made. Paused, it is unknown to the
    // driver.
    if (runtime.memory().mappings.brokered(address, 1)) return CUDA_ERROR_INVALID_VALUE;
  }
  return real<kRow_cuIpcGetMemHandle>()(handle, address);
}

CUresult answer_cuIpcCloseMemHandle(CUdeviceptr address) {
  Runtime& runtime = Runtime::get();
  if (!runtime.forked() && runtime.ipc().opened(address)) {
    const bool captures = the_gate->captures() > 0;
    const CUresult unused = captures ? CUDA_SUCCESS : runtime.ipc().wait_until_unused();
    const bool unmap = !captures && unused != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (unmap && unused != CUDA_SUCCESS) return unused;
    const FreePass pass(*the_gate, runtime.memory().brokered);
    if (pass.result() != CUDA_SUCCESS) return pass.result();
    if (auto r = runtime.ipc().close(address, unmap); r.has_value()) {
      trace("ipc close va=%llx rc=%d", address, *r);
      return *r;
    }
  }
  const CUresult r = real<kRow_cuIpcCloseMemHandle>()(address);
  if (r == CUDA_SUCCESS && !runtime.forked())
    runtime.memory().unbrokered.remove(UnbrokeredMemory::Kind::kOpened, address);
  return r;
}

CUresult answer_cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  return open<kRow_cuIpcOpenMemHandle>(address, handle, flags);
}

CUresult answer_cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  return open<kRow_cuIpcOpenMemHandle_v2>(address, handle, flags);
}

// ---- events, whose work may then be another process's ----

CUresult answer_cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event) {
  DeepCalls::shares_events();
  return real<kRow_cuIpcGetEventHandle>()(handle, event);
}

CUresult answer_cuIpcOpenEventHandle(CUevent* event, CUipcEventHandle handle) {
  DeepCalls::shares_events();
  return real<kRow_cuIpcOpenEventHandle>()(event, handle);
}

}  // namespace amem::shim
