#include "tests/sim/work/context.h"

#include <pthread.h>

#include <array>
#include <vector>

#include "tests/sim/memory/address_space.h"
#include "tests/sim/memory/array.h"
#include "tests/sim/node/node.h"
#include "tests/sim/work/stream.h"

namespace sim {
namespace {

std::set<Context*>& AllContexts() {
  static auto* const contexts = new std::set<Context*>();
  return *contexts;
}

using Stack = std::vector<CUcontext>;

// Through a pthread key: as with the real driver a thread has its contexts until it has ended, and
// the main thread while exit() runs, when thread_local objects are gone.
Stack& ThreadStack() {
  static const pthread_key_t key = [] {
    pthread_key_t made = 0;
    pthread_key_create(&made, [](void* stack) { delete static_cast<Stack*>(stack); });
    return made;
  }();
  auto* stack = static_cast<Stack*>(pthread_getspecific(key));
  if (stack == nullptr) {
    stack = new Stack;
    pthread_setspecific(key, stack);
  }
  return *stack;
}

// Takes the device memory a context needs. The lock is let go: admission may scan /proc.
CUresult Occupy(Lock& lock, int physical, std::shared_ptr<Physical>* out) {
  if (Node().context_bytes == 0) return CUDA_SUCCESS;
  lock.unlock();
  const CUresult result = Physical::Create(physical, Node().context_bytes, 0, out);
  lock.lock();
  return result;
}

}  // namespace

Lock LockDriver() {
  static auto* const mutex = new std::mutex();
  return Lock(*mutex);
}

Context* FindContext(CUcontext handle) {
  const auto it = AllContexts().find(reinterpret_cast<Context*>(handle));
  return it == AllContexts().end() ? nullptr : *it;
}

CUresult CurrentContext(Context** out) {
  Context* const context = FindContext(CurrentHandle());
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *out = context;
  return context->sticky;
}

CUcontext CurrentHandle() { return ThreadStack().empty() ? nullptr : ThreadStack().back(); }

void PushContext(CUcontext handle) { ThreadStack().push_back(handle); }

void SetCurrentHandle(CUcontext handle) {
  if (!ThreadStack().empty()) ThreadStack().pop_back();
  if (handle != nullptr) ThreadStack().push_back(handle);
}

bool PopContext(CUcontext* out) {
  if (ThreadStack().empty()) return false;
  *out = ThreadStack().back();
  ThreadStack().pop_back();
  return true;
}

Context& PrimaryContext(int physical) {
  static auto* const primaries = [] {
    auto* const all = new std::array<Context, kMaxDevices>();
    for (size_t i = 0; i < all->size(); ++i) {
      (*all)[i].physical = static_cast<int>(i);
      (*all)[i].primary = true;
      AllContexts().insert(&(*all)[i]);
    }
    return all;
  }();
  return (*primaries)[static_cast<size_t>(physical)];
}

CUresult RetainPrimary(Lock& lock, int physical, CUcontext* out) {
  Context& context = PrimaryContext(physical);
  if (!context.alive) {
    std::shared_ptr<Physical> memory;
    const CUresult result = Occupy(lock, physical, &memory);
    if (result != CUDA_SUCCESS) return result;
    // Another thread may have been faster while the lock was let go; then its memory stays and ours
    // goes.
    if (!context.alive) {
      context.alive = true;
      context.sticky = CUDA_SUCCESS;
      context.own_memory = std::move(memory);
    }
  }
  ++context.references;
  *out = context.handle();
  return CUDA_SUCCESS;
}

CUresult CreateContext(Lock& lock, int physical, unsigned flags, CUcontext* out) {
  std::shared_ptr<Physical> memory;
  const CUresult result = Occupy(lock, physical, &memory);
  if (result != CUDA_SUCCESS) return result;
  // Never deleted, so that a stale handle is recognised for what it is.
  auto* const context = new Context();
  context->physical = physical;
  context->flags = flags;
  context->alive = true;
  context->own_memory = std::move(memory);
  AllContexts().insert(context);
  *out = context->handle();
  return CUDA_SUCCESS;
}

void DestroyContext(Lock& lock, Context& context) {
  context.alive = false;  // no new work
  context.references = 0;
  std::vector<std::shared_ptr<Marker>> pending;
  for (const auto& stream : context.streams) pending.push_back(stream->last());
  for (const auto& marker : pending) Wait(lock, marker);
  const std::vector<std::shared_ptr<Stream>> streams(context.streams.begin(),
                                                     context.streams.end());
  for (const auto& stream : streams) DestroyStream(stream);
  context.legacy.reset();
  context.per_thread.clear();
  context.own_memory.reset();
  context.peers.clear();
  const std::lock_guard<std::mutex> memory_lock(MemoryMutex());
  RemoveRangesOf(context.handle());
  RemoveArraysOf(context.handle());
  if (context.primary) RevokeHostMemory(context.physical);
}

CUresult SynchronizeDevice(Lock& lock, int physical) {
  std::vector<std::shared_ptr<Marker>> pending;
  std::vector<Context*> contexts;
  for (Context* const context : AllContexts()) {
    if (context->physical != physical || !context->alive) continue;
    contexts.push_back(context);
    for (const auto& stream : context->streams) pending.push_back(stream->last());
  }
  for (const auto& marker : pending) Wait(lock, marker);
  for (const Context* const context : contexts) {
    if (context->sticky != CUDA_SUCCESS) return context->sticky;
  }
  return CUDA_SUCCESS;
}

}  // namespace sim
