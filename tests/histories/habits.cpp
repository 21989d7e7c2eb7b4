// What people do that examples do not, beside every operation: one table.
#include <algorithm>
#include <iterator>

#include "tests/histories/history.h"
#include "tests/world/death.h"
#include "tests/world/ground.h"

namespace amem::histories {
namespace {

using world::Ground;
namespace death = world::death;

constexpr std::uint64_t kSlowness = 12;  // of a slow rank

}  // namespace

const std::vector<History::Habit>& History::habits() {
  static const std::vector<Habit> all = {
      {"offloads", &History::offload, &History::any<&RankProcess::has_offloaded>},
      {"uneven", nullptr, &History::has_laggard},
      {"hides", nullptr, &History::has_hidden},
      {"stays", &History::pin, &History::any<&RankProcess::has_pins>},
      {"owners", nullptr, &History::has_owners},
      {"late", &History::join_late, &History::has_late},
      {"forks", &History::fork, &History::any<&RankProcess::has_child>},
      {"stops", &History::stop, &History::any<&RankProcess::is_stopped>},
      {"full", &History::fill_a_device, &History::is_full},
      {"wrong", &History::name_a_wrong_one, &History::always},
  };
  return all;
}

const std::vector<std::string>& History::doings() {
  static const std::vector<std::string> all = {"pause", "resume", "swap",   "set",  "tags",
                                               "deep",  "asked",  "rejoin", "death"};
  return all;
}

bool History::has(const char* habit) const {
  const auto found = std::find_if(habits().begin(), habits().end(),
                                  [&](const Habit& each) { return each.name == habit; });
  return habits_.contains(static_cast<std::size_t>(found - habits().begin()));
}

void History::choose_habits(const std::vector<std::string>& without) {
  for (std::size_t i = 0; i < habits().size(); ++i)
    if (dice_.one_in(3) &&
        std::find(without.begin(), without.end(), habits()[i].name) == without.end())
      habits_.insert(i);
}

/// One of them, now and then. False: none.
bool History::habit_happens() {
  if (!mishaps_ || habits_.empty() || !dice_.one_in(10)) return false;
  const std::size_t chosen =
      *std::next(habits_.begin(), static_cast<std::ptrdiff_t>(dice_.below(habits_.size())));
  if (habits()[chosen].happens == nullptr) return false;
  (this->*habits()[chosen].happens)();
  return true;
}

void History::count(const char* doing) {
  const auto row = static_cast<std::size_t>(std::find(doings().begin(), doings().end(), doing) -
                                            doings().begin());
  for (const std::size_t habit : habits_)
    if ((this->*habits()[habit].in_force)()) ++met_[habit * doings().size() + row];
}

RankProcess* History::some_rank(bool (*may)(const RankProcess&)) {
  std::vector<RankProcess*> all;
  for (RankProcess& rank : ranks_)
    if (rank.connected() && !rank.is_stopped() && may(rank)) all.push_back(&rank);
  return all.empty() ? nullptr : all[dice_.below(all.size())];
}

// ---- what happens -------------------------------------------------------------------------------

/// A rank has some memory of its own leave, as frameworks do between steps, and saves all of it to
/// a file later: it has that come back.
void History::offload() {
  RankProcess* const rank =
      some_rank([](const RankProcess& each) { return each.runs() && !each.waits(); });
  if (rank == nullptr) return;
  const std::string tag = dice_.one_in(2) ? "heap" : "cache";
  const bool back = rank->has_offloaded();
  say("rank " + std::to_string(rank->number()) +
      (back ? " reads what it has offloaded of " : " offloads ") + tag);
  rank->ask(!back, false, tag);
  count("asked");
}

bool History::is_slow(const RankProcess& rank) const {
  return has("uneven") && rank.number() % 2 == 0;
}

bool History::has_laggard() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [this](const RankProcess& rank) {
    return rank.connected() && rank.has_command() && is_slow(rank);
  });
}

/// It looks at its socket, and does what it is told, more rarely than the others.
bool History::lags(const RankProcess& rank) {
  return mishaps_ && is_slow(rank) && !dice_.one_in(kSlowness);
}

Origin History::origin_of(const std::string& group, int number) const {
  Origin origin;
  const auto& devices = Ground::get().devices().all();
  if (has("hides") && number % 3 != 0)
    origin.sees = {devices[static_cast<std::size_t>(number % 3 - 1)].uuid};
  if (has("owners") && group == "c") origin.user = 1002;
  return origin;
}

bool History::has_hidden() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const RankProcess& rank) { return rank.lives() && !rank.sees_all(); });
}

bool History::has_owners() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const RankProcess& rank) {
    return rank.lives() && rank.user() != Origin().user;
  });
}

void History::pin() {
  RankProcess* const rank = some_rank([](const RankProcess& each) { return each.runs(); });
  if (rank == nullptr) return;
  for (const RankProcess::Has& each : rank->has()) {
    if (each.guest || each.pinned || !each.usable || dice_.one_in(2)) continue;
    say("rank " + std::to_string(rank->number()) + " registers allocation " +
        std::to_string(each.id) + " with a NIC");
    return rank->pin(each.id);
  }
}

/// In the middle of what its group does.
void History::join_late() {
  if (joined_ >= kMostRanks) return;
  for (const auto& [address, group] : groups()) {
    if (group.state() == v1::GROUP_STATE_RUNNING || dice_.one_in(2)) continue;
    late_ = joined_;
    return join(address == "a@1002" ? "c" : address.substr(0, 1));
  }
}

bool History::has_late() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [this](const RankProcess& rank) {
    return rank.lives() && rank.number() == late_;
  });
}

void History::fork() {
  RankProcess* const rank = some_rank([](const RankProcess&) { return true; });
  if (rank == nullptr) return;
  say("rank " + std::to_string(rank->number()) +
      (rank->has_child() ? " loses its child" : " forks"));
  rank->has_child() ? rank->child_ends() : rank->fork();
}

/// Or goes on.
void History::stop() {
  for (RankProcess& rank : ranks_) {
    if (!rank.is_stopped() || !dice_.one_in(3)) continue;
    say("rank " + std::to_string(rank.number()) + " goes on");
    return rank.stop(false);
  }
  RankProcess* const rank = some_rank([](const RankProcess&) { return true; });
  if (rank == nullptr) return;
  say("rank " + std::to_string(rank->number()) + " is stopped");
  rank->stop(true);
}

void History::fill_a_device() {
  const auto& devices = Ground::get().devices().all();
  const DeviceUuid& device = devices[dice_.one_in(4) ? 1 : 0].uuid;
  if (node_.neighbours.bytes(device) > 0) {
    say("others leave a device");
    return node_.neighbours.leave(device);
  }
  // All that there is.
  const std::uint64_t free = Ground::get().nvml().memory(device)->free / kPage * kPage;
  if (free == 0 || !node_.neighbours.take(device, free)) return;
  say("others take all " + std::to_string(free / kPage) + " pages of a device");
}

bool History::is_full() const {
  const auto& devices = Ground::get().devices().all();
  return std::any_of(devices.begin(), devices.end(),
                     [this](const Device& each) { return node_.neighbours.bytes(each.uuid) > 0; });
}

/// An operation of several groups, whose first does not exist, does nothing to the others.
void History::name_a_wrong_one() {
  const auto before = groups();
  std::vector<std::string> names = {"gone"};
  for (const auto& [address, group] : before) names.push_back(address);
  const bool pause = dice_.one_in(2);
  const bool swap = dice_.one_in(3) && names.size() > 2;
  say("the operator names a group that does not exist");
  const std::shared_ptr<Observer> observer = observe();
  if (swap)
    node_.broker().swap(Caller{}, {names[0], names[1]}, {names[2]}, Task(Operation::kPause), {},
                        observer);
  else
    node_.broker().start_operation(Caller{}, Task(pause ? Operation::kPause : Operation::kResume),
                                   names, {}, observer);
  if (death::came()) return;
  if (!observer->ended || observer->status.code() != Code::kNotFound)
    breaks("what names a group that does not exist is refused: " + observer->status.text());
  for (const auto& [address, group] : groups())
    if (group.state() != before.at(address).state())
      breaks("what names a group that does not exist changes no other");
}

}  // namespace amem::histories
