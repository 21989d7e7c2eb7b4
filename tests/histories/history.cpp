#include "tests/histories/history.h"

#include <poll.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "tests/world/death.h"
#include "tests/world/ground.h"
#include "tests/world/outside.h"

namespace amem::histories {
namespace {

using world::Fate;
using world::Ground;
namespace death = world::death;
using std::chrono::milliseconds;

constexpr std::uint64_t kKiB = 1024;
constexpr std::uint64_t kMostPages = 8;  // of an allocation
// Of all: what one device just has. So what one group has, and others' that its guests have open,
// can come back when all others are paused; two groups at once lack the space that a swap needs.
constexpr std::uint64_t kAllPages = 63;
const std::string kGroups[] = {"a", "b", "c"};
const std::string kTags[] = {"heap", "cache"};

}  // namespace

History::History(std::uint64_t seed, bool trace, bool lies, const std::vector<std::string>& without)
    : trace_(trace),
      lies_(lies),
      random_(static_cast<std::uint32_t>(seed * 2654435761U % 2147483646U + 1)),
      dice_(seed),
      met_(habits().size() * doings().size()) {
  random_.discard(8);
  if (!lies) choose_habits(without);
  Config& config = node_.config;
  config.pool_size = 1024 * kKiB;
  config.pool_segment = (below(2) == 0 ? 256 : 32) * kKiB;
  config.pool_chunk = kPage;
  config.swap_wave = 4 * kPage;
  config.swap_duplex = below(4) != 0;
  const bool mortal = below(2) == 0;
  config.deep_pauses = true;
  if (below(4) == 0) config.deadlines.deepen = milliseconds(20U << below(8));
  if (below(2) == 0) config.spare_idle = milliseconds(20U << below(8));
  if (mortal) node_.let_brokers_die();
}

History::~History() = default;

void History::say(const std::string& what) {
  hash_ = hash_ * 31 + std::hash<std::string>()(what);
  if (trace_) std::printf("  %s\n", what.c_str());
}

std::string History::play(int events) {
  Coroutine all = whole(events);
  begin_life();
  all.begin();
  node_.loop().run();
  while (death::came()) {
    end_life();
    begin_life();
    go_on_later(next_);
    node_.loop().run();
  }
  node_.broker().shut();
  return broken_;
}

Coroutine History::whole(int events) {
  co_await turn();
  for (int i = 0; i < events && broken_.empty(); ++i) {
    happen();
    co_await turn();
    co_await turn();
    read_all();
    check(false);
  }
  if (broken_.empty()) co_await look_at_everything();
  death::comes_at(0);
  node_.loop().stop();
}

// ---- brokers ------------------------------------------------------------------------------------

void History::go_on_later(std::coroutine_handle<> who) {
  next_ = who;
  node_.later([this] { next_.resume(); });  // where it dies before, play() goes on with another
}

void History::begin_life() {
  const auto attached = [this] {
    if (deaths_ > 0 && mishap(4)) settle_death(6);  // in its recovery, or as ranks come back
  };
  const std::string wrong = node_.begin(attached, [this] { say("the broker dies"); });
  if (!wrong.empty()) breaks(wrong);
}

void History::end_life() {
  ++deaths_;
  count("death");
  node_.end([this] {
    for (RankProcess& rank : ranks_) {
      if (!node_.is_kept()) unknown_.insert(rank.number());
      if (!rank.connected()) continue;
      if (!rank.is_stopped()) rank.read();
      // What it does last nobody hears of; the rest of what it was told it never does.
      for (std::uint64_t does = below(3); does > 0 && rank.has_command() && !rank.is_stopped();
           --does)
        handle(rank, Mood::kWell);
      rank.lose_broker();
    }
  });
  for (const auto& observer : observers_) observer->ended = true;  // its connection broke
}

/// Its death comes soon, or later: the places where something is between are close together.
void History::settle_death(std::uint64_t scale) {
  const std::uint64_t effects = 1 + below(std::uint64_t{1} << below(scale));
  say("the broker has " + std::to_string(effects) + " effects to live");
  death::comes_at(effects);
}

void History::come_back(RankProcess& rank) {
  say("rank " + std::to_string(rank.number()) + " comes back");
  count("rejoin");
  rank.come_back(node_.sessions());
}

/// Whom no broker knows: restarted, as its end is all that there is for it.
void History::end_refused() {
  for (RankProcess& rank : ranks_) {
    if (!rank.refused() || !rank.lives()) continue;
    if (!unknown_.contains(rank.number()))
      breaks("the next broker knows rank " + std::to_string(rank.number()));
    say("rank " + std::to_string(rank.number()) + " is refused and ends");
    rank.die();
  }
}

// ---- events -------------------------------------------------------------------------------------

bool History::read_all() {
  // One call for all of them: mostly nothing has come for most.
  std::vector<pollfd> sockets;
  for (const RankProcess& rank : ranks_)
    sockets.push_back({rank.is_stopped() ? -1 : rank.socket(), POLLIN, 0});
  bool any = ::poll(sockets.data(), sockets.size(), 0) > 0;
  for (std::size_t i = 0; any && i < ranks_.size(); ++i)
    if (sockets[i].revents != 0) any = ranks_[i].read() || any;
  end_refused();
  return any;
}

void History::happen() {
  if (habit_happens()) return;
  const std::uint64_t what = below(100);
  if (joined_ < 3 || (what == 0 && joined_ < kMostRanks)) return join(kGroups[below(3)]);
  if (what <= 3) return operator_asks();
  if (what <= 6) {
    static constexpr milliseconds kTimes[] = {milliseconds(1), milliseconds(30), milliseconds(600)};
    const milliseconds time = mishap(20) ? milliseconds(70'000) : kTimes[below(3)];
    say("time passes: " + std::to_string(time.count()) + " ms");
    return world::outside::pass(time);
  }
  if (node_.checkpoints.busy() && below(3) != 0) {
    if (node_.lets_brokers_die() && mishap(30)) settle_death(4);
    return driver_acts();
  }
  if (node_.lets_brokers_die() && mishap(150)) return settle_death(8);
  // What it takes most to take up again is a save that goes on.
  const bool saves = std::any_of(ranks_.begin(), ranks_.end(),
                                 [](const RankProcess& rank) { return rank.saves(); });
  if (node_.lets_brokers_die() && mishap(saves ? 60 : 600)) {
    say("the holder dies");
    node_.holder_dies();
    if (below(2) == 0) settle_death(6);  // before another has everything, or soon after
    return;
  }
  RankProcess& rank = somebody();
  if (!rank.lives()) return;
  if (mishap(rank.is_lost() ? 10 : 300)) {
    say("rank " + std::to_string(rank.number()) + " dies");
    return rank.die();
  }
  if (rank.is_stopped() || lags(rank)) return;
  if (rank.saves() && !rank.connected()) {
    if (below(16) != 0) return;  // much can happen meanwhile
    say("rank " + std::to_string(rank.number()) + " has saved, and nobody asks");
    return rank.end_save();
  }
  if (rank.paused() && below(3) == 0) return come_back(rank);
  if (rank.paused()) return program_does(rank);
  if (!rank.connected()) return;
  // Of one that detaches amemd may make calls afterwards, and nobody would undo them.
  if (!rank.is_detached() && mishap(400)) {
    say("the session of rank " + std::to_string(rank.number()) + " breaks");
    return rank.lose_session();
  }
  rank_does(rank);
}

/// One that has something to do, as often as any.
RankProcess& History::somebody() {
  std::vector<RankProcess*> busy;
  for (RankProcess& rank : ranks_)
    if (rank.connected() && rank.has_command()) busy.push_back(&rank);
  return busy.empty() || below(2) == 0 ? ranks_[below(ranks_.size())] : *busy[below(busy.size())];
}

void History::rank_does(RankProcess& rank) {
  if (!rank.has_command() || (rank.saves() && below(2) == 0)) return program_does(rank);
  Mood mood = mishap(3) ? Mood::kSlow : Mood::kWell;
  if (mishap(60)) mood = static_cast<Mood>(1 + below(3));
  if (lies_ && below(20) == 0) mood = Mood::kLies;
  handle(rank, mood);
}

void History::handle(RankProcess& rank, Mood mood) {
  say("rank " + std::to_string(rank.number()) + " of " + rank.group() + " handles " +
      rank.next_command() +
      (mood == Mood::kWell || mood == Mood::kSlow
           ? ""
           : ", in mood " + std::to_string(static_cast<int>(mood))));
  rank.handle(mood);
}

void History::program_does(RankProcess& rank) {
  const std::uint64_t chance = below(1000);
  const std::uint64_t what = below(20);
  if (what == 0 && !rank.waits()) {
    say("ranks of " + rank.address() + " ask");
    count("asked");
    const bool pause = rank.runs();
    const bool deep = pause && below(4) == 0;
    for (RankProcess& each : ranks_)
      if ((each.connected() || each.paused()) && each.address() == rank.address() &&
          !each.is_stopped() && !mishap(20))
        each.ask(pause, deep);
    return;
  }
  if (rank.is_lost()) return;
  if (!rank.runs()) {
    if (rank.rests() && (what == 8 || what == 9)) {
      say("rank " + std::to_string(rank.number()) + " frees while it is paused");
      return rank.free_one(chance);
    }
    // Otherwise the shim's frees wait at the gate; others' need not, whatever the broker is just
    // doing. But whoever is to save what others have as well must have it until then.
    if ((what == 8 || rank.saves()) && rank.connected() && rank.is_free() && mishap(4)) {
      say("rank " + std::to_string(rank.number()) + " frees at a shut gate");
      rank.free_one(chance, true);
    }
    return;
  }
  if (what <= 3) {
    const auto& devices = Ground::get().devices().all();
    const auto* device = &devices[below(8) == 0 ? 1 : 0];
    if (!rank.sees(device->uuid)) device = &devices[device == &devices[0] ? 1 : 0];
    const std::uint64_t pages = 1 + below(kMostPages);
    if (this->pages() + pages > kAllPages) return;
    say("rank " + std::to_string(rank.number()) + " creates " + std::to_string(pages));
    const std::string& tag = kTags[below(2)];
    const bool own = below(3) == 0;
    const bool in_parts = !own && pages % 2 == 1;  // one page, too
    return rank.create(device->uuid, pages * kPage, tag, own, in_parts ? kPage : 0);
  }
  if (what <= 7 && !truths_.empty()) {
    const auto it =
        std::next(truths_.begin(), static_cast<std::ptrdiff_t>(chance % truths_.size()));
    if (it->second->group != rank.address() && below(8) != 0) return;
    if (!rank.sees(it->second->device)) return;
    say("rank " + std::to_string(rank.number()) + " opens " + std::to_string(it->first));
    return rank.open(it->first, it->second->token);
  }
  if (what == 8) {
    say("rank " + std::to_string(rank.number()) + " frees");
    return rank.free_one(chance);
  }
  rank.write_one(chance, static_cast<std::uint8_t>(1 + below(255)));
}

void History::operator_asks() {
  if (!all_answered() && below(4) != 0) return;
  std::vector<std::string> running;
  std::vector<std::string> paused;
  for (const auto& [name, group] : groups())
    (group.state() == v1::GROUP_STATE_PAUSED ? paused : running).push_back(name);
  // Mostly what can be meant.
  if (below(8) == 0) running = paused = {"a@1001", "b@1001", has("owners") ? "a@1002" : "c@1001"};
  const auto some_of = [this](std::vector<std::string>& names) {
    std::shuffle(names.begin(), names.end(), random_);
    if (names.size() > 1) names.resize(1 + below(2));
  };
  some_of(running);
  some_of(paused);
  const auto named = [](const std::vector<std::string>& names) {
    std::string text;
    for (const std::string& name : names) text += " " + name;
    return text;
  };
  if (!running.empty() && !paused.empty() && below(2) == 0) {
    Task pause(Operation::kPause);
    pause.deep = below(4) == 0;
    say("the operator: swap" + named(running) + " for" + named(paused) +
        (pause.deep ? ", deep" : ""));
    count("swap");
    if (pause.deep) count("deep");
    return (void)node_.broker().swap(Caller{}, running, paused, pause, {}, observe());
  }
  const bool pause = !running.empty() && below(2) == 0;
  Selection what;
  if (below(3) == 0) what = {{kTags[below(2)]}, below(3) == 0};
  // What is paused of a group that runs comes back, too.
  const std::vector<std::string>& names = pause || paused.empty() ? running : paused;
  Task task(pause ? Operation::kPause : Operation::kResume, what);
  task.deep = pause && what.all() && below(3) == 0;
  say("the operator: " + describe(task, named(names)) + (task.deep ? ", deep" : ""));
  count(pause ? "pause" : "resume");
  if (task.deep) count("deep");
  if (!what.all()) count("tags");
  if (names.size() > 1) count("set");
  node_.broker().start_operation(Caller{}, task, names, {}, observe());
}

void History::join(const std::string& group) {
  say("rank " + std::to_string(joined_) + " joins " + group);
  const Origin origin = origin_of(group, joined_);
  // Another owner's has the name of one that there is.
  ranks_.emplace_back(truths_, node_.checkpoints, origin.user == Origin().user ? group : "a",
                      joined_++, origin);
  ranks_.back().connect(node_.sessions());
}

void History::driver_acts() {
  const std::optional<Checkpoints::Step> step = node_.checkpoints.next();
  if (!step) return;
  Fate fate = Fate::kWell;
  if (mishap(8)) fate = static_cast<Fate>(1 + below(3));
  if (const std::string wrong = world::broken_by_step(ranks_, *step); !wrong.empty()) breaks(wrong);
  say("the driver: " + node_.checkpoints.take(*step, fate));
}

std::shared_ptr<Observer> History::observe() {
  return observers_.emplace_back(std::make_shared<Observer>([this](const Status& how) {
    if (mishaps_) ++transactions_.all;
    if (mishaps_ && how.ok()) ++transactions_.succeeded;
    say("answered: " + (how.ok() ? "OK" : how.text()));
  }));
}

bool History::all_answered() const {
  return std::all_of(observers_.begin(), observers_.end(),
                     [](const auto& observer) { return observer->ended; });
}

std::uint64_t History::pages() const {
  std::map<std::uint64_t, std::uint64_t> sizes;
  std::uint64_t bytes = 0;
  for (const RankProcess& rank : ranks_) rank.count(sizes, bytes);
  for (const auto& [id, size] : sizes) bytes += size;
  return bytes / kPage;
}

void History::check(bool all) {
  const auto known = [this](const RankProcess& rank) { return !unknown_.contains(rank.number()); };
  if (const std::string wrong = world::broken_promise(ranks_, groups(), all, known); !wrong.empty())
    breaks(wrong);
}

// ---- the end ------------------------------------------------------------------------------------

/// Everybody does well what is to be done, until nothing is; where nobody can, time passes.
Coroutine History::settle() {
  constexpr int kMostWaits = 60;
  int waits = 0;
  for (int quiet = 0; quiet < 3 && waits < kMostWaits && broken_.empty();) {
    co_await turn();
    bool any = read_all();
    for (; node_.checkpoints.next() && broken_.empty(); any = true) {
      driver_acts();
      co_await turn();
    }
    for (RankProcess& rank : ranks_)
      if (rank.paused()) {
        come_back(rank);
        any = true;
      }
    for (RankProcess& rank : ranks_)
      for (; rank.connected() && rank.has_command(); any = true) rank.handle(Mood::kWell);
    check(false);
    quiet = any ? 0 : quiet + 1;
    if (quiet < 3) continue;
    const bool rest = world::at_rest(groups());
    const bool asking = std::any_of(ranks_.begin(), ranks_.end(), [](const RankProcess& rank) {
      return rank.connected() && rank.waits() && !rank.waits_for_resume();
    });
    if (rest && !asking && all_answered()) continue;
    world::outside::pass(milliseconds(10'000));
    ++waits;
    quiet = 0;
  }
  if (waits == kMostWaits) breaks("everything comes to rest");
}

Coroutine History::begin_and_wait(const Task& task, const std::string& group, bool strict) {
  say("at the end: " + describe(task, group));
  const std::shared_ptr<Observer> observer = observe();
  node_.broker().start_operation(Caller{}, task, {group}, {}, observer);
  co_await settle();
  const bool no_space = !strict && observer->status.code() == Code::kResourceExhausted;
  // All of it may have to stay.
  const bool stays = has("stays") && observer->status.code() == Code::kFailedPrecondition;
  if (!observer->ended || !(observer->status.ok() || no_space || stays))
    breaks("where all goes well the " + describe(task, group) +
           " succeeds: " + observer->status.text());
}

/// It may have more than a device has: it allocates while some of its tags are paused.
bool History::fits(const v1::GroupInfo& group) const {
  // amemd measures what a restore needs. Others may have let go of some of that, and have memory
  // that stays where the restore would have its space.
  if (group.deep() && (has("full") || has("stays"))) return false;
  const v1::NodeStatus status = node_.status();
  const auto fits = [&](const v1::GroupDeviceUsage& usage) {
    return std::all_of(status.devices().begin(), status.devices().end(), [&](const auto& device) {
      return device.uuid() != usage.uuid() || usage.allocated_bytes() <= device.total_bytes();
    });
  };
  return std::all_of(group.devices().begin(), group.devices().end(), fits);
}

/// A group with a process that the driver has lost is not resumed, and it is said which one that
/// is. The others of the group are, once that one has ended.
Coroutine History::look_at_lost() {
  for (const auto& [name, group] : groups()) {
    std::vector<std::string> lost;
    for (const RankProcess& rank : ranks_)
      if (rank.address() == name && rank.connected() && rank.is_lost())
        lost.push_back("rank " + std::to_string(rank.number()) + " (pid " +
                       std::to_string(rank.pid()) + ")");
    if (lost.empty() || !broken_.empty()) continue;
    if (group.state() == v1::GROUP_STATE_RUNNING) breaks("no group runs with a lost process");
    say("at the end: resume of " + name + ", which has a lost process");
    const std::shared_ptr<Observer> observer = observe();
    node_.broker().start_operation(Caller{}, Operation::kResume, {name}, {}, observer);
    co_await settle();
    const std::string& text = observer->status.text();
    const bool named = std::any_of(lost.begin(), lost.end(), [&](const std::string& who) {
      return text.find(who) != std::string::npos;
    });
    if (!observer->ended || observer->status.ok() ||
        (!named && observer->status.code() != Code::kResourceExhausted))
      breaks("a resume with a lost process names it: " + text);
    if (groups()[name].state() != v1::GROUP_STATE_PAUSED)
      breaks("a group with a lost process stays paused");
  }
  for (RankProcess& rank : ranks_)
    if (rank.is_lost()) {
      say("rank " + std::to_string(rank.number()) + ", whose process is lost, ends");
      rank.die();
    }
  co_await settle();
}

/// Nothing goes wrong any more: every byte of every rank must be there, and nothing else.
Coroutine History::look_at_everything() {
  mishaps_ = false;
  death::comes_at(0);
  say("the end");
  node_.neighbours.leave_all();
  for (RankProcess& rank : ranks_) rank.stop(false);
  for (RankProcess& rank : ranks_)
    if (rank.lives() && !rank.connected() && !rank.paused())
      rank.die();
    else
      rank.drop_leftovers();
  co_await settle();
  co_await look_at_lost();
  // Those with memory, one after another: there is not space for all of them. A deep one is one of
  // them: what its restore is said to need may have been others' memory.
  for (const auto& [name, group] : groups())
    if (group.state() == v1::GROUP_STATE_PAUSED && broken_.empty() && group.allocated_bytes() == 0)
      co_await begin_and_wait(Operation::kResume, name, !group.deep());
  for (RankProcess& rank : ranks_)
    if (rank.runs()) rank.free_guests();
  co_await settle();
  for (const auto& [name, group] : groups())
    if (group.state() == v1::GROUP_STATE_RUNNING && broken_.empty())
      co_await begin_and_wait(Operation::kPause, name);
  // In the first round guests of groups that are paused may still keep others' memory on a device.
  for (const bool strict : {false, true})
    for (const auto& [name, group] : groups()) {
      if (!broken_.empty()) break;
      co_await begin_and_wait(Operation::kResume, name, strict && fits(group));
      if (groups()[name].state() != v1::GROUP_STATE_RUNNING) continue;
      for (RankProcess& rank : ranks_) {
        if (rank.address() != name || !rank.connected()) continue;
        if (!rank.runs()) breaks("a rank of a group that runs runs");
        rank.free_guests();
      }
      co_await settle();
      check(true);
      if (broken_.empty()) co_await begin_and_wait(Operation::kPause, name);
    }
  for (RankProcess& rank : ranks_)
    if (rank.lives()) rank.die();
  for (int i = 0; i < 20; ++i) co_await turn();
  if (const std::string left = node_.left_over(); !left.empty()) breaks(left);
}

}  // namespace amem::histories
