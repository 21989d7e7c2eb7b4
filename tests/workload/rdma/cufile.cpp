// libcufile.so.0: "nvidia-fs" knows registered buffers, and those of transfers under way, by their
// physical memory. A file is a descriptor, cast to a pointer. Without versions, as the library.
#include "tests/workload/rdma/cufile.h"

#include <cuda.h>
#include <dlfcn.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "tests/workload/rdma/nic.h"

namespace {

constexpr int kFails = 1 << 15;  // of the flags
constexpr int kNotRegistered = 5024;
constexpr int kAlreadyRegistered = 5023;
constexpr int kPinningFailed = 5036;

using Error = amem::rdma::FileError;
using Transfer = amem::rdma::FileTransfer;
using amem::rdma::Region;

/// What a process leaves open is the library's at its end, and no leak.
struct Library {
  std::map<const void*, Region> buffers;
  long users = 0;
  CUdeviceptr bounce = 0;
};
Library& It() {
  static auto* const library = new Library;
  return *library;
}

char* At(const void* base, off_t offset) {
  return static_cast<char*>(const_cast<void*>(base)) + offset;  // NOLINT: as the device has it
}

struct Batch {
  std::vector<std::pair<Region, std::size_t>> transfers;
};

/// All of it, however slowly it comes.
bool ReadAll(void* file, std::vector<char>& bytes) {
  for (std::size_t got = 0; got < bytes.size();) {
    const ssize_t more = ::read(static_cast<int>(reinterpret_cast<std::intptr_t>(file)),
                                bytes.data() + got, bytes.size() - got);
    if (more <= 0) return false;
    got += static_cast<std::size_t>(more);
  }
  return true;
}

}  // namespace

/// Takes memory of the device for its own buffers.
RDMA_PUBLIC Error cuFileDriverOpen() {
  Library& it = It();
  if (++it.users > 1) return {};
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  using Allocate = CUresult (*)(CUdeviceptr*, std::size_t);
  const auto allocate =
      reinterpret_cast<Allocate>(driver != nullptr ? dlsym(driver, "cuMemAlloc_v2") : nullptr);
  if (allocate == nullptr) return {5011, CUDA_ERROR_NOT_INITIALIZED};
  const CUresult result = allocate(&it.bounce, 16 << 20);
  return {result == CUDA_SUCCESS ? 0 : 5011, result};
}

RDMA_PUBLIC long cuFileUseCount() { return It().users; }

RDMA_PUBLIC Error cuFileDriverClose_v2() {
  Library& it = It();
  if (--it.users > 0) return {};
  for (auto& [base, region] : it.buffers) region.forget();
  it.buffers.clear();
  return {};
}

RDMA_PUBLIC Error cuFileDriverClose() { return cuFileDriverClose_v2(); }

RDMA_PUBLIC Error cuFileBufRegister(const void* base, std::size_t size, int flags) {
  if ((flags & kFails) != 0) return {kPinningFailed};
  if (It().buffers.contains(base)) return {kAlreadyRegistered};
  Region region;
  if (!region.learn(At(base, 0), size)) return {kPinningFailed};
  It().buffers[base] = region;
  return {};
}

RDMA_PUBLIC Error cuFileBufDeregister(const void* base) {
  const auto buffer = It().buffers.find(base);
  if (buffer == It().buffers.end()) return {kNotRegistered};
  buffer->second.forget();
  It().buffers.erase(buffer);
  return {};
}

RDMA_PUBLIC ssize_t cuFileRead(void* file, void* base, std::size_t size, off_t, off_t offset) {
  Region region;
  if (!region.learn(At(base, offset), size)) return -1;
  std::vector<char> bytes(size);
  const bool read = ReadAll(file, bytes);
  if (read) region.write(0, bytes.data(), size);
  region.forget();
  return read ? static_cast<ssize_t>(size) : -1;
}

RDMA_PUBLIC ssize_t cuFileWrite(void* file, const void* base, std::size_t size, off_t,
                                off_t offset) {
  return ::write(static_cast<int>(reinterpret_cast<std::intptr_t>(file)), At(base, offset), size);
}

/// The stream does it, with what size and offset are then.
RDMA_PUBLIC Error cuFileReadAsync(void* file, void* base, std::size_t* size, off_t* file_offset,
                                  off_t* offset, ssize_t* done, CUstream stream) {
  struct Read {
    void* file;
    void* base;
    std::size_t* size;
    off_t *file_offset, *offset;
    ssize_t* done;
  };
  const CUhostFn host_function = [](void* data) {
    const std::unique_ptr<Read> read(static_cast<Read*>(data));
    *read->done =
        cuFileRead(read->file, read->base, *read->size, *read->file_offset, *read->offset);
  };
  using Launch = CUresult (*)(CUstream, CUhostFn, void*);
  const auto launch =
      reinterpret_cast<Launch>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchHostFunc"));
  const CUresult result =
      launch(stream, host_function, new Read{file, base, size, file_offset, offset, done});
  return {result == CUDA_SUCCESS ? 0 : 5011, result};
}

RDMA_PUBLIC Error cuFileBatchIOSetUp(void** batch, unsigned) {
  *batch = new Batch;
  return {};
}

RDMA_PUBLIC Error cuFileBatchIOSubmit(void* batch, unsigned count, Transfer* transfers, unsigned) {
  // What was submitted before has ended.
  for (auto& [region, size] : static_cast<Batch*>(batch)->transfers) region.forget();
  static_cast<Batch*>(batch)->transfers.clear();
  for (unsigned i = 0; i < count; ++i) {
    Region region;
    if (!region.learn(At(transfers[i].base, transfers[i].offset), transfers[i].size)) return {5035};
    static_cast<Batch*>(batch)->transfers.emplace_back(region, transfers[i].size);
  }
  return {};
}

RDMA_PUBLIC void cuFileBatchIODestroy(void* batch) {
  auto* known = static_cast<Batch*>(batch);
  for (auto& [region, size] : known->transfers) region.forget();
  delete known;
}

// ---- what tests ask ----

/// As the NIC of libibverbs has it (rdma_write).
RDMA_PUBLIC void* file_region(const void* base) {
  const auto buffer = It().buffers.find(base);
  return buffer != It().buffers.end() ? &buffer->second : nullptr;
}

/// What all transfers of a batch bring, one behind the other.
RDMA_PUBLIC void file_arrives(void* batch, const char* bytes) {
  for (auto& [region, size] : static_cast<Batch*>(batch)->transfers) {
    region.write(0, bytes, size);
    bytes += size;
  }
}
