// Members: the ranks of a group, and what they are called in messages. Plain data.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "daemon/base/ids.h"

namespace amem {

class Members {
 public:
  /// `label` names the rank in messages: "rank 3 (pid 123)".
  void add(RankId rank, std::string label) { labels_.emplace(rank, std::move(label)); }
  void remove(RankId rank) { labels_.erase(rank); }
  /// Its process lives on without a session; from now on its label says so. REQUIRES: a member.
  void lose(RankId rank) { labels_.at(rank) += " whose session has ended (end that process)"; }

  bool empty() const { return labels_.empty(); }
  std::vector<RankId> ids() const;
  const std::string& label(RankId rank) const;
  /// Their labels, with commas.
  std::string names(const std::vector<RankId>& ranks) const;

 private:
  std::map<RankId, std::string> labels_;
};

}  // namespace amem
