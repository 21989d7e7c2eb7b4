#include "daemon/phases/members.h"

namespace amem {

std::vector<RankId> Members::ids() const {
  std::vector<RankId> ranks;
  for (const auto& [rank, label] : labels_) ranks.push_back(rank);
  return ranks;
}

const std::string& Members::label(RankId rank) const {
  static const std::string unknown = "an unknown rank";
  const auto it = labels_.find(rank);
  return it != labels_.end() ? it->second : unknown;
}

std::string Members::names(const std::vector<RankId>& ranks) const {
  std::string text;
  for (RankId rank : ranks) text += (text.empty() ? "" : ", ") + label(rank);
  return text;
}

}  // namespace amem
