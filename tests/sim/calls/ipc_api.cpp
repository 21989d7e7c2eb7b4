// Interprocess handles of memory from cuMemAlloc. Mapped memory has none, as in the real driver.
//
// A handle names the descriptor that the owner holds the memory by. Whoever opens it takes the
// descriptor from the owner's /proc entry, so the owner has to live at that moment.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "tests/sim/entry/api.h"
#include "tests/sim/memory/address_space.h"
#include "tests/sim/memory/physical.h"
#include "tests/sim/work/context.h"

namespace sim {
namespace {

using MemoryLock = std::lock_guard<std::mutex>;

constexpr uint64_t kMagic = 0x3163'7069'6d69'7321;

struct Contents {
  uint64_t magic = kMagic;
  int32_t pid = 0;
  int32_t fd = 0;
  uint64_t inode = 0;  // the number of a descriptor may stand for other memory by now
  uint64_t bytes = 0;
};
static_assert(sizeof(Contents) <= sizeof(CUipcMemHandle));

CUresult Enter(Context** context) {
  const Lock lock = LockDriver();
  return CurrentContext(context);
}

uint64_t InodeOf(int fd) {
  struct stat info = {};
  return fstat(fd, &info) == 0 ? info.st_ino : 0;
}

CUresult GetHandle(CUipcMemHandle* out, CUdeviceptr address) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const MemoryLock lock(MemoryMutex());
  const Range* const range = FindRange(address);
  if (range == nullptr || range->kind != RangeKind::kDevice) return CUDA_ERROR_INVALID_VALUE;
  Contents contents;
  contents.pid = getpid();
  contents.fd = range->memory->fd();
  contents.inode = InodeOf(contents.fd);
  contents.bytes = range->bytes;
  *out = {};
  memcpy(out->reserved, &contents, sizeof contents);
  return CUDA_SUCCESS;
}

CUresult OpenHandle(CUdeviceptr* out, const CUipcMemHandle& handle, unsigned flags) {
  Context* context = nullptr;
  CUresult result = Enter(&context);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || (flags & ~unsigned{CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS}) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Contents contents;
  memcpy(&contents, handle.reserved, sizeof contents);
  if (contents.magic != kMagic) return CUDA_ERROR_INVALID_VALUE;
  const std::string path =
      "/proc/" + std::to_string(contents.pid) + "/fd/" + std::to_string(contents.fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<Physical> memory;
  result =
      InodeOf(fd) == contents.inode ? Physical::Import(fd, &memory) : CUDA_ERROR_INVALID_HANDLE;
  close(fd);
  if (result != CUDA_SUCCESS) return CUDA_ERROR_INVALID_HANDLE;
  if (memory->device() != context->physical && flags == 0) return CUDA_ERROR_INVALID_VALUE;
  const MemoryLock lock(MemoryMutex());
  uintptr_t base = 0;
  result = OpenSharedMemory(std::move(memory), contents.bytes, context->handle(), &base);
  if (result == CUDA_SUCCESS) *out = base;
  return result;
}

CUresult CloseHandle(CUdeviceptr address) {
  Context* context = nullptr;
  const CUresult result = Enter(&context);
  if (result != CUDA_SUCCESS) return result;
  {
    Lock lock = LockDriver();
    SynchronizeDevice(lock, context->physical);
  }
  const MemoryLock lock(MemoryMutex());
  return CloseSharedMemory(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace
}  // namespace sim

SIM_CALL(cuIpcGetMemHandle, (CUipcMemHandle * handle, CUdeviceptr ptr), GetHandle(handle, ptr))
SIM_CALL(cuIpcOpenMemHandle, (CUdeviceptr * ptr, CUipcMemHandle handle, unsigned flags),
         OpenHandle(ptr, handle, flags))
SIM_CALL(cuIpcOpenMemHandle_v2, (CUdeviceptr * ptr, CUipcMemHandle handle, unsigned flags),
         OpenHandle(ptr, handle, flags))
SIM_CALL(cuIpcCloseMemHandle, (CUdeviceptr ptr), CloseHandle(ptr))
