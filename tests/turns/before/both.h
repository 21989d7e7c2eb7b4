// Both: the form of before and the form of now, side by side. What one decides the other must
// decide at the same time, but for the classes that different() names.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "before/turns.h"
#include "tests/unit/fixtures/turns_by_events.h"

namespace amem {

class Both {
 public:
  Both(const TurnRules& rules, const std::vector<StageDevice>& devices)
      : now_(rules, devices), before_(of(rules), of(devices)) {}

  Status add(const TurnTerms& terms, bool running, Time at) {
    return same(now_.add(terms, running, at), before_.add(of(terms), running, at), "add");
  }
  void remove(const std::string& group, Time at) {
    now_.remove(group, at);
    before_.remove(group, at);
  }
  Status set_needs(const std::string& group, const TurnNeeds& needs, Time at) {
    static_cast<void>(before_.set_needs(group, needs, at));
    static_cast<void>(now_.set_needs(group, needs, at));
    return {};
  }
  Status started(const std::string& group, const TurnNeeds& needs, Time at) {
    static_cast<void>(before_.started(group, needs, at));
    static_cast<void>(now_.started(group, needs, at));
    return {};
  }
  Status set_parts(const std::string& group, const std::vector<TurnNeeds>& parts, Time at) {
    static_cast<void>(before_.set_parts(group, parts, at));
    return now_.set_parts(group, parts, at);
  }
  void set_stays(const std::string& group, const TurnNeeds& stays, Time at) {
    before_.set_stays(group, stays, at);
    now_.set_stays(group, stays, at);
  }
  void wants(const std::string& group, Time at) {
    before_.wants(group, at);
    now_.wants(group, at);
  }
  void wants_nothing(const std::string& group, Time at) {
    before_.wants_nothing(group, at);
    now_.wants_nothing(group, at);
  }
  void worked(const std::string& group, Time at) {
    before_.worked(group, at);
    now_.worked(group, at);
  }
  void paused_by_operator(const std::string& group, Time at) {
    before_.paused_by_operator(group, at);
    now_.paused_by_operator(group, at);
  }
  void released(const std::string& group, bool running, Time at) {
    before_.released(group, running, at);
    now_.released(group, running, at);
  }
  std::optional<TurnSwitch> decide(Time at) {
    const auto before = before_.decide(at);
    std::optional<TurnSwitch> now = now_.decide(at);
    const std::string was = before ? text(before->out, before->in, before->parts) : "nothing";
    const std::string is = now ? text(now->out, now->in, now->parts) : "nothing";
    if (was != is) differ("decide: before " + was + ", now " + is);
    return now;
  }
  void switch_done(std::uint64_t number, Time at) {
    before_.switch_done(number, at);
    now_.switch_done(number, at);
  }
  void switch_failed(std::uint64_t number, const std::vector<std::string>& running, Time at) {
    before_.switch_failed(number, running, at);
    now_.switch_failed(number, running, at);
  }
  Time wakeup() const { return std::min(now_.wakeup(), before_.wakeup()); }
  bool runs(const std::string& group) const { return now_.runs(group); }

  /// The differences so far that no class names.
  static inline std::uint64_t differences = 0;
  static inline std::uint64_t decisions = 0;

 private:
  static old::TurnRules of(const TurnRules& rules) {
    old::TurnRules its;
    its.policy = static_cast<old::TurnPolicy>(rules.policy);
    its.grace = rules.grace;
    its.idle = rules.idle;
    its.max_hold = rules.max_hold;
    its.slice = rules.slice;
    its.ageing = rules.ageing;
    its.first_retry = rules.first_retry;
    its.last_retry = rules.last_retry;
    return its;
  }
  static std::vector<old::StageDevice> of(const std::vector<StageDevice>& devices) {
    std::vector<old::StageDevice> its;
    for (const StageDevice& each : devices)
      its.push_back({each.device, each.capacity, each.margin});
    return its;
  }
  static old::TurnTerms of(const TurnTerms& terms) {
    return {terms.group,        terms.needs,    terms.weight,  terms.priority, terms.min_residency,
            terms.longest_wait, terms.cost_out, terms.cost_in, terms.starts,   terms.parts};
  }
  static Status same(const Status& now, const Status& before, const char* what) {
    if (now.ok() != before.ok())
      differ(std::string(what) + ": before " + before.text() + ", now " + now.text());
    return now;
  }
  static std::string text(const std::vector<std::string>& out, const std::vector<std::string>& in,
                          const std::map<std::string, std::size_t>& parts) {
    std::string text = "out";
    for (const std::string& each : out) text += " " + each;
    text += ", in";
    for (const std::string& each : in) text += " " + each;
    for (const auto& [group, count] : parts) text += ", " + std::to_string(count) + " of " + group;
    return text;
  }
  static void differ(const std::string& what) {
    ++differences;
    std::printf("%s\n", what.c_str());
    std::fflush(stdout);
    std::exit(1);
  }

  Turns now_;
  old::Turns before_;
};

namespace turn_traces {
using TurnsUnderTest = Both;
}

}  // namespace amem
