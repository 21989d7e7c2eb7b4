// Orders: ways to make device memory that are NCCL's or could be, each checked as it goes along,
// with sizes that are no multiple of the driver's granularity. Each throws when a call fails that
// must not, or memory does not hold what was written. The number of calls and their order count.
#include <cstdint>
#include <string>
#include <vector>

#include "common/fd.h"
#include "tests/workload/base/bytes.h"
#include "tests/workload/puppet/puppet.h"

namespace amem::workload {
namespace {

constexpr std::size_t kBytes = 12 << 10;  // no multiple of any device's granularity

/// What is asked for anew each time.
std::size_t Small(const NcclCalls& calls) { return calls.Granularity(false); }
std::size_t Rounded(const NcclCalls& calls) { return RoundedUp(kBytes, Small(calls)); }

void Set(CUdeviceptr address, std::size_t bytes, unsigned char value) {
  Check(cuMemsetD8(address, value, bytes), "cuMemsetD8");
}

void Expect(CUdeviceptr address, std::size_t bytes, unsigned char value, const char* what) {
  const auto all = [&](std::size_t) { return value * 0x0101010101010101U; };
  if (FirstWrongByte(address, bytes, all))
    throw Failure(std::string(what) + " does not hold " + std::to_string(value));
}

void Free(CUdeviceptr address) {
  CUdeviceptr base = 0;
  Check(cuMemGetAddressRange(&base, nullptr, address + 100), "cuMemGetAddressRange");
  if (base != address) throw Failure("an address range begins elsewhere");
  NcclCalls::Free(address);
}

/// A descriptor of the buffer.
Fd Export(CUdeviceptr address) {
  const Handle handle = NcclCalls::Retain(address);
  Fd descriptor(NcclCalls::ExportDescriptor(handle));
  NcclCalls::Release(handle);
  return descriptor;
}

CUdeviceptr Make(const NcclCalls& calls) {
  const std::size_t bytes = Rounded(calls);
  const Handle handle = calls.CreateHere(bytes);
  return calls.Place(bytes, Small(calls), handle);
}

/// The granularity is asked for once, for three buffers.
void Remembered(const NcclCalls& calls, Answer*) {
  const std::size_t unit = Small(calls);
  const std::size_t bytes = RoundedUp(kBytes, unit);
  std::vector<CUdeviceptr> made;
  for (unsigned char i = 0; i < 3; ++i) {
    made.push_back(calls.Place(bytes, unit, calls.CreateHere(bytes)));
    Set(made.back(), kBytes, i + 1U);
  }
  for (unsigned char i = 0; i < 3; ++i) Expect(made[i], kBytes, i + 1U, "a buffer");
  for (const CUdeviceptr address : made) Free(address);
}

/// Maps a buffer once more, as ranks in threads do; frees both mappings. Where the second was.
CUdeviceptr MapAgain(const NcclCalls& calls, Handle handle, CUdeviceptr first, std::size_t bytes) {
  NcclCalls::Properties(handle);
  const CUdeviceptr second = calls.Place(Rounded(calls), 0, handle);
  Set(first, kBytes, 7);
  Expect(second, kBytes, 7, "the second mapping");
  NcclCalls::Unmap(first, bytes);
  NcclCalls::FreeAddress(first, bytes);
  Expect(second, kBytes, 7, "what is left");
  Free(second);
  return second;
}

void Twice(const NcclCalls& calls, Answer* answer) {
  const std::size_t bytes = Rounded(calls);
  const Handle handle = calls.CreateHere(bytes);
  const CUdeviceptr first = calls.Place(bytes, 0, handle);
  answer->Number("same_address", MapAgain(calls, handle, first, bytes) == first ? 1 : 0);
}

/// Mapped where its maker chose, in a larger reservation.
void Elsewhere(const NcclCalls& calls, Answer*) {
  const std::size_t space = 4 * calls.Granularity(true);
  const CUdeviceptr range = NcclCalls::Reserve(space, 0);
  const std::size_t bytes = Rounded(calls);
  const Handle handle = calls.CreateHere(bytes);
  calls.MapHere(range, bytes, handle);
  Set(range, kBytes, 9);
  Expect(range, kBytes, 9, "a buffer in a range");
  NcclCalls::Unmap(range, NcclCalls::RangeBytes(range));
  NcclCalls::Release(handle);
  NcclCalls::FreeAddress(range, space);
}

/// Before it has an address.
void ExportedFirst(const NcclCalls& calls, Answer*) {
  const std::size_t bytes = Rounded(calls);
  const Handle handle = calls.CreateHere(bytes);
  Fd(NcclCalls::ExportDescriptor(handle)).reset();
  const CUdeviceptr address = calls.Place(bytes, 0, handle);
  Set(address, kBytes, 3);
  Expect(address, kBytes, 3, "an exported buffer");
  Free(address);
}

/// Two buffers are created before the first has an address.
void InBetween(const NcclCalls& calls, Answer*) {
  const std::size_t bytes = Rounded(calls);
  const Handle first = calls.CreateHere(bytes);
  const std::size_t more = 2 * Rounded(calls);
  const Handle second = calls.CreateHere(more);
  const CUdeviceptr a = calls.Place(bytes, Small(calls), first);
  const CUdeviceptr b = calls.Place(more, Small(calls), second);
  Set(a, bytes, 1);
  Set(b, more, 2);
  Expect(a, bytes, 1, "the first buffer");
  Expect(b, more, 2, "the second buffer");
  Free(a);
  Free(b);
}

/// A buffer full of ones is freed: the next must be zero.
void Reused(const NcclCalls& calls, Answer*) {
  const CUdeviceptr stays = Make(calls);  // keeps the slab
  const CUdeviceptr goes = Make(calls);
  Set(goes, kBytes, 0xff);
  Free(goes);
  const CUdeviceptr next = Make(calls);
  Expect(next, kBytes, 0, "a new buffer");
  Free(next);
  Free(stays);
}

/// Whether the space of a buffer that a peer was given is used again. Its slab lives on meanwhile.
void SharedAndFreed(const NcclCalls& calls, Answer* answer) {
  const CUdeviceptr stays = Make(calls);
  const CUdeviceptr goes = Make(calls);
  Export(goes).reset();
  Free(goes);
  const CUdeviceptr next = Make(calls);
  Free(next);
  Free(stays);
  answer->Number("same_address", next == goes ? 1 : 0);
}

/// A piece of a slab that is mapped once more when nothing is packed any more.
void TwiceLate(const NcclCalls& calls, Answer* answer) {
  const std::size_t bytes = Rounded(calls);
  const Handle handle = calls.CreateHere(bytes);
  const CUdeviceptr first = calls.Place(bytes, 0, handle);
  Elsewhere(calls, answer);
  MapAgain(calls, handle, first, bytes);
}

/// What comes of the descriptor of a buffer that has been freed, while its slab lives on.
void FreedAndImported(const NcclCalls& calls, Answer* answer) {
  const CUdeviceptr stays = Make(calls);
  const CUdeviceptr goes = Make(calls);
  const Fd descriptor = Export(goes);
  Free(goes);
  Handle handle = 0;
  const CUresult result = NcclCalls::ImportDescriptor(descriptor.get(), &handle);
  if (result == CUDA_SUCCESS) NcclCalls::Release(handle);
  Free(stays);
  answer->Number("result", static_cast<std::uint64_t>(result));
}

template <void (*order)(const NcclCalls&, Answer*)>
void Run(Puppet& puppet, const Words&, Answer* answer) {
  order(NcclCalls(puppet.device), answer);
}

}  // namespace

const Commands<Puppet> kOrderCommands = {
    {"order remembered", Run<Remembered>},
    {"order twice", Run<Twice>},
    {"order elsewhere", Run<Elsewhere>},
    {"order exported-first", Run<ExportedFirst>},
    {"order in-between", Run<InBetween>},
    {"order twice-late", Run<TwiceLate>},
    {"order freed-and-imported", Run<FreedAndImported>},
    {"order shared-and-freed", Run<SharedAndFreed>},
    {"order reused", Run<Reused>},
};

}  // namespace amem::workload
