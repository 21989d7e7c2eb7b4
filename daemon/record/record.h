// Record: what the next amemd needs of this one: rows in a RecordLog, and descriptors that the
// holder (daemon/holder) keeps beside its memory.
//
// A Row and a HolderEntry belong to the object that they are of, and end with it: nobody has to
// remember to erase. Everything is written before a rank is told, so a rank never knows more than
// the next amemd. A Record that keeps nothing (tests; amemd without a holder) takes everything and
// does nothing.
//
// For the loop's thread. Outlives every Row, RowReservation and HolderEntry.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "common/fd.h"
#include "common/status.h"
#include "daemon/base/clock.h"
#include "daemon/base/event_loop.h"
#include "daemon/holder/client.h"
#include "daemon/holder/wire.h"
#include "daemon/record/record_log.h"

namespace google::protobuf {
class MessageLite;
}

namespace amem {

enum class RowKind : std::uint8_t {
  kLife = 1,  // of the record as a whole; id 0
  kGroup,
  kRank,
  kAllocation,
  kSaved,  // of an allocation
  kSegment,
  kLimbo,  // of a rank
};

constexpr RowKey row_key(RowKind kind, std::uint64_t id) {
  return (static_cast<RowKey>(kind) << 56U) | id;
}
constexpr RowKind kind_of_row(RowKey key) { return static_cast<RowKind>(key >> 56U); }
constexpr std::uint64_t id_of_row(RowKey key) { return key & ((1ULL << 56U) - 1); }

class Record;

/// Reserves bytes of the record for later rows, so that they can be written when an operation can
/// no longer be called off. A new object reserves none. The destructor releases the unused bytes.
/// Move-only.
class RowReservation {
 public:
  RowReservation() = default;
  RowReservation(RowReservation&& other) noexcept
      : record_(std::exchange(other.record_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  RowReservation& operator=(RowReservation&& other) noexcept {
    std::swap(record_, other.record_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~RowReservation();

 private:
  friend class Record;
  RowReservation(Record* record, std::uint64_t bytes) : record_(record), bytes_(bytes) {}

  Record* record_ = nullptr;
  std::uint64_t bytes_ = 0;
};

/// A row of the record, of nothing at first; erased at its end. Move-only.
class Row {
 public:
  Row() = default;
  Row(Row&& other) noexcept : record_(std::exchange(other.record_, nullptr)), key_(other.key_) {}
  Row& operator=(Row&& other) noexcept {
    std::swap(record_, other.record_);
    std::swap(key_, other.key_);
    return *this;
  }
  ~Row() { erase(); }

  void erase();

 private:
  friend class Record;
  Row(Record* record, RowKey key) : record_(record), key_(key) {}

  Record* record_ = nullptr;
  RowKey key_ = 0;
};

/// A descriptor that the holder keeps; dropped there at its end. Move-only.
class HolderEntry {
 public:
  HolderEntry() = default;
  HolderEntry(HolderEntry&& other) noexcept
      : record_(std::exchange(other.record_, nullptr)), key_(other.key_) {}
  HolderEntry& operator=(HolderEntry&& other) noexcept {
    std::swap(record_, other.record_);
    std::swap(key_, other.key_);
    return *this;
  }
  ~HolderEntry() { drop(); }

  /// Whether there is one.
  explicit operator bool() const { return record_ != nullptr; }
  void drop();

 private:
  friend class Record;
  HolderEntry(Record* record, HolderKey key) : record_(record), key_(key) {}

  Record* record_ = nullptr;
  HolderKey key_ = 0;
};

class Record {
 public:
  /// Keeps nothing.
  Record() = default;
  /// REQUIRES: the loop outlives this object; the holder has the log's memory, or gets it by
  /// keep_log().
  Record(EventLoop& loop, RecordLog log, std::shared_ptr<HolderClient> holder)
      : loop_(&loop), log_(std::move(log)) {
    replace(std::move(holder));
  }
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;

  /// Whether there is a log of rows; a holder need not have it at the moment.
  bool has_log() const { return log_.has_value(); }
  /// Whether all of this outlives the process, should it end now. Not OK: why not, and what to do.
  Status outlives() const;
  const std::optional<RecordLog>& log() const { return log_; }

  /// `row` is what this says from now on. kResourceExhausted: the record is full, and the row as it
  /// was; said in the log, once. `space`: which it may use; null: none.
  Status write(Row& row, RowKind kind, std::uint64_t id,
               const google::protobuf::MessageLite& message, RowReservation* space = nullptr);
  /// For rows of so many bytes, each as bytes_of() says. kResourceExhausted: as write().
  Result<RowReservation> make_space(std::uint64_t bytes);
  static std::uint64_t bytes_of(const google::protobuf::MessageLite& message);
  /// The row that there is already.
  Row adopt_row(RowKind kind, std::uint64_t id) { return {this, row_key(kind, id)}; }

  /// The holder gets the descriptor with the next flush(). `lane`: in which it closes it.
  HolderEntry hold(HolderKind kind, std::uint64_t id, SharedFd fd, std::uint32_t lane = 0);
  /// Takes over what the holder has already.
  HolderEntry adopt(HolderKind kind, std::uint64_t id) { return {this, holder_key(kind, id)}; }
  /// Once this has returned, what was kept before survives this process, unless the holder is lost,
  /// or takes nothing for a second. Such a holder is given the rest as soon as it takes it, and
  /// nobody waits for it again until it has everything.
  void flush();
  /// The same without waiting at all.
  void flush_soon();
  /// `done` is called, now or later, when what was dropped in these lanes before has been closed,
  /// so that its memory is free, or when `limit` has passed: it is told whether all of it has been.
  /// Never after detach().
  void await_closed(const std::set<std::uint32_t>& lanes, Duration limit,
                    std::function<void(bool all)> done);

  /// From now on nothing is written, erased or dropped: this process ends, and the next goes on
  /// with what there is.
  void detach();
  /// Another holder has taken the place of one that has ended, and has nothing yet but the log's
  /// memory. What there is goes there by hold_again(), then flush().
  void replace(std::shared_ptr<HolderClient> holder);
  void hold_again(const HolderEntry& holder_entry, SharedFd fd, std::uint32_t lane = 0);
  HolderClient* holder() const { return holder_.get(); }

 private:
  friend class Row;
  friend class RowReservation;
  friend class HolderEntry;
  void drop(HolderKey key);

  struct PendingClose {
    std::size_t missing = 0;  // answers
    bool all = true;          // lanes were asked
    std::function<void(bool)> done;
    EventLoop::TimerId timer;
  };
  using Questions = std::map<std::uint64_t, std::shared_ptr<PendingClose>>;
  void flush_within(Duration limit);
  void all_closed(std::uint64_t number);
  void answered(PendingClose& pending);

  EventLoop* loop_ = nullptr;
  std::optional<RecordLog> log_;
  std::shared_ptr<HolderClient> holder_;
  std::string buffer_;
  bool flush_is_due_ = false;
  std::optional<EventLoop::TimerId> again_;  // the holder is behind
  bool full_ = false;
  Questions questions_;  // to the holder, by their number
};

}  // namespace amem
