#include "client/ctl/first_turn.h"

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "client/core/control_client.h"
#include "client/core/endpoint.h"

namespace amem::ctl {
namespace {

using std::chrono::milliseconds;
using Steady = std::chrono::steady_clock;

constexpr milliseconds kSaysAfter{1'000};
constexpr milliseconds kSaysAgain{60'000};
// As ranks: the next amemd may serve soon.
constexpr milliseconds kReconnect{30'000};
constexpr milliseconds kReconnectEvery{200};

milliseconds passed_since(Steady::time_point when) {
  return std::chrono::duration_cast<milliseconds>(Steady::now() - when);
}

/// Says from time to time that the process waits.
class Patience {
 public:
  explicit Patience(const AwaitedStart& what) : what_(what), thread_([this] { run(); }) {}
  ~Patience() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Patience(const Patience&) = delete;

 private:
  void run() {
    std::unique_lock lock(mutex_);
    const auto began = Steady::now();
    for (milliseconds next = kSaysAfter; !changed_.wait_for(lock, next, [&] { return over_; });
         next = kSaysAgain) {
      const auto minutes =
          std::chrono::duration_cast<std::chrono::minutes>(passed_since(began)).count();
      const std::string so_far =
          minutes > 0 ? ", for " + std::to_string(minutes) + " min so far" : "";
      std::fprintf(stderr,
                   "amemctl: group '%s' waits for its first turn in stage '%s'%s. `amemctl turns` "
                   "shows who runs\n",
                   what_.group.c_str(), what_.stage.c_str(), so_far.c_str());
    }
  }

  const AwaitedStart& what_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;  // the last: it uses the others
};

}  // namespace

Status wait_for_first_turn(const AwaitedStart& what, Interrupt& interrupt) {
  if (Status status = client::probe(what.socket); !status.ok())
    return status.code() == Code::kUnavailable ? Status() : status;  // there is nobody to wait for
  client::ControlClient broker(what.socket);
  interrupt.on_signal([&broker] { broker.cancel(); });
  const Patience patience(what);
  const auto began = Steady::now();
  auto lost = began;  // there has been no broker since
  for (;;) {
    v1::StartRequest request;
    request.set_group(what.group);
    request.set_stage(what.stage);
    // Of the command, which inherits it.
    if (const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES")) {
      request.set_visible_devices(visible);
      request.set_has_visible_devices(true);
    }
    if (what.timeout) {
      const milliseconds left = *what.timeout - passed_since(began);
      if (left <= milliseconds(0)) break;
      request.set_timeout_ms(static_cast<std::uint32_t>(left.count()));
    }
    const auto asked = Steady::now();
    const Status status = interrupt.happened() ? Status(Code::kCancelled, "interrupted")
                                               : broker.start(request).status();
    // Its turn would come, and pass, while it is stopped.
    if (interrupt.is_to_stop() && !status.ok()) {
      interrupt.stop_now();
      broker.allow();
      continue;
    }
    if (interrupt.happened()) {
      interrupt.on_signal({});
      return status.ok() ? Status(Code::kCancelled, "interrupted") : status;
    }
    const bool again = status.code() == Code::kUnavailable || status.code() == Code::kAborted;
    if (passed_since(asked) > kReconnectEvery || status.code() == Code::kAborted)
      lost = Steady::now();
    if (!again || passed_since(lost) > kReconnect) {
      interrupt.on_signal({});
      return status;
    }
    std::this_thread::sleep_for(kReconnectEvery);
  }
  interrupt.on_signal({});
  return {Code::kDeadlineExceeded, "group '" + what.group +
                                       "' has not got its first turn in stage '" + what.stage +
                                       "' in time. `amemctl turns` shows who runs"};
}

}  // namespace amem::ctl
