#include "tests/stage_traces/stage_trace.h"

#include <algorithm>
#include <map>

#include "daemon/base/units.h"

namespace amem::stage_traces {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint64_t kUsable = kDevicePages - kMarginPages;

void make_stage(StageTrace& trace, Dice& dice) {
  trace.devices = static_cast<int>(dice.between(1, kDevices));
  trace.stage.name = "s";
  for (int i = 0; i < trace.devices; ++i) trace.stage.devices.push_back(std::to_string(i));
  trace.stage.margin = kMarginPages * kPage;
  TurnRules& rules = trace.stage.rules;
  const std::uint64_t policy = dice.below(6);
  rules.policy = policy == 0   ? TurnPolicy::kLease
                 : policy == 1 ? TurnPolicy::kSlice
                               : TurnPolicy::kDemand;
  rules.grace = dice.between(milliseconds(0), milliseconds(500));
  rules.idle = dice.between(milliseconds(500), seconds(3));
  rules.max_hold = dice.one_in(2) ? Duration{} : dice.between(seconds(5), seconds(20));
  rules.slice = dice.between(seconds(5), seconds(15));
  rules.ageing = dice.between(seconds(1), seconds(10));
  rules.last_retry = seconds(8);
  rules.starts_alone = !dice.one_in(3);
  rules.start_idle = dice.between(seconds(2), seconds(5));
  // As settings: an amemd without them has no such limits.
  (void)trace.stage.set("start_limit_shared", format_duration(kStartLimitShared));
  (void)trace.stage.set("start_limit", format_duration(kStartLimit));
  if (dice.one_in(2)) trace.stage.min_residency = dice.between(milliseconds(0), seconds(4));
}

std::uint64_t pages(Dice& dice, std::uint64_t kind) {
  const auto between = [&](std::uint64_t low, std::uint64_t high) {
    return low + dice.below(high - low + 1);
  };
  switch (kind) {
    case 0:
      return between(3, 20);
    case 1:
      return between(15, 40);
    case 2:
      return between(32, kUsable - 6);
    default:
      return between(kUsable - 8, kUsable);  // fits alone at the most
  }
}

void make_memory(const StageTrace& trace, GroupPlan& group, Dice& dice) {
  const std::uint64_t kind = dice.one_in(12) ? 3 : dice.below(3);
  const bool pins = dice.one_in(4);
  const bool outside = dice.one_in(16) && trace.devices < kDevices;
  for (int device = 0; device < kDevices; ++device) {
    const bool inside = device < trace.devices;
    if (inside && trace.devices > 1 && dice.one_in(3)) continue;
    if (!inside && !(outside && device == trace.devices)) continue;
    std::uint64_t left = inside ? pages(dice, kind) : 1 + dice.below(8);
    if (dice.one_in(40)) left = kDevicePages - 1;  // too large
    for (std::uint64_t parts = 1 + dice.below(3); left > 0; --parts) {
      const std::uint64_t size = parts <= 1 ? left : 1 + dice.below(left);
      group.pieces.push_back({"p" + std::to_string(group.pieces.size()), device, size,
                              pins && dice.one_in(2), dice.one_in(5)});
      left -= size;
    }
  }
  if (group.pieces.empty()) group.pieces.push_back({"p0", 0, pages(dice, kind)});
}

void make_groups(StageTrace& trace, Dice& dice) {
  const int count = static_cast<int>(dice.between(2, dice.one_in(4) ? 12 : 6));
  for (int i = 0; i < count; ++i) {
    GroupPlan group;
    group.name = "g" + std::to_string(i);
    group.user = 1001 + static_cast<uid_t>(dice.below(3));
    group.ranks = static_cast<int>(dice.between(1, 3));
    make_memory(trace, group, dice);
    const bool sees_all = dice.one_in(2);
    for (int device = 0; device < kDevices; ++device)
      if (sees_all || std::any_of(group.pieces.begin(), group.pieces.end(),
                                  [device](const Piece& each) { return each.device == device; }))
        group.sees.insert(device);
    group.announced = dice.one_in(4);
    if (i > 0 && dice.one_in(6)) {
      const int owner = static_cast<int>(dice.below(static_cast<std::uint64_t>(i)));
      if (trace.groups[static_cast<std::size_t>(owner)].user == group.user) group.guest_of = owner;
    }
    group.joins = dice.one_in(3) ? dice.between(seconds(0), seconds(60))
                                 : dice.between(seconds(0), seconds(5));
    group.most_work = dice.between(seconds(1), seconds(8));
    // Without max_hold who always has work keeps the stage.
    const TurnRules& rules = trace.stage.rules;
    group.least_gap = rules.max_hold == Duration{}
                          ? std::max(rules.idle, rules.start_idle) + seconds(2)
                          : milliseconds(100);
    group.most_gap = group.least_gap + dice.between(seconds(1), seconds(25));
    group.weight = static_cast<std::uint32_t>(dice.between(1, 3));
    if (dice.one_in(3)) group.priority = static_cast<std::int32_t>(dice.between(-2, 2));
    if (dice.one_in(4)) group.leave_first = {"p0"};
    trace.groups.push_back(group);
  }
}

}  // namespace

StageTrace make_trace(std::uint64_t seed) {
  Dice dice(seed);
  StageTrace trace;
  trace.seed = seed;
  make_stage(trace, dice);
  make_groups(trace, dice);
  trace.length = dice.between(seconds(60), seconds(240));
  if (dice.one_in(5)) trace.deepen = dice.between(seconds(2), seconds(10));
  trace.others = dice.one_in(3);
  trace.mishaps = dice.one_in(4);
  trace.operators = dice.one_in(4);
  trace.churn = dice.one_in(3);
  trace.deaths = dice.one_in(6);
  trace.loiterers = dice.one_in(6);
  for (GroupPlan& group : trace.groups)
    group.loiters = trace.loiterers && group.announced && dice.one_in(2);
  trace.promises = !trace.others && !trace.mishaps && !trace.operators && !trace.churn &&
                   !trace.loiterers && !trace.deaths && dice.one_in(2);
  trace.late = dice.one_in(4);
  trace.speeds = dice.one_in(4);
  trace.forks = dice.one_in(4);
  trace.wrong = trace.operators && dice.one_in(2);
  return trace;
}

const std::vector<std::string>& features() {
  static const std::vector<std::string> all = {
      "pins",    "guests",   "apart",  "deep",   "others", "mishaps", "operators",
      "churn",   "promises", "deaths", "starts", "parts",  "tight",   "loiterers",
      "reasons", "late",     "speeds", "forks",  "wrong"};
  return all;
}

void leave_out(StageTrace& trace, const std::string& feature) {
  const bool pins = feature == "pins";
  const bool guests = feature == "guests";
  const bool apart = feature == "apart";
  const bool parts = feature == "parts";
  for (GroupPlan& group : trace.groups) {
    for (Piece& piece : group.pieces)
      if (pins) piece.pinned = false;
    if (guests) group.guest_of = -1;
    if (feature == "loiterers") group.loiters = false;
    if (parts) group.leave_first.clear();
    if (feature == "starts") group.announced = false;
    if (!apart && feature != "tight") continue;
    // Beside the contexts of all groups.
    std::uint64_t most = kUsable;
    if (!apart)
      for (const GroupPlan& each : trace.groups) most -= static_cast<std::uint64_t>(each.ranks);
    std::map<int, std::uint64_t> sum;
    for (Piece& piece : group.pieces) {
      piece.pages = std::min(piece.pages, most - sum[piece.device]);
      sum[piece.device] += piece.pages;
    }
    std::erase_if(group.pieces, [&](const Piece& piece) {
      return piece.pages == 0 || (apart && piece.device >= trace.devices);
    });
  }
  if (feature == "deep") trace.deepen = {};
  if (feature == "others") trace.others = false;
  if (feature == "mishaps") trace.mishaps = false;
  if (feature == "operators") trace.operators = false;
  if (feature == "churn") trace.churn = false;
  if (feature == "reasons") trace.reasons = false;
  if (feature == "loiterers") trace.loiterers = false;
  if (feature == "promises") trace.promises = false;
  if (feature == "deaths") trace.deaths = false;
  if (feature == "late") trace.late = false;
  if (feature == "speeds") trace.speeds = false;
  if (feature == "forks") trace.forks = false;
  if (feature == "wrong") trace.wrong = false;
  if (feature == "starts") trace.stage.rules.starts_alone = false;
}

std::string describe(const StageTrace& trace) {
  const TurnRules& rules = trace.stage.rules;
  std::string text =
      "seed " + std::to_string(trace.seed) + ": " + std::string(to_string(rules.policy)) + ", " +
      std::to_string(trace.groups.size()) + " groups on " + std::to_string(trace.devices) +
      " GPUs, " + format_duration(trace.length) + ", idle " + format_duration(rules.idle) +
      ", max_hold " + format_duration(rules.max_hold);
  if (rules.starts_alone) text += ", first turns";
  if (trace.deepen > Duration{}) text += ", deep";
  if (trace.others) text += ", others";
  if (trace.mishaps) text += ", mishaps";
  if (trace.operators) text += ", operators";
  if (trace.churn) text += ", churn";
  if (trace.loiterers) text += ", loiterers";
  if (trace.promises) text += ", promises";
  if (trace.deaths) text += ", deaths";
  if (trace.late) text += ", late";
  if (trace.speeds) text += ", speeds";
  if (trace.forks) text += ", forks";
  if (trace.wrong) text += ", wrong";
  return text;
}

}  // namespace amem::stage_traces
