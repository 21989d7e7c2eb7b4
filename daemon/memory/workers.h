// Workers: a thread for each device, on which the driver and its management library are called, so
// that a device that hangs stops only itself.
//
//   loop: ask(device, work, done)  ->  the device's thread: work()  ->  loop: done(result)
//
// What is asked of a device is done in order. Whoever asks gives a limit, and is told when that has
// passed; the call goes on, and what it makes in the end is freed. One that takes long is logged,
// with its device. Closing the last descriptor of device memory frees it, which is the driver's
// work, too: so the descriptors that are made here are closed here.
//
// Spares (spares.h) wait here for the next resume. They count as free memory: look() adds them to
// what is free, and a call that finds no space closes as many as it needs and tries again.
//
// All calls are for the loop's thread. What is made here may go on any thread, and may outlive this
// object.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "common/fd.h"
#include "common/protocol.h"
#include "common/status.h"
#include "daemon/base/clock.h"
#include "daemon/base/event_loop.h"
#include "daemon/memory/devices.h"
#include "daemon/memory/nvml.h"
#include "daemon/memory/spares.h"
#include "daemon/owners/account.h"

namespace amem {

/// For people: "cuMemCreate of 2 MiB".
struct DeviceCall {
  const char* name = "";
  std::uint64_t bytes = 0;
};
std::string to_string(const DeviceCall& call);

class Workers {
 public:
  enum class Runs : std::uint8_t {
    kThreads,
    kLoop,  // in a later turn of the loop: for who plays a node in one thread
  };
  /// After this long a call is said to hang.
  static constexpr Duration kSlow = std::chrono::seconds(5);
  /// How long the end of this object waits for calls that are under way.
  static constexpr Duration kEndLimit = std::chrono::seconds(2);

  /// `trouble`: is told, for people, that a device hangs. Everything passed in
  /// outlives this object, and what it has made.
  Workers(EventLoop& loop, const Devices& devices, const Nvml& nvml, Runs runs,
          std::function<void(const std::string&)> trouble);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// `work` runs on the device's thread, and `done` on the loop's with a Result of what it returns:
  /// kDeadlineExceeded, which names device and call, when that took longer than `limit`. Exactly
  /// one call, in a later turn of the loop; none after shut(). REQUIRES: one of the devices.
  template <class Function, class Done>
  void ask(const DeviceUuid& device, DeviceCall call, Duration limit, Function work, Done done) {
    add(device,
        std::make_shared<Asked<Function, Done>>(call, limit, std::move(work), std::move(done)));
  }

  struct Wish {
    std::uint64_t size = 0;
    bool gpu_direct_rdma = false;
  };
  /// Physical memory: a descriptor, and the handle that it was made with. Whoever hands the
  /// descriptor on at once may keep the handle until that is done: releasing it takes time of the
  /// driver's, and slows down those who import.
  struct Made {
    SharedFd fd;
    std::shared_ptr<const void> handle;  // null: another process has made it
  };
  /// One for each wish. Errors are Devices::create()'s, and ask()'s.
  using AllMade = std::vector<Result<Made>>;
  void create(const Device& device, std::vector<Wish> wishes, Duration limit,
              std::function<void(AllMade)> done);

  /// Makes so much memory and frees it again: whether there was space for it. Of a device that is
  /// not known nothing is asked. Errors are create()'s.
  void make_and_free(const DeviceUuid& device, std::uint64_t size, Duration limit,
                     std::function<void(const Status&)> done);

  /// Physical memory that a process says it has made: an error of Devices::check()'s, or its
  /// descriptor without a handle.
  struct Brought {
    std::uint64_t size = 0;
    Fd fd;
  };
  void take(const Device& device, std::vector<Brought> brought, Duration limit,
            std::function<void(AllMade)> done);

  /// The spare waits until then.
  void add_spare(const MemoryKind& kind, Spare spare, Time until);
  /// As Spares::take().
  Spare take_spare(const MemoryKind& kind, AllocationId of);
  /// Closes the spares for which `goes`, which is called once for each. Returns their devices.
  std::set<DeviceUuid> close_spares(const std::function<bool(const MemoryKind&)>& goes);
  /// Closes the spares of all owners on these devices; on all devices if there are none. Returns
  /// their devices.
  std::set<DeviceUuid> close_spares_on(const std::vector<DeviceUuid>& devices) {
    return close_spares([&devices](const MemoryKind& kind) {
      return devices.empty() || std::count(devices.begin(), devices.end(), kind.device) > 0;
    });
  }
  /// Closes the spares that are more than these.
  void close_spares_but(const KindCounts& these);
  const Spares& spares() const { return spares_; }
  /// Charges the owner for so much device memory. Its spares count towards its quota, so they are
  /// closed if the quota has no space otherwise. Errors are Account::take()'s.
  Result<Charge> charge(Account& owner, std::uint64_t bytes);

  /// How much of these devices is in use, without spares; of those that are known, and answer soon.
  using Uses = std::map<DeviceUuid, MemoryUse>;
  void look(const std::set<DeviceUuid>& devices, std::function<void(const Uses&)> done);
  /// `done`, now or later: what was let go of before has been closed on these devices. A device
  /// that hangs is not waited for, and none for long.
  void await_closed(const std::set<DeviceUuid>& devices, const std::function<void()>& done);
  /// As last seen.
  const Uses& seen() const { return seen_; }

  /// The descriptor is closed on the device's thread when the last who has it lets go.
  SharedFd closing(const DeviceUuid& device, Fd fd);

  /// Returns what hangs on this device, for people; empty: nothing.
  std::string hangs(const DeviceUuid& device) const;

  /// No callback runs any more. What is queued to be closed is closed.
  void shut();

 private:
  /// What a device is asked for.
  class Job {
   public:
    Job(DeviceCall what, Time until) : call(what), late_at(until) {}
    virtual ~Job() = default;
    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;
    virtual void work() = 0;
    // On the loop's thread, one of them.
    virtual void done() {}
    virtual void fail(const Status&) {}
    virtual void forget() {}

    const DeviceCall call;
    const Time late_at;  // kNever: nobody waits for it
    Duration in_driver{};
  };
  template <class Function, class Done>
  class Asked final : public Job {
   public:
    using Value = std::invoke_result_t<Function>;
    Asked(DeviceCall what, Duration limit, Function work, Done done)
        : Job(what, Clock::now() + limit), work_(std::move(work)), done_(std::move(done)) {}
    void work() override { value_.emplace(work_()); }
    void done() override { answer(Result<Value>(*std::exchange(value_, std::nullopt))); }
    void fail(const Status& status) override { answer(Result<Value>(status)); }
    void forget() override { done_.reset(); }

   private:
    /// What it has captured ends on the loop's thread.
    void answer(Result<Value> result) {
      std::optional<Done> done = std::exchange(done_, std::nullopt);
      if (done) (*done)(std::move(result));
    }
    Function work_;
    std::optional<Value> value_;
    std::optional<Done> done_;
  };
  using JobPtr = std::shared_ptr<Job>;
  /// Its end is the driver's work.
  using Ended = std::variant<Fd, MemoryHandle>;
  class Endings;
  struct Ending;
  struct Lane;
  struct Mailbox;

  void add(const DeviceUuid& device, JobPtr job);
  std::shared_ptr<Ending> ending(const DeviceUuid& device, Ended what);
  std::shared_ptr<const void> releasing(const DeviceUuid& device, MemoryHandle handle);
  /// Closes spares of so many bytes on the device, or all that there are. False: there are none.
  bool make_space(const DeviceUuid& device, std::uint64_t bytes);
  void watch_spares();
  void watch();
  void look_for_trouble();

  EventLoop& loop_;
  const Devices& devices_;
  const Nvml& nvml_;
  const Runs runs_;
  const std::function<void(const std::string&)> trouble_;
  std::shared_ptr<Mailbox> mailbox_;
  std::map<DeviceUuid, std::shared_ptr<Lane>> lanes_;
  std::optional<EventLoop::TimerId> timer_;
  Uses seen_;
  Spares spares_;
  std::optional<EventLoop::TimerId> spares_timer_;
};

}  // namespace amem
