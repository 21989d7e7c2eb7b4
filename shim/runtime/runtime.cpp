#include "shim/runtime/runtime.h"

#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <new>

#include "common/job.h"
#include "shim/base/log.h"
#include "shim/base/no_cancel.h"
#include "shim/gate/deep_calls.h"
#include "shim/gate/wait_log.h"
#include "shim/memory/paused_memory.h"
#include "shim/process/fault_points.h"
#include "shim/process/modules.h"
#include "shim/process/python.h"
#include "shim/process/symbols.h"
#include "shim/process/unknown_calls.h"

namespace amem::shim {
namespace {

// The broker's own deadlines bound the phases; this is only for a broker that no longer answers at
// all.
constexpr std::chrono::minutes kPhasesDeadline{10};
/// Without AMEM_TIMEOUT: for the other ranks to ask for the same.
constexpr std::chrono::seconds kTimeout{60};
constexpr std::chrono::minutes kTagsTimeout{30};
/// For what the broker answers at once.
constexpr std::chrono::seconds kAnswerDeadline{30};

/// Libraries whose own memory is registered with devices by its address, so that it cannot move:
/// GPUDirect Storage reads and writes through such buffers.
constexpr const char* kImmovable = "libcufile";

/// How long the end of the driver is put off for what the service thread is doing in it.
constexpr std::chrono::milliseconds kDriverEndDeadline{300};

Runtime* instance = nullptr;
pthread_once_t instance_once = PTHREAD_ONCE_INIT;
std::atomic<bool> made{false};  // for who does not want to make it

int rank_from_environment() {
  for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    char* end = nullptr;
    const long rank = std::strtol(value, &end, 10);
    if (*end == '\0' && rank >= 0 && rank < (1L << 30)) return static_cast<int>(rank);
  }
  return -1;
}

LocalDevices* devices_of_gate = nullptr;
int current_device_of_caller() { return devices_of_gate->current(); }
bool stream_idle(int device, CUstream stream) { return devices_of_gate->idle(device, stream); }

const char* environment(const char* name) { return std::getenv(name); }

/// A driver whose calls the table was never compared with is worth a line.
void compare_with_table(const Driver& driver) {
  int version = 0;
  if (driver.cuDriverGetVersion_ == nullptr || driver.cuDriverGetVersion_(&version) != CUDA_SUCCESS)
    return;
  if (version > kTableVersion)
    log_warn("the driver supports CUDA " + cuda_version(version) +
             ", but this amem knows driver calls only up to CUDA " + cuda_version(kTableVersion) +
             ". It hides newer calls from the program");
  else if (version < kOldestVersion)
    log_warn("the driver supports CUDA " + cuda_version(version) +
             ", but this amem has been tested only with CUDA " + cuda_version(kOldestVersion) +
             " and newer");
}

/// Returns a group's name for a process that has no named group to take turns with. Process ids are
/// the same in different containers.
std::string group_of_one() {
  std::uint32_t number = 0;
  if (::getentropy(&number, sizeof number) != 0) number = 0;  // then the process id has to do
  char name[64];
  std::snprintf(name, sizeof name, "tms-%d-%08x", static_cast<int>(::getpid()), number);
  return name;
}

/// Tags into a message's field; kInvalidArgument when they do not fit.
template <std::size_t N, std::size_t Size>
Status put_tags(const std::vector<std::string>& tags, char (&field)[N][Size], pb_size_t& count) {
  if (tags.size() > N)
    return {Code::kInvalidArgument, "a request can name at most " + std::to_string(N) +
                                        " tags, not " + std::to_string(tags.size())};
  for (const std::string& tag : tags) {
    if (tag.empty() || tag.size() >= Size)
      return {Code::kInvalidArgument, "\"" + tag + "\" is not a valid tag. Use 1 to " +
                                          std::to_string(Size - 1) + " bytes"};
    tag.copy(field[count++], tag.size());
  }
  return {};
}

}  // namespace

Gate* the_gate = nullptr;

bool Runtime::disabled() {
  static const bool disabled = [] {
    std::vector<std::string> complaints;
    return Options::parse(&environment, complaints).disabled;
  }();
  return disabled;
}

Runtime& Runtime::get() {
  pthread_once(&instance_once, [] {
    instance = new Runtime;
    made.store(true, std::memory_order_release);
    if (const int error = ::pthread_atfork(nullptr, nullptr, &Runtime::after_fork_in_child);
        error != 0) {
      log_error(errno_status(Code::kUnavailable, "pthread_atfork", error).text() +
                ". This process runs without amem");
      instance->tried_ = true;
    }
  });
  return *instance;
}

Runtime* runtime_if_made() { return made.load(std::memory_order_acquire) ? instance : nullptr; }

Runtime::Runtime() {
  std::vector<std::string> complaints;
  options_ = Options::parse(&environment, complaints,
                            module_of(reinterpret_cast<const void*>(&environment)));
  alone_ = options_.alone;
  name_group_of_one();
  set_log_level(options_.log_level);
  for (const std::string& complaint : complaints) log_warn(complaint);
  open_trace(options_.trace);
  the_gate = &gate_;
  // Now: a child of fork could find them half made.
  DeepCalls::get();
  wait_log();
}

Runtime::Runtime(Options options, bool alone, bool forked)
    : options_(std::move(options)), alone_(alone), tried_(forked), forked_(forked) {}

bool Runtime::brokers(const void* code_address) const {
  return !alone_ && is_nccl(file_of(code_address));
}

bool Runtime::is_nccl(const char* file) const {
  return *file != '\0' && matches_module(file, options_.modules);
}

std::optional<Label> Runtime::label(const void* code_address) {
  // Its driver refuses every call, and says so better than we do.
  if (forked()) return std::nullopt;
  // NCCL's memory is never dropped and has no region, whoever calls NCCL from where.
  const char* const file = file_of(code_address);
  if (is_nccl(file)) {
    if (alone_) return std::nullopt;
    scratch_.of_nccl(code_address);
    return Label{kNcclTag};
  }
  if (options_.scope == Scope::kNccl || Region::unbrokered()) return std::nullopt;
  if (matches_module(file, kImmovable)) return std::nullopt;
  std::optional<Label> label = Region::current();
  if (!label && options_.scope == Scope::kHeap) label = Label{kHeapTag, options_.heap_policy};
  return label;
}

bool Runtime::connected() {
  if (forked_.load(std::memory_order_acquire)) return false;
  if (opened_.load(std::memory_order_acquire)) return session_.alive();
  // Before cuInit there is nothing to try: the driver does not tell its devices yet.
  if (!driver_loaded_.load(std::memory_order_acquire) && !load_driver().ok()) return false;
  const NoCancel no_cancel;
  std::lock_guard lock(mutex_);
  if (!tried_) {
    tried_ = true;
    const Status s = open();
    if (s.ok())
      opened_.store(true, std::memory_order_release);
    else if (options_.required)
      log_error(s.text() + ". Brokered calls fail, because AMEM_REQUIRED=1 is set");
    else
      log_warn(s.text() + ". This process runs without amem");
  }
  return opened_.load(std::memory_order_acquire) && session_.alive();
}

bool Runtime::free_for_driver() {
  connected();
  Heap* used = heap();
  if (used == nullptr) return false;
  used->flush_frees(Heap::Streams::kWaitFor);
  memory_.brokered.close_spares();
  return true;
}

Status Runtime::load_driver() {
  if (driver_loaded_.load(std::memory_order_acquire)) return {};
  std::lock_guard lock(driver_mutex_);
  if (driver_loaded_.load(std::memory_order_relaxed)) return {};
  if (Status s = driver_.load(real_dlsym()); !s.ok()) return s;
  if (Status s = devices_.load(); !s.ok()) return s;
  find_fault_points();
  compare_with_table(driver_);
  driver_loaded_.store(true, std::memory_order_release);
  return {};
}

void Runtime::name_group_of_one() {
  if (!alone_ || named_by_ == ::getpid()) return;
  named_by_ = ::getpid();
  options_.group = group_of_one();
}

Status Runtime::open() {
  if (Status s = load_driver(); !s.ok()) return s;
  name_group_of_one();  // anew for a child of fork, whose parent had not come so far
  devices_of_gate = &devices_;
  Gate::Policy policy{options_.gate_waits, options_.gate_timeout, &current_device_of_caller,
                      &stream_idle};
  Python::look();
  if (Python::found()) {
    policy.interpreter_ends = &Python::ending;
    policy.ends_with_interpreter = &Python::ends_this_thread;
  }
  policy.group = options_.group;
  gate_.prepare(policy);

  Session::Identity identity;
  identity.group = options_.group;
  identity.job = options_.job;
  identity.stage = options_.stage;
  identity.rank = rank_from_environment();
  memory_.handles.set_rank(identity.rank);
  memory_.handles.set_binding(options_.nvls);
  identity.program = program_invocation_short_name;
  for (int device = 0; device < devices_.count(); ++device)
    identity.devices.push_back(devices_.uuid(device));
  const std::string path = options_.runtime_dir + "/session.sock";
  // Before the service thread exists: a command of the broker may shut the gate at once.
  if (Status s = session_.connect(path, identity, options_.reconnect); !s.ok()) return s;
  if (session_.welcome().gate_shut) {
    phases_.join_shut(session_.welcome().paused_by, session_.welcome().first_turn);
    log_info("group " + options_.group + " is not running. This rank waits for its resume");
  }
  // Before the service thread, which moves it, exists. The first runs before the driver's own end,
  // which was registered when the program initialised it.
  before_driver_.arm();
  exit_.arm();
  if (Status s = session_.start(phases_); !s.ok()) {
    if (session_.welcome().gate_shut) gate_.open();  // nobody else would
    return s;
  }
  UnknownCalls::get().on_news([] { instance->report_.changed(); });
  report_.changed();
  log_info("rank " + std::to_string(session_.rank_id()) + " of group " +
           whole_group_name(options_.group, options_.job) + " at " + path);
  return {};
}

/// Threads that are not here may have had any lock, and been in the middle of any change. So the
/// child gets a runtime of its own in the place of its parent's, and nothing in it is destroyed. If
/// the parent had not asked for a broker the child may.
void Runtime::after_fork_in_child() {
  Runtime& parents = *instance;
  parents.session_.abandon_after_fork();
  UnknownCalls::get().reset_after_fork();
  parents.gate_.reset_after_fork();
  DeepCalls::reset_after_fork();
  PausedMemory::reset_after_fork();
  new (&parents) Runtime(std::move(parents.options_), parents.alone_, parents.tried_);
}

/// exit() has begun: nothing of ours may hold it up.
void Runtime::process_ends() {
  Runtime& self = *instance;
  if (self.forked()) return;
  self.gate_.end();
  DeepCalls::get().process_ends();
  self.memory_.brokered.end();
  PausedMemory::end();
  self.session_.end();
}

/// The broker hears no more of this rank until the process has ended. This is true: whatever it
/// asks for could not be done.
void Runtime::driver_ends() {
  Runtime& self = *instance;
  if (self.forked()) return;
  const auto deadline = Session::Clock::now() + kDriverEndDeadline;
  self.session_.stop(deadline);
  self.work_.stop(deadline);
}

void Runtime::device_used(int device) {
  if (device < 0 || device >= 64) return;
  // To prepare a device on which the program has no context would make one, a few hundred MiB for
  // good.
  if (devices_.current() != device && !devices_.active(device)) return;
  {
    std::lock_guard lock(mutex_);
    const std::uint64_t bit = std::uint64_t{1} << device;
    if ((prepared_devices_ & bit) != 0) return;
    prepared_devices_ |= bit;
  }
  session_.run([this, device] {
    if (Status s = mover_.prepare(device, session_.welcome().hashes); !s.ok()) log_error(s.text());
  });
}

void Runtime::device_reset(int device) {
  memory_.unbrokered.device_reset(device);
  if (device < 0 || device >= 64 || !opened_.load(std::memory_order_acquire)) return;
  devices_.forget(device);
  {
    std::lock_guard lock(mutex_);
    prepared_devices_ &= ~(std::uint64_t{1} << device);
  }
  session_.run([this, device] {
    mover_.forget(device);
    scratch_.forget(device);
  });
}

std::string Runtime::stats() {
  const bool opened = opened_.load(std::memory_order_acquire);
  if (Heap* used = heap(); used != nullptr) used->flush_frees();
  // While the group is paused the driver may keep whoever asks it until the resume.
  const bool ask = driver_loaded_.load(std::memory_order_acquire) && gate_.try_enter();
  std::string json =
      report_.stats(group(), opened ? session_.rank_id() : 0, to_string(options_.scope), ask);
  if (ask) gate_.leave_quietly();
  return json;
}

Status group_request(Runtime& runtime, const GroupRequest& what, std::uint32_t timeout_ms) {
  const auto request = new_message(amem_v1_SessionMessage_group_request_tag);
  auto& body = request->body.group_request;
  body.except = !what.except.empty();
  if (body.except && !what.tags.empty())
    return {Code::kInvalidArgument, "tags and excepted tags exclude each other. Pass one of them"};
  if (const Status s = put_tags(body.except ? what.except : what.tags, body.tags, body.tags_count);
      !s.ok())
    return s;
  if (const Status s = put_tags(what.discard, body.discard, body.discard_count); !s.ok()) return s;
  if (what.set.size() >= sizeof body.set)
    return {Code::kInvalidArgument, "the set \"" + what.set + "\" has more than " +
                                        std::to_string(sizeof body.set - 1) + " bytes"};
  set_text(body.set, what.set);
  body.set_ranks = what.set_ranks;
  // A rank's request for tags may have to wait for the other ranks, as a collective does.
  const bool of_tags = body.tags_count > 0;
  if (timeout_ms == 0)
    timeout_ms = static_cast<std::uint32_t>(std::min<std::int64_t>(
        std::chrono::milliseconds(
            runtime.options().timeout.value_or(of_tags ? kTagsTimeout : kTimeout))
            .count(),
        UINT32_MAX));
  body.op = what.op;
  body.guests = what.guests;
  body.deep = what.deep;
  body.force = what.force;
  body.timeout_ms = timeout_ms;
  const bool resumes = what.op == amem_v1_GroupOp_GROUP_OP_RESUME;
  if (resumes) wait_log().resumes(true);
  const Status status =
      runtime.ask(*request, std::chrono::milliseconds(timeout_ms) + kPhasesDeadline);
  if (resumes) wait_log().resumes(false);
  if (status.ok() && resumes)
    WaitLog::resumed_here();
  else if (status.ok() && !of_tags)
    wait_log().paused_here();
  return status;
}

Status Runtime::ask(Message& request, std::chrono::milliseconds deadline) {
  if (connected()) return session_.call(request, deadline).status();
  if (forked())
    return {Code::kFailedPrecondition,
            "this process is a child of fork(), which is not in its parent's group. Ask in the "
            "parent, or start it as a separate program"};
  if (opened_.load(std::memory_order_acquire) && session_.ended())
    return {Code::kUnavailable,
            "this process has lost its broker and runs without amem. Restart the job"};
  if (opened_.load(std::memory_order_acquire))
    return {Code::kUnavailable,
            "the broker has ended, and this process waits for another. Start amemd again"};
  if (!driver_loaded_.load(std::memory_order_acquire))
    return {Code::kFailedPrecondition,
            "this process has not initialised CUDA yet, so amem brokers none of its memory"};
  return {Code::kUnavailable, "there is no broker at " + options_.runtime_dir +
                                  "/session.sock. Start amemd, or set AMEM_RUNTIME_DIR"};
}

Status set_policy(Runtime& runtime, const std::string& tag, amem_v1_RegionPolicy policy,
                  bool force) {
  const auto request = new_message(amem_v1_SessionMessage_set_policy_tag);
  auto& body = request->body.set_policy;
  if (tag.empty() || tag.size() >= sizeof body.tag)
    return {Code::kInvalidArgument, "\"" + tag + "\" is not a valid tag. Use 1 to " +
                                        std::to_string(sizeof body.tag - 1) + " bytes"};
  set_text(body.tag, tag);
  body.policy = policy;
  body.force = force;
  return runtime.ask(*request, kAnswerDeadline);
}

Status Runtime::set_group(const std::string& name) {
  std::lock_guard lock(mutex_);
  if (name == options_.group) return {};
  if (tried_)
    return {Code::kFailedPrecondition, "this process already belongs to group " + options_.group +
                                           ". Set the group before the first brokered allocation"};
  options_.group = name;
  alone_ = false;
  return {};
}

std::string Runtime::group() {
  std::lock_guard lock(mutex_);
  return options_.group;
}

}  // namespace amem::shim
