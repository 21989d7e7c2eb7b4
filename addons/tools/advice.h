// What would make the switches of a group cheaper, as `amemctl advise` says it. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "addons/tools/staying.h"
#include "amem/v1/broker.pb.h"

namespace amem::ctl {

struct Advice {
  std::string check;                      // its name, for programs
  std::uint64_t bytes = 0;                // that it is about; 0: it is about time
  std::string text;                       // what there is, and what to do, on one line
  std::vector<Staying::Part> parts = {};  // where it is, if it is memory that stays unbrokered
};

/// At most five, those about most bytes first. `ranks` are the group's, `history` its last
/// operations.
std::vector<Advice> advice_for(const v1::GroupInfo& group, const v1::ListRanksResponse& ranks,
                               const v1::ListHistoryResponse& history);

/// A line for each; one that says so when there is nothing to advise.
std::string advice_view(const v1::GroupInfo& group, const std::vector<Advice>& advice);
/// An object on one line.
std::string to_json(const v1::GroupInfo& group, const std::vector<Advice>& advice);

}  // namespace amem::ctl
