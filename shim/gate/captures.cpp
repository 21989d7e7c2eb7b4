#include "shim/gate/captures.h"

#include <algorithm>

namespace amem::shim {

Captures::Origin Captures::origin(CUstream stream, bool per_thread) {
  if (stream == CU_STREAM_PER_THREAD || (stream == nullptr && per_thread))
    return {CU_STREAM_PER_THREAD, std::this_thread::get_id()};
  return {stream, {}};
}

void Captures::began(CUstream stream, bool per_thread, CUcontext context) {
  std::lock_guard lock(mutex_);
  open_.push_back({origin(stream, per_thread), context, std::this_thread::get_id()});
  gate_.capture_began();
}

bool Captures::open(CUstream stream, bool per_thread) {
  const Origin wanted = origin(stream, per_thread);
  std::lock_guard lock(mutex_);
  return std::any_of(open_.begin(), open_.end(),
                     [&](const Capture& c) { return c.origin == wanted; });
}

bool Captures::begun_here() {
  std::lock_guard lock(mutex_);
  return std::any_of(open_.begin(), open_.end(),
                     [](const Capture& c) { return c.begun_by == std::this_thread::get_id(); });
}

void Captures::ended(CUstream stream, bool per_thread) {
  const Origin wanted = origin(stream, per_thread);
  std::lock_guard lock(mutex_);
  const auto it = std::find_if(open_.begin(), open_.end(),
                               [&](const Capture& c) { return c.origin == wanted; });
  if (it == open_.end()) return;
  open_.erase(it);
  gate_.capture_ended();
}

void Captures::context_gone(CUcontext context) {
  std::lock_guard lock(mutex_);
  const auto gone = std::erase_if(open_, [&](const Capture& c) { return c.context == context; });
  for (std::size_t i = 0; i < gone; ++i) gate_.capture_ended();
}

}  // namespace amem::shim
