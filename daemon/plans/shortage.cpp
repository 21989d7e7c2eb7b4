#include "daemon/plans/shortage.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/numbers.h"
#include "daemon/base/units.h"

namespace amem {
namespace {

constexpr std::size_t kMostTags = 4;             // that are named
constexpr std::uint64_t kSizeUnit = 2ULL << 20;  // of pool.size
using NamedTag = std::pair<std::string, Shortage::Tag>;

std::string name_tags(const std::vector<NamedTag>& tags) {
  std::string text;
  for (std::size_t i = 0; i < std::min(tags.size(), kMostTags); ++i) {
    const auto& [name, tag] = tags[i];
    text += (i == 0 ? "tag '" : ", tag '") + name + "' " + format_size(tag.stored) + " of " +
            format_size(tag.size);
  }
  if (tags.size() > kMostTags)
    text += ", " + std::to_string(tags.size() - kMostTags) + " more tags";
  return text;
}

std::string advice(const Shortage& shortage, const std::vector<NamedTag>& tags) {
  std::string text = "a pool.size of " +
                     exact_size(round_up(shortage.total + shortage.missing, kSizeUnit)) +
                     " or more";
  const auto largest = std::find_if(tags.begin(), tags.end(),
                                    [](const NamedTag& tag) { return tag.second.can_drop; });
  if (largest != tags.end())
    text += "; to discard tag '" + largest->first + "' (" + format_size(largest->second.stored) +
            " less)";
  const auto other =
      std::max_element(shortage.others.begin(), shortage.others.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (other != shortage.others.end())
    text += "; to resume or end group '" + other->first + "', which has " +
            format_size(other->second) + " in the pool";
  return text;
}

}  // namespace

std::string describe(const Shortage& shortage) {
  std::vector<NamedTag> tags(shortage.tags.begin(), shortage.tags.end());
  std::stable_sort(tags.begin(), tags.end(), [](const NamedTag& a, const NamedTag& b) {
    return a.second.stored > b.second.stored;
  });
  std::string text = "the host pool is too small, even without zeros: it has " +
                     format_size(shortage.free) + " of " + format_size(shortage.total) +
                     " free, but " + format_size(shortage.free + shortage.missing) +
                     " are needed. The pause must save " + name_tags(tags);
  if (shortage.not_seen > 0)
    text += ". Ranks could not look for zeros in " + format_size(shortage.not_seen) +
            " of it, because amem's kernels are not loaded there (the ranks' warnings say why)";
  return text + ". Remedies: " + advice(shortage, tags);
}

}  // namespace amem
