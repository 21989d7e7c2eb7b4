#include "tests/turns/player.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "daemon/base/units.h"

namespace amem::turn_traces {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

enum class Where : std::uint8_t { kOut, kIn, kSwitching };

struct Program {
  Where where = Where::kOut;
  std::size_t piece = 0;  // the next, or the one that it works at
  Duration left{};        // of that one
  bool started = false;   // that one
  Time going_since{};     // works without a pause since
  Time told{};            // that it worked, last
  std::optional<Time> waits_since{};
  Time came_in{};
  Duration ran{};
  std::uint64_t served = 0;
  bool starts = false;               // its first turn has not ended
  std::optional<Time> start_ends{};  // if it does not end before
  bool gone = false;                 // has ended
  bool of_operator = false;
  TurnNeeds stays = {};  // on the devices while it is out
};

class Player {
 public:
  Player(const Trace& trace, Oracle* oracle, bool aloud)
      : trace_(trace),
        oracle_(oracle),
        aloud_(aloud),
        terms_(trace.groups),
        dice_(trace.seed ^ 0x5eedULL),
        turns_(trace.rules, trace.devices),
        programs_(trace.groups.size()) {}

  Played play() {
    for (std::size_t i = 0; i < terms_.size(); ++i)
      if (oracle_ == nullptr) join(i, false);
    if (trace_.storms) storm_ = now_ + dice_.between(seconds(1), seconds(30));
    const Time last = begin_ + trace_.end;
    // What is waited for after the last piece of work has come ends sometime.
    for (std::uint64_t steps = 0; played_.broken.empty(); ++steps) {
      if (steps > 2'000'000) broke("it comes to an end");
      step();
      const Time next = next_time();
      if (trace_.kind == Kind::kAlways ? next > last : finished()) break;
      if (next == kNever) {
        broke("nobody waits for ever: " + who_waits());
        break;
      }
      if (next <= now_) {
        broke("time goes on");
        break;
      }
      now_ = next;
    }
    if (trace_.kind == Kind::kAlways) check_shares();
    return played_;
  }

 private:
  const std::string& name(std::size_t i) const { return trace_.groups[i].group; }
  std::size_t index(const std::string& group) const {
    return static_cast<std::size_t>(std::stoul(group.substr(1)));
  }
  void broke(const std::string& what) {
    if (played_.broken.empty())
      played_.broken = what + " (at " + format_duration(now_ - begin_) + ")";
  }
  void say(const std::string& what) const {
    if (aloud_)
      std::printf("%10.3f %s\n", std::chrono::duration<double>(now_ - begin_).count(),
                  what.c_str());
  }

  bool lease() const { return trace_.rules.policy == TurnPolicy::kLease; }
  /// It is told again and again that there is work, or once.
  bool ticks() const { return !lease() && oracle_ == nullptr && trace_.kind != Kind::kAlways; }
  bool has_piece(std::size_t i) const { return programs_[i].piece < trace_.work[i].size(); }
  Time piece_at(std::size_t i) const {
    return has_piece(i) ? begin_ + trace_.work[i][programs_[i].piece].at : kNever;
  }
  bool has_work(std::size_t i) const {
    return has_piece(i) && (programs_[i].started || piece_at(i) <= now_);
  }
  bool works(std::size_t i) const {
    return programs_[i].where == Where::kIn && programs_[i].started && !programs_[i].of_operator;
  }
  Duration tick() const {
    return std::max<Duration>(trace_.rules.idle * 9 / 10, milliseconds(100));
  }

  bool finished() const {
    if (under_way_ || (trace_.storms && now_ < begin_ + trace_.end)) return false;
    for (std::size_t i = 0; i < programs_.size(); ++i)
      if (has_piece(i) || (programs_[i].starts && !programs_[i].gone)) return false;
    return true;
  }

  void join(std::size_t i, bool running) {
    Program& p = programs_[i];
    TurnTerms terms = terms_[i];
    p.starts = terms.starts = trace_.starts;
    p.start_ends.reset();
    if (p.starts) terms.needs = whole(trace_.devices);
    if (Status status = turns_.add(terms, running, now_); !status.ok()) broke(status.text());
    if (!p.starts) return;
    turns_.wants(name(i), now_);
    p.waits_since = now_;
  }
  bool in_first_turn(std::size_t i) const {
    const Program& p = programs_[i];
    return p.starts && p.where == Where::kIn && !p.of_operator && !p.gone;
  }
  void end_first_turn(std::size_t i) {
    say(name(i) + " has started");
    programs_[i].starts = false;
    if (Status status = turns_.started(name(i), terms_[i].needs, now_); !status.ok())
      broke(status.text());
    if (!has_work(i)) turns_.wants_nothing(name(i), now_);
  }

  std::string who_waits() const {
    std::string text;
    for (std::size_t i = 0; i < programs_.size(); ++i)
      if (has_piece(i)) text += name(i) + " ";
    return text;
  }

  Time next_time() const {
    Time next = under_way_ ? ends_ : kNever;
    for (std::size_t i = 0; i < programs_.size(); ++i)
      if (in_first_turn(i) && *programs_[i].start_ends > now_)
        next = std::min(next, *programs_[i].start_ends);
    for (std::size_t i = 0; i < programs_.size(); ++i) {
      const Program& p = programs_[i];
      if (works(i)) {
        next = std::min(next, p.going_since + p.left);
        if (ticks()) next = std::min(next, p.told + tick());
      } else if (!p.started && !p.gone && piece_at(i) > now_) {
        next = std::min(next, piece_at(i));
      }
    }
    if (!under_way_)
      next = std::min(next, oracle_ != nullptr ? oracle_->wakeup(groups(), now_) : turns_.wakeup());
    if (trace_.storms && storm_ > now_) next = std::min(next, storm_);
    return next;
  }

  void step() {
    if (under_way_ && ends_ <= now_) end_switch();
    if (trace_.storms && storm_ <= now_) storm();
    for (std::size_t i = 0; i < programs_.size(); ++i) {
      if (in_first_turn(i) && *programs_[i].start_ends <= now_) end_first_turn(i);
      go_on(i);
    }
    if (under_way_) return;
    auto next = oracle_ != nullptr ? oracle_->decide(groups(), now_) : turns_.decide(now_);
    if (next) begin_switch(*next);
  }

  /// What a group's program does now.
  void go_on(std::size_t i) {
    Program& p = programs_[i];
    if (p.gone) return;
    if (works(i) && p.going_since + p.left <= now_) {
      p.started = false;
      p.told = now_;
      ++p.piece;
      if (oracle_ == nullptr)
        lease() && !has_work(i) && !p.starts ? turns_.wants_nothing(name(i), now_)
                                             : turns_.worked(name(i), now_);
    }
    if (!has_work(i) || p.of_operator) return;
    if (p.where == Where::kIn && !p.started) {
      p.started = true;
      p.left = trace_.work[i][p.piece].takes;
      start_working(i);
    } else if (works(i)) {
      if (ticks() && p.told + tick() <= now_) tell_work(i);
    } else if (!p.waits_since) {
      p.waits_since = now_;
      if (oracle_ == nullptr) turns_.wants(name(i), now_);
    }
  }

  void start_working(std::size_t i) {
    programs_[i].going_since = now_;
    played_.order.push_back(i);
    tell_work(i);
    if (oracle_ == nullptr && !ticks()) turns_.wants(name(i), now_);
  }
  void tell_work(std::size_t i) {
    programs_[i].told = now_;
    if (oracle_ == nullptr) turns_.worked(name(i), now_);
  }
  void stop_working(std::size_t i) {
    Program& p = programs_[i];
    if (p.started) p.left = std::max(Duration{}, p.going_since + p.left - now_);
    if (p.where == Where::kIn) p.ran += now_ - p.came_in;
  }

  void begin_switch(const TurnSwitch& next) {
    say("out " + list(next.out) + ", in " + list(next.in) + ": " + next.why);
    Duration takes{};
    for (const std::string& each : next.out) {
      const std::size_t i = index(each);
      const bool rest = programs_[i].where == Where::kOut && !programs_[i].stays.empty();
      if (programs_[i].where != Where::kIn && !rest) broke(each + " leaves and has nothing there");
      if (programs_[i].starts) broke(each + " leaves in its first turn");
      takes += cost_out(next, i);
      if (rest) continue;
      stop_working(i);
      programs_[i].where = Where::kSwitching;
    }
    for (const std::string& each : next.in) {
      const std::size_t i = index(each);
      if (programs_[i].where != Where::kOut) broke(each + " comes in and is not paused");
      takes += terms_[i].cost_in;
      programs_[i].where = Where::kSwitching;
      ++played_.resumes;
    }
    under_way_ = next;
    if (!next.in.empty()) check_fit(next.in);
    ends_ = now_ + std::max<Duration>(dice_.between(takes / 2, takes), milliseconds(1));
    fails_ = trace_.storms && now_ < begin_ + trace_.end && dice_.one_in(5);
    // A call that is made now waits at the gate.
    for (const std::string& each : next.out) go_on(index(each));
  }

  /// What of it is there afterwards.
  TurnNeeds left_by(const TurnSwitch& what, std::size_t i) const {
    const auto parts = what.parts.find(name(i));
    if (parts == what.parts.end()) return {};
    TurnNeeds left = terms_[i].needs;
    for (std::size_t k = 0; k < parts->second; ++k) left = without(left, terms_[i].parts[k]);
    return left;
  }
  /// Each part costs its share.
  Duration cost_out(const TurnSwitch& what, std::size_t i) const {
    const Program& p = programs_[i];
    const TurnNeeds leaves =
        p.where == Where::kIn ? without(terms_[i].needs, left_by(what, i)) : p.stays;
    double share = 1;
    for (const auto& [device, bytes] : terms_[i].needs) {
      const auto its = leaves.find(device);
      share = std::min(share, its == leaves.end()
                                  ? 0.0
                                  : static_cast<double>(its->second) / static_cast<double>(bytes));
    }
    return std::chrono::duration_cast<Duration>(terms_[i].cost_out * share);
  }

  void end_switch() {
    const TurnSwitch done = *under_way_;
    under_way_.reset();
    std::vector<std::string> running;
    // It has been called off, or what goes out has left and nothing has come in.
    const bool back = fails_ && dice_.one_in(2);
    for (const std::string& each : done.out) {
      Program& p = programs_[index(each)];
      if (p.gone) continue;
      const bool rest = p.where == Where::kOut;
      if (!back || !rest) p.stays = left_by(done, index(each));
      if (rest) {
        if (fails_ && oracle_ == nullptr) turns_.set_stays(each, p.stays, now_);
        continue;
      }
      p.where = Where::kOut;
      if (fails_ && oracle_ == nullptr) turns_.set_stays(each, p.stays, now_);
      if (back && !p.of_operator) {
        running.push_back(each);
        come_in(index(each), false);
      }
    }
    for (const std::string& each : done.in) {
      Program& p = programs_[index(each)];
      if (p.gone) continue;
      p.where = Where::kOut;
      if (!fails_ && !p.of_operator) come_in(index(each), true);
    }
    if (oracle_ != nullptr) return;
    if (fails_)
      turns_.switch_failed(done.number, running, now_);
    else
      turns_.switch_done(done.number, now_);
    check_fit({});
    check_places();
  }

  void come_in(std::size_t i, bool its_turn) {
    Program& p = programs_[i];
    p.where = Where::kIn;
    p.stays.clear();
    p.came_in = now_;
    if (its_turn) ++p.served;
    if (p.starts && !p.start_ends) {
      p.start_ends = now_ + dice_.between(seconds(1), seconds(60));
      if (const auto limit = turn_limit(trace_.rules, terms_[i]))
        p.start_ends = std::min(*p.start_ends, now_ + *limit);
    }
    if (p.waits_since) {
      const Duration waited = now_ - *p.waits_since;
      ++played_.waits;
      played_.longest = std::max(played_.longest, waited);
      const Duration longest = terms_[i].longest_wait;
      if (longest > Duration{} && !trace_.storms) {
        ++played_.promised;
        played_.nearest = std::max(played_.nearest, std::chrono::duration<double>(waited) /
                                                        std::chrono::duration<double>(longest));
        if (waited > longest)
          broke("a longest wait is kept: " + name(i) + " waited for " + format_duration(waited) +
                ", and its longest wait is " + format_duration(longest));
      }
    }
    p.waits_since.reset();
    if (p.started) start_working(i);
  }

  void check_fit(const std::vector<std::string>& coming) {
    TurnLoad load(trace_.devices);
    for (std::size_t i = 0; i < programs_.size(); ++i)
      if (programs_[i].where == Where::kIn && !programs_[i].gone) load.add(needs(i));
    // What is left of those that are out, but for what leaves or is counted with the group.
    for (std::size_t i = 0; i < programs_.size(); ++i) {
      const Program& p = programs_[i];
      if (p.where != Where::kOut || p.gone || p.of_operator) continue;
      const bool leaves = under_way_ && has(under_way_->out, i);
      if (!leaves && !p.stays.empty()) load.add(p.stays);
    }
    if (under_way_)
      for (const auto& [each, count] : under_way_->parts)
        if (const TurnNeeds left = left_by(*under_way_, index(each)); !left.empty()) load.add(left);
    for (const std::string& each : coming) load.add(needs(index(each)));
    if (load.within_limits() && !load.fits()) broke("a group starts alone");
    if (!load.within_limits() && !grown_) broke("all that run fit beside each other");
    if (load.within_limits()) grown_ = false;
  }

  TurnNeeds needs(std::size_t i) const {
    return programs_[i].starts ? whole(trace_.devices) : terms_[i].needs;
  }

  void check_places() {
    for (std::size_t i = 0; i < programs_.size(); ++i) {
      const Program& p = programs_[i];
      if (p.gone || p.of_operator) continue;
      if (turns_.runs(name(i)) != (p.where == Where::kIn)) broke("no group is lost: " + name(i));
    }
  }

  void storm() {
    storm_ = now_ + dice_.between(seconds(1), seconds(30));
    const std::size_t i =
        static_cast<std::size_t>(dice_.between(0, static_cast<std::int64_t>(programs_.size()) - 1));
    Program& p = programs_[i];
    const bool over = now_ >= begin_ + trace_.end;
    if (over) {
      for (std::size_t k = 0; k < programs_.size(); ++k) calm(k);
      const bool all = std::all_of(programs_.begin(), programs_.end(), [](const Program& each) {
        return !each.gone && !each.of_operator;
      });
      storm_ = all ? kNever : now_ + seconds(1);
      return;
    }
    if (p.gone || p.of_operator) return calm(i);
    if (p.where == Where::kSwitching) {
      if (dice_.one_in(2)) end(i);
      return;
    }
    switch (dice_.between(1, 4)) {
      case 1:
        return end(i);
      case 2:
        say("operator pauses " + name(i));
        if (in_first_turn(i)) end_first_turn(i);
        stop_working(i);
        p.where = Where::kOut;
        p.stays.clear();
        turns_.set_stays(name(i), {}, now_);
        p.of_operator = true;
        p.waits_since.reset();
        return turns_.paused_by_operator(name(i), now_);
      case 3:  // the clock jumps back
        return turns_.wants("nobody", now_ - seconds(100));
      default:
        break;
    }
    say("needs of " + name(i) + " change");
    for (auto& [device, bytes] : terms_[i].needs)
      bytes = static_cast<std::uint64_t>(dice_.between(1, 78)) << 30;
    if (p.starts) return;  // they count when it has started
    grown_ = true;
    terms_[i].parts.clear();
    p.stays.clear();
    (void)turns_.set_parts(name(i), {}, now_);
    turns_.set_stays(name(i), {}, now_);
    if (Status status = turns_.set_needs(name(i), terms_[i].needs, now_); !status.ok())
      broke(status.text());
  }

  void end(std::size_t i) {
    say(name(i) + " ends");
    stop_working(i);
    programs_[i].where = Where::kOut;
    programs_[i].gone = true;
    programs_[i].stays.clear();
    programs_[i].started = false;
    programs_[i].waits_since.reset();
    turns_.remove(name(i), now_);
    // What it would have done until it is back is not done.
  }

  /// Back again.
  void calm(std::size_t i) {
    Program& p = programs_[i];
    if (p.of_operator) {
      if (p.where == Where::kSwitching) return;
      say("operator lets go of " + name(i));
      p.of_operator = false;
      turns_.released(name(i), false, now_);
      if (p.starts) turns_.wants(name(i), now_);
      return;
    }
    if (!p.gone) return;
    if (under_way_ && (has(under_way_->in, i) || has(under_way_->out, i))) return;
    say(name(i) + " joins");
    p.gone = false;
    TurnLoad load(trace_.devices);
    for (std::size_t k = 0; k < programs_.size(); ++k)
      if (programs_[k].where != Where::kOut || !programs_[k].stays.empty())
        load.add(programs_[k].where != Where::kOut ? terms_[k].needs : programs_[k].stays);
    const bool running =
        !trace_.starts && !under_way_ && load.has_space_for(terms_[i].needs) && dice_.one_in(2);
    join(i, running);
    if (!running) return;
    p.where = Where::kIn;
    p.came_in = now_;
  }
  bool has(const std::vector<std::string>& names, std::size_t i) const {
    return std::find(names.begin(), names.end(), name(i)) != names.end();
  }

  void check_shares() {
    double weights = 0;
    double ran = 0;
    for (std::size_t i = 0; i < programs_.size(); ++i) {
      if (programs_[i].served == 0) broke("nobody starves: " + name(i) + " had no turn");
      weights += terms_[i].weight;
      ran += std::chrono::duration<double>(programs_[i].ran).count();
    }
    if (trace_.rules.policy != TurnPolicy::kSlice || !trace_.exclusive) return;
    for (std::size_t i = 0; i < programs_.size(); ++i) {
      const double share = std::chrono::duration<double>(programs_[i].ran).count() / ran;
      const double off = std::abs(share / (terms_[i].weight / weights) - 1);
      played_.off_weight = std::max(played_.off_weight, off);
      if (off > 0.05) broke("turns are as long as weights say: " + name(i));
    }
  }

  std::vector<Oracle::Group> groups() const {
    std::vector<Oracle::Group> all(programs_.size());
    for (std::size_t i = 0; i < programs_.size(); ++i) {
      const Program& p = programs_[i];
      all[i].runs = p.where == Where::kIn;
      all[i].works = p.where == Where::kIn && has_work(i);
      all[i].came_in = p.came_in;
      all[i].worked = std::max(p.told, p.came_in);
      if (p.waits_since && p.where == Where::kOut)
        all[i].asked = *p.waits_since + trace_.rules.grace;
      all[i].next_use = has_work(i) ? now_ : piece_at(i);
    }
    return all;
  }

  static std::string list(const std::vector<std::string>& names) {
    std::string text;
    for (const std::string& each : names) text += (text.empty() ? "" : " ") + each;
    return text.empty() ? "-" : text;
  }

  const Trace& trace_;
  Oracle* const oracle_;
  const bool aloud_;
  std::vector<TurnTerms> terms_;
  Dice dice_;
  TurnsUnderTest turns_;
  std::vector<Program> programs_;
  const Time begin_ = Time{} + std::chrono::hours(1);
  Time now_ = begin_;
  std::optional<TurnSwitch> under_way_;
  Time ends_{};
  bool fails_ = false;
  bool grown_ = false;  // so that those that run do not fit any more
  Time storm_ = kNever;
  Played played_;
};

}  // namespace

Played play(const Trace& trace, Oracle* oracle, bool aloud) {
  return Player(trace, oracle, aloud).play();
}

}  // namespace amem::turn_traces
