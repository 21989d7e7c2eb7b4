#include "daemon/broker/broker.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "common/utf8.h"
#include "daemon/base/units.h"
#include "daemon/node/names.h"
#include "daemon/reports/families.h"
#include "daemon/reports/reports.h"
#include "daemon/sessions/messages.h"

namespace amem {
namespace {

constexpr std::uint64_t kProofPool = 2 << 20;               // bytes
constexpr Duration kProofLimit = std::chrono::seconds(15);  // of all that proves one set
constexpr Duration kTellTrouble = std::chrono::minutes(1);  // no more often

/// Returns the chunk size of what is in the pool already; else the configured one.
std::uint64_t chunk_of(const Config& config, const Record* record) {
  if (record == nullptr || !record->has_log()) return config.pool_chunk;
  const Result<std::uint64_t> recorded = recorded_chunk(*record->log());
  if (!recorded.ok() || recorded.value() == 0 || recorded.value() == config.pool_chunk)
    return config.pool_chunk;
  spdlog::warn("pool.chunk stays {} while something is in the pool", format_size(recorded.value()));
  return recorded.value();
}

/// Logs what was asked for. Operators' requests are always logged; others' until their quota of
/// lines is used.
template <class... Arguments>
void asked(const Caller& caller, spdlog::format_string_t<Arguments...> format,
           Arguments&&... arguments) {
  if (caller.operates)
    spdlog::info(format, std::forward<Arguments>(arguments)...);
  else
    caller.account->log().info(format, std::forward<Arguments>(arguments)...);
}

}  // namespace

Broker::Broker(EventLoop& loop, const Config& config, const Devices& devices, const Nvml& nvml,
               Record* record, Workers::Runs runs, const MakeEvictor& evictor)
    : loop_(loop),
      config_(config),
      devices_(devices),
      nvml_(nvml),
      workers_(loop, devices, nvml, runs,
               [this](const std::string& text) { events_.publish(nullptr, "error", text); }),
      accounts_(loop, config.quotas.resolve(config.pool_size, config.segment(), devices.total())),
      node_(
          chunk_of(config, record), record != nullptr ? *record : no_record_,
          [this](PoolSegment segment) { pool_.renew(std::move(segment)); },
          [this](PoolSegment segment) {
            pool_.release(std::move(segment));
            loop_.post([this] { look_at_excess(); });
          },
          [this](std::uint64_t size) { pool_.more(size); }),
      events_(node_),
      sessions_(loop, ranks_, accounts_, config.isolation),
      saved_(node_, loop),
      outbox_(node_, sessions_, devices.host_memory_device()),
      evict_limit_(config.deadlines.checkpoint * 9 / 10),
      evictor_(evictor != nullptr
                   ? evictor(loop, std::min<Duration>(kProofLimit, evict_limit_),
                             [this](const auto&... asked) { make_proof_pool(asked...); })
                   : no_evictor(loop)),
      restore_space_(workers_),
      context_{node_,
               devices,
               workers_,
               outbox_,
               saved_,
               loop,
               *evictor_,
               restore_space_,
               [this](GroupEntry& group) { groups_.drive(group); },
               config.deadlines.create * 9 / 10,
               evict_limit_},
      operations_(context_, config.swap_duplex),
      stages_are_good_(check_stages(config.stages, devices)),
      stages_(context_, sessions_, events_, operations_),
      groups_(node_, loop, config.deadlines, sessions_, events_, operations_, stages_),
      requests_(context_, nodes_, sessions_, operations_, groups_, stages_),
      ranks_(context_, sessions_, events_, operations_, groups_, requests_, stages_),
      pool_(devices, config.pool_place) {
  node_.pool_configured = config.pool_size;
  node_.pool_reserve = config.reserve();
  node_.retain = config.pool_retain;
  take_settings();
  node_.deep_pauses = config.deep_pauses;
  node_.spare_idle = config.spare_idle;
  if (stages_are_good_.ok()) stages_.open(config.stages);
}

void Broker::take_settings() {
  node_.pool_form = config_.pool_save;
  node_.swap_wave = config_.swap_wave;
  node_.hand_on = config_.swap_hand_on;
  node_.guests = config_.guests;
  node_.pool_idle = config_.pool_idle;
  operations_.elastic().look_at_idle();
  accounts_.limit(
      config_.quotas.resolve(config_.pool_size, config_.segment(), devices_.total()).most);
}

Broker::~Broker() { shut(); }

Status Broker::recover(HolderDescriptors descriptors) {
  if (!stages_are_good_.ok()) return stages_are_good_;
  Records& records = node_.records;
  if (!records.record().has_log()) return {};
  if (records.record().log()->rows() == 0) {
    records.begin(node_.pools.chunk());
    return {};
  }
  Status status =
      Recovery(context_, accounts_, groups_, ranks_, stages_).run(std::move(descriptors));
  next_segment_ = std::max(next_segment_, records.life().segments());
  return status;
}

Status Broker::start() {
  if (!stages_are_good_.ok()) return stages_are_good_;
  if (Status status = guard_devices(); !status.ok()) return status;
  const std::string path = config_.runtime_dir + "/" + std::string(kSessionSocket);
  if (Status status = sessions_.listen({path, config_.session_mode, config_.socket_group_id});
      !status.ok())
    return status;
  const std::uint64_t missing = node_.pools.limit(
      {.most = config_.pool_size, .reserve = config_.reserve(), .segment = config_.segment()});
  look_at_excess();
  operations_.elastic().look_at_idle();
  pool_.start(missing, config_.segment(),
              {[this](PoolSegment segment) {
                 loop_.post([this, segment = std::move(segment)]() mutable {
                   pool_segment_ready(std::move(segment));
                 });
               },
               [this](std::string error) {
                 loop_.post([this, error = std::move(error)] { pool_finished(error); });
               },
               [this](std::string error) {
                 loop_.post([this, error = std::move(error)] { pool_troubled(error); });
               },
               [this](std::uint64_t size, Status why) {
                 loop_.post([this, size, why = std::move(why)] { pool_refused(size, why); });
               }});
  return {};
}

void Broker::hold_again() {
  Record& record = node_.records.record();
  for (const Allocation* a : node_.allocations.select([](const Allocation&) { return true; }))
    if (a->resident()) record.hold_again(a->holder_entry, a->fd, devices_.lane(a->device));
  for (const auto& [id, rank] : node_.ranks)
    if (rank.peer.process) record.hold_again(rank.holder_entry, rank.peer.process);
  saved_.hold_again();
  node_.pools.each([&](const RecordedSegment& segment) {
    if (segment.segment.fd) record.hold_again(segment.holder_entry, segment.segment.fd);
  });
  record.flush_soon();
}

/// Who names the directory wants every device guarded; else it is done as far as it goes.
Status Broker::guard_devices() {
  const DeviceNodes::Gaps gaps = nodes_.open(config_.device_nodes, devices_, nvml_);
  if (config_.device_nodes_set && !gaps.lines.empty())
    return {Code::kFailedPrecondition, "isolation.device_nodes: " + gaps.lines.front()};
  if (gaps.simulated) return {};
  for (const std::string& line : gaps.lines) spdlog::warn("isolation.device_nodes: {}", line);
  return {};
}

void Broker::refuse_new_work() {
  operations_.refuse_new_work(
      {Code::kUnavailable,
       "amemd is ending and begins no new operation. Nothing has changed. Ask the next amemd"});
}

void Broker::shut() {
  // Before anything goes: the next amemd has it all.
  node_.records.record().detach();
  evictor_->shut();
  workers_.shut();
  pool_.stop();
  stages_.close({Code::kUnavailable, "amemd is ending. Ask the next amemd"});
  operations_.close({Code::kUnavailable, "amemd is ending. The operation did not finish"});
  events_.close();
  sessions_.shut();
}

void Broker::make_proof_pool(const VisibleDevices& visible, Duration limit,
                             const std::function<void(Result<ProofPool>)>& done) {
  // The process for the proof creates contexts there. To the driver spares are in use.
  if (const auto closed = workers_.close_spares_on(visible); !closed.empty())
    return workers_.await_closed(
        closed, [this, visible, limit, done] { make_proof_pool(visible, limit, done); });
  const std::optional<Place> place = place_named(node_.pools.place());
  if (place == Place::kMemfd) return done(ProofPool{place, kProofPool, nullptr});
  if (place != Place::kHostNuma) return done(ProofPool{});
  const DeviceUuid& device = visible.front();
  const std::uint64_t bytes = std::max(kProofPool, devices_.find(device)->granularity);
  const int numa_node = std::max(devices_.numa_node(device), 0);
  workers_.ask(
      device, {"cuMemCreate", bytes}, limit,
      [this, numa_node, bytes] { return devices_.create_host(numa_node, bytes); },
      [this, device, bytes, done](Result<Result<Fd>> made) {
        if (!made.ok()) return done(made.status());
        if (!made.value().ok()) return done(made.value().status());
        done(ProofPool{Place::kHostNuma, bytes,
                       workers_.closing(device, std::move(made).value().value())});
      });
}

// ---- pool ---------------------------------------------------------------------------------------

void Broker::pool_segment_ready(PoolSegment segment) {
  const std::uint64_t number = next_segment_++;
  (void)node_.records.used_segment(number);
  const std::uint64_t size = segment.size;
  const bool more = segment.made == PoolSegment::Made::kMore;
  node_.pools.add(std::move(segment), number);
  // It was made for somebody, who gets it before others whose ranks could reach it.
  if (more) operations_.elastic().came(size);
  if (!more)
    for (const auto& [id, rank] : node_.ranks) outbox_.extend_reach(id);
  operations_.elastic().goes_on();
  operations_.look_at_pool();
}

void Broker::pool_refused(std::uint64_t bytes, const Status& why) {
  spdlog::warn("pool: amemd cannot pin {} more: {}", format_size(bytes), why.text());
  node_.pools.not_made(bytes, why);
  operations_.elastic().refused(why);
  operations_.look_at_pool();
}

void Broker::pool_finished(const std::string& error) {
  pool_made_ = node_.pool_error = error;
  node_.pools.started();
  if (node_.pools.excess() > 0) return;  // that has been said
  events_.publish(nullptr, error.empty() ? "pool" : "error",
                  "pool: " + format_size(node_.pools.total()) + " of " +
                      format_size(node_.pool_reserve) + " ready" +
                      (error.empty() ? "" : ": " + error));
}

void Broker::look_at_excess() {
  const std::uint64_t excess = node_.pools.excess();
  if (std::exchange(excess_told_, excess) == excess) return;
  const std::string text =
      "pool: it has " + format_size(node_.pools.total()) + " and " +
      format_size(node_.pool_configured) + " is configured. " +
      (excess == 0 ? "It has shrunk"
                   : "amemd returns " + format_size(excess) +
                         " to the host when the processes that may have it mapped end and no bytes "
                         "are saved in it");
  spdlog::info("{}", text);
  events_.publish(nullptr, "pool", text);
}

void Broker::pool_troubled(const std::string& error) {
  node_.pool_error = error.empty() ? pool_made_ : error;
  node_.pools.expect_renewals(error.empty());
  operations_.look_at_pool();
  const bool fresh = trouble_told_ == Time{} || Clock::now() - trouble_told_ >= kTellTrouble;
  if (!error.empty() && fresh) {
    trouble_told_ = Clock::now();
    troubled_ = true;
    spdlog::warn("pool: {}", error);
    events_.publish(nullptr, "error", "pool: " + error);
  } else if (error.empty() && std::exchange(troubled_, false)) {
    spdlog::info("pool: amemd has made all segments again");
    events_.publish(nullptr, "pool", "pool: amemd has made all segments again");
  }
}

// ---- the control API ----------------------------------------------------------------------------

void Broker::refused(const Caller& caller, const std::string& what, const Status& status) {
  const bool stranger = !caller.operates && (status.code() == Code::kPermissionDenied ||
                                             status.code() == Code::kNotFound);
  if (stranger)
    caller.account->refusals_log().warn("amemd refuses {} to {}: {}", what, caller.who,
                                        status.text());
}

Status Broker::may_hand_over(const Caller& caller) {
  if (!caller.operates) {
    const Status status(Code::kPermissionDenied,
                        "only root, amemd's own user and the group access.operators may replace "
                        "amemd");
    refused(caller, "upgrade", status);
    return status;
  }
  node_.records.record().flush();
  if (const Status outlives = node_.records.record().outlives(); !outlives.ok())
    return {outlives.code() == Code::kUnavailable ? Code::kAborted : outlives.code(),
            outlives.text() + ". An upgrade requires a holder that has everything"};
  // The kernel does not replace a process while one of its threads is stuck in the driver.
  for (const Device& device : devices_.all())
    if (const std::string hangs = workers_.hangs(device.uuid); !hangs.empty())
      return {Code::kFailedPrecondition,
              "device " + to_string(device.uuid) + " hangs (" + hangs +
                  "), and amemd cannot be replaced while it is stuck in the driver. Wait for the "
                  "driver, or reset the device"};
  if (const Status& why = operations_.refusal(); !why.ok()) return why;
  if (const std::string what = under_way(); !what.empty())
    return {Code::kAborted, what + ". Try again"};
  return {};
}

std::string Broker::summary() const {
  const std::size_t groups = node_.groups.size();
  const std::uint64_t ready = node_.pools.total();
  std::string text = "serves " + std::to_string(groups) + (groups == 1 ? " group" : " groups") +
                     "; pool: " + format_size(ready);
  if (ready < node_.pool_reserve) text += " of " + format_size(node_.pool_reserve);
  if (node_.pools.elastic()) text += " pinned, at most " + format_size(node_.pool_configured);
  return node_.pool_error.empty() ? text : text + ": " + node_.pool_error;
}

std::string Broker::under_way() const {
  for (const auto& [id, group] : node_.groups)
    if (std::string what = group.machine.what_is_under_way(); !what.empty()) return what;
  return {};
}

std::uint64_t Broker::start_operation(const Caller& caller, const Task& task, const Names& names,
                                      Duration timeout, const Operations::Observer& observer,
                                      std::shared_ptr<RemoteNodes> remote_nodes) {
  const Result<std::vector<NamedGroup>> groups = find_to_steer(node_, caller, names);
  if (!groups.ok()) {
    refused(caller, std::string(to_string(task.op)), groups.status());
    observer->finished(groups.status());
    return 0;
  }
  if (remote_nodes == nullptr &&
      waits_for_switch(groups.value(), timeout, observer, [=, this](Duration left) {
        start_operation(caller, task, names, left, observer);
      }))
    return 0;
  for (const std::string& name : names)
    asked(caller, "{1} requests the {0}{2}", describe(task, name), caller.who,
          names.size() > 1 ? ", one of " + std::to_string(names.size()) + " groups" : "");
  Operations::Groups left = groups.value();
  if (task == Task(Operation::kPause) && remote_nodes == nullptr) {
    left = stages_.adopt_as_operator_pause(left);
    for (const NamedGroup& group : groups.value()) {
      const auto same = [&](const NamedGroup& each) { return each.id == group.id; };
      if (std::any_of(left.begin(), left.end(), same)) continue;
      spdlog::info("group '{}': its stage had paused it. It stays paused until somebody resumes it",
                   group.name);
      v1::Progress done;
      done.set_group(group.name);
      done.set_done(true);
      observer->progress(done);
    }
    if (left.empty() && !names.empty()) {
      observer->finished({});
      return 0;
    }
  }
  return operations_.start(order_of(task, left, timeout),
                           task == Task(Operation::kResume) ? watched(observer, left) : observer,
                           caller, std::move(remote_nodes));
}

std::function<void()> Broker::prepare(const Caller& caller, const Names& names, Duration timeout,
                                      ElasticPool::Done done) {
  const Result<std::vector<NamedGroup>> groups = find_to_steer(node_, caller, names);
  Status status = groups.status();
  if (status.ok() && names.empty()) status = {Code::kInvalidArgument, "no group is named"};
  if (status.ok()) status = operations_.refusal();
  if (!status.ok()) {
    refused(caller, "prepare", status);
    done(status, {});
    return [] {};
  }
  return operations_.elastic().prepare(groups.value(), timeout, std::move(done));
}

bool Broker::waits_for_switch(const std::vector<NamedGroup>& groups, Duration timeout,
                              const Operations::Observer& observer,
                              std::function<void(Duration)> start) {
  if (!operations_.refusal().ok() || !stages_.switches(groups)) return false;
  const Time asked = Clock::now();
  const Stages::WaitId wait = stages_.after_switch(
      groups, timeout, [timeout, observer, asked, start = std::move(start)](const Status& status) {
        if (!status.ok()) return observer->finished(status);
        // 0 is none.
        const Duration left = timeout - (Clock::now() - asked);
        constexpr Duration kLeast = std::chrono::milliseconds(1);
        start(timeout == Duration{} ? timeout : std::max(left, kLeast));
      });
  observer->on_wait([this, wait] { stages_.forget(wait); });
  return true;
}

namespace {

class Watched final : public OperationObserver {
 public:
  Watched(Operations::Observer observer, std::function<void()> failed)
      : observer_(std::move(observer)), failed_(std::move(failed)) {}
  void progress(const v1::Progress& progress) override { observer_->progress(progress); }
  void on_wait(std::function<void()> forget) override { observer_->on_wait(std::move(forget)); }
  void finished(const Status& status) override {
    observer_->finished(status);
    if (!status.ok() && status.code() != Code::kCancelled) failed_();
  }

 private:
  const Operations::Observer observer_;
  const std::function<void()> failed_;
};

}  // namespace

Operations::Observer Broker::watched(const Operations::Observer& observer,
                                     const Operations::Groups& in) {
  if (config_.stages.empty()) return observer;
  return std::make_shared<Watched>(observer, [this, in] {
    // Nothing of this broker's is left of an operation that its end has called off.
    if (operations_.refusal().ok()) stages_.hand_back_to_stage(in);
  });
}

Status Broker::set_turn(const Caller& caller, const std::string& name,
                        const Stages::Change& change) {
  const Result<std::vector<GroupEntry*>> groups = find_all_to_steer(node_, caller, name);
  if (!groups.ok()) {
    refused(caller, "turn", groups.status());
    return groups.status();
  }
  for (GroupEntry* group : groups.value())
    if (Status status = stages_.set(caller, *group, change); !status.ok()) return status;
  asked(caller, "group '{}': {} has changed its turns", name, caller.who);
  return {};
}

Stages::WaitId Broker::lease(const Caller& caller, const std::string& name, Duration timeout,
                             StageWaits::Done done) {
  const Result<GroupEntry*> group = find_to_steer(node_, caller, name);
  if (group.ok()) return stages_.lease(*group.value(), timeout, std::move(done));
  refused(caller, "lease", group.status());
  done(group.status());
  return 0;
}

Stages::WaitId Broker::start_group(const Caller& caller, const std::string& name,
                                   const std::string& stage, const std::set<DeviceUuid>& sees,
                                   Duration timeout, StageWaits::Done done) {
  if (Status status = stages_.check_start(caller, name, stage); !status.ok()) {
    done(status);
    return 0;
  }
  GroupEntry* group = own_group(node_, *caller.account, name);
  if (group == nullptr) {
    const Result<bool> first_turn = stages_.may_begin(caller, name, stage);
    if (!first_turn.ok() || !first_turn.value()) {
      done(first_turn.status());
      return 0;
    }
    const Result<GroupEntry*> begun = groups_.begin(name, caller.account, stage);
    if (!begun.ok()) {
      done(begun.status());
      return 0;
    }
    group = begun.value();
    group->starts_on = sees;
  } else if (!group->machine.members().empty()) {
    // Its ranks wait for their turn themselves.
    done({});
    return 0;
  }
  const Stages::WaitId wait = stages_.start(caller, *group, timeout, std::move(done));
  if (wait == 0) groups_.drive(*group);  // it is gone if nobody else is to start it
  return wait;
}

std::set<DeviceUuid> Broker::devices_in(const std::string& visible) const {
  // Numbers name the same devices here and there only where both count in the same order: where all
  // are of one kind, the driver's order is the order of their PCI buses, as amemd's.
  const std::vector<Device>& all = devices_.all();
  const bool alike = std::all_of(all.begin(), all.end(),
                                 [&](const Device& each) { return each.name == all.front().name; });
  std::set<DeviceUuid> found;
  std::stringstream list(visible);
  for (std::string name; std::getline(list, name, ',');) {
    const auto device = std::find_if(all.begin(), all.end(), [&](const Device& each) {
      return name.size() > 4 ? to_string(each.uuid).starts_with(name)
                             : alike && name == std::to_string(each.ordinal);
    });
    if (device == all.end()) return {};
    found.insert(device->uuid);
  }
  return found;
}

Status Broker::yield(const Caller& caller, const std::string& name) {
  const Result<GroupEntry*> group = find_to_steer(node_, caller, name);
  if (group.ok()) return stages_.yield(*group.value());
  refused(caller, "lease", group.status());
  return group.status();
}

std::uint64_t Broker::swap(const Caller& caller, const Names& out, const Names& in,
                           const Task& pause, Duration timeout,
                           const Operations::Observer& observer,
                           std::shared_ptr<RemoteNodes> remote_nodes) {
  const Result<std::vector<NamedGroup>> leaving = find_to_steer(node_, caller, out);
  const Result<std::vector<NamedGroup>> coming = find_to_steer(node_, caller, in);
  for (const auto* found : {&leaving, &coming}) {
    if (found->ok()) continue;
    refused(caller, "swap", found->status());
    observer->finished(found->status());
    return 0;
  }
  std::vector<NamedGroup> all = leaving.value();
  all.insert(all.end(), coming.value().begin(), coming.value().end());
  if (remote_nodes == nullptr && waits_for_switch(all, timeout, observer, [=, this](Duration left) {
        swap(caller, out, in, pause, left, observer);
      }))
    return 0;
  const auto quoted = [](const Names& names) {
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "'" : ", '") + name + "'";
    return text;
  };
  asked(caller, "{} requests a swap: it pauses {} and resumes {}", caller.who, quoted(out),
        quoted(in));
  return operations_.swap(
      {.out = leaving.value(), .in = coming.value(), .pause = pause, .timeout = timeout}, observer,
      caller, std::move(remote_nodes));
}

std::vector<FleetShare> Broker::shares() const {
  std::vector<FleetShare> all;
  for (const auto& [id, group] : node_.groups)
    all.insert(all.end(), group.shares.begin(), group.shares.end());
  return all;
}

Status Broker::set_policy(const Caller& caller, const std::string& name, const std::string& tag,
                          v1::Policy policy, v1::Form form, bool force) {
  const Result<std::vector<GroupEntry*>> groups = find_all_to_steer(node_, caller, name);
  if (!groups.ok()) {
    refused(caller, "policy", groups.status());
    return groups.status();
  }
  const bool sets_policy = policy == v1::POLICY_KEEP || policy == v1::POLICY_DISCARD;
  const std::optional<Form> save_form = from_proto(form);
  if (!sets_policy && (policy != v1::POLICY_UNSPECIFIED || form == v1::FORM_UNSPECIFIED))
    return {Code::kInvalidArgument, "the policy must be keep or discard"};
  if (!save_form && form != v1::FORM_UNSPECIFIED)
    return {Code::kInvalidArgument, "the form must be " + names_of_forms()};
  const bool discard = policy == v1::POLICY_DISCARD;
  const auto change = [&](GroupEntry& changed) {
    if (sets_policy) changed.tag_discards[tag] = discard;
    if (save_form) changed.tag_forms[tag] = *save_form;
  };
  for (GroupEntry* group : groups.value())
    if (Status status = groups_.set_policy(*group, tag, tag_drop(discard, force), change);
        !status.ok())
      return status;
  if (sets_policy)
    asked(caller, "group '{}': a pause {} tag '{}'", name, discard ? "discards" : "keeps",
          printable(tag.c_str()));
  if (save_form)
    asked(caller, "group '{}': a pause saves tag '{}' in the form {}", name, printable(tag.c_str()),
          to_string(*save_form));
  return {};
}

void Broker::look_at_devices(std::function<void()> done) {
  std::set<DeviceUuid> all;
  for (const Device& device : devices_.all()) all.insert(device.uuid);
  workers_.look(all, [done = std::move(done)](const Workers::Uses&) { done(); });
}

Families Broker::metrics(const Caller& caller) {
  stages_.account_time();
  return metric_families({node_, devices_, workers_, accounts_, events_, began_at_}, caller);
}

}  // namespace amem
