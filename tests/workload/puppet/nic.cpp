// Memory that is registered with the stand-ins of libibverbs, libmlx5, libgdrapi and libcufile
// (tests/workload/rdma), each loaded as programs do that can do without it.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "tests/workload/base/bytes.h"
#include "tests/workload/puppet/puppet.h"
#include "tests/workload/rdma/cufile.h"

namespace amem::workload {
namespace {

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

void CheckErrno(bool good, const std::string& call, int error) {
  if (!good) throw Failure(call + ": " + std::strerror(error));
}

using RegMr = void* (*)(void*, void*, std::size_t, int);
using Dereg = int (*)(void*);

/// What WriteBytes would write.
std::vector<std::uint64_t> Pattern(std::size_t bytes, std::uint64_t seed) {
  std::vector<std::uint64_t> words(bytes / kWord);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = BodyWord(seed, i);
  return words;
}

/// Several allocations at addresses one behind the other.
void MakeRow(Puppet& puppet, const Words& words, Answer* answer) {
  const NcclCalls calls(puppet.device);
  const std::size_t bytes = Number(words, 2);
  const std::size_t count = Number(words, 3);
  const CUdeviceptr begin = NcclCalls::Reserve(bytes * count, 0);
  for (std::size_t i = 0; i < count; ++i) {
    const Handle handle = calls.CreateHere(bytes);
    NcclCalls::Map(begin + i * bytes, bytes, 0, handle);
    NcclCalls::Release(handle);
  }
  NcclCalls::SetAccess(begin, bytes * count, calls.here(), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  answer->Number("address", begin);
}

bool Fails(const Words& words) { return words.back() == "fails"; }

/// `way`: how the call is found. `fails`: as the stand-in is told to. The registration's number.
std::uint64_t RegisterMemory(Nic& nic, std::uint64_t address, std::size_t bytes,
                             const std::string& way, bool fails) {
  auto* const at = reinterpret_cast<void*>(address);
  const int access = fails ? kFails : 0;
  Nic::Region region{way, nullptr, 0, bytes};
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
    if (nic.gdr == nullptr) nic.gdr = Find<void* (*)()>(kGdr, "gdr_open")();
    using Pin = int (*)(void*, unsigned long, std::size_t, std::uint32_t, GdrHandle*);
    GdrHandle handle{0};
    const int error =
        Find<Pin>(kGdr, "gdr_pin_buffer_v2")(nic.gdr, address, fails ? 1 : bytes, 0, &handle);
    CheckErrno(error == 0, "gdr_pin_buffer_v2", error);
    region.object = nic.gdr;
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
  nic.regions.emplace(nic.next, region);
  return nic.next++;
}

Nic::Region& RegionAt(Puppet& puppet, const Words& words) {
  const auto found = puppet.nic.regions.find(Number(words, 2));
  if (found == puppet.nic.regions.end()) throw Failure("no registration " + words[2]);
  return found->second;
}

/// The region is of another range from here on.
void Change(Puppet& puppet, const Words& words, Answer*) {
  using Rereg = int (*)(void*, int, void*, void*, std::size_t, int);
  Nic::Region& region = RegionAt(puppet, words);
  const int result = Find<Rereg>(kVerbs, "ibv_rereg_mr")(
      region.object, 1, nullptr, reinterpret_cast<void*>(Number(words, 3)), Number(words, 4),
      Fails(words) ? kFails : 0);
  if (result != 0) throw Failure("ibv_rereg_mr: " + std::to_string(result));
  region.bytes = Number(words, 4);
}

void Deregister(Puppet& puppet, const Words& words, Answer*) {
  const Nic::Region region = RegionAt(puppet, words);
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
  puppet.nic.regions.erase(Number(words, 2));
}

/// What the NIC receives: what "fill" would write.
void Fill(Puppet& puppet, const Words& words, Answer*) {
  const Nic::Region& region = RegionAt(puppet, words);
  using Write = void (*)(void*, std::size_t, const void*, std::size_t);
  const std::vector<std::uint64_t> content = Pattern(region.bytes, Number(words, 3));
  Find<Write>(kVerbs, "rdma_write")(region.object, 0, content.data(), region.bytes);
}

/// GDRCopy's handle goes with all that was pinned through it.
void CloseGdr(Puppet& puppet, const Words&, Answer*) {
  const int error = Find<Dereg>(kGdr, "gdr_close")(puppet.nic.gdr);
  CheckErrno(error == 0, "gdr_close", error);
  puppet.nic.gdr = nullptr;
}

// ---- files ----

int OpenFile(const std::string& path, int flags) {
  const int file = ::open(path.c_str(), flags, 0600);
  if (file < 0) throw Failure(path + ": " + std::strerror(errno));
  return file;
}

/// As libcufile's stand-in has it.
void* FileHandle(int file) { return reinterpret_cast<void*>(static_cast<std::intptr_t>(file)); }

void ReadFile(Puppet&, const Words& words, Answer*) {
  using Read = ssize_t (*)(void*, void*, std::size_t, off_t, off_t);
  const auto read = Find<Read>(kFile, "cuFileRead");
  const std::size_t bytes = Number(words, 3);
  const int file = OpenFile(Word(words, 4), O_RDONLY);
  // To where it belongs by an offset from an earlier address.
  const std::size_t half = bytes / 2;
  const ssize_t got = read(FileHandle(file), reinterpret_cast<void*>(Number(words, 2) - half),
                           bytes, 0, static_cast<off_t>(half));
  const int error = errno;
  ::close(file);
  CheckErrno(got == static_cast<ssize_t>(bytes), "cuFileRead", error);
}

void BeginRead(Puppet& puppet, const Words& words, Answer*) {
  Nic::Transfer& read = puppet.nic.read;
  read = Nic::Transfer();
  read.file = OpenFile(Word(words, 4), O_RDONLY);
  read.bytes = Number(words, 3);
  read.offset = static_cast<off_t>(read.bytes / 2);
  Check(cuStreamCreate(&read.stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  using ReadAsync = FileError (*)(void*, void*, std::size_t*, off_t*, off_t*, ssize_t*, CUstream);
  CheckFile(Find<ReadAsync>(kFile, "cuFileReadAsync")(
                FileHandle(read.file), reinterpret_cast<void*>(Number(words, 2) - read.bytes / 2),
                &read.bytes, &read.file_offset, &read.offset, &read.done, read.stream),
            "cuFileReadAsync");
}

void EndRead(Puppet& puppet, const Words&, Answer*) {
  const Nic::Transfer& read = puppet.nic.read;
  Check(cuStreamSynchronize(read.stream), "cuStreamSynchronize");
  Check(cuStreamDestroy(read.stream), "cuStreamDestroy");
  ::close(read.file);
  if (read.done != static_cast<ssize_t>(read.bytes))
    throw Failure("cuFileReadAsync has read " + std::to_string(read.done) + " bytes");
}

void WriteFile(Puppet&, const Words& words, Answer*) {
  using Write = ssize_t (*)(void*, const void*, std::size_t, off_t, off_t);
  const auto write = Find<Write>(kFile, "cuFileWrite");
  const std::size_t bytes = Number(words, 3);
  const int file = OpenFile(Word(words, 4), O_WRONLY | O_CREAT | O_TRUNC);
  const ssize_t written =
      write(FileHandle(file), reinterpret_cast<const void*>(Number(words, 2)), bytes, 0, 0);
  const int error = errno;
  ::close(file);
  CheckErrno(written == static_cast<ssize_t>(bytes), "cuFileWrite", error);
}

void SubmitBatch(Puppet& puppet, const Words& words, Answer*) {
  void*& batch = puppet.nic.batch;
  if (batch == nullptr)
    CheckFile(Find<FileError (*)(void**, unsigned)>(kFile, "cuFileBatchIOSetUp")(&batch, 8),
              "cuFileBatchIOSetUp");
  FileTransfer transfers[2] = {};
  const std::size_t half = Number(words, 3) / 2;
  for (FileTransfer& each : transfers) {
    each.base = reinterpret_cast<void*>(Number(words, 2));
    each.size = half;
  }
  transfers[1].offset = static_cast<off_t>(half);
  using Submit = FileError (*)(void*, unsigned, FileTransfer*, unsigned);
  CheckFile(Find<Submit>(kFile, "cuFileBatchIOSubmit")(batch, 2, transfers, 0),
            "cuFileBatchIOSubmit");
}

void BatchArrives(Puppet& puppet, const Words& words, Answer*) {
  const std::vector<std::uint64_t> content = Pattern(Number(words, 2), Number(words, 3));
  Find<void (*)(void*, const char*)>(kFile, "file_arrives")(
      puppet.nic.batch, reinterpret_cast<const char*>(content.data()));
}

void DestroyBatch(Puppet& puppet, const Words&, Answer*) {
  Find<void (*)(void*)>(kFile, "cuFileBatchIODestroy")(puppet.nic.batch);
  puppet.nic.batch = nullptr;
}

}  // namespace

const Commands<Puppet> kNicCommands = {
    {"nic row", MakeRow},
    {"nic register",
     [](Puppet& p, const Words& w, Answer* a) {
       a->Number("id", RegisterMemory(p.nic, Number(w, 2), Number(w, 3), Word(w, 4), Fails(w)));
     }},
    {"nic host",
     [](Puppet& p, const Words& w, Answer* a) {
       static std::vector<char> memory(1 << 16);
       const auto address = reinterpret_cast<std::uint64_t>(memory.data());
       a->Number("id", RegisterMemory(p.nic, address, memory.size(), Word(w, 2), Fails(w)));
     }},
    {"nic change", Change},
    {"nic deregister", Deregister},
    {"nic fill", Fill},
    {"nic close-gdr", CloseGdr},
    {"nic open-files",
     [](Puppet&, const Words&, Answer*) {
       CheckFile(Find<FileError (*)()>(kFile, "cuFileDriverOpen")(), "cuFileDriverOpen");
     }},
    {"nic close-files",
     [](Puppet&, const Words&, Answer*) {
       CheckFile(Find<FileError (*)()>(kFile, "cuFileDriverClose_v2")(), "cuFileDriverClose");
     }},
    {"nic read", ReadFile},
    {"nic begin-read", BeginRead},
    {"nic end-read", EndRead},
    {"nic write", WriteFile},
    {"nic submit", SubmitBatch},
    {"nic arrive", BatchArrives},
    {"nic destroy", DestroyBatch},
};

}  // namespace amem::workload
