#include "daemon/control/supervised.h"

#include <algorithm>
#include <utility>

namespace amem {
namespace {

constexpr Duration kEvery = std::chrono::seconds(1);

}  // namespace

Supervised::Supervised(EventLoop& loop, const ServiceManager& manager, std::function<State()> look)
    : loop_(loop), manager_(manager), look_(std::move(look)) {}

Supervised::~Supervised() { end(); }

void Supervised::begin() {
  if (manager_.there()) tick();
}

void Supervised::end() {
  if (next_) loop_.cancel(*std::exchange(next_, std::nullopt));
}

void Supervised::tick() {
  const Time now = Clock::now();
  // A quarter of the watchdog's time, since the machine may be busy.
  const Duration often = manager_.watchdog() ? *manager_.watchdog() / 4 : kEvery;
  if (!ready_) ready_ = manager_.ready();  // without this it would end amemd
  State state = look_();
  if (guarded_ != state.outlives) manager_.guard(*(guarded_ = state.outlives));
  if (told_ != state.text) manager_.status(told_ = std::move(state.text));
  if (now - alive_ >= often) {
    manager_.alive();
    alive_ = now;
  }
  next_ = loop_.at(now + std::min<Duration>(kEvery, often), [this] { tick(); });
}

}  // namespace amem
