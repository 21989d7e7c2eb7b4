#include "daemon/memory/workers.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "daemon/base/units.h"
#include "daemon/memory/in_driver.h"

namespace amem {
namespace {

/// How often it is looked for what is late, while something is under way.
constexpr Duration kWatch = std::chrono::milliseconds(250);
/// How long until a call that hangs is reported again.
constexpr Duration kTellAgain = std::chrono::minutes(1);
/// How long a thread with nothing to do waits for more of what nobody waits for, unless it is asked
/// for something: to be woken for each costs more than the call.
constexpr Duration kLinger = std::chrono::milliseconds(1);
/// Usage is for people and for foresight: neither may wait long for it.
constexpr Duration kLookLimit = std::chrono::seconds(1);
/// A rank waits for it, which then sees less memory free than there will be.
constexpr Duration kCloseLimit = std::chrono::milliseconds(500);

std::string name_of(const Device& device) {
  return "device " + std::to_string(device.ordinal) + " (" + to_string(device.uuid) + ")";
}

std::string seconds_since(Time then) {
  const auto whole = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - then);
  return std::to_string(whole.count()) + " s";
}

}  // namespace

std::string to_string(const DeviceCall& call) {
  return std::string(call.name) + (call.bytes > 0 ? " of " + format_size(call.bytes) : "");
}

/// What has been done, on its way to the loop.
struct Workers::Mailbox {
  std::mutex mutex;
  EventLoop* loop = nullptr;  // null: nobody is told any more
  bool works = false;         // what comes here is still to be done
  std::vector<JobPtr> done;

  static void put(const std::shared_ptr<Mailbox>& mailbox, JobPtr job) {
    const std::lock_guard lock(mailbox->mutex);
    if (mailbox->loop == nullptr) return;
    mailbox->done.push_back(std::move(job));
    if (mailbox->done.size() == 1) mailbox->loop->post([mailbox] { deliver(*mailbox); });
  }
  static void deliver(Mailbox& mailbox) {
    std::vector<JobPtr> jobs;
    {
      const std::lock_guard lock(mailbox.mutex);
      jobs.swap(mailbox.done);
    }
    for (const JobPtr& job : jobs) {
      if (mailbox.works)
        job->work();
      else
        InDriver::add(job->in_driver);
      job->done();
    }
  }
};

/// What nobody needs any more, as one call after another: memory comes and goes by the thousand.
class Workers::Endings final : public Job {
 public:
  /// So many take well below kSlow.
  static constexpr std::size_t kMost = 256;
  explicit Endings(Ended first)
      : Job({std::holds_alternative<Fd>(first) ? "the close of its memory" : "cuMemRelease"},
            kNever) {
    ended_.push_back(std::move(first));
  }
  /// False: it is of another kind, or there are too many. REQUIRES: this is queued still.
  bool add(Ended& what) {
    if (what.index() != ended_.front().index() || ended_.size() == kMost) return false;
    ended_.push_back(std::move(what));
    return true;
  }
  void work() override { ended_.clear(); }

 private:
  std::vector<Ended> ended_;
};

/// A device's queue and thread. A thread that hangs at the end lives on alone.
struct Workers::Lane {
  explicit Lane(const Device& of) : device(of) {}

  const Device device;
  std::mutex mutex;
  std::condition_variable changed;
  // All under mutex.
  std::deque<JobPtr> queue;
  JobPtr current;
  Time current_since;
  bool abandoned = false;  // whoever asked for the current one does not wait for it any more
  Time told{};             // when it was said that the current one hangs
  bool lingers = false;    // wakes after a time for what nobody waits for
  bool ends = false;
  bool ended = false;
  std::thread thread;

  /// False: nobody works here any more.
  static bool add(const std::shared_ptr<Lane>& lane, const std::shared_ptr<Mailbox>& mailbox,
                  JobPtr job) {
    {
      const std::lock_guard lock(lane->mutex);
      if (lane->ends) return false;
      const bool can_wait = lane->lingers && job->late_at == kNever;
      lane->queue.push_back(std::move(job));
      if (can_wait) return true;
      lane->lingers = false;
      if (!lane->thread.joinable())
        lane->thread = std::thread([lane, mailbox] { lane->run(mailbox); });
    }
    lane->changed.notify_all();
    return true;
  }

  static void end(const std::shared_ptr<Lane>& lane, const std::shared_ptr<Mailbox>& mailbox,
                  Ended what) {
    {
      const std::lock_guard lock(lane->mutex);
      Endings* const last =
          lane->queue.empty() ? nullptr : dynamic_cast<Endings*>(lane->queue.back().get());
      if (last != nullptr && last->add(what)) return;
    }
    add(lane, mailbox, std::make_shared<Endings>(std::move(what)));
  }

  void run(const std::shared_ptr<Mailbox>& mailbox) {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return ends || !queue.empty(); });
      if (queue.empty()) break;
      JobPtr job = current = std::move(queue.front());
      queue.pop_front();
      current_since = Clock::now();
      abandoned = false;
      told = {};
      lock.unlock();
      const Duration before = InDriver::total();
      job->work();
      job->in_driver = InDriver::total() - before;
      lock.lock();
      current.reset();
      const bool somebody_waits = job->late_at != kNever;
      const bool awaited = somebody_waits && !abandoned;
      const bool hung = told != Time{};
      lock.unlock();
      if (hung)
        spdlog::warn("{}: {} has returned after {}", name_of(device), to_string(job->call),
                     seconds_since(current_since));
      if (awaited) Mailbox::put(mailbox, std::move(job));
      job.reset();
      lock.lock();
      if (somebody_waits || !queue.empty()) continue;
      lingers = true;
      changed.wait_for(lock, kLinger, [this] { return ends || !lingers; });
      lingers = false;
    }
    ended = true;
    changed.notify_all();
  }

  /// The current call, as people read it; "": there is none.
  std::string doing() const {
    if (!current) return "";
    return to_string(current->call) + " has not returned for " + seconds_since(current_since);
  }
};

Workers::Workers(EventLoop& loop, const Devices& devices, const Nvml& nvml, Runs runs,
                 std::function<void(const std::string&)> trouble)
    : loop_(loop),
      devices_(devices),
      nvml_(nvml),
      runs_(runs),
      trouble_(std::move(trouble)),
      mailbox_(std::make_shared<Mailbox>()) {
  mailbox_->loop = &loop;
  mailbox_->works = runs == Runs::kLoop;
  for (const Device& device : devices.all())
    lanes_.emplace(device.uuid, std::make_shared<Lane>(device));
}

Workers::~Workers() { shut(); }

void Workers::shut() {
  for (std::optional<EventLoop::TimerId>* timer : {&timer_, &spares_timer_})
    if (*timer) loop_.cancel(*std::exchange(*timer, std::nullopt));
  spares_ = Spares();
  std::vector<JobPtr> forgotten;
  {
    const std::lock_guard lock(mailbox_->mutex);
    mailbox_->loop = nullptr;
    forgotten.swap(mailbox_->done);
  }
  for (const auto& [uuid, lane] : lanes_) {
    const std::lock_guard lock(lane->mutex);
    lane->ends = true;
    if (lane->current) forgotten.push_back(lane->current);
    std::erase_if(lane->queue, [&](const JobPtr& job) {
      if (job->late_at == kNever) return false;
      forgotten.push_back(job);
      return true;
    });
    lane->changed.notify_all();
  }
  for (const JobPtr& job : forgotten) job->forget();
  const Time until = Clock::now() + kEndLimit;
  for (const auto& entry : lanes_) {
    Lane& lane = *entry.second;
    std::unique_lock lock(lane.mutex);
    if (!lane.thread.joinable()) continue;
    std::thread thread = std::move(lane.thread);
    const bool ended = lane.changed.wait_until(lock, until, [&] { return lane.ended; });
    if (!ended) spdlog::error("{}: {}. amemd ends without it", name_of(lane.device), lane.doing());
    lock.unlock();
    ended ? thread.join() : thread.detach();
  }
}

void Workers::add(const DeviceUuid& device, JobPtr job) {
  if (runs_ == Runs::kLoop) return Mailbox::put(mailbox_, std::move(job));
  Lane::add(lanes_.at(device), mailbox_, std::move(job));
  watch();
}

void Workers::create(const Device& device, std::vector<Wish> wishes, Duration limit,
                     std::function<void(AllMade)> done) {
  const DeviceCall call{"cuMemCreate", wishes.empty() ? 0 : wishes.front().size};
  ask(
      device.uuid, call, limit,
      [this, &device, wishes] {
        std::vector<Result<CreatedMemory>> made;
        for (const Wish& wish : wishes)
          made.push_back(devices_.create(device, wish.size, wish.gpu_direct_rdma));
        return made;
      },
      [this, &device, wishes, limit,
       done = std::move(done)](Result<std::vector<Result<CreatedMemory>>> all) {
        AllMade answer;
        std::vector<Wish> refused;
        std::uint64_t bytes = 0;
        for (std::size_t i = 0; i < wishes.size(); ++i) {
          if (!all.ok() || !all.value()[i].ok()) {
            answer.emplace_back(all.ok() ? all.value()[i].status() : all.status());
            if (answer.back().status().code() != Code::kResourceExhausted) continue;
            refused.push_back(wishes[i]);
            bytes += wishes[i].size;
            continue;
          }
          CreatedMemory& memory = all.value()[i].value();
          answer.emplace_back(Made{closing(device.uuid, std::move(memory.fd)),
                                   releasing(device.uuid, std::move(memory.handle))});
        }
        if (refused.empty() || !make_space(device.uuid, bytes)) return done(std::move(answer));
        create(device, std::move(refused), limit,
               [answer = std::move(answer), done](AllMade again) mutable {
                 auto next = again.begin();
                 for (Result<Made>& each : answer)
                   if (each.status().code() == Code::kResourceExhausted) each = std::move(*next++);
                 done(std::move(answer));
               });
      });
}

void Workers::make_and_free(const DeviceUuid& uuid, std::uint64_t size, Duration limit,
                            std::function<void(const Status&)> done) {
  const Device* const device = devices_.find(uuid);
  if (device == nullptr) return done({});
  const std::uint64_t unit = device->granularity;
  const std::uint64_t whole = (size + unit - 1) / unit * unit;
  ask(
      uuid, {"cuMemCreate", whole}, limit,
      [this, device, whole] {
        return std::optional<Status>(devices_.create(*device, whole, false).status());
      },
      [this, uuid, size, limit, done = std::move(done)](const Result<std::optional<Status>>& made) {
        const Status status = made.ok() ? *made.value() : made.status();
        if (status.code() == Code::kResourceExhausted && make_space(uuid, size))
          return make_and_free(uuid, size, limit, done);
        done(status);
      });
}

/// The descriptors are closed on the device's thread whatever comes of it: they may be of anything,
/// and a close may take long.
void Workers::take(const Device& device, std::vector<Brought> brought, Duration limit,
                   std::function<void(AllMade)> done) {
  struct Taken {
    std::uint64_t size = 0;
    SharedFd fd;
  };
  std::vector<Taken> all;
  for (Brought& each : brought)
    all.push_back({each.size, closing(device.uuid, std::move(each.fd))});
  const DeviceCall call{"cuMemImportFromShareableHandle", all.empty() ? 0 : all.front().size};
  ask(
      device.uuid, call, limit,
      [this, &device, all] {
        std::vector<Status> checked;
        for (const Taken& each : all)
          checked.push_back(devices_.check(device, each.size, *each.fd));
        return checked;
      },
      [all, done = std::move(done)](Result<std::vector<Status>> checked) {
        AllMade answer;
        for (std::size_t i = 0; i < all.size(); ++i) {
          const Status status = checked.ok() ? checked.value()[i] : checked.status();
          if (status.ok())
            answer.emplace_back(Made{all[i].fd, nullptr});
          else
            answer.emplace_back(status);
        }
        done(std::move(answer));
      });
}

void Workers::add_spare(const MemoryKind& kind, Spare spare, Time until) {
  spares_.put(kind, std::move(spare), until);
  watch_spares();
}

Spare Workers::take_spare(const MemoryKind& kind, AllocationId of) {
  return spares_.take(kind, of);
}

std::set<DeviceUuid> Workers::close_spares(const std::function<bool(const MemoryKind&)>& goes) {
  std::set<DeviceUuid> devices;
  spares_.take_if([&](const MemoryKind& kind, Time) {
    const bool all = goes(kind);
    if (all) devices.insert(kind.device);
    return all;
  });
  return devices;
}

void Workers::close_spares_but(const KindCounts& these) { spares_.take_but(these); }

Result<Charge> Workers::charge(Account& owner, std::uint64_t bytes) {
  Result<Charge> charge = owner.take(of_device_memory(bytes));
  if (charge.ok()) return charge;
  const std::set<DeviceUuid> closed =
      close_spares([&owner](const MemoryKind& kind) { return kind.owner == &owner; });
  return closed.empty() ? std::move(charge) : owner.take(of_device_memory(bytes));
}

bool Workers::make_space(const DeviceUuid& device, std::uint64_t bytes) {
  std::uint64_t closed = 0;
  return !close_spares([&](const MemoryKind& kind) {
            if (kind.device != device || closed >= bytes) return false;
            closed += kind.size;
            return true;
          }).empty();
}

void Workers::watch_spares() {
  if (spares_timer_ || spares_.empty()) return;
  spares_timer_ = loop_.at(*spares_.first_until(), [this] {
    spares_timer_.reset();
    spares_.take_if([now = Clock::now()](const MemoryKind&, Time until) { return until <= now; });
    watch_spares();
  });
}

void Workers::look(const std::set<DeviceUuid>& asked, std::function<void(const Uses&)> done) {
  std::set<DeviceUuid> devices = asked;
  std::erase_if(devices, [&](const DeviceUuid& device) {
    const bool cannot = !lanes_.contains(device) || !hangs(device).empty();
    if (cannot) seen_.erase(device);
    return cannot;
  });
  struct Look {
    std::size_t missing;
    Uses uses;
    std::function<void(const Uses&)> done;
  };
  const auto look = std::make_shared<Look>(Look{devices.size(), {}, std::move(done)});
  const auto none = [] { return 0; };
  const auto at_once = [look](const Result<int>&) { look->done({}); };
  if (devices.empty()) {
    const auto job = std::make_shared<Asked<decltype(none), decltype(at_once)>>(
        DeviceCall{}, kLookLimit, none, at_once);
    job->work();
    return Mailbox::put(mailbox_, job);
  }
  for (const DeviceUuid& device : devices)
    ask(
        device, {"nvmlDeviceGetMemoryInfo"}, kLookLimit,
        [this, device] { return nvml_.memory(device); },
        [this, device, look](const Result<std::optional<MemoryUse>>& use) {
          if (use.ok() && use.value()) {
            MemoryUse seen = *use.value();
            const std::uint64_t free = std::min(seen.used, spares_.bytes(device));
            seen.used -= free;
            seen.free += free;
            look->uses[device] = seen_[device] = seen;
          } else {
            seen_.erase(device);
          }
          if (--look->missing == 0) look->done(look->uses);
        });
}

void Workers::await_closed(const std::set<DeviceUuid>& devices, const std::function<void()>& done) {
  const auto missing = std::make_shared<std::size_t>(1);  // until all are asked
  const auto one = [missing, done] {
    if (--*missing == 0) done();
  };
  for (const DeviceUuid& device : devices) {
    if (!lanes_.contains(device) || !hangs(device).empty()) continue;
    ++*missing;
    ask(
        device, {"the close of freed memory"}, kCloseLimit, [] { return 0; },
        [one](const Result<int>&) { one(); });
  }
  one();
}

/// Something that ends on its device's thread while there is one, and else where it is let go of.
struct Workers::Ending {
  explicit Ending(Ended value) : what(std::move(value)) {}
  ~Ending() {
    if (lane) Lane::end(lane, mailbox, std::move(what));
  }
  Ending(const Ending&) = delete;
  Ending& operator=(const Ending&) = delete;

  Ended what;
  std::shared_ptr<Lane> lane;  // null: none
  std::shared_ptr<Mailbox> mailbox;
};

std::shared_ptr<Workers::Ending> Workers::ending(const DeviceUuid& device, Ended what) {
  auto ending_object = std::make_shared<Ending>(std::move(what));
  const auto lane = lanes_.find(device);
  if (runs_ == Runs::kThreads && lane != lanes_.end()) {
    ending_object->lane = lane->second;
    ending_object->mailbox = mailbox_;
  }
  return ending_object;
}

SharedFd Workers::closing(const DeviceUuid& device, Fd fd) {
  std::shared_ptr<Ending> ending_object = ending(device, std::move(fd));
  const Fd* const part = &std::get<Fd>(ending_object->what);
  return {std::move(ending_object), part};
}

std::shared_ptr<const void> Workers::releasing(const DeviceUuid& device, MemoryHandle handle) {
  return ending(device, std::move(handle));
}

std::string Workers::hangs(const DeviceUuid& device) const {
  const auto found = lanes_.find(device);
  if (found == lanes_.end()) return "";
  Lane& lane = *found->second;
  const std::lock_guard lock(lane.mutex);
  return lane.current && Clock::now() - lane.current_since >= kSlow ? lane.doing() : "";
}

void Workers::watch() {
  if (!timer_)
    timer_ = loop_.at(Clock::now() + kWatch, [this] {
      timer_.reset();
      look_for_trouble();
    });
}

void Workers::look_for_trouble() {
  const Time now = Clock::now();
  bool busy = false;
  std::vector<std::pair<JobPtr, Status>> late;
  std::vector<std::string> hung;
  for (const auto& entry : lanes_) {
    Lane& lane = *entry.second;
    const std::lock_guard lock(lane.mutex);
    busy = busy || lane.current || !lane.queue.empty();
    if (!lane.current) continue;
    const auto give_up = [&](const JobPtr& job) {
      const std::string name = name_of(lane.device);
      const std::string how = lane.doing();
      late.emplace_back(
          job, Status(Code::kDeadlineExceeded,
                      job == lane.current ? name + ": " + how
                                          : name + ": " + to_string(job->call) + " waits: " + how));
    };
    if (now >= lane.current->late_at && !std::exchange(lane.abandoned, true)) give_up(lane.current);
    std::erase_if(lane.queue, [&](const JobPtr& job) {
      if (now < job->late_at) return false;
      give_up(job);
      return true;
    });
    if (now - lane.current_since < kSlow) continue;
    if (lane.told != Time{} && now - lane.told < kTellAgain) continue;
    lane.told = now;
    hung.push_back(name_of(lane.device) + " hangs: " + lane.doing() + ". " +
                   std::to_string(lane.queue.size()) + " calls wait. Other devices go on");
  }
  for (const std::string& text : hung) {
    spdlog::error("{}", text);
    trouble_(text);
  }
  for (const auto& [job, why] : late) job->fail(why);
  if (busy) watch();
}

}  // namespace amem
