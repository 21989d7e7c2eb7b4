// Wrappers of the calls that pass device memory between processes by handle. Handles and addresses
// of brokered memory are answered by Ipc, everything else by the driver.
#include "shim/calls/ipc_calls.h"

#include "shim/base/log.h"
#include "shim/base/trace.h"
#include "shim/calls/driver_calls.h"
#include "shim/memory/free_pass.h"
#include "shim/runtime/runtime.h"

namespace amem::shim {
namespace {

template <CallRow row>
CUresult open(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  const std::optional<IpcHandle> ours = Ipc::read(handle);
  if (!ours || address == nullptr) return real<row>()(address, handle, flags);
  Runtime& runtime = Runtime::get();
  if (runtime.forked()) return CUDA_ERROR_NOT_INITIALIZED;
  if (!runtime.connected()) {
    log_error(
        "a peer passed an IPC handle of brokered memory, and this process has no broker to redeem "
        "it at");
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
  const FreePass pass(*the_gate, runtime.memory().holdings);
  if (pass.result() == CUDA_SUCCESS) runtime.ipc().unmap_closed();
}

CUresult answer_cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  Runtime& runtime = Runtime::get();
  if (handle != nullptr && !runtime.forked()) {
    std::optional<AddressRange> piece;
    if (Heap* heap = runtime.heap(); heap != nullptr) {
      const std::optional<Heap::Block> block = heap->find(address);
      if (!block && heap->owns(address)) return CUDA_ERROR_INVALID_VALUE;  // between two blocks
      if (block) piece = AddressRange{block->address, block->size};
    }
    if (CUdeviceptr base = 0; !piece) {
      std::size_t size = 0;
      const auto packed = runtime.slabs().address_range(&base, &size, address);
      if (packed == CUDA_SUCCESS) piece = AddressRange{base, size};
    }
    if (auto r = runtime.ipc().get(handle, address, piece); r.has_value()) {
      if (r == CUDA_SUCCESS) runtime.slabs().handed_out(address);
      trace("ipc get va=%llx rc=%d", address, *r);
      return *r;
    }
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
    const FreePass pass(*the_gate, runtime.memory().holdings);
    if (pass.result() != CUDA_SUCCESS) return pass.result();
    if (auto r = runtime.ipc().close(address, unmap); r.has_value()) {
      trace("ipc close va=%llx rc=%d", address, *r);
      return *r;
    }
  }
  return real<kRow_cuIpcCloseMemHandle>()(address);
}

CUresult answer_cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  return open<kRow_cuIpcOpenMemHandle>(address, handle, flags);
}

CUresult answer_cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  return open<kRow_cuIpcOpenMemHandle_v2>(address, handle, flags);
}

}  // namespace amem::shim
