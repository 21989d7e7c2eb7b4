#include "shim/blocks/stream_lines.h"

#include <atomic>
#include <chrono>
#include <iterator>
#include <thread>
#include <vector>

#include "shim/driver/context_errors.h"
#include "shim/driver/local_devices.h"

namespace amem::shim {
namespace {

/// How long an event may take that has nothing in front of it, as far as its stream says.
constexpr std::chrono::milliseconds kComesAtOnce{2};

/// Never used twice, as the numbers that the kernel and the C library give threads are.
std::uint64_t this_thread() {
  static std::atomic<std::uint64_t> last{0};
  static thread_local std::uint64_t number __attribute__((tls_model("initial-exec"))) = 0;
  if (number == 0) number = ++last;
  return number;
}

}  // namespace

CUresult StreamLines::find(CUstream stream, bool per_thread, Line*& line) {
  Name name;
  name.stream = stream;
  if (stream == nullptr) name.stream = per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
  if (name.stream == CU_STREAM_PER_THREAD || name.stream == CU_STREAM_LEGACY) {
    if (CUresult r = driver_.cuCtxGetCurrent_(&name.context); r != CUDA_SUCCESS) return r;
    if (name.context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (name.stream == CU_STREAM_PER_THREAD) name.thread = this_thread();
  }
  const auto known = by_name_.find(name);
  if (known == by_name_.end()) return add(name, line);
  line = known->second;
  return CUDA_SUCCESS;
}

CUresult StreamLines::add(const Name& name, Line*& line) {
  Line fresh;
  fresh.stream = name.stream;
  fresh.thread = name.thread;
  fresh.context = name.context;
  if (fresh.context == nullptr)
    if (CUresult r = driver_.cuStreamGetCtx_(name.stream, &fresh.context); r != CUDA_SUCCESS)
      return r;
  {
    const LocalDevices::Use current(driver_, fresh.context);
    if (current.result() != CUDA_SUCCESS) return current.result();
    if (CUresult r = driver_.cuCtxGetDevice_(&fresh.device); r != CUDA_SUCCESS) return r;
    unsigned flags = 0;
    fresh.alone = name.context == nullptr &&
                  driver_.cuStreamGetFlags_(fresh.stream, &flags) == CUDA_SUCCESS &&
                  (flags & CU_STREAM_NON_BLOCKING) != 0;
  }
  fresh.number = ++last_;
  line = &lines_.emplace(fresh.number, fresh).first->second;
  by_name_[name] = line;
  return CUDA_SUCCESS;
}

StreamLines::Line* StreamLines::of(PoolPieces::Line number) {
  const auto it = lines_.find(number);
  return it != lines_.end() ? &it->second : nullptr;
}

bool StreamLines::can_be_named(const Line& line) const {
  return !line.gone && (line.thread == 0 || line.thread == this_thread());
}

PoolPieces::Point StreamLines::free_in(Line& line) {
  ++line.freed;
  if (line.thread != 0) record(line);
  return {line.number, line.freed};
}

/// Behind all frees so far. Of a stream that nobody can name, behind all that its context does.
bool StreamLines::record(Line& line) {
  const bool named = can_be_named(line);
  if (!named && driver_.cuCtxRecordEvent_ == nullptr) return false;
  const LocalDevices::Use current(driver_, line.context);
  if (current.result() != CUDA_SUCCESS) return false;
  if (line.event == nullptr &&
      driver_.cuEventCreate_(&line.event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
    line.event = nullptr;
    return false;
  }
  const CUresult r = named ? driver_.cuEventRecord_(line.event, line.stream)
                           : driver_.cuCtxRecordEvent_(line.context, line.event);
  if (r != CUDA_SUCCESS) return false;
  line.recorded = line.freed;
  return true;
}

bool StreamLines::wait_behind(Line& line, const Line& waits) {
  if (line.recorded < line.freed && !record(line)) return false;
  const LocalDevices::Use current(driver_, waits.context);
  return current.result() == CUDA_SUCCESS &&
         driver_.cuStreamWaitEvent_(waits.stream, line.event, 0) == CUDA_SUCCESS;
}

bool StreamLines::reuse_in(Line& line) {
  if (line.stream != CU_STREAM_LEGACY || line.passed == line.freed) return true;
  return wait_behind(line, line);
}

bool StreamLines::has_passed(const PoolPieces::Point& point) {
  const Line* const line = of(point.line);
  return line == nullptr || line->passed >= point.order;
}

/// Finds out how far it has come.
void StreamLines::look_at(Line& line) {
  const LocalDevices::Use current(driver_, line.context);
  if (current.result() != CUDA_SUCCESS) {
    if (context_is_gone(current.result())) line.passed = line.freed;
    return;
  }
  bool idle = false;
  if (can_be_named(line)) {
    const CUresult r = driver_.cuStreamQuery_(line.stream);
    idle = r == CUDA_SUCCESS;
    if ((idle && line.alone) || ends_context(r)) {
      line.passed = line.freed;
      return;
    }
  }
  // One that is recorded waits for its answer first: recorded anew it would never come, unless the
  // stream has nothing else to do.
  if ((line.recorded <= line.passed || (idle && line.recorded < line.freed)) && !record(line))
    return;
  const auto until = std::chrono::steady_clock::now() + kComesAtOnce;
  CUresult r = driver_.cuEventQuery_(line.event);
  while (idle && r == CUDA_ERROR_NOT_READY && std::chrono::steady_clock::now() < until) {
    std::this_thread::yield();
    r = driver_.cuEventQuery_(line.event);
  }
  if (r == CUDA_SUCCESS || ends_context(r)) line.passed = line.recorded;
}

/// Nothing is behind it, and nobody can use the stream, or only a thread that may have ended.
bool StreamLines::unneeded(const Line& line) const {
  return line.passed == line.freed && line.users == 0 && (line.gone || line.thread != 0);
}

StreamLines::Lines::iterator StreamLines::forget(Lines::iterator line) {
  if (line->second.event != nullptr) {
    const LocalDevices::Use current(driver_, line->second.context);
    if (current.result() == CUDA_SUCCESS) driver_.cuEventDestroy_(line->second.event);
  }
  std::erase_if(by_name_, [&](const auto& named) { return named.second == &line->second; });
  return lines_.erase(line);
}

void StreamLines::ask(const Passed& passed) {
  for (auto it = lines_.begin(); it != lines_.end();) {
    Line& line = it->second;
    const std::uint64_t before = line.passed;
    if (before < line.freed) look_at(line);
    if (line.passed > before) passed(line.number, line.passed);
    it = unneeded(line) ? forget(it) : std::next(it);
  }
}

void StreamLines::wait(std::unique_lock<std::mutex>& lock, const Passed& passed) {
  struct Waited {
    PoolPieces::Line number = 0;
    CUcontext context = nullptr;
    CUevent event = nullptr;  // none: for all that the context does
    std::uint64_t order = 0;
  };
  ask(passed);
  std::vector<Waited> all;
  for (auto& [number, line] : lines_) {
    if (line.passed == line.freed) continue;
    const bool recorded = line.recorded == line.freed || record(line);
    all.push_back({number, line.context, recorded ? line.event : nullptr, line.freed});
    ++line.users;
  }
  if (all.empty()) return;
  lock.unlock();
  std::vector<bool> came;
  for (const Waited& each : all) {
    const LocalDevices::Use current(driver_, each.context);
    CUresult r = current.result();
    if (r == CUDA_SUCCESS)
      r = each.event != nullptr ? driver_.cuEventSynchronize_(each.event)
                                : driver_.cuCtxSynchronize_();
    came.push_back(r == CUDA_SUCCESS || ends_context(r) || context_is_gone(current.result()));
  }
  lock.lock();
  for (std::size_t i = 0; i < all.size(); ++i) {
    Line* const line = of(all[i].number);
    if (line == nullptr) continue;
    --line->users;
    if (!came[i] || line->passed >= all[i].order) continue;
    line->passed = all[i].order;
    passed(line->number, line->passed);
  }
}

bool StreamLines::any_behind() const {
  for (const auto& [number, line] : lines_)
    if (line.passed < line.freed) return true;
  return false;
}

void StreamLines::stream_goes(CUstream stream, bool captured) {
  const auto known = by_name_.find({stream, nullptr, 0});
  if (known == by_name_.end()) return;
  Line& line = *known->second;
  // Captured, it has nothing more to do that is not the context's.
  if (!captured && line.recorded < line.freed && line.passed < line.freed) record(line);
  line.gone = true;
  by_name_.erase(known);
}

void StreamLines::context_gone(CUcontext context, const Passed& passed) {
  for (auto it = lines_.begin(); it != lines_.end();) {
    if (it->second.context != context) {
      ++it;
      continue;
    }
    passed(it->second.number, it->second.freed);
    it->second.event = nullptr;
    std::erase_if(by_name_, [&](const auto& named) { return named.second == &it->second; });
    it = lines_.erase(it);
  }
}

}  // namespace amem::shim
