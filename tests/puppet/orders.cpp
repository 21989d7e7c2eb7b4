#include "tests/puppet/orders.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/puppet/check.h"
#include "tests/workload/base/failure.h"

namespace amem::puppet {
namespace {

using Handle = CUmemGenericAllocationHandle;

constexpr std::size_t kBytes = 12 << 10;  // no multiple of any device's granularity

class Maker {
 public:
  explicit Maker(CUdevice device) {
    prop_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop_.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    prop_.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  }

  std::size_t Granularity(CUmemAllocationGranularity_flags option) const {
    std::size_t granularity = 0;
    Check(cuMemGetAllocationGranularity(&granularity, &prop_, option),
          "cuMemGetAllocationGranularity");
    return granularity;
  }
  std::size_t Small() const { return Granularity(CU_MEM_ALLOC_GRANULARITY_MINIMUM); }
  std::size_t Rounded(std::size_t bytes) const {
    const std::size_t unit = Small();
    return (bytes + unit - 1) / unit * unit;
  }
  Handle Create(std::size_t bytes) const {
    Handle handle = 0;
    Check(cuMemCreate(&handle, bytes, &prop_, 0), "cuMemCreate");
    return handle;
  }
  static CUdeviceptr Reserve(std::size_t bytes, std::size_t alignment) {
    CUdeviceptr address = 0;
    Check(cuMemAddressReserve(&address, bytes, alignment, 0, 0), "cuMemAddressReserve");
    return address;
  }
  void Map(CUdeviceptr address, std::size_t bytes, Handle handle) const {
    Check(cuMemMap(address, bytes, 0, handle, 0), "cuMemMap");
    const CUmemAccessDesc access{prop_.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    Check(cuMemSetAccess(address, bytes, &access, 1), "cuMemSetAccess");
  }

 private:
  CUmemAllocationProp prop_{};
};

void Expect(CUdeviceptr address, std::size_t bytes, unsigned char value, const char* what) {
  std::vector<unsigned char> there(bytes);
  Check(cuMemcpyDtoH(there.data(), address, bytes), "cuMemcpyDtoH");
  if (std::any_of(there.begin(), there.end(), [&](unsigned char b) { return b != value; }))
    throw workload::Failure(std::string(what) + " does not hold " + std::to_string(value));
}

/// As ncclCuMemFree does.
void Free(CUdeviceptr address) {
  Handle handle = 0;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the API takes the device address as a pointer
  Check(cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(address)),
        "cuMemRetainAllocationHandle");
  Check(cuMemRelease(handle), "cuMemRelease");
  std::size_t bytes = 0;
  CUdeviceptr base = 0;
  Check(cuMemGetAddressRange(&base, &bytes, address + 100), "cuMemGetAddressRange");
  if (base != address) throw workload::Failure("an address range begins elsewhere");
  Check(cuMemUnmap(address, bytes), "cuMemUnmap");
  Check(cuMemRelease(handle), "cuMemRelease");
  Check(cuMemAddressFree(address, bytes), "cuMemAddressFree");
}

/// A descriptor of the buffer.
int Export(CUdeviceptr address) {
  Handle handle = 0;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the API takes the device address as a pointer
  Check(cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(address)),
        "cuMemRetainAllocationHandle");
  int descriptor = -1;
  Check(cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                     0),
        "cuMemExportToShareableHandle");
  Check(cuMemRelease(handle), "cuMemRelease");
  return descriptor;
}

CUdeviceptr Make(const Maker& maker) {
  const std::size_t bytes = maker.Rounded(kBytes);
  const Handle handle = maker.Create(bytes);
  const CUdeviceptr address = Maker::Reserve(bytes, maker.Small());
  maker.Map(address, bytes, handle);
  return address;
}

void Remembered(const Maker& maker) {
  const std::size_t unit = maker.Small();
  const std::size_t bytes = (kBytes + unit - 1) / unit * unit;
  std::vector<CUdeviceptr> made;
  for (unsigned char i = 0; i < 3; ++i) {
    const Handle handle = maker.Create(bytes);
    made.push_back(Maker::Reserve(bytes, unit));
    maker.Map(made.back(), bytes, handle);
    Check(cuMemsetD8(made.back(), i + 1U, kBytes), "cuMemsetD8");
  }
  for (unsigned char i = 0; i < 3; ++i) Expect(made[i], kBytes, i + 1U, "a buffer");
  for (const CUdeviceptr address : made) Free(address);
}

/// Maps a buffer once more, as ranks in threads do; frees both mappings. Where the second was.
CUdeviceptr MapAgain(const Maker& maker, Handle handle, CUdeviceptr first, std::size_t bytes) {
  CUmemAllocationProp prop{};
  Check(cuMemGetAllocationPropertiesFromHandle(&prop, handle), "properties");
  const std::size_t again = maker.Rounded(kBytes);
  const CUdeviceptr second = Maker::Reserve(again, 0);
  maker.Map(second, again, handle);
  Check(cuMemsetD8(first, 7, kBytes), "cuMemsetD8");
  Expect(second, kBytes, 7, "the second mapping");
  Check(cuMemUnmap(first, bytes), "cuMemUnmap");
  Check(cuMemAddressFree(first, bytes), "cuMemAddressFree");
  Expect(second, kBytes, 7, "what is left");
  Free(second);
  return second;
}

bool Twice(const Maker& maker) {
  const std::size_t bytes = maker.Rounded(kBytes);
  const Handle handle = maker.Create(bytes);
  const CUdeviceptr first = Maker::Reserve(bytes, 0);
  maker.Map(first, bytes, handle);
  return MapAgain(maker, handle, first, bytes) == first;
}

void Elsewhere(const Maker& maker) {
  const std::size_t space = 4 * maker.Granularity(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  const CUdeviceptr range = Maker::Reserve(space, 0);
  const std::size_t bytes = maker.Rounded(kBytes);
  const Handle handle = maker.Create(bytes);
  maker.Map(range, bytes, handle);
  Check(cuMemsetD8(range, 9, kBytes), "cuMemsetD8");
  Expect(range, kBytes, 9, "a buffer in a range");
  std::size_t mapped = 0;
  Check(cuMemGetAddressRange(nullptr, &mapped, range), "cuMemGetAddressRange");
  Check(cuMemUnmap(range, mapped), "cuMemUnmap");
  Check(cuMemRelease(handle), "cuMemRelease");
  Check(cuMemAddressFree(range, space), "cuMemAddressFree");
}

void ExportedFirst(const Maker& maker) {
  const std::size_t bytes = maker.Rounded(kBytes);
  const Handle handle = maker.Create(bytes);
  int descriptor = -1;
  Check(cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                     0),
        "cuMemExportToShareableHandle");
  close(descriptor);
  const CUdeviceptr address = Maker::Reserve(bytes, 0);
  maker.Map(address, bytes, handle);
  Check(cuMemsetD8(address, 3, kBytes), "cuMemsetD8");
  Expect(address, kBytes, 3, "an exported buffer");
  Free(address);
}

void InBetween(const Maker& maker) {
  const std::size_t bytes = maker.Rounded(kBytes);
  const Handle first = maker.Create(bytes);
  const std::size_t more = 2 * maker.Rounded(kBytes);
  const Handle second = maker.Create(more);
  const CUdeviceptr a = Maker::Reserve(bytes, maker.Small());
  maker.Map(a, bytes, first);
  const CUdeviceptr b = Maker::Reserve(more, maker.Small());
  maker.Map(b, more, second);
  Check(cuMemsetD8(a, 1, bytes), "cuMemsetD8");
  Check(cuMemsetD8(b, 2, more), "cuMemsetD8");
  Expect(a, bytes, 1, "the first buffer");
  Expect(b, more, 2, "the second buffer");
  Free(a);
  Free(b);
}

void Reused(const Maker& maker) {
  const CUdeviceptr stays = Make(maker);  // keeps the slab
  const CUdeviceptr goes = Make(maker);
  Check(cuMemsetD8(goes, 0xff, kBytes), "cuMemsetD8");
  Free(goes);
  const CUdeviceptr next = Make(maker);
  Expect(next, kBytes, 0, "a new buffer");
  Free(next);
  Free(stays);
}

/// Whether the space of a buffer that a peer was given is used again. Its slab lives on meanwhile.
bool SharedAndFreed(const Maker& maker) {
  const CUdeviceptr stays = Make(maker);
  const CUdeviceptr goes = Make(maker);
  close(Export(goes));
  Free(goes);
  const CUdeviceptr next = Make(maker);
  Free(next);
  Free(stays);
  return next == goes;
}

/// A piece that is mapped once more when nothing is packed any more.
void TwiceLate(const Maker& maker) {
  const std::size_t bytes = maker.Rounded(kBytes);
  const Handle handle = maker.Create(bytes);
  const CUdeviceptr first = Maker::Reserve(bytes, 0);
  maker.Map(first, bytes, handle);
  Elsewhere(maker);
  MapAgain(maker, handle, first, bytes);
}

/// What comes of the descriptor of a buffer that has been freed, while its slab lives on.
CUresult FreedAndImported(const Maker& maker) {
  const CUdeviceptr stays = Make(maker);
  const CUdeviceptr goes = Make(maker);
  const int descriptor = Export(goes);
  Free(goes);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the API takes the descriptor as a pointer
  auto* const shared = reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor));
  Handle handle = 0;
  const CUresult result =
      cuMemImportFromShareableHandle(&handle, shared, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  close(descriptor);
  if (result == CUDA_SUCCESS) Check(cuMemRelease(handle), "cuMemRelease");
  Free(stays);
  return result;
}

}  // namespace

void RunOrder(CUdevice device, const std::string& name, workload::Answer* answer) {
  const Maker maker(device);
  if (name == "remembered") return Remembered(maker);
  if (name == "twice") return answer->Number("same_address", Twice(maker) ? 1 : 0);
  if (name == "elsewhere") return Elsewhere(maker);
  if (name == "exported-first") return ExportedFirst(maker);
  if (name == "in-between") return InBetween(maker);
  if (name == "reused") return Reused(maker);
  if (name == "twice-late") return TwiceLate(maker);
  if (name == "freed-and-imported")
    return answer->Number("result", static_cast<std::uint64_t>(FreedAndImported(maker)));
  if (name == "shared-and-freed")
    return answer->Number("same_address", SharedAndFreed(maker) ? 1 : 0);
  throw workload::Failure("no order " + name);
}

}  // namespace amem::puppet
