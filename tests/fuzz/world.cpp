#include "tests/fuzz/world.h"

#include <dirent.h>
#include <google/protobuf/stubs/logging.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <set>
#include <utility>

#include "daemon/control/tasks.h"
#include "tests/fuzz/check.h"
#include "tests/fuzz/outside.h"

namespace amem::fuzz {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kKiB = 1024;
constexpr std::size_t kMostSteps = 400;
constexpr int kTurns = 2;      // for a step: what it sent is read, what that has led to is done
constexpr int kRounds = 64;    // in which all that there is to be answered is answered
constexpr int kEndTurns = 40;  // after the last step
constexpr milliseconds kTimes[] = {milliseconds(1),      milliseconds(5),      milliseconds(50),
                                   milliseconds(250),    milliseconds(2'000),  milliseconds(10'000),
                                   milliseconds(31'000), milliseconds(600'000)};

Ground::Shape ground_shape;

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
    pool_made_ = pool_made_ || event.kind() == "pool";
  }
  void ended() override {}
  bool pool_made() const { return pool_made_; }

 private:
  const unsigned asker_;
  bool pool_made_ = false;
};

}  // namespace

// ---- the ground ---------------------------------------------------------------------------------

void Ground::shape(const Shape& shape) { ground_shape = shape; }

const Ground& Ground::get() {
  static const Ground ground;
  return ground;
}

Ground::Ground() {
  spdlog::set_level(spdlog::level::off);
  google::protobuf::SetLogHandler(nullptr);  // of requests that are none
  dir_ = (std::filesystem::temp_directory_path() / "amem-fuzz-XXXXXX").string();
  require(::mkdtemp(dir_.data()) != nullptr, "a folder is made");
  const std::pair<const char*, std::string> settings[] = {
      {"AMEM_SIM_DIR", dir_ + "/sim"},
      {"AMEM_SIM_NAME",
       "ground"},  // the UUIDs, by which amemd sorts devices, are the same each time
      {"AMEM_SIM_DEVICES", std::to_string(ground_shape.devices)},
      {"AMEM_SIM_MEMORY", std::to_string(ground_shape.memory)},
      {"AMEM_SIM_GRANULARITY", "4096"},
  };
  std::filesystem::create_directory(dir_ + "/sim");
  for (const auto& [name, value] : settings) ::setenv(name, value.c_str(), 1);
  require(devices_.open().ok(), "the simulated driver is there");
  require(nvml_.open(devices_).ok(), "so is its management library");
}

Ground::~Ground() {
  std::error_code ignored;
  std::filesystem::remove_all(dir_, ignored);
}

// ---- a world ------------------------------------------------------------------------------------

struct World::Observer final : OperationObserver {
  void progress(const v1::Progress&) override { require(!ended, "an operation's end is the last"); }
  void finished(const Status& status) override {
    require(!ended, "an operation ends once");
    ended = true;
    how = status;
  }
  bool ended = false;
  Status how;
};

World::World() {
  outside::begin();
  config_ = Config::defaults(true, Ground::get().dir());
  // A chunk is one that amemd takes; else all of it is smaller than amemd makes it.
  config_.pool_size = 256 * kKiB;
  config_.pool_segment = 64 * kKiB;
  config_.pool_chunk = 64 * kKiB;
  config_.swap_wave = 16 * kKiB;
  require(loop_.open().ok(), "a loop is made");
  broker_ = std::make_unique<Broker>(loop_, config_, Ground::get().devices(), Ground::get().nvml(),
                                     nullptr, Workers::Runs::kLoop);
  askers_ = std::make_unique<Askers>(*broker_);
}

World::~World() = default;

void World::play(std::vector<Step> steps) {
  steps_ = std::move(steps);
  if (steps_.size() > kMostSteps) steps_.resize(kMostSteps);
  const auto watch = std::make_shared<Sink>(0);
  broker_->events().subscribe(Caller{}, "", watch);
  require(broker_->start().ok(), "the broker serves");
  // The pool's thread is as fast as it is.
  const std::function<void()> begin = [&] {
    if (watch->pool_made()) return next();
    loop_.post(begin);
  };
  loop_.post(begin);
  loop_.run();
  broker_->shut();
  for (const auto& observer : observers_) require(observer->ended, "every operation ends");
}

void World::next() {
  const auto again = [this] { loop_.post([this] { next(); }); };
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
  loop_.stop();
}

void World::take(const Step& step) {
  const auto show = [this](const Player& who, const Packet& packet) { seen(who, packet); };
  Player& who = player(step.more);
  const unsigned rest = step.more / static_cast<unsigned>(players_.size());
  switch (step.kind) {
    case Kind::kConnect:
      return who.connect(config_.runtime_dir + "/" + std::string(kSessionSocket),
                         static_cast<int>(&who - players_.data()),
                         kUsers[rest % std::size(kUsers)]);
    case Kind::kPacket:
      return who.send(without_marks(step.payload), rest);
    case Kind::kAnswer:
      who.read(show);
      return who.answer(rest);
    case Kind::kAnswerAll:
      return answer_all(rest);
    case Kind::kIgnore:
      who.read(show);
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
      int read = 0;
      for (Player& each : world->players_) {
        read += each.read([this](const Player& who, const Packet& p) { world->seen(who, p); });
        each.answer(how);
      }
      if (left == 0 || (read == 0 && left < kRounds - kTurns)) return;
      world->turns_ = kTurns;
      world->loop_.post(Round{world, how, left - 1});
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
      broker_->start_operation(caller, task.value(), groups.value(),
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
        broker_->swap(caller, out.value(), in.value(),
                      {Operation::kPause, {}, discard.value(), guests.value()},
                      milliseconds(swap.timeout_ms()), observer);
      });
    }
    case 3: {
      v1::SetPolicyRequest set;
      if (!set.ParseFromString(request)) return;
      return steered(asker, {set.group()}, [&](const auto& observer) {
        observer->finished(broker_->set_policy(caller, set.group(), set.tag(), set.policy(),
                                               set.form(), set.force()));
      });
    }
    case 4: {
      v1::ListRanksRequest list;
      if (list.ParseFromString(request))
        listed(list.group(), broker_->ranks(caller, list.group()).status());
      return;
    }
    case 5: {
      v1::ListAllocationsRequest list;
      if (list.ParseFromString(request))
        listed(list.group(), broker_->list_allocations(caller, list.group()).status());
      return;
    }
    default: {
      v1::WatchRequest watch;
      if (watch.ParseFromString(request))
        broker_->events().subscribe(caller, watch.group(), std::make_shared<Sink>(asker));
    }
  }
}

void World::steered(unsigned asker, const std::vector<std::string>& names,
                    const std::function<void(const std::shared_ptr<Observer>&)>& ask) {
  const Code expected = askers_->steers(asker, names);
  const std::string before = askers_->untouchable(asker, expected != Code::kOk);
  const auto observer = observers_.emplace_back(std::make_shared<Observer>());
  ask(observer);
  require(askers_->untouchable(asker, expected != Code::kOk) == before,
          "nobody changes groups that it may not steer");
  if (expected == Code::kOk) {
    require(observer->how.code() != Code::kPermissionDenied, "who may steer a group is let");
    return;
  }
  require(observer->ended && observer->how.code() == expected,
          "who may not steer a group is refused at once");
  std::string asked;
  for (const std::string& name : names) asked += name + ' ';
  askers_->check_refusal(asker, observer->how.text(), asked);
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
  v1::NodeStatus status;
  broker_->status(Caller{}, status);
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
  broker_->groups(Caller{}, list);
  const auto ranks = broker_->ranks(Caller{}, "");
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
  v1::NodeStatus status;
  broker_->status(Caller{}, status);
  require(status.groups().empty(), "a group ends with its last rank");
  require(status.pool().used_bytes() == 0, "the pool is empty again");
  for (const v1::DeviceStatus& device : status.devices())
    require(device.brokered_bytes() == 0, "the devices are empty again");
  const auto ranks = broker_->ranks(Caller{}, "");
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
