#include "tests/turns/trace.h"

#include <algorithm>

#include "daemon/base/units.h"
#include "daemon/turns/longest_wait.h"

namespace amem::turn_traces {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint64_t kGiB = 1ULL << 30;
constexpr std::size_t kMostGroups = 32;

void make_stage(Trace& trace, Dice& dice) {
  trace.rules.policy = static_cast<TurnPolicy>(dice.between(0, 2));
  trace.rules.grace = dice.between(milliseconds(0), milliseconds(500));
  trace.rules.idle = dice.between(milliseconds(500), seconds(5));
  trace.rules.max_hold = dice.one_in(3) ? Duration{} : dice.between(seconds(10), seconds(120));
  trace.rules.ageing = dice.between(seconds(1), seconds(60));
  const auto devices = dice.between(1, 3);
  for (std::int64_t i = 0; i < devices; ++i) {
    StageDevice device{{}, static_cast<int>(i), 80 * kGiB, 2 * kGiB};
    device.device.bytes[0] = static_cast<std::uint8_t>(i + 1);
    trace.devices.push_back(device);
  }
}

void make_groups(Trace& trace, Dice& dice) {
  // Half of the stages are small enough for the optimum.
  const auto count = dice.one_in(2) ? dice.between(2, 6) : dice.between(2, kMostGroups);
  enum class Size : std::uint8_t { kLarge, kMedium, kSmall, kMixed };
  trace.exclusive = trace.kind == Kind::kAlways ? dice.one_in(2) : dice.one_in(3);
  auto size = trace.exclusive  ? Size::kLarge  // no two fit beside each other
              : dice.one_in(2) ? Size::kMedium
                               : Size::kSmall;
  if (trace.kind == Kind::kAlways && !trace.exclusive) size = Size::kMixed;
  const auto gib = [&] {
    switch (size) {
      case Size::kLarge:
        return dice.between(40, 78);
      case Size::kMedium:
        return dice.between(5, 45);
      case Size::kSmall:
        return dice.between(5, 20);
      case Size::kMixed:
        break;
    }
    return dice.one_in(3) ? dice.between(60, 78) : dice.between(5, 30);
  };
  Duration residency{};
  for (std::int64_t i = 0; i < count; ++i) {
    TurnTerms terms;
    terms.group = "g" + std::to_string(i);
    for (const StageDevice& device : trace.devices)
      if (trace.exclusive || trace.devices.size() == 1 || !dice.one_in(3))
        terms.needs[device.device] = static_cast<std::uint64_t>(gib()) * kGiB;
    terms.weight = static_cast<std::uint32_t>(dice.between(1, 5));
    terms.priority = dice.one_in(2) ? 0 : static_cast<std::int32_t>(dice.between(-3, 3));
    terms.cost_out = dice.between(milliseconds(50), milliseconds(1500));
    terms.cost_in = dice.between(milliseconds(50), milliseconds(1500));
    if (dice.one_in(3)) terms.min_residency = dice.between(seconds(0), seconds(10));
    residency = std::max(residency, terms.residency());
    trace.groups.push_back(terms);
  }
  trace.rules.slice = residency + dice.between(seconds(1), seconds(30));
}

/// Drawn apart: the rest of each trace is as it was before there were parts.
void make_parts(Trace& trace) {
  Dice dice(trace.seed ^ 0x9a275ULL);
  trace.parts = dice.one_in(3);
  if (!trace.parts) return;
  for (TurnTerms& each : trace.groups) {
    TurnNeeds left = each.needs;
    for (std::int64_t count = dice.between(0, 3); count > 0; --count) {
      TurnNeeds part;
      for (const auto& [device, bytes] : left)
        if (!dice.one_in(4)) part[device] = bytes / static_cast<std::uint64_t>(dice.between(1, 4));
      left = without(left, part);
      each.parts.push_back(part);
    }
  }
}

/// Half of the stages that may promise a longest wait do, most of these as short a one as can be.
void promise(Trace& trace, Dice& dice) {
  if (dice.one_in(2)) return;
  for (TurnTerms& each : trace.groups)
    if (dice.one_in(2)) each.longest_wait = kLongestTurnTime;  // who, before how long
  for (std::size_t i = 0; i < trace.groups.size(); ++i) {
    Duration& wait = trace.groups[i].longest_wait;
    if (wait == Duration{}) continue;
    const WorstWait worst = worst_wait(trace.rules, trace.devices, trace.groups, i);
    if (worst.total && *worst.total <= kLongestTurnTime)
      wait = dice.one_in(4) ? std::min(2 * *worst.total, kLongestTurnTime) : *worst.total;
  }
  // Who cannot have one has none; the others then wait for no longer.
  while (!check_longest_waits(trace.rules, trace.devices, trace.groups).ok())
    for (TurnTerms& each : trace.groups)
      if (each.longest_wait == kLongestTurnTime) each.longest_wait = {};
}

void make_bursts(Trace& trace, Dice& dice) {
  const auto count = static_cast<std::int64_t>(trace.groups.size());
  Duration at{};
  std::vector<std::int64_t> recent;
  const auto pick = [&] {
    // Who has had work lately has some again more often.
    const auto lately = std::min<std::int64_t>(static_cast<std::int64_t>(recent.size()), 8);
    recent.push_back(lately > 0 && dice.one_in(2) ? *(recent.end() - dice.between(1, lately))
                                                  : dice.between(0, count - 1));
    return static_cast<std::size_t>(recent.back());
  };
  for (std::int64_t epoch = dice.between(5, 60); epoch > 0; --epoch) {
    // A burst: some groups have work again and again, for a while.
    const Duration ends = at + dice.between(seconds(20), seconds(120));
    for (std::int64_t active = dice.between(1, 3); active > 0; --active) {
      std::vector<Work>& work = trace.work[pick()];
      for (Duration next = at + dice.between(seconds(0), seconds(5)); next < ends;) {
        const Duration takes = dice.between(milliseconds(100), seconds(8));
        work.push_back({next, takes});
        next += takes + dice.between(milliseconds(10), 2 * trace.rules.idle);
      }
    }
    at = ends + (dice.one_in(3) ? dice.between(seconds(0), seconds(60)) : Duration{});
  }
}

void make_uniform(Trace& trace, Dice& dice) {
  const auto count = static_cast<std::int64_t>(trace.groups.size());
  const Duration most = dice.between(seconds(2), seconds(20));
  Duration at{};
  for (std::int64_t pieces = dice.between(50, 250); pieces > 0; --pieces) {
    at += dice.between(Duration{}, most);
    trace.work[static_cast<std::size_t>(dice.between(0, count - 1))].push_back(
        {at, dice.between(milliseconds(100), seconds(3))});
  }
}

}  // namespace

const char* to_string(Kind kind) {
  switch (kind) {
    case Kind::kBursts:
      return "bursts";
    case Kind::kUniform:
      return "uniform";
    case Kind::kAlways:
      break;
  }
  return "always";
}

std::string describe(const Trace& trace) {
  const auto promised =
      std::count_if(trace.groups.begin(), trace.groups.end(),
                    [](const TurnTerms& each) { return each.longest_wait > Duration{}; });
  std::size_t pieces = 0;
  for (const auto& each : trace.work) pieces += each.size();
  const TurnRules& rules = trace.rules;
  return "seed " + std::to_string(trace.seed) + ": " + std::string(amem::to_string(rules.policy)) +
         ", " + to_string(trace.kind) + ", " + std::to_string(trace.groups.size()) + " groups on " +
         std::to_string(trace.devices.size()) + " GPUs, " + std::to_string(promised) +
         " longest waits, " + std::to_string(pieces) + " pieces of work, grace " +
         format_duration(rules.grace) + ", idle " + format_duration(rules.idle) + ", max_hold " +
         format_duration(rules.max_hold) + ", slice " + format_duration(rules.slice) + ", ageing " +
         format_duration(rules.ageing) + (trace.storms ? ", storms" : "") +
         (trace.starts ? ", starts" : "") + (trace.parts ? ", parts" : "");
}

Trace make_trace(std::uint64_t seed) {
  Dice dice(seed);
  Trace trace;
  trace.seed = seed;
  trace.kind = dice.one_in(20) ? Kind::kAlways : kKinds[dice.between(0, 1)];
  make_stage(trace, dice);
  make_groups(trace, dice);
  make_parts(trace);
  trace.work.resize(trace.groups.size());
  if (trace.kind == Kind::kAlways) {
    // Without this a group that always has work keeps the stage.
    if (trace.rules.max_hold == Duration{}) trace.rules.max_hold = seconds(30);
    Duration round{};
    for (std::size_t i = 0; i < trace.groups.size(); ++i) {
      trace.work[i].push_back({Duration{}, std::chrono::hours(24 * 365)});
      const TurnTerms& terms = trace.groups[i];
      round += *turn_limit(trace.rules, terms) + terms.cost_in + terms.cost_out;
    }
    trace.end = 100 * round;
    promise(trace, dice);
    return trace;
  }
  trace.storms = dice.one_in(3);
  trace.starts = trace.storms && seed % 2 == 0;
  trace.comparable = !trace.storms && trace.rules.policy == TurnPolicy::kDemand && dice.one_in(2);
  if (trace.kind == Kind::kBursts)
    make_bursts(trace, dice);
  else
    make_uniform(trace, dice);
  for (const auto& each : trace.work)
    if (!each.empty()) trace.end = std::max(trace.end, each.back().at);
  if (trace.comparable) {
    trace.parts = false;
    for (TurnTerms& each : trace.groups) {
      each.priority = 0;
      each.parts.clear();
    }
  } else if (!trace.storms) {
    promise(trace, dice);
  }
  return trace;
}

}  // namespace amem::turn_traces
