#include "shim/memory/brokered_memory.h"

#include <algorithm>
#include <utility>

#include "shim/base/log.h"
#include "shim/base/no_cancel.h"
#include "shim/memory/paused_memory.h"
#include "shim/process/python.h"

namespace amem::shim {
namespace {

constexpr std::chrono::seconds kCloseDeadline{1};
// More than the broker's own deadlines for a resume; for a broker that is stuck.
constexpr std::chrono::minutes kArrivalDeadline{5};
// How late a caller may see that the process is ending.
constexpr std::chrono::milliseconds kEndCheck{200};

}  // namespace

std::string describe(const BrokeredAllocation& a) {
  return "allocation " + std::to_string(a.id) + " (" + std::to_string(a.size) + " bytes, device " +
         std::to_string(a.device) + ")";
}

CUresult BrokeredMemory::import_descriptor(CUmemGenericAllocationHandle* real, const Fd& fd) const {
  return driver_.cuMemImportFromShareableHandle_(
      real, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd.get())),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

CUresult BrokeredMemory::ensure_real(BrokeredAllocation& a) const {
  if (a.real != 0) return CUDA_SUCCESS;
  // What is stale is not its memory any more.
  if (!a.mapped() || a.mapped_at.empty()) return CUDA_ERROR_INVALID_VALUE;
  CUmemGenericAllocationHandle real = 0;
  const CUresult r =
      driver_.cuMemRetainAllocationHandle_(&real, reinterpret_cast<void*>(a.mapped_at.front()));
  if (r == CUDA_SUCCESS) a.real = real;
  return r;
}

void BrokeredMemory::release_handle(const BrokeredAllocation& a, std::uint64_t& handle) {
  if (handle == 0) return;
  if (CUresult r = driver_.cuMemRelease_(handle); r != CUDA_SUCCESS) {
    log_error("releasing " + describe(a) + ": " + driver_.name(r) + ". The next pause tries again");
    refused_.push_back(handle);
  }
  handle = 0;
}

void BrokeredMemory::drop_real(BrokeredAllocation& a) { release_handle(a, a.real); }

void BrokeredMemory::drop_made(BrokeredAllocation& a) { release_handle(a, a.made); }

void BrokeredMemory::drop_unneeded(BrokeredAllocation& a) {
  if (!AllocationTable::needs_real(a)) drop_real(a);
  // One that another thread is just redeeming is still ours to the broker.
  if (!AllocationTable::unused(a) || redeeming.contains(a.id)) return;
  drop_made(a);
  const std::uint64_t id = a.id;
  const bool was_paused = !a.usable();
  table.forget(id);
  if (was_paused) PausedMemory::update(*this);
  tell_free(id);
}

void BrokeredMemory::tell_free(std::uint64_t id) {
  const auto message = new_message(amem_v1_SessionMessage_free_tag);
  message->body.free.id = id;
  session_.post(*message);
  frees_sent_.fetch_add(1);
}

bool BrokeredMemory::wait_arrival(std::unique_lock<std::mutex>& lock,
                                  const std::function<bool()>& arriving) {
  const NoCancel no_cancel;
  const EndOfCaller end;
  const auto deadline = std::chrono::steady_clock::now() + kArrivalDeadline;
  while (arriving()) {
    if (end.is_here(ending_.load(std::memory_order_relaxed))) return false;
    if (std::chrono::steady_clock::now() >= deadline) {
      log_error("memory of a resume did not arrive. amemd may not be running");
      return false;
    }
    arrivals_.wait_for(lock, kEndCheck);
  }
  return true;
}

std::optional<std::vector<Mapping*>> BrokeredMemory::await_arrivals(
    std::unique_lock<std::mutex>& lock, CUdeviceptr address, std::size_t size) {
  std::vector<Mapping*> touched;
  const bool in_time = wait_arrival(lock, [&] {
    touched = table.overlapping(address, size);
    return std::any_of(touched.begin(), touched.end(),
                       [&](const Mapping* m) { return table.find(m->id)->arriving(); });
  });
  if (!in_time) return std::nullopt;
  return touched;
}

void BrokeredMemory::forget_arrivals() {
  for (auto& [id, a] : table.allocations())
    if (a.arriving()) table.move(a, Where::kHere);
  arrivals_.notify_all();
}

Status BrokeredMemory::release_refused() {
  CUresult refused = CUDA_SUCCESS;
  std::erase_if(refused_, [&](CUmemGenericAllocationHandle handle) {
    const CUresult r = driver_.cuMemRelease_(handle);
    if (r != CUDA_SUCCESS) refused = r;
    return r == CUDA_SUCCESS;
  });
  if (refused_.empty()) return {};
  return driver_.error(
      refused, "releasing the handles of " + std::to_string(refused_.size()) + " allocations");
}

// Where the broker is late the program sees less memory free than there will be, as when another
// process is about to free some.
std::uint64_t BrokeredMemory::ask_to_await_closed(const amem_v1_AwaitClosed& what,
                                                  const char* why) {
  const Result<std::uint64_t> spare_bytes =
      session_.await_closed(what, kCloseDeadline, kUsualAnswer);
  if (spare_bytes.ok()) return spare_bytes.value();
  log_debug(why + (": " + spare_bytes.status().text()));
  return 0;
}

std::uint64_t BrokeredMemory::spare_bytes(const DeviceUuid& device) {
  if (!session_.has_spares()) return 0;
  amem_v1_AwaitClosed what{};
  std::memcpy(what.device, device.bytes.data(), device.bytes.size());
  return ask_to_await_closed(what, "asking for memory that waits for a resume");
}

void BrokeredMemory::close_spares() {
  if (!session_.has_spares()) return;
  amem_v1_AwaitClosed what{};
  what.close_spares = true;
  ask_to_await_closed(what, "having memory closed that waits for a resume");
}

void BrokeredMemory::await_frees() {
  const std::uint64_t sent = frees_sent_.load();
  if (frees_awaited_.load() >= sent) return;
  ask_to_await_closed({}, "waiting for freed memory");
  // Whoever has sent a Free meanwhile asks for itself.
  std::uint64_t awaited = frees_awaited_.load();
  while (awaited < sent && !frees_awaited_.compare_exchange_weak(awaited, sent)) {
  }
}

std::vector<amem_v1_Inventory_Item> BrokeredMemory::list(
    const std::function<std::vector<std::uint64_t>()>& mark) {
  std::lock_guard lock(mutex);
  const std::vector<std::uint64_t> given = mark();
  std::vector<amem_v1_Inventory_Item> items;
  items.reserve(table.allocations().size() + given.size());
  for (const auto& [id, a] : table.allocations()) {
    std::uint32_t pins = 0;
    for (const PinnedBy& by : a.pins) pins |= 1U << static_cast<unsigned>(by.reason);
    items.push_back({id, pins, !a.on_device()});
  }
  for (const std::uint64_t id : given)
    if (table.find(id) == nullptr) items.push_back({id, 0, false});
  return items;
}

bool BrokeredMemory::has(std::uint64_t id) {
  std::lock_guard lock(mutex);
  return table.find(id) != nullptr;
}

bool BrokeredMemory::is_empty() { return table.empty(); }

bool BrokeredMemory::is_paused(std::uint64_t id) {
  std::lock_guard lock(mutex);
  const BrokeredAllocation* a = table.find(id);
  return a != nullptr && !a->on_device();
}

std::uint64_t BrokeredMemory::bytes_paused() {
  std::lock_guard lock(mutex);
  std::uint64_t bytes = 0;
  for (const auto& [id, a] : table.allocations())
    if (a.saved()) bytes += a.size;
  return bytes;
}

std::uint64_t BrokeredMemory::bytes_here() {
  std::lock_guard lock(mutex);
  std::uint64_t bytes = 0;
  for (const auto& [id, a] : table.allocations())
    if (a.on_device()) bytes += a.size;
  return bytes;
}

std::string BrokeredMemory::name(std::uint64_t id) {
  std::lock_guard lock(mutex);
  const BrokeredAllocation* a = table.find(id);
  if (a == nullptr) return "allocation " + std::to_string(id);
  return describe(*a) + ", tag '" + a->tag + "'";
}

BrokeredMemory::Totals BrokeredMemory::totals() {
  std::lock_guard lock(mutex);
  Totals t;
  for (const auto& [id, a] : table.allocations()) {
    (a.imported ? t.imported_bytes : t.owned_bytes) += a.size;
    ++t.allocations;
  }
  t.mappings = table.mappings().size();
  return t;
}

std::vector<BrokeredMemory::TagUsage> BrokeredMemory::usage() {
  std::lock_guard lock(mutex);
  std::map<std::pair<std::string, int>, TagUsage> found;
  for (const auto& [id, a] : table.allocations()) {
    TagUsage& usage = found.try_emplace({a.tag, a.device}, TagUsage{a.tag, a.device}).first->second;
    (a.imported      ? usage.imported_bytes
     : a.on_device() ? usage.resident_bytes
                     : usage.paused_bytes) += a.size;
    ++usage.allocations;
  }
  std::vector<TagUsage> usages;
  for (auto& [key, usage] : found) usages.push_back(std::move(usage));
  return usages;
}

}  // namespace amem::shim
