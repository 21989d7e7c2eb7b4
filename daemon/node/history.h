// History: the operations that have ended, so that one can ask afterwards what took so long, or
// what went wrong. Those since the broker began; the oldest go when there are too many. Totals:
// what all of them have come to.
//
// For the loop's thread.
#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"
#include "daemon/base/ids.h"
#include "daemon/owners/owner.h"
#include "daemon/phases/actions.h"

namespace amem {

/// What became of the device memory that left, or where that which came in is from.
struct MovedMemory {
  std::uint64_t handed_on = 0;  // bytes: from a group that left to one that came in
  std::uint64_t made = 0;       // by the driver
  std::uint64_t closed = 0;
};

/// A pause or resume of one group. The group may be gone, so this has all that is reported of it.
struct PastOperation {
  struct Face {
    int number = -1;  // the launcher's
    pid_t pid = 0;
  };
  std::uint64_t transaction = 0;     // that it was part of; 0: ranks asked for it
  bool swap = false;                 // the transaction was one
  bool by_broker = false;            // nobody asked for it: deep.after
  std::string stage;                 // that has switched its groups; empty: none
  std::string why;                   // it has, for people; of several owners only for operators
  bool of_several = false;           // the transaction was on groups of several owners
  std::vector<std::string> remarks;  // for people
  MovedMemory memory;
  Owner owner;
  std::string group;
  std::chrono::system_clock::time_point began;
  Outcome outcome;
  std::map<RankId, Face> ranks;  // those that were there when it ended
};

/// Bytes that it copied to or from the pool.
std::uint64_t copied(const Outcome& outcome);

class History {
 public:
  static constexpr std::size_t kMost = 256;          // operations
  static constexpr std::size_t kMostSpans = 50'000;  // in all: about 10 MB

  /// If there are too many, the oldest of the owner that has the most goes, so that nobody can push
  /// out what is others'. An operation that alone has too many spans keeps none.
  void add(PastOperation operation);
  /// As they ended.
  const std::deque<PastOperation>& all() const { return operations_; }

 private:
  bool too_much() const { return operations_.size() > kMost || spans_ > kMostSpans; }
  void drop_one();

  std::deque<PastOperation> operations_;
  std::size_t spans_ = 0;
};

/// How many amounts were up to each bound, the bound included; what is larger counts in a last
/// bucket of its own.
class Histogram {
 public:
  using Bounds = std::span<const std::uint64_t>;
  static constexpr std::array<std::uint64_t, 13> kMicroseconds = {
      1'000,   2'000,   5'000,     10'000,    20'000,    50'000,    100'000,
      200'000, 500'000, 1'000'000, 2'000'000, 5'000'000, 10'000'000};
  static constexpr std::array<std::uint64_t, 11> kBytes = {
      1ULL << 20, 4ULL << 20,  16ULL << 20, 64ULL << 20,  256ULL << 20, 1ULL << 30,
      4ULL << 30, 16ULL << 30, 64ULL << 30, 256ULL << 30, 1ULL << 40};

  /// `bounds`: ascending, and outlive this object.
  explicit Histogram(Bounds bounds) : bounds_(bounds), buckets_(bounds.size() + 1) {}

  void add(std::uint64_t amount);

  Bounds bounds() const { return bounds_; }
  const std::vector<std::uint64_t>& buckets() const { return buckets_; }  // one more than bounds
  std::uint64_t count() const { return count_; }
  std::uint64_t sum() const { return sum_; }

 private:
  Bounds bounds_;
  std::vector<std::uint64_t> buckets_;
  std::uint64_t count_ = 0;
  std::uint64_t sum_ = 0;
};

/// The totals of operations since the broker began: how many, with what result, how long they took,
/// and how much they copied. Bounds never change, so totals can be added up over brokers.
class Totals {
 public:
  static constexpr std::string_view kSwap = "swap";

  /// Adds an operation of one group, whoever asked for it, with tags or without.
  void add(const Outcome& outcome);
  /// Adds the memory of an operation, also of one that failed.
  void add(const MovedMemory& memory);
  /// Adds a swap as a whole. Its pauses and resumes are added separately.
  void add_swap(Code result, Duration time);

  // Operations are "pause", "resume" and kSwap.
  /// How often each came to each result.
  const std::map<std::pair<std::string_view, Code>, std::uint64_t>& results() const {
    return results_;
  }
  /// In microseconds, of what succeeded, by operation and phase; kNone: the whole.
  const std::map<std::pair<std::string_view, Phase>, Histogram>& times() const { return times_; }
  /// Returns the bytes that pauses copied to the pool, and resumes from it, without operations that
  /// failed.
  const std::map<std::string_view, Histogram>& bytes() const { return bytes_; }
  /// What pauses that succeeded have kept, in bytes.
  struct KeptBytes {
    std::uint64_t copied = 0;
    std::uint64_t compared = 0;
    std::uint64_t unchanged = 0;  // of these, not copied
  };
  const KeptBytes& kept() const { return kept_; }
  /// Memory that is handed on has left and come in, and counts once.
  const MovedMemory& memory() const { return memory_; }

 private:
  void add_time(std::string_view operation, Phase phase, Duration time);

  std::map<std::pair<std::string_view, Code>, std::uint64_t> results_;
  std::map<std::pair<std::string_view, Phase>, Histogram> times_;
  std::map<std::string_view, Histogram> bytes_;
  KeptBytes kept_;
  MovedMemory memory_;
};

}  // namespace amem
