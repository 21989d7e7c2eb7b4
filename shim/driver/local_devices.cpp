#include "shim/driver/local_devices.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "shim/base/log.h"
#include "shim/driver/context_errors.h"

namespace amem::shim {
namespace {

/// Before a wait that the driver has refused is tried again, and for how long that goes on.
constexpr std::chrono::milliseconds kWaitAgain{20};
constexpr std::chrono::seconds kWaitDeadline{30};
/// How often an event is asked about that should come at once, and how long between two questions.
constexpr int kQueries = 10;
constexpr std::chrono::microseconds kQueryAgain{100};

}  // namespace

Status LocalDevices::load() {
  int count = 0;
  if (CUresult r = driver_.cuDeviceGetCount_(&count); r != CUDA_SUCCESS)
    return driver_.error(r, "counting devices");
  count = std::min(count, static_cast<int>(contexts_.size()));
  uuids_.clear();  // of an attempt that failed
  for (int i = 0; i < count; ++i) {
    CUuuid uuid{};
    if (CUresult r = driver_.cuDeviceGetUuid_(&uuid, i); r != CUDA_SUCCESS)
      return driver_.error(r, "the UUID of device " + std::to_string(i));
    uuids_.push_back(make_uuid(uuid.bytes));
  }
  return {};
}

bool LocalDevices::has(CUdevice_attribute attribute, int ordinal) const {
  int value = 0;
  return driver_.cuDeviceGetAttribute_(&value, attribute, ordinal) == CUDA_SUCCESS && value != 0;
}

int LocalDevices::ordinal(const DeviceUuid& uuid) const {
  const auto it = std::find(uuids_.begin(), uuids_.end(), uuid);
  return it == uuids_.end() ? -1 : static_cast<int>(it - uuids_.begin());
}

void LocalDevices::maps_memory_of(const DeviceUuid& uuid, const char* remedy) {
  if (ordinal(uuid) >= 0) return;
  const std::lock_guard lock(mutex_);
  if (!unseen_) unseen_ = {uuid, remedy};
}

std::optional<LocalDevices::Unseen> LocalDevices::unseen() const {
  const std::lock_guard lock(mutex_);
  return unseen_;
}

bool LocalDevices::active(int ordinal) const {
  unsigned flags = 0;
  int is_active = 0;
  return driver_.cuDevicePrimaryCtxGetState_(ordinal, &flags, &is_active) == CUDA_SUCCESS &&
         is_active != 0;
}

std::vector<int> LocalDevices::active() const {
  std::vector<int> found;
  for (int i = 0; i < count(); ++i)
    if (may_be_active(i)) found.push_back(i);
  return found;
}

bool LocalDevices::may_be_active(int ordinal) const {
  unsigned flags = 0;
  int is_active = 0;
  const CUresult r = driver_.cuDevicePrimaryCtxGetState_(ordinal, &flags, &is_active);
  return r == CUDA_SUCCESS ? is_active != 0 : !ends_context(r);
}

int LocalDevices::current() const {
  CUdevice device = -1;
  return driver_.cuCtxGetDevice_(&device) == CUDA_SUCCESS ? device : -1;
}

CUcontext LocalDevices::current_context() const {
  CUcontext context = nullptr;
  return driver_.cuCtxGetCurrent_(&context) == CUDA_SUCCESS ? context : nullptr;
}

CUcontext LocalDevices::primary(int ordinal) const {
  CUcontext context = nullptr;
  if (!active(ordinal) || driver_.cuDevicePrimaryCtxRetain_(&context, ordinal) != CUDA_SUCCESS)
    return nullptr;
  driver_.cuDevicePrimaryCtxRelease_(ordinal);
  return context;
}

bool LocalDevices::idle(int ordinal, CUstream stream) {
  // What is not active must not become so by this question.
  if (!active(ordinal)) return false;
  const Use use(*this, ordinal);
  return use.result() == CUDA_SUCCESS && driver_.cuStreamQuery_(stream) == CUDA_SUCCESS;
}

bool LocalDevices::capturing(CUstream stream) const {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return driver_.cuStreamIsCapturing_(stream, &status) == CUDA_SUCCESS &&
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/// The event is recorded behind all work that the context has, and nobody waits for it.
std::optional<bool> LocalDevices::work_left(int ordinal) {
  if (driver_.cuCtxRecordEvent_ == nullptr) return false;
  const CUcontext context = primary(ordinal);
  if (context == nullptr) return false;
  const Use use(driver_, context);
  CUevent event = nullptr;
  CUresult r = use.result();
  if (r == CUDA_SUCCESS) r = driver_.cuEventCreate_(&event, CU_EVENT_DISABLE_TIMING);
  if (r == CUDA_SUCCESS) {
    r = driver_.cuCtxRecordEvent_(context, event);
    for (int i = 0; i < kQueries && (r == CUDA_SUCCESS || r == CUDA_ERROR_NOT_READY); ++i) {
      if (i > 0) std::this_thread::sleep_for(kQueryAgain);
      r = driver_.cuEventQuery_(event);
      if (r == CUDA_SUCCESS) break;
    }
    driver_.cuEventDestroy_(event);
  }
  if (r == CUDA_SUCCESS || ends_context(r) || context_is_gone(r)) return false;
  if (r == CUDA_ERROR_NOT_READY) return true;
  return std::nullopt;
}

void LocalDevices::forget(int ordinal) {
  if (ordinal < 0 || ordinal >= count()) return;
  contexts_[static_cast<std::size_t>(ordinal)].store(nullptr, std::memory_order_release);
}

CUresult LocalDevices::context(int ordinal, CUcontext* context) {
  if (ordinal < 0 || ordinal >= count()) return CUDA_ERROR_INVALID_DEVICE;
  std::atomic<CUcontext>& slot = contexts_[static_cast<std::size_t>(ordinal)];
  *context = slot.load(std::memory_order_acquire);
  if (*context != nullptr) return CUDA_SUCCESS;
  // Two threads may both retain it: one reference too many on a context that we keep anyway.
  if (CUresult r = driver_.cuDevicePrimaryCtxRetain_(context, ordinal); r != CUDA_SUCCESS) return r;
  slot.store(*context, std::memory_order_release);
  return CUDA_SUCCESS;
}

/// `wait(again)`: for the stream, or `again` for its whole context. The first result; whoever has
/// given the work takes back what it uses next.
template <class Wait>
CUresult LocalDevices::wait_until_idle(const Wait& wait) {
  const CUresult first = wait(false);
  if (first == CUDA_SUCCESS || ends_context(first)) return first;
  const auto deadline = std::chrono::steady_clock::now() + kWaitDeadline;
  for (;;) {
    const CUresult r = wait(true);
    if (r == CUDA_SUCCESS || ends_context(r)) return first;
    if (std::chrono::steady_clock::now() >= deadline) {
      log_error(
          "work of the shim may still run, because the driver has refused to wait for it for " +
          std::to_string(kWaitDeadline.count()) + " s: " + driver_.name(r));
      return first;
    }
    std::this_thread::sleep_for(kWaitAgain);
  }
}

CUresult LocalDevices::wait(CUstream stream) {
  return wait_until_idle([&](bool again) {
    return again ? driver_.cuCtxSynchronize_() : driver_.cuStreamSynchronize_(stream);
  });
}

CUresult LocalDevices::wait(int ordinal, CUstream stream) {
  return wait_until_idle([&](bool again) {
    const Use use(*this, ordinal);
    if (use.result() != CUDA_SUCCESS)
      return context_is_gone(use.result()) ? CUDA_ERROR_CONTEXT_IS_DESTROYED : use.result();
    return again ? driver_.cuCtxSynchronize_() : driver_.cuStreamSynchronize_(stream);
  });
}

CUresult LocalDevices::drain(int ordinal) {
  unsigned flags = 0;
  int is_active = 0;
  const CUresult r = driver_.cuDevicePrimaryCtxGetState_(ordinal, &flags, &is_active);
  if (r != CUDA_SUCCESS || is_active == 0) return r;
  const Use use(*this, ordinal);
  return use.result() == CUDA_SUCCESS ? driver_.cuCtxSynchronize_() : use.result();
}

CUresult LocalDevices::clear(CUdeviceptr address, std::size_t size) {
  CUstream stream = nullptr;
  CUresult r = driver_.cuStreamCreate_(&stream, CU_STREAM_NON_BLOCKING);
  if (r != CUDA_SUCCESS) return r;
  r = driver_.cuMemsetD8Async_(address, 0, size, stream);
  const CUresult done = wait(stream);
  driver_.cuStreamDestroy_(stream);
  return r != CUDA_SUCCESS ? r : done;
}

LocalDevices::Use::Use(LocalDevices& devices, int ordinal) : driver_(devices.driver_) {
  driver_.cuThreadExchangeStreamCaptureMode_(&mode_);
  CUcontext context = nullptr;
  result_ = devices.context(ordinal, &context);
  if (result_ == CUDA_SUCCESS) result_ = driver_.cuCtxPushCurrent_(context);
}

LocalDevices::Use::Use(const Driver& driver, CUcontext context) : driver_(driver) {
  driver_.cuThreadExchangeStreamCaptureMode_(&mode_);
  result_ = driver_.cuCtxPushCurrent_(context);
}

LocalDevices::Use::~Use() {
  CUcontext popped = nullptr;
  if (result_ == CUDA_SUCCESS) driver_.cuCtxPopCurrent_(&popped);
  driver_.cuThreadExchangeStreamCaptureMode_(&mode_);
}

}  // namespace amem::shim
