#include "daemon/memory/shortage.h"

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

/// The fewest of these, the largest first, that make up for what is missing: "'a' (3 GiB), 'b' (1
/// GiB)". Empty: all of them do not.
std::string enough(const std::map<std::string, std::uint64_t>& bytes, std::uint64_t missing) {
  std::vector<std::pair<std::string, std::uint64_t>> largest(bytes.begin(), bytes.end());
  std::stable_sort(largest.begin(), largest.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  std::uint64_t sum = 0;
  for (const auto& [name, size] : largest) {
    if (sum >= missing) break;
    text += (sum == 0 ? "'" : ", '") + name + "' (" + format_size(size) + ")";
    sum += size;
  }
  return sum >= missing ? text : "";
}

/// Returns remedies. Each is enough.
std::string advice(const Shortage& shortage) {
  std::vector<std::string> remedies;
  if (shortage.coming)
    remedies.emplace_back("to wait for the rest of the pool (`amemctl wait pool`)");
  if (!shortage.trouble.empty())
    remedies.push_back("to remove what keeps amemd from creating the pool: " + shortage.trouble);
  std::string larger;
  if (shortage.quota > 0)
    larger = "a quotas.pool of " + exact_size(round_up(shortage.quota, kSizeUnit)) + " or more";
  if (shortage.pool_size > 0)
    larger += (larger.empty() ? "" : ", and ") + std::string("a pool.size of ") +
              exact_size(round_up(shortage.pool_size, kSizeUnit)) + " or more";
  if (!larger.empty()) remedies.push_back("to restart amemd with " + larger);
  std::map<std::string, std::uint64_t> caches;
  for (const auto& [name, tag] : shortage.tags)
    if (tag.cache) caches[name] = tag.stored;
  if (const std::string text = enough(caches, shortage.missing); !text.empty())
    remedies.push_back("if the job can lose what its regions mark as a cache, to discard " + text);
  if (const std::string text = enough(shortage.others, shortage.missing); !text.empty())
    remedies.push_back("to resume or end " + text + ", whose bytes are in the pool");
  std::string text;
  for (const std::string& remedy : remedies) text += (text.empty() ? "" : "; ") + remedy;
  return text;
}

}  // namespace

std::string describe(const Shortage& shortage) {
  std::vector<NamedTag> tags(shortage.tags.begin(), shortage.tags.end());
  std::stable_sort(tags.begin(), tags.end(), [](const NamedTag& a, const NamedTag& b) {
    return a.second.stored > b.second.stored;
  });
  std::string text =
      "the host pool is too small, even without zeros: it has " + format_size(shortage.free) +
      " of " + format_size(shortage.total) + " free, but " +
      format_size(shortage.free + shortage.missing) + " are needed" +
      (shortage.of_others > 0 ? ", and other owners keep " + format_size(shortage.of_others) +
                                    " until their last processes end"
                              : "") +
      ". The pause must save " + name_tags(tags);
  if (shortage.not_seen > 0)
    text += ". Ranks could not look for zeros in " + format_size(shortage.not_seen) +
            " of it, because amem's kernels are not loaded there (the ranks' warnings say why)";
  return text + ". Remedies: " + advice(shortage);
}

}  // namespace amem
