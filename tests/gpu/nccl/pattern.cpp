#include "tests/gpu/nccl/pattern.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace gpu_test {
namespace {

std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ULL;
  return x ^ (x >> 33);
}

// Small integers have exact encodings: no rounding is needed.
std::uint16_t to_bfloat16(float f) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(f) >> 16);
}

// REQUIRES: f is an integer of at most 11 bits.
std::uint16_t to_float16(float f) {
  const auto bits = std::bit_cast<std::uint32_t>(f);
  if (f == 0.0F) return 0;
  const std::uint32_t sign = bits >> 31;
  const std::uint32_t exponent = ((bits >> 23) & 0xffU) - 127U + 15U;
  const std::uint32_t mantissa = (bits >> 13) & 0x3ffU;
  return static_cast<std::uint16_t>((sign << 15) | (exponent << 10) | mantissa);
}

void encode(Type type, int v, std::byte* out) {
  const auto f = static_cast<float>(v);
  const std::uint16_t half = type == Type::kBfloat16 ? to_bfloat16(f) : to_float16(f);
  switch (type) {
    case Type::kInt32:
      std::memcpy(out, &v, sizeof v);
      break;
    case Type::kFloat32:
      std::memcpy(out, &f, sizeof f);
      break;
    case Type::kBfloat16:
    case Type::kFloat16:
      std::memcpy(out, &half, sizeof half);
      break;
  }
}

float decode(Type type, const std::byte* in) {
  std::uint16_t half = 0;
  if (type == Type::kInt32) {
    int v = 0;
    std::memcpy(&v, in, sizeof v);
    return static_cast<float>(v);
  }
  if (type == Type::kFloat32) {
    float f = 0;
    std::memcpy(&f, in, sizeof f);
    return f;
  }
  std::memcpy(&half, in, sizeof half);
  if (type == Type::kBfloat16) return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fU;
  const std::uint32_t mantissa = half & 0x3ffU;
  if (exponent == 0) {  // zero or subnormal: mantissa / 2^24
    const float f = static_cast<float>(mantissa) / 16777216.0F;
    return sign != 0 ? -f : f;
  }
  const std::uint32_t wide = exponent == 31 ? 255U : exponent - 15U + 127U;
  return std::bit_cast<float>(sign | (wide << 23) | (mantissa << 13));
}

// One period of a rank's values (or of their sum), encoded.
class Tile {
 public:
  Tile(Type type, int rank, int ranks, std::uint64_t seed)
      : size_(size_of(type)), bytes_(kPeriod * size_) {
    const int from = rank == kSum ? 0 : rank;
    const int to = rank == kSum ? ranks : rank + 1;
    for (std::size_t i = 0; i < kPeriod; ++i) {
      int v = 0;
      for (int r = from; r < to; ++r) v += value(r, i, seed);
      encode(type, v, &bytes_[i * size_]);
    }
  }

  void write(std::size_t first, std::size_t count, std::byte* out) const {
    each_piece(first, count, [&](std::size_t done, std::size_t phase, std::size_t n) {
      std::memcpy(out + done * size_, &bytes_[phase * size_], n * size_);
      return true;
    });
  }

  // Index of the first element that differs, or count.
  std::size_t mismatch(std::size_t first, std::size_t count, const std::byte* data) const {
    std::size_t at = count;
    each_piece(first, count, [&](std::size_t done, std::size_t phase, std::size_t n) {
      if (std::memcmp(data + done * size_, &bytes_[phase * size_], n * size_) == 0) return true;
      at = done;
      while (std::memcmp(data + at * size_, element(first + at), size_) == 0) ++at;
      return false;
    });
    return at;
  }

  const std::byte* element(std::size_t index) const { return &bytes_[index % kPeriod * size_]; }

 private:
  // Calls piece(elements done, index in the tile, elements) for each stretch within one period,
  // until it says false.
  template <class Piece>
  static void each_piece(std::size_t first, std::size_t count, const Piece& piece) {
    for (std::size_t done = 0; done < count;) {
      const std::size_t phase = (first + done) % kPeriod;
      const std::size_t n = std::min(kPeriod - phase, count - done);
      if (!piece(done, phase, n)) return;
      done += n;
    }
  }

  std::size_t size_;
  std::vector<std::byte> bytes_;
};

}  // namespace

const char* name(Type type) {
  constexpr const char* kNames[kTypes] = {"int32", "float32", "bfloat16", "float16"};
  return kNames[static_cast<int>(type)];
}

std::size_t size_of(Type type) { return type == Type::kInt32 || type == Type::kFloat32 ? 4 : 2; }

const char* name(Op op) {
  constexpr const char* kNames[kOps] = {"all-reduce", "all-gather", "reduce-scatter",
                                        "all-to-all", "ring",       "broadcast"};
  return kNames[static_cast<int>(op)];
}

int value(int rank, std::size_t index, std::uint64_t seed) {
  const std::uint64_t x = mix((seed << 20) ^ (static_cast<std::uint64_t>(rank) << 13) ^
                              static_cast<std::uint64_t>(index % kPeriod));
  return static_cast<int>(x % 17) - 8;
}

Plan plan(Op op, Type type, std::size_t bytes, int ranks, std::uint64_t seed) {
  const std::size_t elements = std::max<std::size_t>(1, bytes / size_of(type));
  const auto parts = static_cast<std::size_t>(ranks);
  Plan p{.op = op, .type = type, .ranks = ranks, .seed = seed};
  p.chunk = std::max<std::size_t>(1, elements / parts);
  p.send_count = p.recv_count = elements;
  p.root = static_cast<int>(seed % parts);
  switch (op) {
    case Op::kAllReduce:
    case Op::kRing:
    case Op::kBroadcast:
      break;
    case Op::kAllGather:
      p.send_count = p.chunk;
      p.recv_count = p.chunk * parts;
      break;
    case Op::kReduceScatter:
      p.send_count = p.chunk * parts;
      p.recv_count = p.chunk;
      break;
    case Op::kAllToAll:
      p.send_count = p.recv_count = p.chunk * parts;
      break;
  }
  return p;
}

std::vector<Extent> expected(const Plan& plan, int me) {
  const std::size_t mine = static_cast<std::size_t>(me) * plan.chunk;
  std::vector<Extent> extents;
  switch (plan.op) {
    case Op::kAllReduce:
      return {{kSum, 0, plan.recv_count}};
    case Op::kReduceScatter:
      return {{kSum, mine, plan.chunk}};
    case Op::kRing:
      return {{(me + plan.ranks - 1) % plan.ranks, 0, plan.recv_count}};
    case Op::kBroadcast:
      return {{plan.root, 0, plan.recv_count}};
    case Op::kAllGather:
      for (int r = 0; r < plan.ranks; ++r) extents.push_back({r, 0, plan.chunk});
      return extents;
    case Op::kAllToAll:
      for (int r = 0; r < plan.ranks; ++r) extents.push_back({r, mine, plan.chunk});
      return extents;
  }
  return extents;
}

void write_input(const Plan& plan, int me, std::byte* out) {
  Tile(plan.type, me, plan.ranks, plan.seed).write(0, plan.send_count, out);
}

std::string verify(const Plan& plan, int me, const std::byte* received) {
  std::size_t offset = 0;
  for (const Extent& extent : expected(plan, me)) {
    const Tile tile(plan.type, extent.rank, plan.ranks, plan.seed);
    const std::byte* data = received + offset * size_of(plan.type);
    const std::size_t at = tile.mismatch(extent.first, extent.count, data);
    if (at < extent.count)
      return "element " + std::to_string(offset + at) + " of " + std::to_string(plan.recv_count) +
             " is " + std::to_string(decode(plan.type, data + at * size_of(plan.type))) +
             ", must be " + std::to_string(decode(plan.type, tile.element(extent.first + at)));
    offset += extent.count;
  }
  return {};
}

}  // namespace gpu_test
