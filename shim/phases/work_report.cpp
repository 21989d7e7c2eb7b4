#include "shim/phases/work_report.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/packet.h"
#include "shim/base/own_thread.h"

namespace amem::shim {
namespace {

/// Without reports the thread waits for stir() alone.
constexpr std::chrono::hours kLong{24};

}  // namespace

void WorkReport::set(bool on) {
  std::lock_guard lock(mutex_);
  // Without a thread the broker hears of no demand, and the group gets no turn by it.
  if (on && !started_)
    started_ = start_own_thread("amem-work", "watch for work", [this] { run(); });
  on_ = due_ = on;
  gate_.stir();
}

void WorkReport::stop(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  stopped_ = true;
  on_ = false;
  answered_.wait_until(lock, deadline, [&] { return !asking_; });
}

void WorkReport::run() {
  std::uint64_t version = 0;
  for (bool was_on = false;;) {
    bool on = false;
    {
      std::lock_guard lock(mutex_);
      on = on_;
    }
    Clock::time_point until = Clock::now() + kLong;
    if (on) {
      // What has waited while nobody wanted to know does not count as demand.
      if (!was_on) {
        waits_ = gate_.demand().waits;
        waiting_ = false;
      }
      until = look(Clock::now());
      tell();
    }
    was_on = on;
    version = gate_.await_demand(version, until);
  }
}

/// The result: when to look again.
WorkReport::Clock::time_point WorkReport::look(Clock::time_point now) {
  const Gate::Demand demand = gate_.demand();
  // Also one that was there for a moment: it may have got an error instead of its turn.
  const bool has_waited = std::exchange(waits_, demand.waits) != demand.waits;
  if (demand.waiting || has_waited) {
    if (!std::exchange(waiting_, true)) call_ = demand.call;
    none_waits_since_ = demand.waiting ? Clock::time_point() : now;
  } else if (waiting_) {
    if (none_waits_since_ == Clock::time_point()) none_waits_since_ = now;
    waiting_ = now < none_waits_since_ + times_.debounce;
  }
  if (now >= next_look_) {
    worked_ = has_work();
    next_look_ = Clock::now() + times_.look;
  }
  return waiting_ && !demand.waiting ? std::min(next_look_, none_waits_since_ + times_.debounce)
                                     : next_look_;
}

bool WorkReport::has_work() {
  if (gate_.shut()) return false;
  if (gate_.take_worked()) {
    devices_idle_ = false;
    return true;
  }
  return !devices_idle_ && asks_devices();
}

/// Whether they have something left to do. Where that is not known now, as far as it was known.
bool WorkReport::asks_devices() {
  {
    std::lock_guard lock(mutex_);
    if (stopped_ || !gate_.question_begins()) return worked_;
    asking_ = true;
  }
  bool known = true;
  bool left = false;
  for (int device = 0; device < devices_.count() && !left; ++device) {
    const std::optional<bool> answer = devices_.work_left(device);
    known = known && answer.has_value();
    left = answer.value_or(false);
  }
  gate_.question_ended();
  {
    std::lock_guard lock(mutex_);
    asking_ = false;
    answered_.notify_all();
  }
  if (!left && !known) return worked_;
  devices_idle_ = !left;
  return left;
}

void WorkReport::tell() {
  std::lock_guard lock(mutex_);
  if (!on_) return;
  const bool news = waiting_ != told_waiting_ || worked_ != told_worked_;
  if (!std::exchange(due_, false) && !news) return;
  told_waiting_ = waiting_;
  told_worked_ = worked_;
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_work_tag;
  amem_v1_Work& work = message.body.work;
  work.waiting = waiting_;
  if (waiting_ && call_ != nullptr) set_text(work.call, call_);
  work.worked = worked_;
  session_.post(message);
}

}  // namespace amem::shim
