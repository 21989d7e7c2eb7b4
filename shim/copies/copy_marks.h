// CopyMarks: how far queued copies are, by events between them, for whoever wants to know while
// they run.
//
// A device has kEvents of them, made when it is prepared, at least `spacing` bytes apart; where
// they run out every other one goes and the distance doubles. Service thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "common/driver.h"
#include "shim/driver/local_devices.h"

namespace amem::shim {

class CopyMarks {
 public:
  static constexpr std::size_t kEvents = 16;
  static constexpr std::uint64_t kSpacing = 2ULL << 20;
  /// So many bytes of so many that are queued have been copied.
  using Tell = std::function<void(std::uint64_t done, std::uint64_t of)>;
  /// All copies of this device have ended whose queued() returned no more than this.
  using Reached = std::function<void(int device, std::uint64_t bytes)>;
  struct Follow {
    std::chrono::milliseconds interval{};
    Tell tell = {};        // null: nobody wants to know
    Reached reached = {};  // at once, with 0 bytes, and at each mark; null: nobody wants to know
  };

  CopyMarks(const Driver& driver, LocalDevices& devices, std::uint64_t spacing = kSpacing)
      : driver_(driver), devices_(devices), spacing_(spacing) {}

  /// Makes the device's events; without them there are no marks on it. REQUIRES: its context is
  /// current.
  void prepare(int device);
  /// The program has reset this device: its events went with the context.
  void forget(int device) { devices_with_.erase(device); }

  /// A copy of so many bytes has been queued there: how many have been by now in this phase.
  /// REQUIRES: the device's context is current.
  std::uint64_t queued(int device, CUstream stream, std::uint64_t bytes);
  /// Waits for the last mark, and tells after one whenever the interval has passed since the last
  /// time. An error ends it: whoever waits for the streams gets that, too.
  void follow(const Follow& how);
  /// What is queued from now on is another phase's.
  void clear();

 private:
  struct Mark {
    CUevent event = nullptr;
    std::uint64_t bytes = 0;  // of the device, up to here
  };
  struct Device {
    std::vector<CUevent> free;
    std::vector<Mark> marks;
    std::uint64_t spacing = 0;  // bytes; 0: not prepared
    std::uint64_t queued = 0;   // bytes
  };

  static void thin(Device& device);

  const Driver& driver_;
  LocalDevices& devices_;
  const std::uint64_t spacing_;
  std::map<int, Device> devices_with_;
};

}  // namespace amem::shim
