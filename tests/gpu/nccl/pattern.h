// Pattern: what the ranks send to each other, and what must arrive.
//
// Every element is a small integer that depends on the sending rank, the element's index and a
// seed, so that sums over all ranks are exact in every data type and a misplaced, stale or missing
// block never looks right. The values repeat every kPeriod elements; kPeriod is prime, so blocks at
// any power-of-two distance differ.
//
// Pure: no CUDA, no NCCL. Immutable values, usable from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gpu_test {

inline constexpr std::size_t kPeriod = 4093;

enum class Type { kInt32, kFloat32, kBfloat16, kFloat16 };
inline constexpr int kTypes = 4;
const char* name(Type type);
std::size_t size_of(Type type);

enum class Op { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kRing, kBroadcast };
inline constexpr int kOps = 6;
const char* name(Op op);

/// What rank `rank` holds at `index` of its send buffer; -8 to 8.
int value(int rank, std::size_t index, std::uint64_t seed);

/// kSum in Extent::rank: the sum over all ranks.
inline constexpr int kSum = -1;

/// A piece of a buffer: `count` elements of `rank`'s values, beginning with index `first`.
struct Extent {
  int rank = 0;
  std::size_t first = 0;
  std::size_t count = 0;

  friend bool operator==(const Extent&, const Extent&) = default;
};

/// One collective among `ranks` ranks. `bytes` is the size of its larger buffer, rounded to what
/// the operation can do.
struct Plan {
  Op op = Op::kAllReduce;
  Type type = Type::kInt32;
  int ranks = 1;
  std::uint64_t seed = 0;
  std::size_t chunk = 0;  // elements per rank, for operations that have one part per rank
  std::size_t send_count = 0;
  std::size_t recv_count = 0;
  int root = 0;  // of a broadcast
};

/// REQUIRES: ranks >= 1.
Plan plan(Op op, Type type, std::size_t bytes, int ranks, std::uint64_t seed);

/// What must be in the receive buffer of rank `me`, in order.
std::vector<Extent> expected(const Plan& plan, int me);

/// Writes what rank `me` sends: send_count elements.
void write_input(const Plan& plan, int me, std::byte* out);

/// Compares a receive buffer with what must be there. Empty when it is right, else where and how it
/// is wrong.
std::string verify(const Plan& plan, int me, const std::byte* received);

}  // namespace gpu_test
