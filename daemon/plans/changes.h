// TagChanges: whether the next pause compares the bytes of a tag with those of the last one.
//
// To compare costs a hash of each block, which pays where blocks did not change, and does not where
// all of them did. Plain value.
#pragma once

#include <cstdint>

namespace amem {

class TagChanges {
 public:
  /// Pauses take hashes of what they save of the tag, and leave out what did not change.
  bool hashes() const { return !much_changed_ || plain_pauses_ + 1 >= kEvery; }

  /// A pause has saved bytes of the tag: so many were compared, so many of these had not changed.
  /// `hashed`: it took hashes.
  void paused(bool hashed, std::uint64_t compared, std::uint64_t unchanged) {
    plain_pauses_ = hashed ? 0 : plain_pauses_ + 1;
    // Hashes alone say nothing: the pause after that compares.
    if (hashed) much_changed_ = compared > 0 && unchanged < compared / kPays;
  }

 private:
  /// A pause looks again after so many others.
  static constexpr std::uint32_t kEvery = 8;
  /// A hash costs a fiftieth of a copy. To wait for it before the first copy costs more.
  static constexpr std::uint64_t kPays = 8;

  bool much_changed_ = false;
  std::uint32_t plain_pauses_ = 0;
};

}  // namespace amem
