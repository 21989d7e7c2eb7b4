#include "shim/copies/sparse_copier.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "common/numbers.h"
#include "shim/base/log.h"
#include "shim/copies/sparse_count.h"

namespace amem::shim {
namespace {

/// Beside an entry for each group of the device's memory: pieces that do not fill a group.
constexpr std::uint64_t kExtraEntries = 4096;
/// For the kernels' trial: an entry, a unit of memory, and a copy of that.
constexpr std::uint64_t kCopyTrialBytes = 2 * sparse::kUnit + sparse::index_bytes(sparse::kUnit);

}  // namespace

SparseCopier::~SparseCopier() {
  for (auto& [ordinal, device] : ready_) await_kernels(ordinal, device);
}

/// Its kernels write to its table: they have ended before that goes.
void SparseCopier::await_kernels(int ordinal, const Device& device) {
  if (device.kernels.stream != nullptr) devices_.wait(ordinal, device.kernels.stream);
}

void SparseCopier::prepare(int ordinal) {
  if (!attempts_.begin(ordinal)) return;
  Device device;
  const CUresult r = make(ordinal, device);
  if (r == CUDA_SUCCESS) {
    ready_[ordinal] = std::move(device);
    return;
  }
  const bool no_memory = attempts_.failed(ordinal, r);
  if (!std::exchange(warned_, true))
    log_warn(driver_.error(r, "the kernels of sparse copies" + on_device(ordinal)).text() +
             ". amem copies all bytes, with the zeros, and AMEM_VERIFY has no effect" +
             (no_memory ? ", until there is space for them" : ""));
}

CUresult SparseCopier::make(int ordinal, Device& device) {
  LocalDevices::Use use(devices_, ordinal);
  if (use.result() != CUDA_SUCCESS) return use.result();
  std::size_t memory = 0;
  const std::pair<CUfunction*, const char*> kernels[] = {
      {&device.scan, sparse::kScanKernel},
      {&device.gather, sparse::kGatherKernel},
      {&device.scatter, sparse::kScatterKernel},
      {&device.checksum, sparse::kChecksumKernel},
      {&device.words, sparse::kWordsKernel}};
  CUresult r = driver_.cuDeviceTotalMem_(&memory, ordinal);
  if (r == CUDA_SUCCESS) r = load_kernels(driver_, ordinal, kSparsePtx, kernels, device.kernels);
  device.space = static_cast<std::uint32_t>(
      round_up(sparse::groups(memory) + kExtraEntries, sparse::kUnit / sizeof(sparse::Entry)));
  const std::uint64_t bytes = device.space * sizeof(sparse::Entry);
  if (r == CUDA_SUCCESS) r = device.table.make(driver_, bytes + kCopyTrialBytes);
  // A driver may load a kernel only when it is launched, which must not be in a pause. So each runs
  // once, on an entry and a few zeros behind the table's end: nobody waits for them, as the
  // program's own kernels may keep them waiting, and the table may be in use when they run.
  Listed trial;
  trial.first_entry = device.space;
  trial.piece.length = sparse::kUnit;
  trial.piece.address =
      reinterpret_cast<std::uintptr_t>(device.table.get()) + bytes + sparse::kUnit;
  trial.piece.pool = trial.piece.address + sparse::kUnit;
  for (Kernel kernel : {Kernel::kScan, Kernel::kGather, Kernel::kScatter, Kernel::kChecksum})
    if (r == CUDA_SUCCESS) r = launch_all(kernel, device, std::span(&trial, 1));
  if (r == CUDA_SUCCESS) r = launch_words(device, 0, 0);
  if (r == CUDA_SUCCESS) return CUDA_SUCCESS;
  await_kernels(ordinal, device);
  unload_kernels(driver_, device.kernels);
  return r;
}

void SparseCopier::forget(int ordinal) {
  ready_.erase(ordinal);
  attempts_.forget(ordinal);
}

bool SparseCopier::serves(const Piece& piece) const {
  return ready_.contains(piece.device) && fits_kernels(piece.address, piece.pool, piece.length);
}

bool SparseCopier::offer(const Piece& piece) {
  if (!serves(piece)) return false;
  Device& device = ready_.at(piece.device);
  if (sparse::groups(piece.length) > device.space - device.in_use) return false;
  device.offered.push_back({piece, device.in_use});
  device.in_use += entries_of(piece);
  return true;
}

Status SparseCopier::start() {
  for (auto& [ordinal, device] : ready_) {
    const std::vector<Listed> listed =
        without_gaps(device, std::span(device.offered).subspan(device.scanned));
    device.scanned = device.offered.size();
    if (Status s = launch(Kernel::kScan, ordinal, device, listed); !s.ok()) return s;
  }
  return {};
}

std::vector<Listed> SparseCopier::without_gaps(const Device& device,
                                               std::span<const Listed> listed) {
  std::vector<Listed> parts;
  for (const Listed& one : listed) {
    const Piece& piece = one.piece;
    if (piece.left_out == nullptr) {
      parts.push_back(one);
      continue;
    }
    for (sparse::Entry& entry :
         part_of_table<sparse::Entry>(device.table.get(), one.first_entry, entries_of(piece)))
      entry.mask = 0;
    for (const auto& [first, count] : groups_beside(piece.offset, piece.length, *piece.left_out)) {
      Listed& part = parts.emplace_back(one);
      const std::uint64_t skipped = first * sparse::kGroup;
      part.piece.address += skipped;
      part.piece.length = std::min(piece.length - skipped, count * sparse::kGroup);
      part.first_entry += first;
    }
  }
  return parts;
}

Status SparseCopier::scanned(int ordinal, Device& device, std::vector<Listed>& listed) {
  listed = std::exchange(device.offered, {});
  device.scanned = 0;
  return listed.empty() ? Status() : wait(ordinal, device);
}

Status SparseCopier::look(std::vector<Look>& looks) {
  for (auto& [ordinal, device] : ready_) {
    std::vector<Listed> listed;
    if (Status s = scanned(ordinal, device, listed); !s.ok()) return s;
    for (const Listed& one : listed) {
      Look& look = looks.emplace_back();
      look.id = one.piece.id;
      for (const sparse::Entry& entry : entries(device, one)) look.masks.push_back(entry.mask);
    }
  }
  return {};
}

std::span<sparse::Entry> SparseCopier::entries(const Device& device, const Listed& one) {
  const auto entries =
      part_of_table<sparse::Entry>(device.table.get(), one.first_entry, entries_of(one.piece));
  if (one.piece.left_out != nullptr)
    leave_out(entries, one.piece.offset, one.piece.length, *one.piece.left_out);
  return entries;
}

Status SparseCopier::store(std::vector<Piece>& saved) {
  for (auto& [ordinal, device] : ready_) {
    std::vector<Listed> listed;
    if (Status s = scanned(ordinal, device, listed); !s.ok()) return s;
    if (Status s = decide(device, listed); !s.ok()) return s;
    for (const Listed& one : listed) saved.push_back(one.piece);
    std::erase_if(listed, [](const Listed& one) { return one.piece.form != Form::kSparse; });
    if (Status s = launch(Kernel::kGather, ordinal, device, listed); !s.ok()) return s;
  }
  return {};
}

Status SparseCopier::decide(const Device& device, std::vector<Listed>& listed) {
  for (Listed& one : listed) {
    Piece& piece = one.piece;
    const sparse::Content content = count(entries(device, one), piece.length);
    const bool shorter = sparse::save_sparse(content, piece.length, piece.form == Form::kSparse);
    piece.form = shorter ? Form::kSparse : Form::kDense;
    piece.stored = shorter ? content.stored : piece.length;
    piece.left_out = nullptr;
    if (piece.stored > piece.space)
      return {Code::kAborted,
              "allocation " + std::to_string(piece.id) + " has changed while it was paused: " +
                  std::to_string(piece.stored) + " bytes must be saved from byte " +
                  std::to_string(piece.offset) + " on, but there were at most " +
                  std::to_string(piece.space) + " before. A NIC or another process writes to it"};
  }
  return {};
}

Status SparseCopier::load(std::span<const Piece> pieces) {
  std::map<int, std::vector<Listed>> by_device;
  for (const Piece& piece : pieces) {
    if (!serves(piece))
      return {Code::kFailedPrecondition,
              "allocation " + std::to_string(piece.id) +
                  " was saved sparsely, but amem's kernels to load it are not loaded" +
                  on_device(piece.device)};
    by_device[piece.device].push_back({piece, 0});
  }
  for (const auto& [ordinal, listed] : by_device)
    if (Status s = launch(Kernel::kScatter, ordinal, ready_.at(ordinal), listed); !s.ok()) return s;
  return {};
}

void SparseCopier::read(const Piece& piece, const std::byte* pool, std::uint64_t offset,
                        std::uint64_t length, std::byte* out) const {
  const std::byte* blocks = pool + sparse::index_bytes(piece.length);
  while (length > 0) {
    const std::uint64_t block = offset / sparse::kBlock;
    const std::uint64_t within = offset % sparse::kBlock;
    const std::uint64_t n = std::min(length, sparse::kBlock - within);
    sparse::Entry entry{};
    std::memcpy(&entry, pool + block / sparse::kBlocksPerGroup * sizeof entry, sizeof entry);
    const std::uint32_t bit = 1U << (block % sparse::kBlocksPerGroup);
    if ((entry.mask & bit) == 0) {
      std::memset(out, 0, n);
    } else {
      const std::uint64_t slot =
          entry.first + static_cast<std::uint64_t>(std::popcount(entry.mask & (bit - 1)));
      std::memcpy(out, blocks + slot * sparse::kBlock + within, n);
    }
    out += n;
    offset += n;
    length -= n;
  }
}

Status SparseCopier::read(int ordinal, std::span<const Address> at,
                          std::vector<std::uint64_t>& words) {
  const auto found = ready_.find(ordinal);
  if (found == ready_.end())
    return {Code::kFailedPrecondition,
            "amem's kernels to look at memory are not loaded" + on_device(ordinal)};
  const Device& device = found->second;
  const std::uint32_t most = (device.space - device.in_use) / 2;
  if (most == 0)
    return {Code::kResourceExhausted,
            "there is no space left to look at memory" + on_device(ordinal)};
  words.clear();
  while (!at.empty()) {
    const std::span<const Address> now = at.first(std::min<std::size_t>(at.size(), most));
    const auto count = static_cast<std::uint32_t>(now.size());
    const auto list = part_of_table<std::uint64_t>(device.table.get(), device.in_use, 2 * count);
    std::copy(now.begin(), now.end(), list.begin());
    {
      const LocalDevices::Use use(devices_, ordinal);
      CUresult r = use.result();
      if (r == CUDA_SUCCESS) r = launch_words(device, device.in_use, count);
      if (r != CUDA_SUCCESS) return driver_.error(r, "a look at memory" + on_device(ordinal));
    }
    if (Status s = wait(ordinal, device); !s.ok()) return s;
    words.insert(words.end(), list.begin() + count, list.end());
    at = at.subspan(now.size());
  }
  return {};
}

CUresult SparseCopier::launch_words(const Device& device, std::uint32_t first,
                                    std::uint32_t count) {
  sparse::Words words{
      reinterpret_cast<std::uintptr_t>(device.table.get()) + first * sizeof(std::uint64_t), count};
  void* parameters[] = {&words};
  const unsigned thread_blocks =
      std::max(1U, (count + sparse::kWordsThreads - 1) / sparse::kWordsThreads);
  return driver_.cuLaunchKernel_(device.words, thread_blocks, 1, 1, sparse::kWordsThreads, 1, 1, 0,
                                 device.kernels.stream, parameters, nullptr);
}

Status SparseCopier::finish() {
  Status result;
  attempts_.end_phase();
  for (auto& [ordinal, device] : ready_) {
    device.offered.clear();
    device.scanned = 0;
    device.in_use = 0;
    if (Status s = wait(ordinal, device); !s.ok() && result.ok()) result = s;
  }
  return result;
}

Status SparseCopier::checksums(std::span<Piece> pieces) {
  std::map<int, std::vector<Piece*>> by_device;
  for (Piece& piece : pieces) {
    piece.checksum = 0;
    const bool servable = serves(piece) && entries_of(piece) <= ready_.at(piece.device).space;
    if (servable) by_device[piece.device].push_back(&piece);
  }
  for (const auto& [ordinal, list] : by_device) {
    const Device& device = ready_.at(ordinal);
    // As many at a time as the table has space for.
    for (auto next = list.begin(); next != list.end();) {
      std::vector<Listed> listed;
      std::uint32_t entries = 0;
      const auto begin = next;
      for (; next != list.end() && entries_of(**next) <= device.space - entries; ++next) {
        listed.push_back({**next, entries});
        entries += entries_of(**next);
      }
      const Status launched = launch(Kernel::kChecksum, ordinal, device, listed);
      // Also after an error: a part may run.
      if (Status s = wait(ordinal, device); !launched.ok() || !s.ok())
        return launched.ok() ? s : launched;
      for (const Listed& one : listed) {
        Piece& piece = *begin[&one - listed.data()];
        piece.checksum = checksum(
            part_of_table<std::uint64_t>(device.table.get(), one.first_entry, entries_of(piece)));
      }
    }
  }
  return {};
}

Status SparseCopier::launch(Kernel kernel, int ordinal, const Device& device,
                            std::span<const Listed> listed) {
  if (listed.empty()) return {};
  LocalDevices::Use use(devices_, ordinal);
  CUresult r = use.result();
  if (r == CUDA_SUCCESS) r = launch_all(kernel, device, listed);
  return r == CUDA_SUCCESS ? Status()
                           : driver_.error(r, "a kernel of sparse copies" + on_device(ordinal));
}

CUresult SparseCopier::launch_all(Kernel kernel, const Device& device,
                                  std::span<const Listed> listed) {
  const bool copies = kernel == Kernel::kGather || kernel == Kernel::kScatter;
  const CUfunction function = kernel == Kernel::kScan      ? device.scan
                              : kernel == Kernel::kGather  ? device.gather
                              : kernel == Kernel::kScatter ? device.scatter
                                                           : device.checksum;
  const GroupKernel launched = {function, copies ? sparse::kCopyThreads : sparse::kScanThreads,
                                copies ? sparse::kCopyParts : 1};
  return launch_groups(driver_, launched, device.kernels.stream, device.table.get(), listed);
}

Status SparseCopier::wait(int ordinal, const Device& device) {
  const CUresult r = devices_.wait(ordinal, device.kernels.stream);
  return r == CUDA_SUCCESS ? Status() : driver_.error(r, "sparse copies" + on_device(ordinal));
}

}  // namespace amem::shim
