#include "tests/fuzz/world.h"

#include <dirent.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <set>
#include <utility>

#include "daemon/control/tasks.h"
#include "tests/world/check.h"
#include "tests/world/ground.h"
#include "tests/world/outside.h"

namespace amem::fuzz {
namespace {

using world::Ground;
using world::require;
namespace outside = world::outside;

using std::chrono::milliseconds;

constexpr std::uint64_t kKiB = 1024;
constexpr std::size_t kMostSteps = 400;
constexpr int kPlayers = 4;
constexpr int kTurns = 2;      // for a step: what it sent is read, what that has led to is done
constexpr int kRounds = 64;    // in which all that there is to be answered is answered
constexpr int kEndTurns = 40;  // after the last step
constexpr milliseconds kTimes[] = {milliseconds(1),      milliseconds(5),      milliseconds(50),
                                   milliseconds(250),    milliseconds(2'000),  milliseconds(10'000),
                                   milliseconds(31'000), milliseconds(600'000)};

/// The entries of this process's table of open files.
std::size_t open_files() {
  std::size_t count = 0;
  DIR* dir = ::opendir("/proc/self/fd");
  while (dir != nullptr && ::readdir(dir) != nullptr) ++count;
  if (dir != nullptr) ::closedir(dir);
  return count;
}

/// What the marks of a script stand for is put in their place.
std::string without_marks(std::string bytes) {
  const std::vector<Device>& devices = Ground::get().devices().all();
  for (std::size_t i = 0; i < std::size(kDeviceMarks); ++i)
    for (std::size_t at = 0; (at = bytes.find(kDeviceMarks[i], at)) != std::string::npos;)
      bytes.replace(at, kDeviceMarks[i].size(),
                    reinterpret_cast<const char*>(devices[i].uuid.bytes.data()),
                    devices[i].uuid.bytes.size());
  // As long as the mark: a number may have leading zeros.
  static_assert(kProtocolVersion < 128);
  const char own[] = {static_cast<char>(kProtocolVersion | 0x80), '\x80', '\x80', '\x80', '\0'};
  static_assert(sizeof own == kProtocolMarkBytes.size());
  for (std::size_t at = 0; (at = bytes.find(kProtocolMarkBytes, at)) != std::string::npos;)
    bytes.replace(at, sizeof own, own, sizeof own);
  return bytes;
}

/// Of one of those who ask, and watch.
class Sink final : public EventSink {
 public:
  explicit Sink(unsigned asker) : asker_(asker) {}
  void event(const v1::Event& event) override {
    require(!event.kind().empty(), "events are of a kind");
    require(Askers::may_hear_of(asker_, event.group()), "nobody hears of others' groups");
  }
  void ended() override {}

 private:
  const unsigned asker_;
};

}  // namespace

// ---- a world ------------------------------------------------------------------------------------

World::World() {
  Config& config = node_.config;
  // A chunk is one that amemd takes; else all of it is smaller than amemd makes it.
  config.pool_size = 256 * kKiB;
  config.pool_segment = 64 * kKiB;
  config.pool_chunk = 64 * kKiB;
  config.swap_wave = 16 * kKiB;
  for (int number = 0; number < kPlayers; ++number)
    players_.emplace_back(number, truths_, node_.checkpoints,
                          [this](const Player& who, const Packet& packet) { seen(who, packet); });
}

World::~World() = default;

void World::play(std::vector<Step> steps) {
  steps_ = std::move(steps);
  if (steps_.size() > kMostSteps) steps_.resize(kMostSteps);
  require(node_.begin({}, {}).empty(), "the broker serves");
  askers_ = std::make_unique<Askers>(node_.broker());
  node_.broker().events().subscribe(Caller{}, "", std::make_shared<Sink>(0));
  node_.later([this] { next(); });
  node_.loop().run();
  node_.broker().shut();
  for (const auto& observer : observers_) require(observer->ended, "every operation ends");
}

void World::next() {
  const auto again = [this] { node_.loop().post([this] { next(); }); };
  if (turns_ > 0) {
    --turns_;
    return again();
  }
  check_groups();
  if (at_ < steps_.size()) {
    take(steps_[at_++]);
    turns_ = kTurns;
    return again();
  }
  if (at_ == steps_.size()) {
    ++at_;
    check_node();
    end_all();
    turns_ = kEndTurns;
    return again();
  }
  check_empty();
  node_.loop().stop();
}

void World::take(const Step& step) {
  Player& who = player(step.more);
  const unsigned rest = step.more / static_cast<unsigned>(players_.size());
  switch (step.kind) {
    case Kind::kConnect:
      return who.connect(node_.sessions(), kUsers[rest % std::size(kUsers)]);
    case Kind::kPacket:
      return who.send(without_marks(step.payload), rest);
    case Kind::kAnswer:
      who.read();
      return who.answer(rest);
    case Kind::kAnswerAll:
      return answer_all(rest);
    case Kind::kIgnore:
      who.read();
      return who.ignore();
    case Kind::kHangUp:
      return who.hang_up();
    case Kind::kDie:
      return who.die();
    case Kind::kPass:
      return outside::pass(kTimes[step.more % std::size(kTimes)]);
    case Kind::kControl:
      return control(step.more, step.payload);
    case Kind::kCount:
      break;
  }
}

/// In further turns of the loop, which stand before the next step.
void World::answer_all(unsigned how) {
  struct Round {
    World* world;
    unsigned how;
    int left;
    void operator()() const {
      bool read = false;
      for (Player& each : world->players_) {
        read = each.read() || read;
        each.answer(how);
      }
      if (left == 0 || (!read && left < kRounds - kTurns)) return;
      world->turns_ = kTurns;
      world->node_.loop().post(Round{world, how, left - 1});
    }
  };
  Round{this, how, kRounds}();
}

void World::control(std::uint8_t more, const std::string& request) {
  const unsigned asker = more / kControls % Askers::kCount;
  const Caller caller = askers_->caller(asker);
  using Names = std::vector<std::string>;
  const auto operation = [&](auto message) {
    if (!message.ParseFromString(request)) return;
    const Result<Task> task = task_of(message);
    const Result<Names> groups = groups_of(message.group(), message.groups());
    if (!task.ok() || !groups.ok()) return;
    steered(asker, groups.value(), [&](const auto& observer) {
      node_.broker().start_operation(caller, task.value(), groups.value(),
                                     milliseconds(message.timeout_ms()), observer);
    });
  };
  // Of what a list was asked for.
  const auto listed = [&](const std::string& group, const Status& status) {
    if (group.empty()) return;
    require(status.code() == askers_->sees(asker, group), "a list is of a group that is seen");
    askers_->check_refusal(asker, status.text(), group);
  };
  switch (more % kControls) {
    case 0:
      return operation(v1::PauseRequest());
    case 1:
      return operation(v1::ResumeRequest());
    case 2: {
      v1::SwapRequest swap;
      if (!swap.ParseFromString(request)) return;
      const auto discard = discard_of(swap);
      const Result<Names> out = groups_of(swap.out(), swap.out_groups());
      const Result<Names> in = groups_of(swap.in(), swap.in_groups());
      const auto guests = guest_policy_of(swap.guests());
      if (!discard.ok() || !out.ok() || !in.ok() || !guests.ok()) return;
      Names both = out.value();
      both.insert(both.end(), in.value().begin(), in.value().end());
      return steered(asker, both, [&](const auto& observer) {
        node_.broker().swap(caller, out.value(), in.value(),
                            {Operation::kPause, {}, discard.value(), guests.value()},
                            milliseconds(swap.timeout_ms()), observer);
      });
    }
    case 3: {
      v1::SetPolicyRequest set;
      if (!set.ParseFromString(request)) return;
      return steered(asker, {set.group()}, [&](const auto& observer) {
        observer->finished(node_.broker().set_policy(caller, set.group(), set.tag(), set.policy(),
                                                     set.form(), set.force()));
      });
    }
    case 4: {
      v1::ListRanksRequest list;
      if (list.ParseFromString(request))
        listed(list.group(), node_.broker().reports().ranks(caller, list.group()).status());
      return;
    }
    case 5: {
      v1::ListAllocationsRequest list;
      if (list.ParseFromString(request))
        listed(list.group(),
               node_.broker().reports().list_allocations(caller, list.group()).status());
      return;
    }
    default: {
      v1::WatchRequest watch;
      if (watch.ParseFromString(request))
        node_.broker().events().subscribe(caller, watch.group(), std::make_shared<Sink>(asker));
    }
  }
}

void World::steered(unsigned asker, const std::vector<std::string>& names,
                    const std::function<void(const std::shared_ptr<world::Observer>&)>& ask) {
  const Code expected = askers_->steers(asker, names);
  const std::string before = askers_->untouchable(asker, expected != Code::kOk);
  const auto observer = observers_.emplace_back(std::make_shared<world::Observer>());
  ask(observer);
  require(askers_->untouchable(asker, expected != Code::kOk) == before,
          "nobody changes groups that it may not steer");
  if (expected == Code::kOk) {
    require(observer->status.code() != Code::kPermissionDenied, "who may steer a group is let");
    return;
  }
  require(observer->ended && observer->status.code() == expected,
          "who may not steer a group is refused at once");
  std::string asked;
  for (const std::string& name : names) asked += name + ' ';
  askers_->check_refusal(asker, observer->status.text(), asked);
}

void World::end_all() {
  for (Player& each : players_) each.die();
}

// ---- what must hold -----------------------------------------------------------------------------

void World::seen(const Player& who, const Packet& packet) {
  const Message& m = packet.message;
  const auto own = [&](std::uint64_t id) {
    const auto owner = owners_.find(id);
    require(owner == owners_.end() || owner->second == who.uid(), "no user has another's memory");
  };
  if (m.which_body == amem_v1_SessionMessage_map_tag) {
    require(packet.fds.size() == m.body.map.ids_count, "each allocation has its descriptor");
    std::for_each_n(m.body.map.ids, m.body.map.ids_count, own);
  }
  for (const auto& [tag, copies] : {std::pair(amem_v1_SessionMessage_save_tag, &m.body.save),
                                    std::pair(amem_v1_SessionMessage_load_tag, &m.body.load)})
    for (pb_size_t i = 0; m.which_body == tag && i < copies->copies_count; ++i)
      own(copies->copies[i].id);
  if (m.which_body != amem_v1_SessionMessage_reply_tag) return;
  const amem_v1_Reply& reply = m.body.reply;
  const bool created = reply.which_result == amem_v1_Reply_created_tag;
  const bool redeemed = reply.which_result == amem_v1_Reply_redeemed_tag;
  if (created) own(reply.result.created.id);
  if (redeemed) own(reply.result.redeemed.id);
  require(packet.fds.size() == (created || redeemed ? 1U : 0U), "memory comes with a descriptor");
  require(reply.code == 0 || reply.text[0] != '\0', "an error says what is wrong");
}

void World::check_node() {
  askers_->check_status(static_cast<unsigned>(steps_.size() % Askers::kCount));
  const v1::NodeStatus status = node_.status();
  const v1::PoolStatus& pool = status.pool();
  std::uint64_t saved = 0;
  for (const v1::GroupInfo& group : status.groups()) saved += group.saved_bytes();
  require(saved <= pool.used_bytes() && pool.used_bytes() <= pool.ready_bytes(),
          "what is saved is in the pool");
  for (const v1::DeviceStatus& device : status.devices())
    require(device.brokered_bytes() <= device.total_bytes(), "a device has what is on it");
}

void World::check_groups() {
  askers_->check_lists(static_cast<unsigned>(at_ % Askers::kCount));
  v1::ListGroupsResponse list;
  node_.broker().reports().groups(Caller{}, list);
  const auto ranks = node_.broker().reports().ranks(Caller{}, "");
  require(ranks.ok(), "an operator sees everything");
  std::map<std::string, uid_t> users;
  std::map<std::string, std::uint64_t> bytes;
  std::map<std::uint32_t, std::string> group_of;
  for (const v1::GroupInfo& group : list.groups()) users[group.name()] = group.uid();
  for (const v1::RankInfo& rank : ranks.value()) {
    require(users.at(rank.group()) == rank.uid(), "a group is of one user");
    group_of[rank.id()] = rank.group();
  }
  for (const v1::AllocationInfo& a : askers_->allocations(Caller{})) {
    require(group_of.at(a.owner()) == a.group(), "memory is of a rank of its group");
    std::set<std::uint32_t> holders = {a.owner()};
    for (const std::uint32_t peer : a.peers()) {
      require(group_of.at(peer) == a.group(), "memory is shared within its group");
      require(holders.insert(peer).second, "a rank holds memory once");
    }
    bytes[a.group()] += a.size();
    const auto [owner, fresh] = owners_.emplace(a.id(), users.at(a.group()));
    require(fresh || owner->second == users.at(a.group()), "memory stays with its user");
  }
  for (const v1::GroupInfo& group : list.groups()) {
    require(group.rank_count() > 0, "a group has ranks");
    require(group.allocated_bytes() == bytes[group.name()], "a group's memory adds up");
    require(group.resident_bytes() <= group.allocated_bytes() &&
                group.dropped_bytes() <= group.allocated_bytes(),
            "no more is there than there is");
  }
}

void World::check_empty() {
  const std::string left = node_.left_over();
  require(left.empty(), left.c_str());
  const auto ranks = node_.broker().reports().ranks(Caller{}, "");
  require(ranks.ok() && ranks.value().empty(), "no rank is left");
  require(askers_->allocations(Caller{}).empty(), "no allocation is left");
}

void play_whole(std::vector<Step> steps) {
  (void)Ground::get();
  const std::size_t before = open_files();
  {
    World world;
    world.play(std::move(steps));
  }
  require(open_files() == before, "no descriptor is left");
}

}  // namespace amem::fuzz
