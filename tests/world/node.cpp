#include "tests/world/node.h"

#include <cstdint>
#include <utility>

#include "common/protocol.h"
#include "tests/world/check.h"
#include "tests/world/death.h"
#include "tests/world/device_memory.h"
#include "tests/world/ground.h"
#include "tests/world/outside.h"

namespace amem::world {
namespace {

class PoolWatch final : public EventSink {
 public:
  explicit PoolWatch(std::shared_ptr<bool> made) : made_(std::move(made)) {}
  void event(const v1::Event& event) override { *made_ = *made_ || event.kind() == "pool"; }
  void ended() override {}

 private:
  std::shared_ptr<bool> made_;
};

}  // namespace

void Observer::progress(const v1::Progress& what) {
  require(death::came() || !ended, "an operation reports nothing after its end");
  handed_on += what.memory().handed_on_bytes();
}

void Observer::finished(const Status& how) {
  if (death::came()) return;
  require(!ended, "an operation ends once");
  ended = true;
  status = how;
  if (told_) told_(how);
}

bool Neighbours::take(const DeviceUuid& device, std::uint64_t bytes) {
  Result<CreatedMemory> made = made_on(device, bytes);
  if (made.ok()) memory_.emplace(device, Memory{bytes, std::move(made.value().fd)});
  return made.ok();
}

std::uint64_t Neighbours::bytes(const DeviceUuid& device) const {
  std::uint64_t sum = 0;
  for (auto [at, end] = memory_.equal_range(device); at != end; ++at) sum += at->second.bytes;
  return sum;
}

Node::Node(std::minstd_rand& random) : checkpoints(random), random_(random) {
  outside::begin();
  config = Config::defaults(true, Ground::get().dir());
  config.device_nodes.clear();  // this machine may have GPUs, which no simulated rank can open
  config.holder = HolderUse::kOff;
  config.holder_socket = config.runtime_dir + "/holder.sock";
}

void Node::let_brokers_die() {
  config.holder = HolderUse::kRequired;
  holder_ = std::make_unique<StandInHolder>(config.holder_socket);
}

std::string Node::begin(const std::function<void()>& attached, std::function<void()> died) {
  life_ = std::make_unique<Life>(config);
  Life& life = *life_;
  death::begin(
      [this] {
        if (holder_) holder_->serve();
      },
      [&life, died = std::move(died)] {
        if (died) died();
        life.loop.stop();
      },
      [this](int socket, const msghdr& packet) {
        if (holder_) holder_->get_some(socket, packet, random_());
      });
  if (const Status opened = life.loop.open(); !opened.ok()) return "a loop is made";
  checkpoints.begin(life.loop);
  if (const Status found = life.supervisor.attach(); !found.ok())
    return "the broker finds its holder: " + found.text();
  if (attached) attached();
  const Ground& ground = Ground::get();
  life.broker = std::make_unique<Broker>(life.loop, config, ground.devices(), ground.nvml(),
                                         &life.supervisor.record(), Workers::Runs::kLoop,
                                         evictor_by(checkpoints));
  life.broker->events().subscribe(Caller{}, "", std::make_shared<PoolWatch>(life.has_pool));
  if (const Status taken = life.broker->recover(life.supervisor.take_descriptors()); !taken.ok())
    return "what a broker has left can be taken up: " + taken.text();
  life.supervisor.watch([&life] {
    life.broker->hold_again();
    life.is_kept = !death::came();
  });
  const Status serves = life.broker->start();
  return serves.ok() ? "" : "the broker serves: " + serves.text();
}

void Node::holder_dies() {
  holder_->die();
  life_->is_kept = false;
}

void Node::end(const std::function<void()>& noticed) {
  checkpoints.lose_client();
  noticed();
  outside::nobody_connects();
  life_.reset();
  holder_->lose_client();
}

void Node::later(std::function<void()> what) {
  // A timer that is due: nothing need wake the loop.
  loop().at(Clock::now(), [this, what = std::move(what)]() mutable {
    if (death::came()) return;
    if (!*life_->has_pool) return later(std::move(what));
    what();
  });
}

std::string Node::sessions() const {
  return config.runtime_dir + "/" + std::string(kSessionSocket);
}

v1::NodeStatus Node::status() const {
  v1::NodeStatus status;
  broker().reports().status(Caller{}, status);
  return status;
}

std::map<std::string, v1::GroupInfo> Node::groups() const {
  v1::ListGroupsResponse list;
  broker().reports().groups(Caller{}, list);
  std::map<std::string, v1::GroupInfo> groups;
  for (v1::GroupInfo& group : *list.mutable_groups()) {
    const std::string address = group.address();
    groups[address] = std::move(group);
  }
  return groups;
}

void Node::add_to(Digest& digest) const {
  std::string bytes;
  for (auto& [address, group] : groups()) {
    v1::GroupInfo shown = group;
    shown.clear_since_ms();
    shown.clear_last_pause_us();
    shown.clear_last_resume_us();
    shown.clear_note();
    shown.clear_unbrokered_bytes();
    digest.add(shown.SerializeAsString());
  }
  if (const auto ranks = broker().reports().ranks(Caller{}, ""); ranks.ok())
    for (const v1::RankInfo& rank : ranks.value()) {
      v1::RankInfo shown = rank;
      shown.clear_unbrokered();
      digest.add(shown.SerializeAsString());
    }
  if (auto list = broker().reports().list_allocations(Caller{}, ""); list.ok())
    for (const v1::AllocationInfo& each :
         broker().reports().allocations(Caller{}, list.value(), SIZE_MAX, SIZE_MAX))
      digest.add(each.SerializeAsString());
  const v1::NodeStatus status = this->status();
  digest.add(status.pool().used_bytes());
  digest.add(status.pool().retained_bytes());
  for (const v1::DeviceStatus& device : status.devices()) {
    digest.add(device.brokered_bytes());
    digest.add(device.spare_bytes());
  }
  digest.add(broker().under_way());
  if (!holder_) return;
  std::uint64_t rows = 0;  // in no order
  life_->supervisor.record().log()->each([&](RowKey key, std::string_view row) {
    Digest one;
    one.add(key);
    one.add(row);
    rows += one.hash();
  });
  digest.add(rows);
  holder_->add_to(digest);
}

std::string Node::left_over() const {
  const v1::NodeStatus status = this->status();
  if (!status.groups().empty()) return "a group ends with its last rank";
  if (status.pool().used_bytes() != 0) return "the pool is empty at the end";
  for (const v1::DeviceStatus& device : status.devices())
    if (device.brokered_bytes() != 0) return "the devices are empty at the end";
  return "";
}

}  // namespace amem::world
