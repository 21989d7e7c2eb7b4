#include "daemon/record/record_log.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "common/numbers.h"

namespace amem {
namespace {

constexpr std::size_t kHeaderSize = 4096;
constexpr std::uint32_t kErased = 1;
/// So much of a half is made sure of at a time.
constexpr std::uint64_t kReserve = 1ULL << 20;
/// Below this much nothing is copied over, however little of it counts.
constexpr std::uint64_t kWorthCompacting = 1ULL << 20;
/// In the word that makes rows count: the bit of the half, above the bytes of it that are written.
constexpr unsigned kHalfBit = 63;

constexpr std::uint64_t kMix = 0x9e3779b97f4a7c15ULL;

/// Finds out what is torn; no defence against forgers, who have no way in.
std::uint64_t checksum(RowKey key, std::uint32_t size, std::uint32_t flags, const char* row) {
  std::uint64_t sum = (key ^ kMix) * kMix;
  const auto add = [&sum](std::uint64_t word) {
    sum = (sum ^ word) * kMix;
    sum ^= sum >> 29U;
  };
  add((std::uint64_t{size} << 32U) | flags);
  std::uint32_t at = 0;
  for (; at + 8 <= size; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, row + at, 8);
    add(word);
  }
  if (at < size) {
    std::uint64_t word = 0;
    std::memcpy(&word, row + at, size - at);
    add(word);
  }
  return sum;
}

Status damaged(const std::string& what) {
  return {Code::kDataLoss, "the record of what this node holds is damaged: " + what};
}

}  // namespace

struct RecordLog::Header {
  char magic[sizeof kRecordMagic];
  std::uint64_t size;                    // of the memory
  std::atomic<std::uint64_t> committed;  // half and bytes
};

struct RecordLog::RowHeader {
  RowKey key;
  std::uint32_t size;
  std::uint32_t flags;
  std::uint64_t sum;
};

Result<RecordLog> RecordLog::create(std::size_t size) {
  Fd memory(::memfd_create("amem-record", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) return errno_status(Code::kUnavailable, "memfd_create for the record", errno);
  if (::ftruncate(memory.get(), static_cast<off_t>(size)) != 0)
    return errno_status(Code::kResourceExhausted, "ftruncate of the record", errno);
  if (::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return errno_status(Code::kUnavailable, "sealing the size of the record", errno);
  void* base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (base == MAP_FAILED) return errno_status(Code::kUnavailable, "mapping the record", errno);
  RecordLog log(std::move(memory), static_cast<std::byte*>(base), size);
  auto* header = new (base) Header{};
  header->size = size;
  // Last: before it, this is not a record.
  std::atomic_signal_fence(std::memory_order_release);
  std::memcpy(header->magic, kRecordMagic, sizeof kRecordMagic);
  return log;
}

Result<RecordLog> RecordLog::open(Fd memory) {
  struct stat stat {};
  if (::fstat(memory.get(), &stat) != 0)
    return errno_status(Code::kDataLoss, "fstat of the record", errno);
  const auto size = static_cast<std::size_t>(stat.st_size);
  if (size < kHeaderSize + 2 * sizeof(RowHeader))
    return damaged("it has " + std::to_string(size) + " bytes");
  // Somebody who could shrink it could end us by a signal.
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return damaged("its size is not sealed");
  void* base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (base == MAP_FAILED) return errno_status(Code::kUnavailable, "mapping the record", errno);
  RecordLog log(std::move(memory), static_cast<std::byte*>(base), size);
  if (Status status = log.load(); !status.ok()) return status;
  return log;
}

RecordLog::RecordLog(Fd memory, std::byte* base, std::size_t size)
    : memory_(std::move(memory)),
      base_(base),
      size_(size),
      half_size_((size - kHeaderSize) / 2 / sizeof(RowHeader) * sizeof(RowHeader)) {}

RecordLog::RecordLog(RecordLog&& other) noexcept { *this = std::move(other); }

RecordLog& RecordLog::operator=(RecordLog&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(base_, other.base_);
  std::swap(size_, other.size_);
  std::swap(half_size_, other.half_size_);
  std::swap(active_, other.active_);
  std::swap(end_, other.end_);
  std::swap(live_, other.live_);
  std::swap(promised_, other.promised_);
  std::swap(reserved_, other.reserved_);
  std::swap(rows_, other.rows_);
  return *this;
}

RecordLog::~RecordLog() {
  if (base_ != nullptr) ::munmap(base_, size_);
}

std::byte* RecordLog::half(unsigned which) const {
  return base_ + kHeaderSize + which * half_size_;
}

Status RecordLog::load() {
  const auto* header = reinterpret_cast<const Header*>(base_);
  if (std::memcmp(header->magic, kRecordMagic, sizeof kRecordMagic) != 0) {
    constexpr std::size_t kName = 12;  // "amem record "
    if (std::memcmp(header->magic, kRecordMagic, kName) == 0)
      return {Code::kFailedPrecondition,
              "the record of what this node holds has another version (\"" +
                  std::string(header->magic, kName + 1) + "\", this is \"" +
                  std::string(kRecordMagic, kName + 1) + "\")"};
    return damaged("it does not begin with the name of a record");
  }
  if (header->size != size_) return damaged("its size differs from the size in its header");
  const std::uint64_t committed = header->committed.load(std::memory_order_acquire);
  active_ = static_cast<unsigned>(committed >> kHalfBit);
  const std::uint64_t end = committed & ~(1ULL << kHalfBit);
  if (end > half_size_) return damaged("the end in its header is beyond its size");
  while (end_ < end) {
    RowHeader row{};
    const std::uint64_t left = end - end_;
    if (left >= sizeof row) std::memcpy(&row, half(active_) + end_, sizeof row);
    const char* bytes = reinterpret_cast<const char*>(half(active_) + end_ + sizeof row);
    if (left < sizeof row || left - sizeof row < row.size ||
        row.sum != checksum(row.key, row.size, row.flags, bytes))
      return damaged("a row is damaged at byte " + std::to_string(end_) + " of " +
                     std::to_string(end));
    const std::uint64_t length = sizeof row + round_up(std::uint64_t{row.size}, 8);
    if (const auto it = rows_.find(row.key); it != rows_.end()) {
      live_ -= sizeof row + round_up(std::uint64_t{it->second.size}, 8);
      rows_.erase(it);
    }
    if ((row.flags & kErased) == 0) {
      rows_[row.key] = {end_, row.size};
      live_ += length;
    }
    end_ += length;
  }
  reserved_[active_] = end_;
  return {};
}

std::string_view RecordLog::row_at(const RowPosition& position) const {
  return {reinterpret_cast<const char*>(half(active_) + position.offset + sizeof(RowHeader)),
          position.size};
}

void RecordLog::each(const std::function<void(RowKey, std::string_view)>& row) const {
  for (const auto& [key, position] : rows_) row(key, row_at(position));
}

void RecordLog::write(std::byte* half, std::uint64_t at, RowKey key, std::string_view row,
                      bool erased) {
  RowHeader header{key, static_cast<std::uint32_t>(row.size()), erased ? kErased : 0, 0};
  header.sum = checksum(key, header.size, header.flags, row.data());
  std::memcpy(half + at, &header, sizeof header);
  if (!row.empty()) std::memcpy(half + at + sizeof header, row.data(), row.size());
}

/// Makes rows count. Whoever reads this word finds all that was written before it.
void RecordLog::publish(unsigned half, std::uint64_t end) {
  reinterpret_cast<Header*>(base_)->committed.store((std::uint64_t{half} << kHalfBit) | end,
                                                    std::memory_order_release);
  active_ = half;
  end_ = end;
}

/// Pages for the half up to there: a write to one that cannot be had would end the process.
bool RecordLog::reserve(unsigned half, std::uint64_t end) {
  std::uint64_t& reserved = reserved_[half];
  if (end <= reserved) return true;
  const std::uint64_t upto = std::min(round_up(end, kReserve), half_size_);
  const auto begin = static_cast<off_t>(kHeaderSize + half * half_size_ + reserved);
  if (::fallocate(memory_.get(), FALLOC_FL_KEEP_SIZE, begin, static_cast<off_t>(upto - reserved)) !=
      0)
    return false;
  reserved = upto;
  return true;
}

std::uint64_t RecordLog::bytes_of(std::size_t row) {
  return sizeof(RowHeader) + round_up(std::uint64_t{row}, 8);
}

Status RecordLog::make_space(std::uint64_t bytes, std::uint64_t others) {
  const bool full = end_ + bytes + others > half_size_;
  if (full || (end_ > kWorthCompacting && end_ > 4 * live_)) compact();
  if (end_ + bytes + others <= half_size_ && reserve(active_, end_ + bytes + others)) return {};
  return {Code::kResourceExhausted,
          "the record of what this node holds is full, or the host has no memory for more of it: " +
              std::to_string(rows_.size()) + " rows with " + std::to_string(live_) +
              " bytes. End jobs that nobody needs, or free host memory"};
}

Status RecordLog::promise(std::uint64_t bytes) {
  if (Status status = make_space(bytes, promised_); !status.ok()) return status;
  promised_ += bytes;
  return {};
}

Status RecordLog::append(RowKey key, std::string_view row, bool erased, std::uint64_t* promised) {
  const std::uint64_t length = bytes_of(row.size());
  const std::uint64_t own = promised != nullptr ? *promised : 0;
  if (Status status = make_space(length, promised_ - own); !status.ok()) return status;
  write(half(active_), end_, key, row, erased);
  publish(active_, end_ + length);
  const std::uint64_t used = std::min(own, length);
  promised_ -= used;
  if (promised != nullptr) *promised -= used;
  return {};
}

Status RecordLog::put(RowKey key, std::string_view row, std::uint64_t* promised) {
  if (row.size() > half_size_) return {Code::kInvalidArgument, "a row of the record is too long"};
  if (Status status = append(key, row, false, promised); !status.ok()) return status;
  const std::uint64_t length = bytes_of(row.size());
  const auto [it, added] = rows_.try_emplace(key);
  if (!added) live_ -= bytes_of(it->second.size);
  it->second = {end_ - length, static_cast<std::uint32_t>(row.size())};
  live_ += length;
  return {};
}

Status RecordLog::erase(RowKey key) {
  const auto it = rows_.find(key);
  if (it == rows_.end()) return {};
  // Out of the table first: should this copy what counts, it does not count any more.
  live_ -= bytes_of(it->second.size);
  rows_.erase(it);
  return append(key, {}, true);
}

void RecordLog::compact() {
  const unsigned other = 1 - active_;
  if (!reserve(other, live_ + promised_)) return;
  std::uint64_t end = 0;
  for (auto& [key, position] : rows_) {
    const std::uint64_t length = bytes_of(position.size);
    std::memcpy(half(other) + end, half(active_) + position.offset, length);
    position.offset = end;
    end += length;
  }
  const unsigned before = active_;
  publish(other, end);
  reserved_[before] = 0;
  // Gives the pages back; the memory's size stays.
  ::fallocate(memory_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(kHeaderSize + before * half_size_),
              static_cast<off_t>(half_size_));
}

}  // namespace amem
