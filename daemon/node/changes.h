// TagChanges: whether the next pause compares the bytes of a tag with those of the last one.
//
// To compare costs a hash of each block, which pays where blocks did not change, and does not where
// all of them did. A trainer's parameters do both in turns: they change in a step, and do not while
// it computes probabilities. So one pause that finds nothing decides nothing. Plain value.
#pragma once

#include <algorithm>
#include <cstdint>

namespace amem {

class TagChanges {
 public:
  /// Pauses take hashes of what they save of the tag, and leave out what did not change.
  bool hashes() const { return changed_in_a_row_ < kEnough || plain_pauses_ + 1 >= kEvery; }

  /// A pause has saved bytes of the tag: so many were compared, so many of these had not changed.
  /// `hashed`: it took hashes.
  void paused(bool hashed, std::uint64_t compared, std::uint64_t unchanged) {
    plain_pauses_ = hashed ? 0 : plain_pauses_ + 1;
    if (!hashed) return;
    if (compared == 0) {  // hashes alone say nothing: the pause after that compares
      changed_in_a_row_ = std::min(changed_in_a_row_, kEnough - 1);
    } else {
      changed_in_a_row_ = unchanged < compared / kPays ? changed_in_a_row_ + 1 : 0;
    }
  }

 private:
  /// A pause looks again after so many others.
  static constexpr std::uint32_t kEvery = 8;
  /// A hash costs a fiftieth of a copy. To wait for it before the first copy costs more.
  static constexpr std::uint64_t kPays = 8;
  /// So many comparisons in a row found too little.
  static constexpr std::uint32_t kEnough = 2;

  std::uint32_t changed_in_a_row_ = 0;
  std::uint32_t plain_pauses_ = 0;
};

}  // namespace amem
