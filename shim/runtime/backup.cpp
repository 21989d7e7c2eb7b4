#include "shim/runtime/backup.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "shim/base/no_cancel.h"
#include "shim/process/python.h"
#include "shim/runtime/runtime.h"

namespace amem::shim {

struct BackupAccess {
  static Mover& mover(Runtime& runtime) { return runtime.mover_; }
  static Session& session(Runtime& runtime) { return runtime.session_; }
};

namespace {

/// So much is read at a time: the service thread has commands to obey in between.
constexpr std::uint64_t kAtOnce = 64U << 20U;
constexpr std::chrono::seconds kDeadline{60};
/// How late a caller may see that the process is ending.
constexpr std::chrono::milliseconds kEndCheck{100};

/// What the service thread must do, and whether anybody still waits for it.
struct Errand {
  std::mutex mutex;
  std::condition_variable done;
  std::optional<Status> result;
  bool given_up = false;
};

/// None of the memory leaves or returns while it runs.
Status on_service_thread(Runtime& runtime, std::function<Status(Mover&)> work) {
  if (!runtime.connected()) return {Code::kUnavailable, "there is no broker, so nothing is saved"};
  using Clock = std::chrono::steady_clock;
  const NoCancel no_cancel;
  const EndOfCaller end;
  Session& session = BackupAccess::session(runtime);
  const auto errand = std::make_shared<Errand>();
  session.run([&runtime, errand, work = std::move(work)] {
    std::lock_guard lock(errand->mutex);
    if (errand->given_up) return;
    errand->result = work(BackupAccess::mover(runtime));
    errand->done.notify_all();
  });
  std::unique_lock lock(errand->mutex);
  bool ending = false;
  for (auto until = Clock::now() + kDeadline; !errand->result && Clock::now() < until;) {
    // While it serves, the service thread comes to it at once: exit() must not wait for more.
    if (!ending && end.is_here(session.ending())) {
      ending = true;
      until = std::min(until, Clock::now() + Session::kEndDeadline);
    }
    errand->done.wait_until(lock, std::min(until, Clock::now() + kEndCheck));
  }
  if (errand->result) return *errand->result;
  errand->given_up = true;
  if (ending)
    return {Code::kUnavailable,
            "reading saved bytes: the process is ending, and this rank is busy with a pause or a "
            "resume"};
  return {Code::kDeadlineExceeded,
          "reading saved bytes: this rank has not begun it within 60 s. A pause or a resume may be "
          "in progress. Try again"};
}

}  // namespace

Status read_backup(Runtime& runtime, CUdeviceptr address, std::uint64_t size, std::byte* out) {
  std::optional<std::uint64_t> pauses;
  for (std::uint64_t at = 0; at < size; at += kAtOnce) {
    const Status s = on_service_thread(runtime, [&](Mover& mover) -> Status {
      if (pauses.value_or(mover.backups().pauses()) != mover.backups().pauses())
        return {Code::kAborted, "another pause began while saved bytes were read. Try again"};
      pauses = mover.backups().pauses();
      return mover.reader().read(address + at, std::min(kAtOnce, size - at), out + at);
    });
    if (!s.ok()) return s;
  }
  return {};
}

Result<const void*> view_backup(Runtime& runtime, CUdeviceptr address, std::uint64_t size) {
  const void* view = nullptr;
  const Status s = on_service_thread(runtime, [&](Mover& mover) -> Status {
    Result<const void*> found = mover.reader().view(address, size);
    if (found.ok()) view = found.value();
    return found.status();
  });
  if (!s.ok()) return s;
  return view;
}

}  // namespace amem::shim
