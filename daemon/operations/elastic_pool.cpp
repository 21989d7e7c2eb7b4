#include "daemon/operations/elastic_pool.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>
#include <utility>

#include "common/numbers.h"
#include "daemon/base/units.h"

namespace amem {
namespace {

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
  waits_.push_back({order.out, order.pause, order.parts, observer, std::move(go_on), Clock::now()});
  observer->on_wait([this, waits = std::weak_ptr(observer)] { forget(waits.lock()); });
  serve();
  return true;
}

void ElasticPool::forget(const Observer& observer) {
  const auto gone = std::find_if(waits_.begin(), waits_.end(),
                                 [&](const Wait& each) { return each.observer == observer; });
  if (gone == waits_.end()) return;
  waits_.erase(gone);
  observer->finished({Code::kCancelled, "the caller has disconnected"});
}

void ElasticPool::came(std::uint64_t bytes) {
  for (Wait& wait : waits_)
    if (wait.observer == asked_) wait.pinned += bytes;
  asked_.reset();
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
      if (asked_ == nullptr) asked_ = wait->observer;
      ++wait;
      continue;
    }
    const Duration took = Clock::now() - wait->began;
    spdlog::info("{}: amemd has pinned {} of host memory in {:.1f} ms", quoted(wait->groups),
                 format_size(wait->pinned), static_cast<double>(to_us(took)) / 1000);
    // In a turn of its own: whoever asked may be in the middle of that.
    loop_.post(scope_.bind([go_on = std::move(wait->go_on),
                            observer = std::make_shared<Pinned>(wait->observer, wait->pinned,
                                                                took)] { go_on(observer); }));
    wait = waits_.erase(wait);
  }
}

void ElasticPool::refused(const Status& why) {
  asked_.reset();
  for (const Wait& wait : std::exchange(waits_, {})) {
    const std::uint64_t lacks = missing(needs_of(wait.groups, wait.pause, wait.parts));
    const std::string text = "amemd cannot pin the " + format_size(lacks) +
                             " of host memory that the pause of " + quoted(wait.groups) +
                             " may still need: " + why.text() +
                             ". Nothing has changed. Free host memory, or pause fewer tags";
    spdlog::warn("{}", text);
    wait.observer->finished({Code::kResourceExhausted, text});
  }
}

std::vector<ElasticPool::Observer> ElasticPool::dismiss() {
  std::vector<Observer> all;
  for (const Wait& wait : std::exchange(waits_, {})) all.push_back(wait.observer);
  return all;
}

// ---- smaller ------------------------------------------------------------------------------------

void ElasticPool::look_at_idle() {
  if (!node_.pools.elastic()) return;
  if (timer_) loop_.cancel(*timer_);
  timer_.reset();
  const Time now = Clock::now();
  const std::optional<Time> next = node_.pools.release_idle(now - node_.pool_idle);
  if (node_.pools.beyond_reserve() == 0) return;
  // Nobody tells when something comes into stock: that is seen within as long.
  timer_ = loop_.at(next.value_or(now) + node_.pool_idle, [this] {
    timer_.reset();
    look_at_idle();
  });
}

}  // namespace amem
