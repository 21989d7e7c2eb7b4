#include "tests/puppet/nic.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tests/puppet/blocks.h"
#include "tests/puppet/check.h"
#include "tests/puppet/rdma/cufile.h"
#include "tests/workload/base/failure.h"

namespace amem::puppet {
namespace {

using workload::Failure;

constexpr int kFails = 1 << 15;  // of the stand-in's access flags

struct GdrHandle {
  unsigned long number;
};

void* Library(const char* name) {
  void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw Failure(dlerror());
  return library;
}

/// `version`: nullptr for dlsym.
template <class Function>
Function Find(const char* library, const char* name, const char* version = nullptr) {
  void* const found =
      version != nullptr ? dlvsym(Library(library), name, version) : dlsym(Library(library), name);
  if (found == nullptr) throw Failure(dlerror());
  return reinterpret_cast<Function>(found);
}

constexpr const char* kVerbs = "libibverbs.so.1";
constexpr const char* kMlx5 = "libmlx5.so.1";
constexpr const char* kGdr = "libgdrapi.so.2";
constexpr const char* kLinked = "libpuppet_rdma.so";
constexpr const char* kFile = "libcufile.so.0";
constexpr const char* kFileLinked = "libpuppet_file.so";

using amem::rdma::FileError;
using amem::rdma::FileTransfer;

void CheckFile(FileError error, const std::string& call) {
  if (error.code != 0) throw Failure(call + ": " + std::to_string(error.code));
}

using RegMr = void* (*)(void*, void*, std::size_t, int);
using Dereg = int (*)(void*);

void CheckErrno(bool good, const std::string& call, int error) {
  if (!good) throw Failure(call + ": " + std::strerror(error));
}

}  // namespace

CUdeviceptr Nic::Row(std::size_t bytes, std::size_t count) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device_}};
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUdeviceptr begin = 0;
  Check(cuMemAddressReserve(&begin, bytes * count, 0, 0, 0), "cuMemAddressReserve");
  for (std::size_t i = 0; i < count; ++i) {
    CUmemGenericAllocationHandle handle = 0;
    Check(cuMemCreate(&handle, bytes, &prop, 0), "cuMemCreate");
    Check(cuMemMap(begin + i * bytes, bytes, 0, handle, 0), "cuMemMap");
    Check(cuMemRelease(handle), "cuMemRelease");
  }
  const CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  Check(cuMemSetAccess(begin, bytes * count, &access, 1), "cuMemSetAccess");
  return begin;
}

std::uint64_t Nic::Register(std::uint64_t address, std::size_t bytes, const std::string& way,
                            bool fails) {
  auto* const at = reinterpret_cast<void*>(address);
  const int access = fails ? kFails : 0;
  Region region{way, nullptr, 0, bytes};
  errno = 0;
  if (way == "dlsym") {
    region.object = Find<RegMr>(kVerbs, "ibv_reg_mr")(nullptr, at, bytes, access);
  } else if (way == "dlvsym") {
    region.object = Find<RegMr>(kVerbs, "ibv_reg_mr", "IBVERBS_1.1")(nullptr, at, bytes, access);
  } else if (way == "iova2") {
    using RegMrIova2 = void* (*)(void*, void*, std::size_t, std::uint64_t, unsigned);
    region.object = Find<RegMrIova2>(kVerbs, "ibv_reg_mr_iova2", "IBVERBS_1.8")(
        nullptr, at, bytes, 0, static_cast<unsigned>(access));
  } else if (way == "linked") {
    using Linked = void* (*)(void*, std::size_t, int);
    region.object = Find<Linked>(kLinked, "puppet_register")(at, bytes, access);
  } else if (way == "umem") {
    using UmemReg = void* (*)(void*, void*, std::size_t, std::uint32_t);
    region.object = Find<UmemReg>(kMlx5, "mlx5dv_devx_umem_reg")(
        nullptr, at, bytes, static_cast<std::uint32_t>(access));
  } else if (way == "gdr") {
    if (gdr_ == nullptr) gdr_ = Find<void* (*)()>(kGdr, "gdr_open")();
    using Pin = int (*)(void*, unsigned long, std::size_t, std::uint32_t, GdrHandle*);
    GdrHandle handle{0};
    const int error =
        Find<Pin>(kGdr, "gdr_pin_buffer_v2")(gdr_, address, fails ? 1 : bytes, 0, &handle);
    CheckErrno(error == 0, "gdr_pin_buffer_v2", error);
    region.object = gdr_;
    region.handle = handle.number;
  } else if (way == "file" || way == "file-linked") {
    using RegisterBuffer = FileError (*)(const void*, std::size_t, int);
    CheckFile(way == "file"
                  ? Find<RegisterBuffer>(kFile, "cuFileBufRegister")(at, bytes, access)
                  : Find<RegisterBuffer>(kFileLinked, "puppet_register_buffer")(at, bytes, access),
              "cuFileBufRegister");
    region.object = Find<void* (*)(const void*)>(kFile, "file_region")(at);
    region.handle = address;
  } else {
    throw Failure("nobody registers by " + way);
  }
  CheckErrno(region.object != nullptr, "registering by " + way, errno);
  regions_.emplace(next_, region);
  return next_++;
}

Nic::Region& Nic::At(std::uint64_t number) {
  const auto found = regions_.find(number);
  if (found == regions_.end()) throw Failure("no registration " + std::to_string(number));
  return found->second;
}

void Nic::Change(std::uint64_t number, std::uint64_t address, std::size_t bytes, bool fails) {
  using Rereg = int (*)(void*, int, void*, void*, std::size_t, int);
  Region& region = At(number);
  const int result = Find<Rereg>(kVerbs, "ibv_rereg_mr")(
      region.object, 1, nullptr, reinterpret_cast<void*>(address), bytes, fails ? kFails : 0);
  if (result != 0) throw Failure("ibv_rereg_mr: " + std::to_string(result));
  region.bytes = bytes;
}

void Nic::Deregister(std::uint64_t number) {
  const Region region = At(number);
  int result = 0;
  if (region.way == "gdr") {
    using Unpin = int (*)(void*, GdrHandle);
    result = Find<Unpin>(kGdr, "gdr_unpin_buffer")(region.object, GdrHandle{region.handle});
  } else if (region.way == "file" || region.way == "file-linked") {
    using DeregisterBuffer = FileError (*)(const void*);
    const auto* const at = reinterpret_cast<const void*>(region.handle);
    CheckFile(region.way == "file"
                  ? Find<DeregisterBuffer>(kFile, "cuFileBufDeregister")(at)
                  : Find<DeregisterBuffer>(kFileLinked, "puppet_deregister_buffer")(at),
              "cuFileBufDeregister");
  } else if (region.way == "linked") {
    result = Find<Dereg>(kLinked, "puppet_deregister")(region.object);
  } else if (region.way == "umem") {
    result = Find<Dereg>(kMlx5, "mlx5dv_devx_umem_dereg")(region.object);
  } else {
    const char* version = region.way == "dlsym" ? nullptr : "IBVERBS_1.1";
    result = Find<Dereg>(kVerbs, "ibv_dereg_mr", version)(region.object);
  }
  CheckErrno(result == 0, "deregistering", result);
  regions_.erase(number);
}

void Nic::Fill(std::uint64_t number, std::uint64_t seed) const {
  const Region& region = regions_.at(number);
  using Write = void (*)(void*, std::size_t, const void*, std::size_t);
  const std::vector<std::uint64_t> words = Pattern(region.bytes, seed);
  Find<Write>(kVerbs, "rdma_write")(region.object, 0, words.data(), region.bytes);
}

void Nic::CloseGdr() {
  const int error = Find<Dereg>(kGdr, "gdr_close")(gdr_);
  CheckErrno(error == 0, "gdr_close", error);
  gdr_ = nullptr;
}

void Nic::OpenFiles() {
  CheckFile(Find<FileError (*)()>(kFile, "cuFileDriverOpen")(), "cuFileDriverOpen");
}

void Nic::CloseFiles() {
  CheckFile(Find<FileError (*)()>(kFile, "cuFileDriverClose_v2")(), "cuFileDriverClose");
}

void Nic::ReadFile(std::uint64_t address, std::size_t bytes, const std::string& path) {
  using Read = ssize_t (*)(void*, void*, std::size_t, off_t, off_t);
  const auto read = Find<Read>(kFile, "cuFileRead");
  const int file = ::open(path.c_str(), O_RDONLY);
  if (file < 0) throw Failure(path + ": " + std::strerror(errno));
  // The second half by an offset.
  const auto half = static_cast<off_t>(bytes / 2);
  const ssize_t got =
      read(reinterpret_cast<void*>(static_cast<std::intptr_t>(file)),
           reinterpret_cast<void*>(address - static_cast<std::uint64_t>(half)), bytes, 0, half);
  const int error = errno;
  ::close(file);
  CheckErrno(got == static_cast<ssize_t>(bytes), "cuFileRead", error);
}

void Nic::BeginRead(std::uint64_t address, std::size_t bytes, const std::string& path) {
  read_ = Transfer();
  read_.file = ::open(path.c_str(), O_RDONLY);
  if (read_.file < 0) throw Failure(path + ": " + std::strerror(errno));
  read_.bytes = bytes;
  read_.offset = static_cast<off_t>(bytes / 2);
  Check(cuStreamCreate(&read_.stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  using ReadAsync = FileError (*)(void*, void*, std::size_t*, off_t*, off_t*, ssize_t*, CUstream);
  CheckFile(Find<ReadAsync>(kFile, "cuFileReadAsync")(
                reinterpret_cast<void*>(static_cast<std::intptr_t>(read_.file)),
                reinterpret_cast<void*>(address - bytes / 2), &read_.bytes, &read_.file_offset,
                &read_.offset, &read_.done, read_.stream),
            "cuFileReadAsync");
}

void Nic::EndRead() {
  Check(cuStreamSynchronize(read_.stream), "cuStreamSynchronize");
  Check(cuStreamDestroy(read_.stream), "cuStreamDestroy");
  ::close(read_.file);
  if (read_.done != static_cast<ssize_t>(read_.bytes))
    throw Failure("cuFileReadAsync has read " + std::to_string(read_.done) + " bytes");
}

void Nic::WriteFile(std::uint64_t address, std::size_t bytes, const std::string& path) {
  using Write = ssize_t (*)(void*, const void*, std::size_t, off_t, off_t);
  const auto write = Find<Write>(kFile, "cuFileWrite");
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (file < 0) throw Failure(path + ": " + std::strerror(errno));
  const ssize_t written = write(reinterpret_cast<void*>(static_cast<std::intptr_t>(file)),
                                reinterpret_cast<const void*>(address), bytes, 0, 0);
  const int error = errno;
  ::close(file);
  CheckErrno(written == static_cast<ssize_t>(bytes), "cuFileWrite", error);
}

void Nic::SubmitBatch(std::uint64_t address, std::size_t bytes) {
  if (batch_ == nullptr)
    CheckFile(Find<FileError (*)(void**, unsigned)>(kFile, "cuFileBatchIOSetUp")(&batch_, 8),
              "cuFileBatchIOSetUp");
  FileTransfer transfers[2] = {};
  const std::size_t half = bytes / 2;
  for (FileTransfer& each : transfers) {
    each.base = reinterpret_cast<void*>(address);
    each.size = half;
  }
  transfers[1].offset = static_cast<off_t>(half);
  using Submit = FileError (*)(void*, unsigned, FileTransfer*, unsigned);
  CheckFile(Find<Submit>(kFile, "cuFileBatchIOSubmit")(batch_, 2, transfers, 0),
            "cuFileBatchIOSubmit");
}

void Nic::BatchArrives(std::size_t bytes, std::uint64_t seed) const {
  const std::vector<std::uint64_t> words = Pattern(bytes, seed);
  Find<void (*)(void*, const char*)>(kFile, "file_arrives")(
      batch_, reinterpret_cast<const char*>(words.data()));
}

void Nic::DestroyBatch() {
  Find<void (*)(void*)>(kFile, "cuFileBatchIODestroy")(batch_);
  batch_ = nullptr;
}

}  // namespace amem::puppet
