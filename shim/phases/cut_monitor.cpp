#include "shim/phases/cut_monitor.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "common/packet.h"
#include "shim/base/log.h"
#include "shim/base/own_thread.h"
#include "shim/driver/context_errors.h"
#include "shim/process/unknown_calls.h"

namespace amem::shim {
namespace {

// Everything that can change is announced; this only bounds what a lost wake-up would cost.
constexpr std::chrono::milliseconds kRecheck{5};
/// Before a wait for a device that the driver has refused is tried again.
constexpr std::chrono::milliseconds kDrainAgain{50};

constexpr const char* kTask = "watch the devices";

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

/// Why there is no pause while this library is loaded, and what to do.
std::string why_refused(const Bypass::Finding& finding) {
  const std::string library = base_name(finding.library);
  if (finding.unknown) {
    const bool signable =
        knowledge_of(finding.symbol) == Knowledge::kUnknown && !says_memory(finding.symbol);
    return library + " is linked to the driver call " + finding.symbol +
           ", which amem does not know. Use a newer amem" +
           (signable ? std::string(", add the call to ") + kCallListName +
                           " if it neither submits work nor allocates"
                     : "") +
           ", or set AMEM_BYPASS_ALLOWED=" + library + " if it does not touch brokered memory";
  }
  return library + " reaches CUDA past amem (its " + finding.symbol +
         " is not the shim's, as after dlopen with RTLD_DEEPBIND). Load it without that, or set "
         "AMEM_SHIM_WITHOUT=deepbind. If it does not touch brokered memory, set "
         "AMEM_BYPASS_ALLOWED=NAME";
}

}  // namespace

/// Without its threads nobody says that the rank is quiet: the pause is called off at its deadline,
/// and the program runs on.
/// REQUIRES: mutex_ held. The threads inherit the signal mask of the service thread, which blocks
/// everything, by way of the monitor.
void CutMonitor::start_drainers() {
  for (int device : watched_) {
    const auto index = static_cast<std::size_t>(device);
    if (drainers_.size() <= index) drainers_.resize(index + 1);
    if (drainers_[index] == nullptr) drainers_[index] = std::make_unique<Drainer>();
    Drainer& drainer = *drainers_[index];
    if (!drainer.started)
      drainer.started = start_own_thread("amem-drain", kTask,
                                         [this, device, &drainer] { drain(device, drainer); });
  }
}

void CutMonitor::begin(std::uint64_t epoch) {
  gate_.close();
  std::lock_guard lock(mutex_);
  if (!monitor_started_)
    monitor_started_ = start_own_thread("amem-cut", kTask, [this] { monitor(); });
  epoch_ = epoch;
  ++cuts_;
  wake_.notify_all();
}

void CutMonitor::permit(const amem_v1_Permit& permit) {
  {
    std::lock_guard lock(mutex_);
    if (permit.epoch != epoch_) return;
  }
  gate_.permit(devices_.ordinal(make_uuid(permit.device)), permit.in_turn);
}

void CutMonitor::end() {
  std::lock_guard lock(mutex_);
  epoch_ = 0;
}

void CutMonitor::monitor() {
  std::uint64_t version = 0;
  std::uint64_t reported_cut = 0;
  bool refused = false;  // this cut
  for (;;) {
    std::uint64_t epoch = 0;
    std::uint64_t cut = 0;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return epoch_ != 0; });
      epoch = epoch_;
      cut = cuts_;
    }
    if (cut != reported_cut) {
      std::memset(&last_, 0, sizeof last_);  // epoch 0: differs from anything to be sent
      reported_cut = cut;
      refused = false;
    }
    // Each time: a library may be loaded at any moment, and bind its calls later.
    if (!refused) refused = refuse_bypass(epoch);
    if (!refused) report(epoch, gate_.snapshot());
    version = gate_.wait_change(version, kRecheck);
  }
}

bool CutMonitor::refuse_bypass(std::uint64_t epoch) {
  const std::vector<Bypass::Finding> findings = bypass_.look();
  std::vector<UnknownCalls::Call> linked;
  for (const Bypass::Finding& finding : findings)
    if (finding.unknown)
      linked.push_back({finding.symbol, UnknownCalls::Fate::kLinked, base_name(finding.library)});
  UnknownCalls::get().set_linked(linked);
  if (findings.empty()) return false;
  for (const Bypass::Finding& finding : findings) {
    if (finding.unknown) {
      log_error("the pause fails: " + finding.library + " is linked to " + finding.symbol +
                ", a driver call that amem does not know");
    } else {
      log_error("the pause fails: " + finding.library + " reaches the CUDA driver past amem: its " +
                finding.symbol + " is not the shim's");
    }
  }
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_phase_done_tag;
  amem_v1_PhaseDone& done = message.body.phase_done;
  done.epoch = epoch;
  done.phase = number_of(RankPhase::kQuiet);
  done.code = static_cast<std::uint32_t>(Code::kFailedPrecondition);
  set_text(done.text, why_refused(findings.front()));
  session_.post(message);
  return true;
}

void CutMonitor::report(std::uint64_t epoch, const Gate::Snapshot& snapshot) {
  amem_v1_CutStatus status;
  std::memset(&status, 0, sizeof status);  // padding too: it is compared as bytes
  status.epoch = epoch;
  status.permits = snapshot.permits_used;
  status.captures = snapshot.captures;
  // Once the rank has been reported quiet the broker may have it save: nothing is freed any more.
  const bool reported_quiet = snapshot.passes == quiet_at_;
  const bool moving =
      snapshot.any_active || snapshot.captures > 0 || !(reported_quiet || heap_.no_unused_left());
  // The gate has shut since, which counts as a pass; or callers passed while a capture was open,
  // and one may have come to use another device.
  if (snapshot.passes != watched_at_) {
    watched_ = devices_.active();
    if (watched_.size() > kMaxDevices) watched_.resize(kMaxDevices);
    watched_at_ = snapshot.passes;
  }
  {
    std::lock_guard lock(mutex_);
    if (epoch_ != epoch) return;
    start_drainers();
    for (int device : watched_) {
      const auto index = static_cast<std::size_t>(device);
      Drainer& drainer = *drainers_[index];
      if (!moving && drainer.wanted != snapshot.passes) {
        drainer.wanted = snapshot.passes;
        wake_.notify_all();
      }
      amem_v1_DeviceCut& cut = status.devices[status.devices_count++];
      std::memcpy(cut.device, devices_.uuid(device).bytes.data(), sizeof cut.device);
      cut.busy = moving || drainer.drained != snapshot.passes;
      if (cut.busy && drainer.refused != CUDA_SUCCESS)
        set_text(cut.error, driver_.name(drainer.refused));
      if (index >= snapshot.waiting.size()) continue;
      cut.waiting = snapshot.waiting[index].callers;
      cut.ready = snapshot.waiting[index].ready;
    }
  }
  const amem_v1_DeviceCut* const first = status.devices;
  const auto is_busy = [](const amem_v1_DeviceCut& cut) { return cut.busy; };
  if (!moving && std::none_of(first, first + status.devices_count, is_busy))
    quiet_at_ = snapshot.passes;
  if (std::memcmp(&status, &last_, sizeof status) == 0) return;
  last_ = status;
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_cut_status_tag;
  message.body.cut_status = status;
  session_.post(message);
}

/// Success: nothing runs on the device any more. A context that has ended does no more work; the
/// program gets its error from its own calls.
CUresult CutMonitor::wait_until_idle(int device, CUresult refused_before) {
  CUresult r = CUDA_SUCCESS;
  {
    LocalDevices::Use use(devices_, device);
    r = use.result() == CUDA_SUCCESS ? driver_.cuCtxSynchronize_() : use.result();
  }
  if (r == CUDA_SUCCESS) return r;
  const bool gone = ends_context(r) || !devices_.may_be_active(device);
  if (gone || r != refused_before)
    log_warn("waiting for device " + std::to_string(device) + " to be idle: " + driver_.name(r) +
             (gone ? ". Its context has ended, so nothing runs there"
                   : ". amem considers it busy, and waits again"));
  return gone ? CUDA_SUCCESS : r;
}

void CutMonitor::drain(int device, Drainer& drainer) {
  for (;;) {
    std::uint64_t target = 0;
    CUresult refused = CUDA_SUCCESS;
    {
      std::unique_lock lock(mutex_);
      if (drainer.refused != CUDA_SUCCESS)
        wake_.wait_for(lock, kDrainAgain, [&] { return epoch_ == 0; });
      wake_.wait(lock, [&] { return drainer.wanted != drainer.drained; });
      // A context-wide wait breaks every stream capture in the context. While the gate is shut and
      // no capture is open none can begin (Gate::enter_capture); once it is open again it is too
      // late.
      if (epoch_ == 0 || !gate_.drain_begins()) {
        drainer.wanted = drainer.drained;
        drainer.refused = CUDA_SUCCESS;
        continue;
      }
      target = drainer.wanted;
      refused = drainer.refused;
    }
    const CUresult r = wait_until_idle(device, refused);
    gate_.drain_ended();
    {
      std::lock_guard lock(mutex_);
      drainer.refused = r;
      if (r == CUDA_SUCCESS) drainer.drained = target;
    }
    gate_.changed();
  }
}

}  // namespace amem::shim
