// RecordLog: rows of bytes by their keys, in shared memory that outlives the process which writes
// it.
//
// The memory has a header and two halves. Rows are appended to one half; one store of eight bytes,
// the last, makes a row count. So whoever reads the memory after a kill finds the row as it was
// before, or as it was written. When a half is full, or mostly of rows that have been replaced,
// what counts is copied to the other, and the same store changes over. Each row has a checksum:
// what is torn or somebody else's is found out, not believed.
//
// Not synchronised; one process at a time writes, and the descriptor's holder never looks inside.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <unordered_map>

#include "common/fd.h"
#include "common/status.h"

namespace amem {

/// How a record begins; another number is another form.
inline constexpr char kRecordMagic[16] = "amem record 3\n";

using RowKey = std::uint64_t;

class RecordLog {
 public:
  /// Bytes of the memory; pages count once they are written.
  static constexpr std::size_t kSize = 512ULL << 20;

  /// A record without rows, in a memfd of this size, which can never change.
  static Result<RecordLog> create(std::size_t size = kSize);
  /// Opens what another process has written. kDataLoss: it is torn, or no record;
  /// kFailedPrecondition: of another version. The text says where.
  static Result<RecordLog> open(Fd memory);

  RecordLog(RecordLog&& other) noexcept;
  RecordLog& operator=(RecordLog&& other) noexcept;
  ~RecordLog();

  /// The row is this from now on. kResourceExhausted: no space; the row is as it was. `promised`:
  /// what is left of a promise, which it may use, and which becomes less by its bytes.
  Status put(RowKey key, std::string_view row, std::uint64_t* promised = nullptr);
  /// No effect where there is none.
  Status erase(RowKey key);

  /// Bytes that such a row takes.
  static std::uint64_t bytes_of(std::size_t row);
  /// Rows of so many bytes can be put from now on, whatever else is put. kResourceExhausted: there
  /// is no space for them. What is left of it is given back by release().
  Status promise(std::uint64_t bytes);
  void release(std::uint64_t bytes) { promised_ -= bytes; }

  /// All rows, in no order. A view is valid until the next put() or erase().
  void each(const std::function<void(RowKey, std::string_view)>& row) const;
  std::size_t rows() const { return rows_.size(); }

  /// Returns the memory's descriptor, for whoever keeps it.
  const Fd& memory() const { return memory_; }
  /// Bytes of the half in use that are written; of these, what counts.
  std::uint64_t written() const { return end_; }
  std::uint64_t live() const { return live_; }

 private:
  struct Header;
  struct RowHeader;
  struct RowPosition {
    std::uint64_t offset = 0;  // of its header, in the half
    std::uint32_t size = 0;    // of the row
  };

  RecordLog(Fd memory, std::byte* base, std::size_t size);
  Status load();
  Status append(RowKey key, std::string_view row, bool erased, std::uint64_t* promised = nullptr);
  /// So many bytes can be appended, besides what is promised to others.
  Status make_space(std::uint64_t bytes, std::uint64_t others);
  void write(std::byte* half, std::uint64_t at, RowKey key, std::string_view row, bool erased);
  void publish(unsigned half, std::uint64_t end);
  bool reserve(unsigned half, std::uint64_t end);
  void compact();
  std::byte* half(unsigned which) const;
  std::string_view row_at(const RowPosition& position) const;

  Fd memory_;
  std::byte* base_ = nullptr;
  std::size_t size_ = 0;
  std::uint64_t half_size_ = 0;
  unsigned active_ = 0;
  std::uint64_t end_ = 0;
  std::uint64_t live_ = 0;
  std::uint64_t promised_ = 0;
  std::array<std::uint64_t, 2> reserved_{};  // bytes of each half whose pages are there
  std::unordered_map<RowKey, RowPosition> rows_;
};

}  // namespace amem
