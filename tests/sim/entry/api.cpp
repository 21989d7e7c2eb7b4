#include "tests/sim/entry/api.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>

#include "tests/sim/entry/fault.h"
#include "tests/sim/entry/gate.h"
#include "tests/sim/memory/address_space.h"
#include "tests/sim/memory/physical.h"
#include "tests/sim/node/node.h"

namespace sim {
namespace {

std::atomic<bool> g_initialized{false};
// Set in a child forked after cuInit. As with the real driver nothing works there; it must not hang
// either, although the fork may have copied locks that other threads held.
std::atomic<bool> g_forked{false};
// The process is in exit(), beyond what was registered after cuInit.
std::atomic<bool> g_ended{false};
thread_local bool t_in_host_function = false;

void BeforeFork() {
  MemoryMutex().lock();
  HeldDescriptors::LockForFork();
}

void AfterForkInParent() {
  HeldDescriptors::UnlockAfterFork();
  MemoryMutex().unlock();
}

void AfterForkInChild() {
  g_forked.store(true);
  // A real child holds no GPU memory of its parent. Mappings were left out of the fork by
  // MADV_DONTFORK.
  HeldDescriptors::CloseInChild();
  HeldDescriptors::UnlockAfterFork();
  MemoryMutex().unlock();
}

// The real driver spends no descriptor per allocation, we do.
void RaiseDescriptorLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

/// The lock of a checkpoint does not hold these: measured with driver 580.
bool IsUnheld(std::string_view name) {
  for (const std::string_view each : {"cuCtxSynchronize", "cuEventElapsedTime", "cuEventQuery",
                                      "cuEventSynchronize", "cuStreamQuery", "cuStreamSynchronize"})
    if (name == each || (name.starts_with(each) && name[each.size()] == '_')) return true;
  return false;
}

}  // namespace

CallScope::CallScope(const char* exported_name, Need need) : refused_(Enter(exported_name, need)) {}

CallScope::~CallScope() {
  if (counts_ && unheld_) LeaveUnheld();
  if (counts_ && !unheld_) LeaveGate();
}

CUresult CallScope::Enter(const char* exported_name, Need need) {
  if (g_forked.load(std::memory_order_relaxed)) {
    return need == Need::kNothing ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
  }
  if (need == Need::kNothing) return CheckFaults(exported_name);
  if (t_in_host_function) return CUDA_ERROR_NOT_PERMITTED;
  if (g_ended.load(std::memory_order_acquire)) return CUDA_ERROR_DEINITIALIZED;
  if (need == Need::kInit) {
    unheld_ = IsUnheld(exported_name);
    const CUresult lost = unheld_ ? PassUnheld(&counts_) : PassGate(&counts_);
    if (lost != CUDA_SUCCESS) return lost;
  }
  const CUresult fault = CheckFaults(exported_name);
  if (fault != CUDA_SUCCESS) return fault;
  return g_initialized.load(std::memory_order_acquire) ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

/// As the real driver does, of every device that it uses. Where there are no nodes, nobody asks for
/// them; what may not be opened does not make the device unusable here.
static void OpenDeviceNodes() {
  for (const int physical : VisibleDevices()) {
    const std::string path = DeviceNode(physical);
    if (!path.empty()) open(path.c_str(), O_RDWR | O_CLOEXEC);  // until the process ends
  }
}

CUresult Initialize() {
  if (g_forked.load()) return CUDA_ERROR_NOT_INITIALIZED;
  if (VisibleDevices().empty()) return CUDA_ERROR_NO_DEVICE;
  static std::once_flag once;
  std::call_once(once, [] {
    RaiseDescriptorLimit();
    OpenDeviceNodes();
    std::atexit([] { g_ended.store(true, std::memory_order_release); });
    pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild);
    g_initialized.store(true, std::memory_order_release);
  });
  return CUDA_SUCCESS;
}

HostFunctionScope::HostFunctionScope() { t_in_host_function = true; }
HostFunctionScope::~HostFunctionScope() { t_in_host_function = false; }

}  // namespace sim
