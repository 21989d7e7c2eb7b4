#include "shim/copies/block_hasher.h"

#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "shim/base/log.h"
#include "shim/copies/sparse_count.h"

namespace amem::shim {
namespace {

using block_hash::Hash;
using block_hash::Key;

constexpr std::uint64_t kGroupBytes = sparse::kBlocksPerGroup * sizeof(Hash);
/// For the kernels' trial: the entries of a group, and a unit of memory with its copy.
constexpr std::uint64_t kHashTrialBytes = kGroupBytes + 2 * sparse::kUnit;

bool random_bytes(void* to, std::size_t size) {
  auto* at = static_cast<char*>(to);
  while (size > 0) {
    const ssize_t n = ::getrandom(at, size, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    size -= static_cast<std::size_t>(n);
  }
  return true;
}

bool draw(Key& key) {
  if (!random_bytes(&key, sizeof key)) return false;
  for (std::uint64_t& point : key.point)
    while ((point &= block_hash::kPrime) == 0 || point == block_hash::kPrime)
      if (!random_bytes(&point, sizeof point)) return false;
  return true;
}

Hash hash_of_zeros(const Key& key) {
  block_hash::Sums sums{};
  for (std::uint32_t i = 0; i < block_hash::kUnitsPerBlock; ++i)
    block_hash::add(sums, {}, key.unit[i], key.unit[i + 1], key.unit[i + 2]);
  return block_hash::finish(sums, key.point);
}

}  // namespace

BlockHasher::~BlockHasher() {
  for (auto& [ordinal, device] : ready_) (void)wait(ordinal, device);
}

void BlockHasher::prepare(int ordinal) {
  if (!attempts_.begin(ordinal)) return;
  Device device;
  const CUresult r = make(ordinal, device);
  if (r == CUDA_SUCCESS) {
    ready_[ordinal] = std::move(device);
    return;
  }
  const bool no_memory = attempts_.failed(ordinal, r);
  if (!std::exchange(logged_, true))
    log_info(
        driver_.error(r, "the kernels that find unchanged blocks" + on_device(ordinal)).text() +
        "; each pause copies all bytes that it keeps" +
        (no_memory ? ", until there is space for them" : ""));
}

CUresult BlockHasher::make(int ordinal, Device& device) {
  LocalDevices::Use use(devices_, ordinal);
  if (use.result() != CUDA_SUCCESS) return use.result();
  const std::pair<CUfunction*, const char*> kernels[] = {
      {&device.key, block_hash::kKeyKernel},
      {&device.hash.function, block_hash::kHashKernel},
      {&device.compare.function, block_hash::kCompareKernel},
      {&device.copy.function, block_hash::kCopyKernel}};
  CUresult r = load_kernels(driver_, ordinal, kBlockHashPtx, kernels, device.kernels);
  constexpr std::uint64_t kTable = kSpace * kGroupBytes;
  if (r == CUDA_SUCCESS) r = device.table.make(driver_, kTable + kHashTrialBytes + sizeof(Key));
  if (r == CUDA_SUCCESS) {
    // Behind the table: the trial's memory and the key, which nothing else writes to.
    auto* const trial = static_cast<char*>(device.table.get()) + kTable;
    auto* const key = reinterpret_cast<Key*>(trial + kHashTrialBytes);
    if (!draw(*key)) r = CUDA_ERROR_OPERATING_SYSTEM;
    device.zero = hash_of_zeros(*key);
    block_hash::SetKey set{reinterpret_cast<std::uintptr_t>(key)};
    void* parameters[] = {&set};
    if (r == CUDA_SUCCESS)
      r = driver_.cuLaunchKernel_(device.key, 1, 1, 1, block_hash::kKeyThreads, 1, 1, 0,
                                  device.kernels.stream, parameters, nullptr);
    // A driver may load a kernel only when it is launched, which must not be in a pause. So each
    // runs once. Nobody waits: the program's own kernels may keep them waiting.
    Listed once;
    once.first_entry = 0;
    once.piece.length = sparse::kUnit;
    once.piece.address = reinterpret_cast<std::uintptr_t>(trial) + kGroupBytes;
    once.piece.pool = once.piece.address + sparse::kUnit;
    for (const GroupKernel& kernel : {device.hash, device.compare, device.copy})
      if (r == CUDA_SUCCESS)
        r = launch_groups(driver_, kernel, device.kernels.stream, trial, std::span(&once, 1));
  }
  if (r == CUDA_SUCCESS) return CUDA_SUCCESS;
  if (device.kernels.stream != nullptr) devices_.wait(ordinal, device.kernels.stream);
  unload_kernels(driver_, device.kernels);
  return r;
}

bool BlockHasher::serves(const Piece& piece) const {
  return ready_.contains(piece.device) && fits_kernels(piece.address, piece.pool, piece.length);
}

Status BlockHasher::hash(std::span<const Piece> pieces, std::vector<std::vector<Hash>>& hashes) {
  hashes.resize(pieces.size());
  for (std::size_t i = 0; i < pieces.size(); ++i)
    hashes[i].resize(sparse::blocks(pieces[i].length));
  return run(&Device::hash, pieces, {}, [&](const Device& device, const Part& part) {
    const auto* const found = static_cast<const Hash*>(device.table.get()) +
                              part.listed.first_entry * std::uint64_t{sparse::kBlocksPerGroup};
    std::copy_n(found, sparse::blocks(part.listed.piece.length),
                hashes[part.piece].begin() +
                    static_cast<std::ptrdiff_t>(part.first_group * sparse::kBlocksPerGroup));
  });
}

Status BlockHasher::copy(std::span<const Piece> pieces,
                         std::span<const std::vector<std::uint32_t>> masks) {
  return run(&Device::copy, pieces,
             [&](const Device& device, const Part& part) {
               std::uint64_t group = part.first_group;
               for (sparse::Entry& entry : entries(device, part))
                 entry.mask = masks[part.piece][group++];
             },
             {});
}

bool BlockHasher::many_zeros(int device, std::span<const Hash> hashes) const {
  const Hash& zero = ready_.at(device).zero;
  const auto zeros = static_cast<std::uint64_t>(std::count(hashes.begin(), hashes.end(), zero));
  return (hashes.size() - zeros) * 100 <= hashes.size() * sparse::kSparsePercent;
}

Status BlockHasher::compare(std::span<const Piece> pieces) {
  Status result;
  const Status ran = run(&Device::compare, pieces, {}, [&](const Device& device, const Part& part) {
    const std::span<const sparse::Entry> found = entries(device, part);
    for (std::size_t i = 0; i < found.size() && result.ok(); ++i) {
      if (found[i].mask == 0) continue;
      const std::uint64_t block = (part.first_group + i) * sparse::kBlocksPerGroup +
                                  static_cast<std::uint64_t>(std::countr_zero(found[i].mask));
      const Piece& piece = pieces[part.piece];
      result = {Code::kDataLoss, "AMEM_VERIFY: the pool does not have the bytes of allocation " +
                                     std::to_string(piece.id) + " from byte " +
                                     std::to_string(piece.offset + block * sparse::kBlock) +
                                     " on, though the hash of that block says so" +
                                     on_device(piece.device) +
                                     "; set without = [\"retain\"] in amemd.toml, and report it"};
    }
  });
  return ran.ok() ? result : ran;
}

std::span<sparse::Entry> BlockHasher::entries(const Device& device, const Part& part) {
  return part_of_table<sparse::Entry>(device.table.get(), part.listed.first_entry,
                                      entries_of(part.listed.piece));
}

Status BlockHasher::run(GroupKernel Device::*kernel, std::span<const Piece> pieces,
                        const Visit& fill, const Visit& done) {
  // The rest of each device's pieces: all from this piece and group on.
  struct Rest {
    std::vector<std::size_t> pieces;
    std::size_t next = 0;
    std::uint64_t group = 0;
    std::vector<Part> under_way;
  };
  std::map<int, Rest> rests;
  for (std::size_t i = 0; i < pieces.size(); ++i) rests[pieces[i].device].pieces.push_back(i);
  Status result;
  while (!rests.empty() && result.ok()) {
    for (auto& [ordinal, rest] : rests) {
      std::vector<Listed> listed;
      std::uint32_t used = 0;
      while (rest.next < rest.pieces.size() && used < kSpace) {
        Part part{rest.pieces[rest.next], rest.group, {pieces[rest.pieces[rest.next]], used}};
        Piece& piece = part.listed.piece;
        const std::uint64_t skipped = rest.group * sparse::kGroup;
        piece.address += skipped;
        piece.pool += skipped;
        piece.length = std::min(piece.length - skipped, (kSpace - used) * sparse::kGroup);
        used += entries_of(piece);
        rest.group += entries_of(piece);
        if (skipped + piece.length == pieces[part.piece].length) {
          ++rest.next;
          rest.group = 0;
        }
        listed.push_back(part.listed);
        rest.under_way.push_back(std::move(part));
      }
      const Device& device = ready_.at(ordinal);
      // So that what a kernel does not write cannot be an earlier answer.
      std::memset(device.table.get(), 0, used * kGroupBytes);
      if (fill)
        for (const Part& part : rest.under_way) fill(device, part);
      LocalDevices::Use use(devices_, ordinal);
      CUresult r = use.result();
      if (r == CUDA_SUCCESS)
        r = launch_groups(driver_, device.*kernel, device.kernels.stream, device.table.get(),
                          listed);
      if (r != CUDA_SUCCESS) {
        result = driver_.error(r, "looking for unchanged blocks" + on_device(ordinal));
        break;
      }
    }
    // After an error too, and for the device with the error, which may run some of its launches:
    // kernels use the pieces and the tables.
    for (auto it = rests.begin(); it != rests.end();) {
      auto& [ordinal, rest] = *it;
      const Device& device = ready_.at(ordinal);
      if (!rest.under_way.empty())
        if (Status s = wait(ordinal, device); result.ok()) result = s;
      if (done && result.ok())
        for (const Part& part : rest.under_way) done(device, part);
      rest.under_way.clear();
      it = rest.next == rest.pieces.size() ? rests.erase(it) : std::next(it);
    }
  }
  return result;
}

Status BlockHasher::wait(int ordinal, const Device& device) {
  const CUresult r = devices_.wait(ordinal, device.kernels.stream);
  return r == CUDA_SUCCESS ? Status()
                           : driver_.error(r, "looking for unchanged blocks" + on_device(ordinal));
}

}  // namespace amem::shim
