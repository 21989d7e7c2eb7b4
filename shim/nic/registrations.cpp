#include "shim/nic/registrations.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <iterator>
#include <string>
#include <utility>

#include "shim/base/log.h"
#include "shim/memory/operands.h"
#include "shim/memory/paused_memory.h"
#include "shim/runtime/await_memory.h"
#include "shim/runtime/runtime.h"

namespace amem::shim {
namespace {

int errno_of(CUresult refused) {
  switch (refused) {
    case CUDA_ERROR_TIMEOUT:
      return ETIMEDOUT;
    case CUDA_ERROR_NOT_READY:
      return EAGAIN;
    default:
      return EIO;  // the broker is gone, or the process is ending
  }
}

void tell_once(const char* call, std::size_t size) {
  static std::atomic<bool> told{false};
  if (told.exchange(true)) return;
  log_info(std::string(call) + ": the program registers brokered memory (" + std::to_string(size) +
           " bytes). It stays on its device during a pause while it is registered");
}

}  // namespace

Registrations& Registrations::get() {
  static auto* const all = new Registrations;
  return *all;
}

bool Registrations::has_nothing() const {
  return size_.load(std::memory_order_acquire) == 0 || runtime_if_made()->forked();
}

void Registrations::add(const Key& key, All pinned) {
  if (pinned.empty()) return;
  std::lock_guard lock(mutex_);
  All& all = book_[key];
  std::move(pinned.begin(), pinned.end(), std::back_inserter(all));
  size_.store(book_.size(), std::memory_order_release);
}

Registrations::All Registrations::take(const Key& key) {
  if (has_nothing()) return {};
  std::lock_guard lock(mutex_);
  auto node = book_.extract(key);
  size_.store(book_.size(), std::memory_order_release);
  return node ? std::move(node.mapped()) : All();
}

std::map<Registrations::Key, Registrations::All> Registrations::take_all(const void* object) {
  if (has_nothing()) return {};
  std::lock_guard lock(mutex_);
  std::map<Key, All> taken;
  for (auto it = book_.lower_bound({object, 0}); it != book_.end() && it->first.object == object;)
    taken.insert(book_.extract(it++));
  size_.store(book_.size(), std::memory_order_release);
  return taken;
}

namespace {

/// The process's runtime, where some of the range is brokered by it. Cuts off a range that goes
/// round the end of all addresses.
Runtime* broker_of(std::uint64_t address, std::size_t& size) {
  Runtime* runtime = runtime_if_made();
  if (runtime == nullptr || runtime->forked()) return nullptr;
  size = std::min<std::uint64_t>(size, ~std::uint64_t{0} - address);
  return size != 0 && runtime->memory().mappings.brokered(address, size) ? runtime : nullptr;
}

/// 0: the pass lets the call through.
int refusal(const Pass& pass, const char* call, std::size_t size) {
  if (pass.result() == CUDA_SUCCESS) return 0;
  log_error(std::string(call) + " of " + std::to_string(size) +
            " bytes of brokered memory fails, because its group is not running");
  return errno_of(pass.result());
}

}  // namespace

Registering::Registering(const char* call, amem_v1_PinReason reason, std::uint64_t address,
                         std::size_t size) {
  Runtime* const runtime = broker_of(address, size);
  if (runtime == nullptr) return;
  const Pass pass(*the_gate);
  error_ = refusal(pass, call, size);
  if (error_ != 0) return;
  Result<Pins::Pinned> pinned = runtime->slabs().pin(address, size, reason);
  if (!pinned.ok()) {
    error_ = EFAULT;  // as for an address where nothing is
    log_error(std::string(call) + ": " + pinned.status().text());
    return;
  }
  pinned_ = std::move(pinned).value();
  tell_once(call, size);
}

Registering::~Registering() {
  if (!pinned_) return;
  const int saved_errno = errno;  // the caller's caller is to see it
  runtime_if_made()->memory().pins.unpin(std::move(*pinned_));
  errno = saved_errno;
}

void Registering::commit(const Registrations::Key& key) {
  if (!pinned_) return;
  Registrations::get().add(key, {std::move(*pinned_)});
  pinned_.reset();
}

Transferring::Transferring(const char* call, std::uint64_t address, std::size_t size) {
  Runtime* const runtime = broker_of(address, size);
  if (runtime == nullptr) return;
  const Operands named{{address, size}};
  while (true) {
    error_ = refusal(pass_.emplace(*the_gate), call, size);
    if (error_ != 0) return;
    // What is here stays here while the pass lasts.
    if (!PausedMemory::any() || !PausedMemory::of(runtime->memory().brokered, named)) return;
    pass_.reset();
    if (const CUresult r = await_memory(call, named, {}); r != CUDA_SUCCESS) {
      error_ = errno_of(r);
      return;
    }
  }
}

void unpin(const Registrations::All& all) {
  Runtime* runtime = runtime_if_made();
  if (runtime == nullptr || runtime->forked()) return;
  const int saved_errno = errno;
  for (const Pins::Pinned& pinned : all) runtime->memory().pins.unpin(pinned);
  errno = saved_errno;
}

}  // namespace amem::shim
