#include "tests/histories/life.h"

#include <utility>

#include "tests/fuzz/world.h"
#include "tests/histories/death.h"

namespace amem::histories {
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

std::string Life::attach() {
  if (const Status opened = loop.open(); !opened.ok()) return "a loop is made";
  checkpoints_.begin(loop);
  const Status attached = supervisor_.attach();
  return attached.ok() ? "" : "the broker finds its holder: " + attached.text();
}

std::string Life::begin() {
  const fuzz::Ground& ground = fuzz::Ground::get();
  broker_ = std::make_unique<Broker>(loop, config_, ground.devices(), ground.nvml(),
                                     &supervisor_.record(), Workers::Runs::kLoop, &checkpoints_,
                                     &checkpoints_);
  broker_->events().subscribe(Caller{}, "", std::make_shared<PoolWatch>(has_pool_));
  if (const Status taken = broker_->take_up(supervisor_.take_stock()); !taken.ok())
    return "what a broker has left can be taken up: " + taken.text();
  supervisor_.watch([this] {
    broker_->hold_again();
    is_kept_ = !death::came();
  });
  if (const Status serves = broker_->start(); !serves.ok())
    return "the broker serves: " + serves.text();
  return "";
}

std::string Life::left_over() const {
  v1::NodeStatus status;
  broker_->status(Caller{}, status);
  if (!status.groups().empty()) return "a group ends with its last rank";
  if (status.pool().used_bytes() != 0) return "the pool is empty at the end";
  for (const v1::DeviceStatus& device : status.devices())
    if (device.brokered_bytes() != 0) return "the devices are empty at the end";
  return "";
}

}  // namespace amem::histories
