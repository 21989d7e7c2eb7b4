#include "daemon/control/ending.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <utility>

#include "daemon/base/units.h"

namespace amem {
namespace {

constexpr Duration kLook = std::chrono::milliseconds(10);

}  // namespace

Ending::Ending(EventLoop& loop, Duration limit, std::function<std::string()> under_way,
               std::function<void()> end)
    : loop_(loop), limit_(limit), under_way_(std::move(under_way)), end_(std::move(end)) {}

Ending::~Ending() {
  if (next_look_) loop_.cancel(*next_look_);
}

void Ending::begin() {
  if (ended_) return;
  const std::string what = under_way_();
  if (begun()) {
    spdlog::warn("amemd was told to end again and ends at once{}",
                 what.empty() ? "" : ", although " + what);
    return finish();
  }
  until_ = Clock::now() + limit_;
  if (!what.empty())
    spdlog::info("amemd is ending: {}. It waits for that, at most {} (deadlines.end)", what,
                 format_duration(limit_));
  look();
}

void Ending::look() {
  next_look_.reset();
  const std::string what = under_way_();
  if (what.empty()) return finish();
  if (Clock::now() >= *until_) {
    spdlog::warn(
        "amemd ends although {}: deadlines.end ({}) has passed. The next amemd finishes the "
        "operation or rolls it back",
        what, format_duration(limit_));
    return finish();
  }
  next_look_ = loop_.at(Clock::now() + kLook, [this] { look(); });
}

void Ending::finish() {
  ended_ = true;
  if (next_look_) loop_.cancel(*std::exchange(next_look_, std::nullopt));
  end_();
}

}  // namespace amem
