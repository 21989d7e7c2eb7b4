// LocalDevices: this process's GPUs by ordinal and UUID, and their primary contexts.
//
// Ordinals are the program's (CUDA_VISIBLE_DEVICES applies). A context is retained once, when it is
// first used, and kept: the shim's copies and waits run in it. load() once; the rest from any
// thread.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <vector>

#include "common/driver.h"
#include "common/protocol.h"

namespace amem::shim {

class LocalDevices {
 public:
  explicit LocalDevices(const Driver& driver) : driver_(driver) {}

  /// Asks the driver for the devices. REQUIRES: the program has called cuInit.
  Status load();

  int count() const { return static_cast<int>(uuids_.size()); }
  /// REQUIRES: 0 <= ordinal < count().
  const DeviceUuid& uuid(int ordinal) const { return uuids_[static_cast<std::size_t>(ordinal)]; }
  /// Whether the device's attribute is there and not 0.
  bool has(CUdevice_attribute attribute, int ordinal) const;
  /// -1: not visible in this process.
  int ordinal(const DeviceUuid& uuid) const;

  /// Memory of this device gets mapped here. Zeros: the device is not known. `remedy`: what to do
  /// where the process does not see the device; a sentence that lives until the process ends.
  void maps_memory_of(const DeviceUuid& uuid, const char* remedy);
  /// A device that this process does not see, but whose memory it has mapped at some time.
  struct Unseen {
    DeviceUuid uuid;
    const char* remedy = nullptr;
  };
  /// Nothing: there is none. The driver opens such a device and keeps it open to the end of the
  /// process, and it cannot restore the process from a checkpoint (driver 580 gives 304).
  std::optional<Unseen> unseen() const;

  /// Devices whose primary context is active, made so by the program or by us, or may be.
  std::vector<int> active() const;
  bool active(int ordinal) const;
  /// The device is one of these, or the driver does not say.
  bool may_be_active(int ordinal) const;
  /// The calling thread's current device, -1 without a context.
  int current() const;
  /// The calling thread's context, nullptr without one.
  CUcontext current_context() const;
  /// Whether all work on a stream of the device's primary context has ended; false when that is not
  /// known.
  bool idle(int ordinal, CUstream stream);
  /// Whether work is left on any stream of the device's primary context; nothing: the driver does
  /// not say. One that is older than CUDA 12.5 knows no such question, and then no work counts as
  /// left. REQUIRES: no stream capture is open or begins, as this would end it.
  std::optional<bool> work_left(int ordinal);
  /// Returns whether the stream's work becomes part of a graph. Returns false if the driver does
  /// not say.
  bool capturing(CUstream stream) const;
  /// Until the work on a stream of the calling thread's context has ended. Where the driver refuses
  /// to wait for the stream, until all of the context's has: the error does not mean that nothing
  /// runs. Where it refuses that, too, the wait is tried again, for 30 s.
  CUresult wait(CUstream stream);
  /// The same for a stream of the device's primary context.
  CUresult wait(int ordinal, CUstream stream);
  /// Waits until all work in the device's primary context has ended, if that is active.
  CUresult drain(int ordinal);
  /// Sets memory to zero in the calling thread's context, and waits for it.
  CUresult clear(CUdeviceptr address, std::size_t size);
  /// The device's primary context; nullptr when it is not active. It is not kept.
  CUcontext primary(int ordinal) const;
  /// The program has reset the device: what was retained there is gone.
  void forget(int ordinal);

  /// Makes the device's primary context, or another one, current for a scope, and capture mode
  /// relaxed, so that nothing done here breaks a stream capture of the program.
  class Use {
   public:
    Use(LocalDevices& devices, int ordinal);
    Use(const Driver& driver, CUcontext context);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    CUresult result() const { return result_; }

   private:
    const Driver& driver_;
    CUresult result_;
    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  };

 private:
  template <class Wait>
  CUresult wait_until_idle(const Wait& wait);
  CUresult context(int ordinal, CUcontext* context);

  const Driver& driver_;
  std::vector<DeviceUuid> uuids_;
  std::array<std::atomic<CUcontext>, 64> contexts_{};
  mutable std::mutex mutex_;      // guards what follows
  std::optional<Unseen> unseen_;  // the first
};

}  // namespace amem::shim
