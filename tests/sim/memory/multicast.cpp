#include "tests/sim/memory/multicast.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/sim/node/node.h"

namespace sim {
namespace {

struct Binding {
  int32_t pid = 0;  // 0: this place is free
  int32_t fd = 0;
  uint64_t inode = 0;
  int32_t device = 0;
  uint64_t at = 0;  // in the object
  uint64_t from = 0;
  uint64_t bytes = 0;

  uint64_t end() const { return at + bytes; }
};

std::string FileName() { return "amem-sim-multicast:" + Node().id; }

uint64_t InodeOf(int fd) {
  struct stat info = {};
  return fstat(fd, &info) == 0 ? info.st_ino : 0;
}

// The memory of a binding, opened for this process; -1 if its process is gone.
int OpenMemory(const Binding& binding) {
  const std::string path =
      "/proc/" + std::to_string(binding.pid) + "/fd/" + std::to_string(binding.fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd >= 0 && InodeOf(fd) == binding.inode) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

bool Alive(const Binding& binding) {
  const int fd = OpenMemory(binding);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

std::atomic<int> g_objects{0};  // of this process

bool Aligned(uint64_t value) { return value % Node().granularity == 0; }

// Guards the state of all objects of the node. Opened anew each time, so that it excludes threads
// too.
class StateLock {
 public:
  StateLock() {
    const std::string path = Node().dir + "/multicast.lock";
    fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd_ < 0) Die("cannot open " + path + ": " + strerror(errno));
    while (flock(fd_, LOCK_EX) != 0) {
      if (errno != EINTR) Die("cannot lock " + path + ": " + strerror(errno));
    }
  }
  ~StateLock() {
    flock(fd_, LOCK_UN);  // a child forked meanwhile holds the same open file
    close(fd_);
  }
  StateLock(const StateLock&) = delete;
  StateLock& operator=(const StateLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace

struct MulticastObject::State {
  uint64_t bytes = 0;
  uint32_t team = 0;
  uint32_t handle_types = 0;
  uint32_t devices = 0;  // bit per physical ordinal
  std::array<Binding, 64> bindings{};

  bool Complete() const { return std::popcount(devices) == static_cast<int>(team); }
};

namespace {

MulticastObject::State* MapState(int fd) {
  void* at =
      mmap(nullptr, sizeof(MulticastObject::State), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return nullptr;
  madvise(at, sizeof(MulticastObject::State), MADV_DONTFORK);
  return static_cast<MulticastObject::State*>(at);
}

}  // namespace

MulticastObject::MulticastObject(int fd, State* state) : fd_(fd), state_(state) { ++g_objects; }

bool MulticastObject::Any() { return g_objects > 0; }

CUresult MulticastObject::Create(const CUmulticastObjectProp& prop,
                                 std::shared_ptr<MulticastObject>* out) {
  const int fd = HeldDescriptors::Keep([] {
    const int made = memfd_create(FileName().c_str(), MFD_CLOEXEC);
    if (made >= 0 && ftruncate(made, sizeof(State)) != 0) {
      close(made);
      return -1;
    }
    return made;
  });
  State* const state = fd >= 0 ? MapState(fd) : nullptr;
  if (state == nullptr) {
    if (fd >= 0) HeldDescriptors::Close(fd);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  state->bytes = prop.size;
  state->team = prop.numDevices;
  state->handle_types = static_cast<uint32_t>(prop.handleTypes);
  out->reset(new MulticastObject(fd, state));
  return CUDA_SUCCESS;
}

std::shared_ptr<MulticastObject> MulticastObject::Import(int fd) {
  const int held = HeldDescriptors::Keep([&] { return fcntl(fd, F_DUPFD_CLOEXEC, 0); });
  if (held < 0) return nullptr;
  char path[PATH_MAX];
  const ssize_t length =
      readlink(("/proc/self/fd/" + std::to_string(held)).c_str(), path, sizeof path - 1);
  const std::string expected = "/memfd:" + FileName() + " (deleted)";
  State* state = nullptr;
  if (length > 0 && std::string(path, static_cast<size_t>(length)) == expected) {
    state = MapState(held);
  }
  if (state != nullptr) return std::shared_ptr<MulticastObject>(new MulticastObject(held, state));
  HeldDescriptors::Close(held);
  return nullptr;
}

MulticastObject::~MulticastObject() {
  {
    const StateLock lock;
    for (const auto& [number, memory] : own_) state_->bindings[number] = {};
  }
  munmap(state_, sizeof(State));
  HeldDescriptors::Close(fd_);
  --g_objects;
}

size_t MulticastObject::bytes() const { return state_->bytes; }

bool MulticastObject::shareable() const { return state_->handle_types != 0; }

CUresult MulticastObject::AddDevice(int device) {
  const StateLock lock;
  const uint32_t bit = uint32_t{1} << device;
  if (state_->Complete() || (state_->devices & bit) != 0) return CUDA_ERROR_INVALID_VALUE;
  state_->devices |= bit;
  return CUDA_SUCCESS;
}

void MulticastObject::AwaitTeam() const {
  for (;;) {
    {
      const StateLock lock;
      if (state_->Complete()) return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

CUresult MulticastObject::Bind(const std::shared_ptr<Physical>& memory, size_t at, size_t from,
                               size_t bytes) {
  if (bytes == 0 || !Aligned(at) || !Aligned(from) || !Aligned(bytes) || at > state_->bytes ||
      bytes > state_->bytes - at || from > memory->bytes() || bytes > memory->bytes() - from) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const StateLock lock;
  if ((state_->devices & (uint32_t{1} << memory->device())) == 0) return CUDA_ERROR_INVALID_DEVICE;
  Binding* free = nullptr;
  for (Binding& each : state_->bindings) {
    if (each.pid != 0 && !Alive(each)) each = {};
    if (each.pid == 0) {
      if (free == nullptr) free = &each;
    } else if (each.device == memory->device() && each.at < at + bytes && at < each.end()) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  if (free == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *free = {getpid(), memory->fd(), InodeOf(memory->fd()), memory->device(), at, from, bytes};
  own_[static_cast<size_t>(free - state_->bindings.data())] = memory;
  return CUDA_SUCCESS;
}

CUresult MulticastObject::Unbind(int device, size_t at, size_t bytes) {
  if (bytes == 0 || !Aligned(at) || !Aligned(bytes)) return CUDA_ERROR_INVALID_VALUE;
  const StateLock lock;
  std::vector<size_t> found;
  for (const auto& [number, memory] : own_) {
    const Binding& each = state_->bindings[number];
    if (each.device != device || each.at >= at + bytes || at >= each.end()) continue;
    if (each.at < at || each.end() > at + bytes) return CUDA_ERROR_INVALID_VALUE;
    found.push_back(number);
  }
  for (const size_t number : found) {
    state_->bindings[number] = {};
    own_.erase(number);
  }
  return found.empty() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

bool MulticastObject::Write(size_t at, const void* data, size_t bytes) const {
  std::vector<Binding> bindings;
  uint32_t devices = 0;
  {
    const StateLock lock;
    devices = state_->devices;
    for (const Binding& each : state_->bindings) {
      if (each.pid != 0 && each.at < at + bytes && at < each.end()) bindings.push_back(each);
    }
  }
  const auto* const begin = static_cast<const unsigned char*>(data);
  size_t covered = 0;
  for (const Binding& each : bindings) {
    const size_t first = std::max<size_t>(at, each.at);
    const size_t count = std::min<size_t>(at + bytes, each.end()) - first;
    const int fd = OpenMemory(each);
    const auto offset = static_cast<off_t>(first - each.at + each.from);
    const bool written =
        fd >= 0 && pwrite(fd, begin + (first - at), count, offset) == static_cast<ssize_t>(count);
    if (fd >= 0) close(fd);
    if (!written) return false;
    covered += count;
  }
  return covered == bytes * static_cast<size_t>(std::popcount(devices));
}

}  // namespace sim
