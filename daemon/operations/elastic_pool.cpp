#include "daemon/operations/elastic_pool.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "common/numbers.h"
#include "daemon/base/units.h"
#include "daemon/sessions/messages.h"

namespace amem {
namespace {

/// For all ranks of an owner to unmap one segment. A rank that takes longer keeps it.
constexpr Duration kUnmapLimit = std::chrono::seconds(10);
/// For one segment to be pinned. The largest has 1 GiB.
constexpr Duration kMakeLimit = std::chrono::seconds(60);
/// No more often than this is it looked what is idle.
constexpr Duration kLeast = std::chrono::milliseconds(100);

std::string quoted(const std::vector<NamedGroup>& groups) {
  std::string text = groups.size() == 1 ? "group " : "groups ";
  for (const NamedGroup& group : groups)
    text += (&group == &groups.front() ? "'" : ", '") + group.name + "'";
  return text;
}

/// Says with the first pause that has succeeded how long its memory took.
class Pinned final : public OperationObserver {
 public:
  Pinned(std::shared_ptr<OperationObserver> observer, std::uint64_t bytes, Duration took)
      : observer_(std::move(observer)), bytes_(bytes), took_(took) {}
  void progress(const v1::Progress& progress) override {
    if (!progress.done() || told_) return observer_->progress(progress);
    told_ = true;
    v1::Progress with = progress;
    with.set_pool_pinned_bytes(bytes_);
    with.set_pool_pinned_us(to_us(took_));
    with.add_remarks("amemd pinned " + format_size(bytes_) + " of host memory first, in " +
                     rounded_duration(took_) + ", while the job ran on");
    observer_->progress(with);
  }
  void on_wait(std::function<void()> forget) override { observer_->on_wait(std::move(forget)); }
  void finished(const Status& status) override { observer_->finished(status); }

 private:
  const std::shared_ptr<OperationObserver> observer_;
  const std::uint64_t bytes_;
  const Duration took_;
  bool told_ = false;
};

}  // namespace

ElasticPool::~ElasticPool() {
  if (timer_) loop_.cancel(*timer_);
  if (stall_) loop_.cancel(*stall_);
  for (const auto& [number, leaving] : leaving_) loop_.cancel(leaving.deadline);
}

// ---- larger -------------------------------------------------------------------------------------

ElasticPool::Needs ElasticPool::needs_of(const Groups& groups, const Task& pause,
                                         const Parts& parts) const {
  Needs needs;
  for (const NamedGroup& each : groups) {
    const auto group = node_.groups.find(each.id);
    if (group == node_.groups.end()) continue;
    std::uint64_t& need = needs[group->second.account];
    for (const Allocation* a : saved_.find_to_save(group->second, part_of(pause, each.id, parts)))
      need += round_up(a->size, node_.pools.chunk());
  }
  return needs;
}

std::uint64_t ElasticPool::missing(const Needs& needs) const {
  std::uint64_t bytes = 0;
  for (const auto& [account, need] : needs) {
    const Pools::Space space = node_.pools.space(account);
    bytes += std::min(need - std::min(need, space.all()), node_.pools.can_make(account));
  }
  return bytes;
}

bool ElasticPool::await(const Order& order, const Observer& observer,
                        std::function<void(const Observer&)> go_on) {
  if (!node_.pools.elastic()) return false;
  const std::uint64_t lacks = missing(needs_of(order.out, order.pause, order.parts));
  if (lacks == 0) return false;
  spdlog::info("{}: amemd pins {} of host memory for the pause", quoted(order.out),
               format_size(lacks));
  for (const NamedGroup& each : order.out) {
    v1::Progress progress;
    progress.set_group(each.name);
    progress.set_waits_for("amemd pins " + format_size(lacks) + " of host memory");
    observer->progress(progress);
  }
  const std::uint64_t number = ++last_number_;
  observer->on_wait([this, number] {
    forget(number, {Code::kCancelled, "the caller has disconnected"});
  });
  add({.number = number,
       .groups = order.out,
       .pause = order.pause,
       .parts = order.parts,
       .served = [observer, go_on = std::move(go_on)](
                     std::uint64_t pinned,
                     Duration took) { go_on(std::make_shared<Pinned>(observer, pinned, took)); },
       .refused = [observer](const Status& why) { observer->finished(why); },
       .observer = observer});
  return true;
}

std::function<void()> ElasticPool::prepare(const Groups& groups, Duration timeout,
                                           const Done& done) {
  const std::uint64_t number = ++last_number_;
  const auto served = [this, groups, done](std::uint64_t pinned, Duration took) {
    Prepared prepared{.pinned = pinned, .took = took};
    for (const auto& [account, need] : needs_of(groups, Operation::kPause, {})) {
      prepared.needed += need;
      prepared.available += std::min(need, node_.pools.space(account).all());
    }
    done({}, prepared);
  };
  add({.number = number,
       .groups = groups,
       .pause = Operation::kPause,
       .parts = {},
       .served = served,
       .refused = [done](const Status& why) { done(why, {}); }});
  if (timeout > Duration{})
    loop_.at(Clock::now() + timeout, scope_.bind([this, number, timeout] {
      forget(number, {Code::kDeadlineExceeded, "not all of the host memory was pinned within " +
                                                   format_duration(timeout) +
                                                   ". What was pinned stays for pool.idle"});
    }));
  return [this, number] { forget(number, {Code::kCancelled, "the caller has disconnected"}); };
}

void ElasticPool::foresee(const Groups& groups) {
  if (!node_.pools.elastic() || Clock::now() < foresees_again_) return;
  const Needs needs = needs_of(groups, Operation::kPause, {});
  for (const auto& [account, need] : needs) node_.pools.draw(account, need);
  const bool waits = std::any_of(waits_.begin(), waits_.end(),
                                 [&](const Wait& each) { return each.number == foreseen_; });
  if (waits || missing(needs) == 0) return;
  foreseen_ = ++last_number_;
  add({.number = foreseen_,
       .groups = groups,
       .pause = Operation::kPause,
       .parts = {},
       .served = [](std::uint64_t, Duration) {},
       .refused = [this](const Status&) { foresees_again_ = Clock::now() + node_.pool_idle; }});
}

void ElasticPool::add(Wait wait) {
  waits_.push_back(std::move(wait));
  if (!stall_) goes_on();
  serve();
}

void ElasticPool::goes_on() {
  if (stall_) loop_.cancel(*std::exchange(stall_, std::nullopt));
  if (waits_.empty()) return;
  stall_ = loop_.at(Clock::now() + kMakeLimit, [this] {
    stall_.reset();
    refused({Code::kDeadlineExceeded,
             "the next segment was not pinned within " + format_duration(kMakeLimit)});
  });
}

void ElasticPool::forget(std::uint64_t wait, const Status& why) {
  const auto gone = std::find_if(waits_.begin(), waits_.end(),
                                 [&](const Wait& each) { return each.number == wait; });
  if (gone == waits_.end()) return;
  const auto refused = std::move(gone->refused);
  waits_.erase(gone);
  refused(why);
}

void ElasticPool::came(std::uint64_t bytes) {
  for (Wait& wait : waits_)
    if (wait.number == asked_) wait.pinned += bytes;
  asked_ = 0;
  serve();
  look_at_idle();
}

void ElasticPool::serve() {
  for (auto wait = waits_.begin(); wait != waits_.end();) {
    const Needs needs = needs_of(wait->groups, wait->pause, wait->parts);
    for (const auto& [account, need] : needs) node_.pools.draw(account, need);
    for (const NamedGroup& each : wait->groups)
      if (const auto group = node_.groups.find(each.id); group != node_.groups.end())
        for (const RankId rank : group->second.machine.members().ids()) outbox_.extend_reach(rank);
    bool waits = false;
    for (const auto& [account, need] : needs)
      waits = waits || (missing({{account, need}}) > 0 && node_.pools.make_more(account));
    if (waits) {
      if (asked_ == 0) asked_ = wait->number;
      ++wait;
      continue;
    }
    if (wait->pinned > 0 && await_maps(*wait)) {
      ++wait;
      continue;
    }
    const Duration took = Clock::now() - wait->began;
    if (wait->pinned > 0)
      spdlog::info("{}: amemd has pinned {} of host memory in {:.1f} ms", quoted(wait->groups),
                   format_size(wait->pinned), static_cast<double>(to_us(took)) / 1000);
    // In a turn of its own: whoever asked may be in the middle of that.
    loop_.post(scope_.bind(
        [served = std::move(wait->served), pinned = wait->pinned, took] { served(pinned, took); }));
    wait = waits_.erase(wait);
  }
}

/// Else the pause would wait for that with its gates shut.
bool ElasticPool::await_maps(Wait& wait) {
  if (wait.maps) return !wait.maps->empty();
  wait.maps.emplace();
  for (const NamedGroup& each : wait.groups)
    if (const auto group = node_.groups.find(each.id); group != node_.groups.end())
      for (const RankId id : group->second.machine.members().ids())
        if (const Rank* rank = node_.find_rank(id); rank != nullptr && answers(*rank)) {
          wait.maps->insert(id);
          outbox_.send(id, unmap_segment_message(kZeroSegment, wait.number));
        }
  loop_.at(Clock::now() + kUnmapLimit, scope_.bind([this, number = wait.number] {
    for (Wait& each : waits_)
      if (each.number == number && each.maps) each.maps->clear();
    serve();
  }));
  return !wait.maps->empty();
}

void ElasticPool::refused(const Status& why) {
  asked_ = 0;
  for (const Wait& wait : std::exchange(waits_, {})) {
    const std::uint64_t lacks = missing(needs_of(wait.groups, wait.pause, wait.parts));
    const std::string text = "amemd cannot pin the " + format_size(lacks) +
                             " of host memory that the pause of " + quoted(wait.groups) +
                             " may still need: " + why.text() +
                             ". Nothing has changed. Free host memory, or pause fewer tags";
    spdlog::warn("{}", text);
    wait.refused({Code::kResourceExhausted, text});
  }
}

std::vector<ElasticPool::Observer> ElasticPool::dismiss() {
  std::vector<Observer> all;
  for (const Wait& wait : std::exchange(waits_, {}))
    if (wait.observer != nullptr)
      all.push_back(wait.observer);
    else
      wait.refused({Code::kUnavailable, "amemd is ending"});
  return all;
}

// ---- smaller ------------------------------------------------------------------------------------

void ElasticPool::look_at_idle() {
  if (!node_.pools.elastic()) return;
  if (timer_) loop_.cancel(*timer_);
  timer_.reset();
  const Time now = Clock::now();
  const Time before = now - node_.pool_idle;
  // Nobody tells when something comes into stock, or is needed no more: that is seen within as
  // long.
  Time next = now;
  if (const std::optional<Time> since = node_.pools.release_idle(before)) next = *since;
  std::vector<std::shared_ptr<Account>> owners;
  node_.pools.each_owner(
      [&](const std::shared_ptr<Account>& account, const OwnPool&) { owners.push_back(account); });
  for (const std::shared_ptr<Account>& account : owners)
    next = std::min(next, withdraw(account, before));
  if (node_.pools.beyond_reserve() == 0) return;
  timer_ = loop_.at(std::max(next, before + kLeast) + node_.pool_idle, [this] {
    timer_.reset();
    look_at_idle();
  });
}

bool ElasticPool::answers(const Rank& rank) const {
  return rank.session != 0 && rank.unmaps_segments &&
         !node_.groups.at(rank.group).lost.contains(rank.id);
}

std::optional<std::set<RankId>> ElasticPool::askable(
    const std::shared_ptr<Account>& account) const {
  for (const auto& [id, group] : node_.groups)
    if (group.account == account && !group.machine.what_is_under_way().empty()) return std::nullopt;
  std::set<RankId> ranks;
  for (const auto& [id, rank] : node_.ranks)
    if (rank.peer.account == account && answers(rank)) ranks.insert(id);
  if (ranks.size() != node_.pools.of(account).processes) return std::nullopt;
  return ranks;
}

Time ElasticPool::withdraw(const std::shared_ptr<Account>& account, Time before) {
  const Time later = before + node_.pool_idle;
  const bool asked = std::any_of(leaving_.begin(), leaving_.end(), [&](const auto& entry) {
    return entry.second.account == account;
  });
  if (asked || !waits_.empty()) return later;
  const Time needed = node_.pools.of(account).needed;
  if (needed > before) return needed;
  const std::optional<std::set<RankId>> ranks = askable(account);
  if (!ranks) return later;
  const std::uint64_t number = ++last_number_;
  const std::optional<std::uint32_t> segment = node_.pools.withdraw(account, before, number);
  if (!segment) return later;
  leaving_[number] = {account, *segment, *ranks,
                      loop_.at(Clock::now() + kUnmapLimit, [this, number] { end(number, false); })};
  for (const RankId rank : *ranks) outbox_.send(rank, unmap_segment_message(*segment, number));
  if (ranks->empty()) loop_.post(scope_.bind([this, number] { end(number, true); }));
  return later;
}

void ElasticPool::unmapped(RankId rank, std::uint64_t number, bool gone) {
  for (Wait& wait : waits_)
    if (wait.number == number && wait.maps && wait.maps->erase(rank) > 0 && wait.maps->empty())
      return serve();
  const auto found = leaving_.find(number);
  if (found == leaving_.end() || found->second.ranks.erase(rank) == 0) return;
  if (!gone) return end(number, false);
  if (found->second.ranks.empty()) end(number, true);
}

void ElasticPool::gone(RankId rank) {
  bool serves = false;
  for (Wait& wait : waits_) serves = (wait.maps && wait.maps->erase(rank) > 0) || serves;
  if (serves) serve();
  // Its process may live, with what it was given.
  const auto asked = std::find_if(leaving_.begin(), leaving_.end(), [&](const auto& entry) {
    return entry.second.ranks.contains(rank);
  });
  if (asked != leaving_.end()) end(asked->first, false);
}

void ElasticPool::end(std::uint64_t number, bool gone) {
  const auto ended = leaving_.extract(number);
  if (ended.empty()) return;
  const Leaving& leaving = ended.mapped();
  loop_.cancel(leaving.deadline);
  if (gone)
    node_.pools.left(leaving.account, leaving.segment, number);
  else
    node_.pools.stayed(leaving.account, leaving.segment, number);
  look_at_idle();
}

}  // namespace amem
