#include "shim/blocks/freed_later.h"

#include <algorithm>
#include <set>
#include <utility>

#include "shim/driver/context_errors.h"
#include "shim/driver/local_devices.h"

namespace amem::shim {

CUresult FreedLater::put_behind(CUstream stream, Freed& freed) const {
  freed.stream = stream;
  if (CUresult r = driver_.cuStreamGetCtx_(stream, &freed.context); r != CUDA_SUCCESS) return r;
  const LocalDevices::Use current(driver_, freed.context);
  if (current.result() != CUDA_SUCCESS) return current.result();
  // An event takes a moment also where nothing is in front of it.
  if (!mappings_.arriving(freed.block.address) && driver_.cuStreamQuery_(stream) == CUDA_SUCCESS)
    return CUDA_SUCCESS;
  CUevent event = nullptr;
  if (CUresult r = driver_.cuEventCreate_(&event, CU_EVENT_DISABLE_TIMING); r != CUDA_SUCCESS)
    return r;
  if (CUresult r = driver_.cuEventRecord_(event, stream); r != CUDA_SUCCESS) {
    driver_.cuEventDestroy_(event);
    return r;
  }
  freed.event = event;
  return CUDA_SUCCESS;
}

bool FreedLater::passed(const Freed& freed, bool wait) const {
  const LocalDevices::Use current(driver_, freed.context);
  if (current.result() != CUDA_SUCCESS) return context_is_gone(current.result());
  const CUresult r =
      wait ? driver_.cuEventSynchronize_(freed.event) : driver_.cuEventQuery_(freed.event);
  if (r == CUDA_SUCCESS) driver_.cuEventDestroy_(freed.event);
  return r == CUDA_SUCCESS || ends_context(r);
}

bool FreedLater::any_behind_streams() const {
  return std::any_of(freed_.begin(), freed_.end(),
                     [](const Freed& freed) { return freed.event != nullptr; });
}

template <class Goes>
std::vector<HeapBlock> FreedLater::collect_if(const Goes& goes) {
  std::vector<HeapBlock> blocks;
  std::erase_if(freed_, [&](const Freed& freed) {
    const bool going = goes(freed);
    if (going) blocks.push_back(freed.block);
    return going;
  });
  return blocks;
}

std::vector<HeapBlock> FreedLater::collect_captured() {
  return collect_if([](const Freed& freed) { return freed.event == nullptr; });
}

std::vector<HeapBlock> FreedLater::collect_of(CUcontext context) {
  return collect_if([context](const Freed& freed) {
    return freed.block.context == context || freed.context == context;
  });
}

std::vector<HeapBlock> FreedLater::collect_passed(std::unique_lock<std::mutex>& lock, bool wait) {
  if (!wait) {
    std::set<std::pair<CUcontext, CUstream>> behind;  // these have not come to what they were asked
    return collect_if([&](const Freed& freed) {
      const std::pair stream(freed.context, freed.stream);
      if (freed.event == nullptr || behind.contains(stream) ||
          mappings_.arriving(freed.block.address))
        return false;
      const bool goes = passed(freed, false);
      if (!goes) behind.insert(stream);
      return goes;
    });
  }
  std::vector<Freed> waited;
  std::erase_if(freed_, [&](const Freed& freed) {
    if (freed.event != nullptr) waited.push_back(freed);
    return freed.event != nullptr;
  });
  if (waited.empty()) return {};
  lock.unlock();
  std::vector<HeapBlock> blocks;
  std::erase_if(waited, [&](const Freed& freed) {
    const bool goes = passed(freed, true);
    if (goes) blocks.push_back(freed.block);
    return goes;
  });
  lock.lock();
  freed_.insert(freed_.end(), waited.begin(), waited.end());
  return blocks;
}

}  // namespace amem::shim
