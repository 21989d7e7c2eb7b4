// Registrations: the brokered memory that the program has registered, by what the library gave it.
//
// Any thread. The book lives until the process ends: libraries deregister in static destructors. An
// empty one costs no lock. A child of fork leaves its parent's alone.
#pragma once

#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "shim/gate/gate.h"
#include "shim/memory/pins.h"

namespace amem::shim {

class Registrations {
 public:
  static Registrations& get();

  /// A memory region has a pointer; a buffer of GDRCopy's has its library's handle and a number;
  /// one of cuFile's its library and address; a batch of transfers itself, and their ranges.
  struct Key {
    const void* object = nullptr;
    unsigned long number = 0;
    std::size_t size = 0;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  using All = std::vector<Pins::Pinned>;

  void add(const Key& key, All pinned);
  /// They are the caller's then: he unpins them, or adds them again.
  All take(const Key& key);
  /// All of an object.
  std::map<Key, All> take_all(const void* object);

 private:
  bool has_nothing() const;

  std::atomic<std::size_t> size_{0};  // of the book
  std::mutex mutex_;                  // guards the book
  std::map<Key, All> book_;
};

/// A range that a call is about to make known to a device. Its brokered memory is pinned from here
/// on; until the end of this object, unless it is kept.
class Registering {
 public:
  /// Waits at the gate, except for memory that is not brokered. `call`: its name, for messages.
  Registering(const char* call, amem_v1_PinReason reason, std::uint64_t address, std::size_t size);
  ~Registering();
  Registering(const Registering&) = delete;
  Registering& operator=(const Registering&) = delete;

  /// As errno's: the call must not be made. 0: it may.
  int error() const { return error_; }
  /// The device knows it now, as this.
  void commit(const Registrations::Key& key);

 private:
  std::optional<Pins::Pinned> pinned_;
  int error_ = 0;
};

/// A range that a device reads or writes while a call lasts, without the driver. Its brokered
/// memory stays where it is until the end of this object: a pause waits for it.
class Transferring {
 public:
  /// As Registering's; also waits for memory whose tag is paused.
  Transferring(const char* call, std::uint64_t address, std::size_t size);
  /// As Registering's.
  int error() const { return error_; }

 private:
  std::optional<Pass> pass_;
  int error_ = 0;
};

/// The device has forgotten these.
void unpin(const Registrations::All& all);

}  // namespace amem::shim
