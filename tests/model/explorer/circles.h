// Circles: whether states of which others come by themselves lead to rest.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace amem::model {

using Number = std::uint32_t;  // of a state
inline constexpr const char* kInACircle = "what comes by itself leads to rest, not in a circle";

struct Onward {
  std::size_t longest = 0;            // from a state to rest
  std::optional<Number> in_a_circle;  // a state from which there may be no rest
};

/// Takes away, again and again, states from which nothing comes by itself any more.
inline Onward go_onward(std::size_t states, const std::vector<std::pair<Number, Number>>& ways) {
  std::vector<Number> left(states, 0);  // ways on from each
  std::vector<std::size_t> first(states + 1, 0);
  for (const auto& [from, to] : ways) {
    ++left[from];
    ++first[to + 1];
  }
  for (std::size_t i = 1; i < first.size(); ++i) first[i] += first[i - 1];
  std::vector<Number> before(ways.size());
  std::vector<std::size_t> fill(first.begin(), first.end() - 1);
  for (const auto& [from, to] : ways) before[fill[to]++] = from;
  std::vector<Number> ended;
  std::vector<Number> length(states, 0);
  for (Number i = 0; i < states; ++i)
    if (left[i] == 0) ended.push_back(i);
  Onward onward;
  for (std::size_t i = 0; i < ended.size(); ++i) {
    const Number to = ended[i];
    onward.longest = std::max<std::size_t>(onward.longest, length[to]);
    for (std::size_t k = first[to]; k < first[to + 1]; ++k) {
      const Number from = before[k];
      length[from] = std::max(length[from], length[to] + 1);
      if (--left[from] == 0) ended.push_back(from);
    }
  }
  for (Number i = 0; i < states && !onward.in_a_circle; ++i)
    if (left[i] > 0) onward.in_a_circle = i;
  return onward;
}

}  // namespace amem::model
