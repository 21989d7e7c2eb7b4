// Stage: of a transaction, what goes out of the devices, or what comes in. Plain value.
#pragma once

#include <array>
#include <cstdint>

namespace amem {

enum class Stage : std::uint8_t { kOut, kIn };
/// In the order in which a transaction goes on.
inline constexpr std::array kStages = {Stage::kOut, Stage::kIn};

/// One of each.
template <class What>
class PerStage {
 public:
  What& operator[](Stage stage) { return each_[static_cast<std::size_t>(stage)]; }
  const What& operator[](Stage stage) const { return each_[static_cast<std::size_t>(stage)]; }
  auto begin() const { return each_.begin(); }
  auto end() const { return each_.end(); }

 private:
  std::array<What, 2> each_{};
};

}  // namespace amem
