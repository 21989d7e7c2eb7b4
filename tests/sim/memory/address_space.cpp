#include "tests/sim/memory/address_space.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "tests/sim/memory/multicast.h"
#include "tests/sim/node/node.h"
#include "tests/sim/node/usage.h"

namespace sim {
namespace {

using Reservations = std::map<uintptr_t, size_t>;
using Ranges = std::map<uintptr_t, Range>;

Reservations& AllReservations() {
  static auto* const reservations = new Reservations();
  return *reservations;
}

Ranges& AllRanges() {
  static auto* const ranges = new Ranges();
  return *ranges;
}

void* Pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

bool IsMultiple(uint64_t value) { return value % Node().granularity == 0; }

// The last entry that begins at or before an address.
template <typename Map>
typename Map::iterator AtOrBefore(Map& map, uintptr_t address) {
  auto it = map.upper_bound(address);
  return it == map.begin() ? map.end() : std::prev(it);
}

const std::pair<const uintptr_t, size_t>* FindReservation(uintptr_t address) {
  const auto it = AtOrBefore(AllReservations(), address);
  if (it == AllReservations().end() || address >= it->first + it->second) return nullptr;
  return &*it;
}

bool OverlapsRange(uintptr_t base, size_t bytes) {
  const auto after = AllRanges().lower_bound(base);
  if (after != AllRanges().end() && after->first < base + bytes) return true;
  const auto before = AtOrBefore(AllRanges(), base);
  return before != AllRanges().end() && before->second.end() > base;
}

Range& Insert(Range range) {
  static uint64_t next_id = 0;
  range.id = ++next_id;
  return AllRanges().emplace(range.base, std::move(range)).first->second;
}

// The mappings that [base, base + bytes) covers exactly; empty if it cuts one or leaves a gap.
std::vector<Ranges::iterator> WholeMappings(uintptr_t base, size_t bytes) {
  std::vector<Ranges::iterator> found;
  uintptr_t next = base;
  for (auto it = AllRanges().find(base); next < base + bytes; ++it) {
    if (it == AllRanges().end() || it->first != next || it->second.kind != RangeKind::kMapping ||
        it->second.end() > base + bytes) {
      return {};
    }
    found.push_back(it);
    next = it->second.end();
  }
  return found;
}

int Protection(const Range& range) {
  int protection = PROT_NONE;
  for (const Access& access : range.access) {
    if (access.flags == CU_MEM_ACCESS_FLAGS_PROT_READ) protection |= PROT_READ;
    if (access.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) protection |= PROT_READ | PROT_WRITE;
  }
  return protection;
}

void* MapFile(uintptr_t base, size_t bytes, int protection, int fd) {
  const int fixed = base != 0 ? MAP_FIXED : 0;
  void* at = mmap(Pointer(base), bytes, protection, MAP_SHARED | fixed, fd, 0);
  // A forked child has no GPU memory; and if it had the mapping, it would keep the memory alive.
  if (at != MAP_FAILED) madvise(at, bytes, MADV_DONTFORK);
  return at;
}

bool HasDeviceMemory(const Range& range) { return range.on_device() && !range.multicast(); }

bool g_mapped_hidden = false;

void NoteMapped(const Physical& memory) { g_mapped_hidden |= VisibleOrdinal(memory.owner()) < 0; }

// REQUIRES: HasDeviceMemory.
const Physical& MemoryOf(const Range& range) {
  return range.kind == RangeKind::kMapping ? *range.allocation->memory : *range.memory;
}

// May `accessor`, or the device the memory lies on, use the mapping?
bool Grants(const Range& range, bool write, int accessor) {
  return std::any_of(range.access.begin(), range.access.end(), [&](const Access& access) {
    const bool concerns = access.type == CU_MEM_LOCATION_TYPE_DEVICE
                              ? access.physical == accessor || access.physical == range.device
                              : !range.on_device();
    const bool enough = write ? access.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                              : access.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return concerns && enough;
  });
}

}  // namespace

CUresult ReserveAddresses(size_t bytes, size_t alignment, uintptr_t hint, uintptr_t* out) {
  if (alignment == 0) alignment = Node().granularity;
  if (bytes == 0 || !IsMultiple(bytes) || (alignment & (alignment - 1)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  alignment = std::max<size_t>(alignment, Node().granularity);
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  if (hint != 0 && hint % alignment == 0) {
    void* at = mmap(Pointer(hint), bytes, PROT_NONE, kFlags | MAP_FIXED_NOREPLACE, -1, 0);
    if (at == Pointer(hint)) {
      AllReservations().emplace(hint, bytes);
      *out = hint;
      return CUDA_SUCCESS;
    }
    if (at != MAP_FAILED) munmap(at, bytes);  // a kernel that does not know the flag
  }
  if (bytes > SIZE_MAX - alignment) return CUDA_ERROR_OUT_OF_MEMORY;
  void* at = mmap(nullptr, bytes + alignment, PROT_NONE, kFlags, -1, 0);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto begin = reinterpret_cast<uintptr_t>(at);
  const uintptr_t base = (begin + alignment - 1) & ~(alignment - 1);
  if (base > begin) munmap(at, base - begin);
  if (base < begin + alignment) munmap(Pointer(base + bytes), begin + alignment - base);
  AllReservations().emplace(base, bytes);
  *out = base;
  return CUDA_SUCCESS;
}

CUresult FreeAddresses(uintptr_t base, size_t bytes) {
  const auto it = AllReservations().find(base);
  if (it == AllReservations().end() || it->second != bytes || OverlapsRange(base, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  AllReservations().erase(it);
  munmap(Pointer(base), bytes);
  return CUDA_SUCCESS;
}

CUresult MapAllocation(uintptr_t base, size_t bytes,
                       const std::shared_ptr<Allocation>& allocation) {
  // The size is looked at before all else; a part of a handle, or more than it, is not supported.
  const MulticastObject* const object = allocation->multicast.get();
  const size_t whole = object != nullptr ? object->bytes() : allocation->memory->bytes();
  if (bytes != whole) return CUDA_ERROR_NOT_SUPPORTED;
  if (!IsMultiple(base)) return CUDA_ERROR_INVALID_VALUE;
  const auto* reservation = FindReservation(base);
  if (reservation == nullptr || bytes > reservation->first + reservation->second - base ||
      OverlapsRange(base, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // There is nothing for kernels to touch where a multicast object is mapped.
  if (object == nullptr) {
    if (MapFile(base, bytes, PROT_NONE, allocation->memory->fd()) == MAP_FAILED) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    NoteMapped(*allocation->memory);
  }
  Range range;
  range.base = base;
  range.bytes = bytes;
  range.allocation = allocation;
  range.device = object != nullptr ? kMulticastDevice : allocation->memory->device();
  Insert(std::move(range));
  return CUDA_SUCCESS;
}

CUresult UnmapRange(uintptr_t base, size_t bytes) {
  const auto* reservation = FindReservation(base);
  if (reservation == nullptr || bytes == 0 || !IsMultiple(base) || !IsMultiple(bytes) ||
      bytes > reservation->first + reservation->second - base) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // Gaps are fine, even nothing but a gap. A mapping that would be cut is not.
  const auto begin = AllRanges().lower_bound(base);
  const auto end = AllRanges().lower_bound(base + bytes);
  const auto before = AtOrBefore(AllRanges(), base);
  const bool cuts_first =
      before != AllRanges().end() && before->first < base && before->second.end() > base;
  const bool cuts_last = begin != end && std::prev(end)->second.end() > base + bytes;
  if (cuts_first || cuts_last) return CUDA_ERROR_INVALID_VALUE;
  if (begin == end) return CUDA_SUCCESS;
  // One mmap over everything: what was mapped there goes, the reservation stays.
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  if (mmap(Pointer(base), bytes, PROT_NONE, kFlags, -1, 0) == MAP_FAILED) {
    return CUDA_ERROR_UNKNOWN;
  }
  AllRanges().erase(begin, end);
  return CUDA_SUCCESS;
}

CUresult SetRangeAccess(uintptr_t base, size_t bytes, const std::vector<Access>& access) {
  const auto mappings = WholeMappings(base, bytes);
  if (mappings.empty()) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& it : mappings) {
    Range& range = it->second;
    for (const Access& wanted : access) {
      const auto same = std::find_if(
          range.access.begin(), range.access.end(),
          [&](const Access& a) { return a.type == wanted.type && a.physical == wanted.physical; });
      if (same != range.access.end()) {
        *same = wanted;
      } else {
        range.access.push_back(wanted);
      }
    }
    if (!range.multicast() && mprotect(Pointer(range.base), range.bytes, Protection(range)) != 0) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  return CUDA_SUCCESS;
}

CUresult AddDeviceMemory(Range range, uintptr_t* out) {
  const Physical& memory = *range.memory;
  void* at = MapFile(0, memory.bytes(), PROT_READ | PROT_WRITE, memory.fd());
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  NoteMapped(memory);
  range.base = reinterpret_cast<uintptr_t>(at);
  range.device = memory.device();
  range.mapped_bytes = memory.bytes();
  *out = Insert(std::move(range)).base;
  return CUDA_SUCCESS;
}

CUresult OpenSharedMemory(const std::shared_ptr<Physical>& memory, size_t bytes, CUcontext context,
                          uintptr_t* out) {
  for (auto& [base, range] : AllRanges()) {
    if (range.memory == nullptr || !range.memory->SameAs(*memory)) continue;
    if (range.kind == RangeKind::kDevice) return CUDA_ERROR_INVALID_CONTEXT;
    ++range.opens;
    *out = base;
    return CUDA_SUCCESS;
  }
  Range range;
  range.bytes = bytes;
  range.kind = RangeKind::kShared;
  range.context = context;
  range.memory = memory;
  range.opens = 1;
  return AddDeviceMemory(std::move(range), out);
}

bool CloseSharedMemory(uintptr_t base) {
  const auto it = AllRanges().find(base);
  if (it == AllRanges().end() || it->second.kind != RangeKind::kShared) return false;
  return --it->second.opens > 0 || RemoveRange(base, RangeKind::kShared);
}

CUresult AddHostMemory(size_t bytes, CUcontext context, unsigned flags, uintptr_t* out) {
  // Populated at once: pinned memory is there before anyone touches it.
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  Range range;
  range.base = reinterpret_cast<uintptr_t>(at);
  range.bytes = bytes;
  range.kind = RangeKind::kHostAllocated;
  range.device = kHostMemory;
  range.context = context;
  range.host_flags = flags;
  *out = Insert(std::move(range)).base;
  return CUDA_SUCCESS;
}

CUresult RegisterHostMemory(uintptr_t base, size_t bytes, CUcontext context, unsigned flags) {
  if (base == 0 || bytes == 0 || bytes > UINTPTR_MAX - base) return CUDA_ERROR_INVALID_VALUE;
  if (OverlapsRange(base, bytes)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  Range range;
  range.base = base;
  range.bytes = bytes;
  range.kind = RangeKind::kHostRegistered;
  range.device = kHostMemory;
  range.context = context;
  range.host_flags = flags;
  Insert(std::move(range));
  return CUDA_SUCCESS;
}

bool RemoveRange(uintptr_t base, RangeKind kind) {
  const auto it = AllRanges().find(base);
  if (it == AllRanges().end() || it->second.kind != kind) return false;
  // munmap rounds the length up to pages, as mmap did when the range was made.
  if (kind != RangeKind::kHostRegistered) {
    munmap(Pointer(base), std::max(it->second.bytes, it->second.mapped_bytes));
  }
  AllRanges().erase(it);
  return true;
}

void RemoveRangesOf(CUcontext context) {
  std::vector<std::pair<uintptr_t, RangeKind>> doomed;
  for (const auto& [base, range] : AllRanges()) {
    if (range.context == context) doomed.emplace_back(base, range.kind);
  }
  for (const auto& [base, kind] : doomed) RemoveRange(base, kind);
}

void RevokeHostMemory(int device) {
  for (auto& [base, range] : AllRanges()) {
    if (range.kind != RangeKind::kMapping || range.on_device()) continue;
    std::erase_if(range.access, [&](const Access& access) {
      return access.type == CU_MEM_LOCATION_TYPE_DEVICE && access.physical == device;
    });
    mprotect(Pointer(range.base), range.bytes, Protection(range));
  }
}

bool HasMappedHiddenMemory() { return g_mapped_hidden; }

void TakeOffDeviceMemory() {
  for (const auto& [base, range] : AllRanges()) {
    if (!HasDeviceMemory(range)) continue;
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    const size_t bytes = MemoryOf(range).bytes();
    if (mmap(Pointer(base), bytes, PROT_NONE, kFlags, -1, 0) == MAP_FAILED) {
      Die("cannot unmap memory for a checkpoint");
    }
  }
}

CUresult PutBackDeviceMemory() {
  for (const auto& [base, range] : AllRanges()) {
    if (!HasDeviceMemory(range)) continue;
    const int protection =
        range.kind == RangeKind::kMapping ? Protection(range) : PROT_READ | PROT_WRITE;
    const Physical& memory = MemoryOf(range);
    if (MapFile(base, memory.bytes(), protection, memory.fd()) == MAP_FAILED) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  return CUDA_SUCCESS;
}

bool SetSyncMemops(uintptr_t address, bool value) {
  const auto it = AtOrBefore(AllRanges(), address);
  if (it == AllRanges().end() || address >= it->second.end()) return false;
  it->second.sync_memops = value;
  return true;
}

bool FindReservation(uintptr_t address, uintptr_t* base, size_t* bytes) {
  const auto* reservation = FindReservation(address);
  if (reservation == nullptr) return false;
  *base = reservation->first;
  *bytes = reservation->second;
  return true;
}

const Range* FindRange(uintptr_t address) {
  const auto it = AtOrBefore(AllRanges(), address);
  return it == AllRanges().end() || address >= it->second.end() ? nullptr : &it->second;
}

Checked CheckAccess(uintptr_t address, size_t bytes, bool write, int accessor) {
  const std::lock_guard<std::mutex> lock(MemoryMutex());
  Checked checked;
  const Range* range = FindRange(address);
  if (range == nullptr) {
    const bool reserved = FindReservation(address) != nullptr;
    const bool runs_into_range = bytes != 0 && OverlapsRange(address, bytes);
    if (reserved || runs_into_range || address == 0) checked.result = CUDA_ERROR_INVALID_VALUE;
    return checked;
  }
  checked.device = range->device;
  checked.memory = range->on_device() ? Memory::kDevice : Memory::kPinned;
  if (range->multicast()) {
    checked.multicast = range->allocation->multicast;
    checked.offset = address - range->base;
    if (!write) checked.result = CUDA_ERROR_NOT_SUPPORTED;
    if (!write) return checked;
  }
  for (uintptr_t at = address;;) {
    if (range == nullptr || range->device != checked.device ||
        (range->kind == RangeKind::kMapping && !Grants(*range, write, accessor))) {
      checked.result = CUDA_ERROR_INVALID_VALUE;
      return checked;
    }
    if (bytes <= range->end() - at) return checked;
    bytes -= range->end() - at;
    at = range->end();
    range = FindRange(at);
  }
}

}  // namespace sim
