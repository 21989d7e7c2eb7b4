#include "tests/sim/work/sparse_kernels.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>

#include "common/block_hash.h"
#include "common/sparse.h"
#include "tests/sim/memory/copy.h"

namespace sim {
namespace {

using namespace amem::sparse;
namespace block_hash = amem::block_hash;

unsigned char* Bytes(uint64_t address) { return reinterpret_cast<unsigned char*>(address); }

bool IsZero(const unsigned char* bytes, uint64_t length) {
  return bytes[0] == 0 && memcmp(bytes, bytes + 1, length - 1) == 0;
}

// One group of one range, as a thread block sees it.
struct Group {
  const Launch& launch;
  const amem::sparse::Range& range;
  uint32_t number;  // in the range

  uint64_t entry(uint64_t bytes = sizeof(Entry)) const {
    return launch.entries + (range.first_entry + number) * bytes;
  }
  Entry* index() const { return reinterpret_cast<Entry*>(range.pool) + number; }
  uint64_t begin(uint32_t block) const { return number * kGroup + block * kBlock; }
  uint64_t bytes(uint32_t block) const {
    return begin(block) < range.length ? std::min(kBlock, range.length - begin(block)) : 0;
  }
  unsigned char* block(uint32_t block) const { return Bytes(range.device + begin(block)); }
  uint64_t slot(uint32_t slot) const { return index_bytes(range.length) + slot * kBlock; }
};

// How a kernel gets at memory, so that a wrong address is an error and not the end of the process.
bool MayUse(uint64_t address, uint64_t bytes, bool write, int device) {
  const Checked checked = CheckAccess(address, bytes, write, device);
  return checked.result == CUDA_SUCCESS && checked.memory != Memory::kPageable &&
         checked.multicast == nullptr && address % kUnit == 0 && bytes % kUnit == 0;
}

// Whether the pool has what a gather writes or a scatter reads: a copy's place may be shorter than
// the range.
bool MayUsePool(const Launch& launch, const amem::sparse::Range& range, bool write, int device) {
  const uint64_t index = index_bytes(range.length);
  if (!MayUse(range.pool, index, write, device)) return false;
  const auto in_range = static_cast<uint32_t>(amem::sparse::groups(range.length));
  uint64_t slots = 0;
  for (uint32_t i = 0; i < in_range; ++i) {
    const Group group{launch, range, i};
    const Entry* entry = write ? reinterpret_cast<const Entry*>(group.entry()) : group.index();
    for (uint32_t block = 0; block < kBlocksPerGroup; ++block) {
      if ((entry->mask >> block & 1) != 0) slots += group.bytes(block);
    }
  }
  return MayUse(range.pool, std::min(index + slots, std::max(index, range.length)), write, device);
}

// Each gives the bytes that went over the link.
uint64_t ScanGroup(const Group& group) {
  uint32_t mask = 0;
  for (uint32_t i = 0; i < kBlocksPerGroup; ++i) {
    if (group.bytes(i) > 0 && !IsZero(group.block(i), group.bytes(i))) mask |= 1U << i;
  }
  reinterpret_cast<Entry*>(group.entry())->mask = mask;
  return 0;
}

uint64_t GatherGroup(const Group& group) {
  const Entry entry = *reinterpret_cast<const Entry*>(group.entry());
  *group.index() = entry;
  uint64_t moved = 0;
  uint32_t slot = entry.first;
  for (uint32_t i = 0; i < kBlocksPerGroup; ++i) {
    if ((entry.mask >> i & 1) == 0) continue;
    memcpy(Bytes(group.range.pool + group.slot(slot++)), group.block(i), group.bytes(i));
    moved += group.bytes(i);
  }
  return moved;
}

uint64_t ScatterGroup(const Group& group) {
  const Entry entry = *group.index();
  uint64_t moved = 0;
  uint32_t slot = entry.first;
  for (uint32_t i = 0; i < kBlocksPerGroup && group.bytes(i) > 0; ++i) {
    const bool stored = (entry.mask >> i & 1) != 0;
    if (stored && group.slot(slot) + group.bytes(i) <= group.range.length) {
      memcpy(group.block(i), Bytes(group.range.pool + group.slot(slot)), group.bytes(i));
      moved += group.bytes(i);
    } else {
      memset(group.block(i), 0, group.bytes(i));
    }
    slot += stored ? 1 : 0;
  }
  return moved;
}

uint64_t ChecksumGroup(const Group& group) {
  uint64_t sum = 0;
  const uint64_t end = std::min((group.number + 1) * kGroup, group.range.length);
  for (uint64_t at = group.number * kGroup; at < end; at += sizeof(uint64_t)) {
    uint64_t word = 0;
    memcpy(&word, Bytes(group.range.device + at), sizeof word);
    sum += mix(word, at / sizeof word);
  }
  memcpy(Bytes(group.entry()), &sum, sizeof sum);
  return 0;
}

// What the key kernel has stored. One for all modules: a process loads it once for each device.
block_hash::Key& ModuleKey() {
  static auto* const key = new block_hash::Key();
  return *key;
}

uint64_t HashGroup(const Group& group) {
  // A hash that lies: all blocks have the same one.
  static const bool lies = getenv("AMEM_SIM_HASH_LIES") != nullptr;
  const block_hash::Key& key = ModuleKey();
  auto* const hashes =
      reinterpret_cast<block_hash::Hash*>(group.entry(kBlocksPerGroup * sizeof(block_hash::Hash)));
  for (uint32_t i = 0; i < kBlocksPerGroup; ++i) {
    block_hash::Sums sums{};
    for (uint32_t unit = 0; !lies && unit < group.bytes(i) / kUnit; ++unit) {
      block_hash::Word128 value;
      memcpy(&value, group.block(i) + unit * sizeof value, sizeof value);
      block_hash::add(sums, value, key.unit[unit], key.unit[unit + 1], key.unit[unit + 2]);
    }
    hashes[i] = block_hash::finish(sums, key.point);
  }
  return 0;
}

uint64_t CompareGroup(const Group& group) {
  uint32_t mask = 0;
  uint64_t compared = 0;
  for (uint32_t i = 0; i < kBlocksPerGroup && group.bytes(i) > 0; ++i) {
    const unsigned char* copy = Bytes(group.range.pool + group.begin(i));
    if (memcmp(group.block(i), copy, group.bytes(i)) != 0) mask |= 1U << i;
    compared += group.bytes(i);
  }
  reinterpret_cast<Entry*>(group.entry())->mask = mask;
  return compared;
}

uint64_t CopyGroup(const Group& group) {
  const uint32_t mask = reinterpret_cast<const Entry*>(group.entry())->mask;
  uint64_t copied = 0;
  for (uint32_t i = 0; i < kBlocksPerGroup && group.bytes(i) > 0; ++i) {
    if ((mask >> i & 1) == 0) continue;
    memcpy(Bytes(group.range.pool + group.begin(i)), group.block(i), group.bytes(i));
    copied += group.bytes(i);
  }
  return copied;
}

struct Kind {
  uint64_t (*group)(const Group&);
  bool writes_device;
  bool uses_pool;
  bool to_pool;
  uint32_t parts;
  uint32_t threads;
  uint64_t entry = sizeof(Entry);  // bytes of the table that a group has
  bool dense = false;              // the pool has the range's bytes as they are
};

constexpr Kind kScan = {ScanGroup, false, false, false, 1, kScanThreads};
constexpr Kind kGather = {GatherGroup, false, true, true, kCopyParts, kCopyThreads};
constexpr Kind kScatter = {ScatterGroup, true, true, false, kCopyParts, kCopyThreads};
constexpr Kind kChecksum = {ChecksumGroup, false, false, false, 1, kScanThreads};
constexpr Kind kHash = {HashGroup,
                        false,
                        false,
                        false,
                        1,
                        block_hash::kThreads,
                        kBlocksPerGroup * sizeof(block_hash::Hash)};
constexpr Kind kCompare = {CompareGroup,         false,         true, false, 1,
                           block_hash::kThreads, sizeof(Entry), true};
constexpr Kind kCopy = {CopyGroup,  false,        true,          true,
                        kCopyParts, kCopyThreads, sizeof(Entry), true};

CUresult Run(const Kind& kind, const Launch& launch, const Grid& grid) {
  // What real kernels would leave undone, or do twice.
  if (grid.thread_blocks[0] != launch.groups * kind.parts || grid.threads[0] != kind.threads ||
      launch.ranges > kMaxRanges) {
    return CUDA_ERROR_LAUNCH_FAILED;
  }
  uint32_t groups = 0;
  uint64_t moved = 0;
  for (const amem::sparse::Range& range : std::span(launch.range, launch.ranges)) {
    const auto in_range = static_cast<uint32_t>(amem::sparse::groups(range.length));
    if (range.first_group != groups) return CUDA_ERROR_LAUNCH_FAILED;
    groups += in_range;
    const uint64_t entries = launch.entries + range.first_entry * kind.entry;
    const bool may_use_pool = kind.dense
                                  ? MayUse(range.pool, range.length, kind.to_pool, grid.device)
                                  : MayUsePool(launch, range, kind.to_pool, grid.device);
    if (!MayUse(range.device, range.length, kind.writes_device, grid.device) ||
        (kind.uses_pool && !may_use_pool) ||
        (kind.group != ScatterGroup &&
         CheckAccess(entries, in_range * kind.entry, true, grid.device).memory !=
             Memory::kPinned)) {
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    for (uint32_t i = 0; i < in_range; ++i) moved += kind.group({launch, range, i});
  }
  if (groups != launch.groups) return CUDA_ERROR_LAUNCH_FAILED;
  if (moved > 0) PassLink(grid.device, kind.to_pool, moved);
  return CUDA_SUCCESS;
}

CUresult ReadWords(const Words& words, const Grid& grid) {
  const uint32_t blocks = std::max(1U, (words.count + kWordsThreads - 1) / kWordsThreads);
  if (grid.thread_blocks[0] != blocks || grid.threads[0] != kWordsThreads) {
    return CUDA_ERROR_LAUNCH_FAILED;
  }
  const uint64_t bytes = uint64_t{words.count} * 2 * sizeof(uint64_t);
  if (bytes > 0 && CheckAccess(words.list, bytes, true, grid.device).memory != Memory::kPinned) {
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  for (uint32_t i = 0; i < words.count; ++i) {
    uint64_t at = 0;
    memcpy(&at, Bytes(words.list + i * sizeof at), sizeof at);
    const Checked checked = CheckAccess(at, sizeof at, false, grid.device);
    if (checked.result != CUDA_SUCCESS || checked.memory == Memory::kPageable ||
        at % sizeof at != 0) {
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    memcpy(Bytes(words.list + (words.count + i) * sizeof at), Bytes(at), sizeof at);
  }
  return CUDA_SUCCESS;
}

CUresult StoreKey(const block_hash::SetKey& from, const Grid& grid) {
  if (grid.thread_blocks[0] != 1 || grid.threads[0] != block_hash::kKeyThreads) {
    return CUDA_ERROR_LAUNCH_FAILED;
  }
  if (CheckAccess(from.key, sizeof(block_hash::Key), false, grid.device).memory !=
      Memory::kPinned) {
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  memcpy(&ModuleKey(), Bytes(from.key), sizeof(block_hash::Key));
  return CUDA_SUCCESS;
}

Function MakeKey() {
  return {[](const Grid& grid, void** values) {
            return StoreKey(*static_cast<const block_hash::SetKey*>(values[0]), grid);
          },
          {sizeof(block_hash::SetKey)}};
}

Function MakeWords() {
  return {[](const Grid& grid, void** values) {
            return ReadWords(*static_cast<const Words*>(values[0]), grid);
          },
          {sizeof(Words)}};
}

template <const Kind& kKind>
Function Make() {
  return {[](const Grid& grid, void** values) {
            return Run(kKind, *static_cast<const Launch*>(values[0]), grid);
          },
          {sizeof(Launch)}};
}

}  // namespace

const std::map<std::string, Function (*)()>& SparseKernels() {
  static const auto* const kernels =
      new std::map<std::string, Function (*)()>{{kScanKernel, Make<kScan>},
                                                {kGatherKernel, Make<kGather>},
                                                {kScatterKernel, Make<kScatter>},
                                                {kChecksumKernel, Make<kChecksum>},
                                                {kWordsKernel, MakeWords},
                                                {block_hash::kKeyKernel, MakeKey},
                                                {block_hash::kHashKernel, Make<kHash>},
                                                {block_hash::kCompareKernel, Make<kCompare>},
                                                {block_hash::kCopyKernel, Make<kCopy>}};
  return *kernels;
}

}  // namespace sim
