#include "tests/sim/memory/physical.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "tests/sim/node/node.h"

namespace sim {
namespace {

// Out of the way of the program's own descriptors: tests count those, and old programs use
// select().
constexpr int kFirstDescriptor = 4096;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

std::set<int>& Descriptors() {
  static auto* const descriptors = new std::set<int>();
  return *descriptors;
}

std::unordered_map<CUmemGenericAllocationHandle, std::shared_ptr<Allocation>>& Allocations() {
  static auto* const allocations =
      new std::unordered_map<CUmemGenericAllocationHandle, std::shared_ptr<Allocation>>();
  return *allocations;
}

int MakeMemfd(const MemoryName& name) {
  const int fd = memfd_create(name.Format().c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return -1;
  if (ftruncate(fd, static_cast<off_t>(name.bytes)) != 0 || fcntl(fd, F_ADD_SEALS, kSeals) != 0 ||
      !HoldMemory(fd, name)) {
    close(fd);
    return -1;
  }
  return fd;
}

// Moves all the bytes; `move` is pread or pwrite of what is left.
template <typename Move>
void MoveAll(size_t bytes, const Move& move) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = move(done, bytes - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) Die(std::string("cannot move bytes of memory: ") + strerror(errno));
    done += static_cast<size_t>(n);
  }
}

// Memory with its pages; CUDA_ERROR_OUT_OF_MEMORY at capacity.
CUresult TakeMemory(const MemoryName& name, int* out) {
  int fd = -1;
  const bool admitted = Admit(name.device, name.bytes,
                              [&] { fd = HeldDescriptors::Keep([&] { return MakeMemfd(name); }); });
  if (!admitted || fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  // Outside the node's lock, for it takes a while: the host gives the pages now, as a device would.
  int error = 0;
  do {
    error = fallocate(fd, 0, 0, static_cast<off_t>(name.bytes)) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error == 0 && Node().fresh_pattern && name.device != kHostMemory) {
    const std::string pattern(1 << 20, static_cast<char>(kFreshByte));
    MoveAll(name.bytes, [&](size_t done, size_t left) {
      return pwrite(fd, pattern.data(), std::min(left, pattern.size()), static_cast<off_t>(done));
    });
  }
  if (error != 0) {
    HeldDescriptors::Close(fd);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *out = fd;
  return CUDA_SUCCESS;
}

std::set<Physical*>& Living() {
  static auto* const living = new std::set<Physical*>();
  return *living;
}

}  // namespace

std::mutex& MemoryMutex() {
  static auto* const mutex = new std::mutex();
  return *mutex;
}

std::mutex& HeldDescriptors::Mutex() {
  static auto* const mutex = new std::mutex();
  return *mutex;
}

int HeldDescriptors::Adopt(int fd) {
  if (fd < 0) return -1;
  const int high = fcntl(fd, F_DUPFD_CLOEXEC, kFirstDescriptor);
  if (high >= 0) {
    close(fd);
    fd = high;
  }
  Descriptors().insert(fd);
  return fd;
}

void HeldDescriptors::Close(int fd) {
  const std::lock_guard<std::mutex> lock(Mutex());
  // Not ours any more in a forked child that runs destructors.
  if (Descriptors().erase(fd) != 0) close(fd);
}

void HeldDescriptors::CloseInChild() {
  for (const int fd : Descriptors()) close(fd);
  Descriptors().clear();
}

Physical::Physical(int fd, const MemoryName& name, bool imported)
    : fd_(fd), name_(name), imported_(imported) {
  const std::lock_guard<std::mutex> lock(HeldDescriptors::Mutex());
  Living().insert(this);
}

Physical::~Physical() {
  {
    const std::lock_guard<std::mutex> lock(HeldDescriptors::Mutex());
    Living().erase(this);
  }
  HeldDescriptors::Close(fd_);
}

CUresult Physical::Create(int device, size_t bytes, unsigned flags,
                          std::shared_ptr<Physical>* out) {
  const int owner = device == kHostMemory ? VisibleDevices().front() : device;
  const MemoryName name{device, bytes, flags, owner};
  int fd = -1;
  const CUresult result = TakeMemory(name, &fd);
  if (result == CUDA_SUCCESS) out->reset(new Physical(fd, name, false));
  return result;
}

CUresult Physical::Import(int fd, std::shared_ptr<Physical>* out) {
  // A copy first: the caller may close its descriptor while we look at it.
  const int held = HeldDescriptors::Keep([&] { return fcntl(fd, F_DUPFD_CLOEXEC, 0); });
  if (held < 0) return CUDA_ERROR_UNKNOWN;
  char path[PATH_MAX];
  const ssize_t length =
      readlink(("/proc/self/fd/" + std::to_string(held)).c_str(), path, sizeof path - 1);
  std::optional<MemoryName> name;
  if (length > 0) name = MemoryName::Parse(std::string(path, static_cast<size_t>(length)));
  const int seals = fcntl(held, F_GET_SEALS);
  // It may have been opened anew, by its owner's entry in /proc.
  if (!name || seals < 0 || (seals & kSeals) != kSeals || !HoldMemory(held, *name)) {
    HeldDescriptors::Close(held);
    return CUDA_ERROR_UNKNOWN;
  }
  const std::string node = DeviceNode(name->owner);
  if (name->device == kHostMemory && !node.empty() && access(node.c_str(), F_OK) != 0) {
    HeldDescriptors::Close(held);
    return CUDA_ERROR_INVALID_DEVICE;
  }
  out->reset(new Physical(held, *name, true));
  return CUDA_SUCCESS;
}

bool Physical::SameAs(const Physical& other) const {
  struct stat mine = {};
  struct stat its = {};
  return fstat(fd_, &mine) == 0 && fstat(other.fd_, &its) == 0 && mine.st_dev == its.st_dev &&
         mine.st_ino == its.st_ino;
}

std::vector<Physical*> Physical::All() {
  const std::lock_guard<std::mutex> lock(HeldDescriptors::Mutex());
  return {Living().begin(), Living().end()};
}

void Physical::Save() {
  saved_ = std::make_unique_for_overwrite<unsigned char[]>(bytes());
  MoveAll(bytes(), [this](size_t at, size_t bytes) {
    return pread(fd_, saved_.get() + at, bytes, static_cast<off_t>(at));
  });
}

void Physical::Drop() { HeldDescriptors::Close(std::exchange(fd_, -1)); }

CUresult Physical::Remake() {
  const CUresult result = TakeMemory(name_, &fd_);
  if (result != CUDA_SUCCESS) return result;
  if (Node().checkpoints == Checkpoints::kForget) return CUDA_SUCCESS;
  MoveAll(bytes(), [this](size_t at, size_t bytes) {
    return pwrite(fd_, saved_.get() + at, bytes, static_cast<off_t>(at));
  });
  return CUDA_SUCCESS;
}

namespace {

CUmemGenericAllocationHandle Add(std::shared_ptr<Allocation> allocation) {
  // Handles count up and are never used twice, so that a stale one is an error and not somebody
  // else's memory.
  static CUmemGenericAllocationHandle next = 0x5a000000;
  allocation->handle = ++next;
  Allocations().emplace(next, std::move(allocation));
  return next;
}

}  // namespace

CUmemGenericAllocationHandle AddAllocation(const CUmemAllocationProp& properties,
                                           std::shared_ptr<Physical> memory, bool imported) {
  auto allocation = std::make_shared<Allocation>();
  allocation->properties = properties;
  allocation->imported = imported;
  allocation->memory = std::move(memory);
  return Add(std::move(allocation));
}

CUmemGenericAllocationHandle AddMulticast(std::shared_ptr<MulticastObject> object,
                                          CUmemAllocationHandleType types) {
  auto allocation = std::make_shared<Allocation>();
  allocation->properties.requestedHandleTypes = types;
  allocation->multicast = std::move(object);
  return Add(std::move(allocation));
}

std::shared_ptr<Allocation> FindAllocation(CUmemGenericAllocationHandle handle) {
  const auto it = Allocations().find(handle);
  return it == Allocations().end() ? nullptr : it->second;
}

void RetainAllocation(const std::shared_ptr<Allocation>& allocation) {
  ++allocation->references;
  Allocations().emplace(allocation->handle, allocation);
}

CUresult ReleaseAllocation(CUmemGenericAllocationHandle handle) {
  const auto it = Allocations().find(handle);
  if (it == Allocations().end()) return CUDA_ERROR_INVALID_VALUE;
  if (--it->second->references == 0) Allocations().erase(it);
  return CUDA_SUCCESS;
}

}  // namespace sim
