// Receive buffers as NCCL makes them, with the table that names them, and what of them a pause has
// brought back.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "tests/workload/base/bytes.h"
#include "tests/workload/heap/heap.h"
#include "tests/workload/nccl/nccl_calls.h"

namespace amem::workload {
namespace {

constexpr std::size_t kCounters = 4096;
constexpr std::size_t kLl = 64 << 10;
constexpr std::size_t kLl128 = std::size_t{8} * 128 * 150;
constexpr std::size_t kStepSize = 256 << 10;
constexpr std::size_t kPacked = 4096;  // what NCCL is told to round to
constexpr std::uint64_t kStep = 11;
constexpr std::uint64_t kLate =
    0x7ffffff8;  // the first step for which NCCL writes all of LL's flags

struct Buffer {
  CUdeviceptr address = 0;
  std::vector<unsigned char> bytes;
};
std::vector<Buffer> g_buffers;

template <class T>
void Put(std::vector<unsigned char>& bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

std::string Became(const unsigned char* now, const unsigned char* before, std::size_t size) {
  const auto all = [&](unsigned char byte) {
    return std::all_of(now, now + size, [&](unsigned char each) { return each == byte; });
  };
  if (std::memcmp(now, before, size) == 0) return "kept";
  if (all(0)) return "zero";
  return all(0xff) ? "spoilt" : "wrong";
}

/// Bytes that are neither zero nor 0xff.
void MakeBuffer(const NcclCalls& calls, const std::string& ahead) {
  Buffer buffer;
  buffer.bytes.resize(RoundedUp(kCounters + kLl + kLl128 + 8 * kStepSize, kPacked));
  for (std::size_t i = 0; i < buffer.bytes.size(); ++i)
    buffer.bytes[i] = static_cast<unsigned char>(1 + i * 7 % 250);
  Put(buffer.bytes, 0, kStep + (ahead == "simple" ? 1 : 0));
  Put(buffer.bytes, kCounters + kLl + kStep % 8 * (kLl128 / 8) + 120,
      kStep + (ahead == "ll128" ? 1 : 0));
  // An empty message, which has no flag, and one behind it.
  const std::uint64_t second = kStep + 1;
  Put(buffer.bytes, kCounters + second % 8 * (kLl / 8) + 4,
      static_cast<std::uint32_t>(ahead == "ll" ? second + 1 : second - 7));
  Handle handle = 0;
  buffer.address = calls.Alloc(buffer.bytes.size(), false, &handle);
  Check(Cuda().cuMemcpyHtoD(buffer.address, buffer.bytes.data(), buffer.bytes.size()), "a buffer");
  g_buffers.push_back(std::move(buffer));
}

/// A ncclDevChannelPeer, of which the first connection to receive by is this one.
void MakeTable(const NcclCalls& calls, CUdeviceptr buffer, std::uint64_t step) {
  constexpr std::size_t kReceive = std::size_t{2} * 152;
  std::vector<unsigned char> table(kPacked);
  Put(table, kReceive, buffer + kCounters);
  Put(table, kReceive + 8, buffer + kCounters + kLl);
  Put(table, kReceive + 16, buffer + kCounters + kLl + kLl128);
  Put(table, kReceive + 48, buffer);
  Put(table, kReceive + 72, static_cast<std::int32_t>(kStepSize));
  Put(table, kReceive + 104, step);
  Handle handle = 0;
  const CUdeviceptr at = calls.Alloc(table.size(), false, &handle);
  Check(Cuda().cuMemcpyHtoD(at, table.data(), table.size()), "a table");
}

/// `ahead`: by what their senders have sent something that nobody has received.
void Make(Heap& heap, const Words& words, Answer*) {
  const int device = DeviceAt(words);
  const std::string ahead = WordAt(words, 2);
  heap.memory.Bind(device);
  const NcclCalls calls(device);
  const std::size_t before = g_buffers.size();
  for (std::uint64_t i = 0; i < NumberAt(words, 3, 1); ++i) MakeBuffer(calls, ahead);
  for (std::size_t i = before; i < g_buffers.size(); ++i)
    MakeTable(calls, g_buffers[i].address, ahead == "late" ? kLate : kStep);
}

void Report(Heap&, const Words&, Answer* answer) {
  for (const Buffer& buffer : g_buffers) {
    std::vector<unsigned char> now(buffer.bytes.size());
    Check(Cuda().cuMemcpyDtoH(now.data(), buffer.address, now.size()), "a buffer");
    const auto item = [&](const char* name, std::size_t at, std::size_t size) {
      answer->Item(name, '"' + Became(now.data() + at, buffer.bytes.data() + at, size) + '"');
    };
    item("counters", 0, kCounters);
    item("ll", kCounters, kLl);
    item("rest", kCounters + kLl, now.size() - kCounters - kLl);
  }
}

}  // namespace

const Commands<Heap> kFifoCommands = {
    {"fifo", Make},
    {"fifos", Report},
};

}  // namespace amem::workload
