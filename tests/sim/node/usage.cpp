#include "tests/sim/node/usage.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <tuple>
#include <utility>

#include "tests/sim/node/file_lock.h"
#include "tests/sim/node/lock_list.h"
#include "tests/sim/node/node.h"

namespace sim {
namespace {

// What keeps a lock's two ends apart, whatever they are.
constexpr off_t kEnds = off_t{1} << 62;

// Where locks of a device's memory begin: at no byte of the file, but at a number that names node
// and device.
off_t LockStart(int device) {
  return static_cast<off_t>((std::stoull(Node().id, nullptr, 16) & (kEnds - 1) & ~0xffULL) |
                            static_cast<unsigned>(device));
}

// The locks of our memory that the kernel has now: inode, device and bytes.
using Held = std::set<std::tuple<std::string, int, uint64_t>>;
using Bytes = std::array<uint64_t, kMaxDevices>;  // by device

Bytes Sum(const Held& held) {
  Bytes sum{};
  for (const auto& [inode, device, bytes] : held) sum[static_cast<size_t>(device)] += bytes;
  return sum;
}

Held ReadLocks() {
  const std::string text = LockList();
  Held held;
  for (int device = 0; device < Node().devices; ++device) {
    // "1: OFDLCK  ADVISORY  READ -1 00:01:1034 4611 4612"
    const std::string start = ' ' + std::to_string(LockStart(device)) + ' ';
    for (size_t at = 0; (at = text.find(start, at)) != std::string::npos; at += start.size()) {
      const size_t inode = text.rfind(' ', at - 1) + 1;
      const long long end = strtoll(text.c_str() + at + start.size(), nullptr, 10);
      if (end >= kEnds)
        held.emplace(text.substr(inode, at - inode), device, static_cast<uint64_t>(end - kEnds));
    }
  }
  return held;
}

// Bytes in use. `bound`: they are no more than these.
Bytes Scan(const Bytes& bound) {
  // The kernel gives the list a page at a time. A lock that goes meanwhile moves those behind it,
  // and one of ours can fall between two pages. So a reading is right if it has all that there can
  // be, or if the next two are the same. (Of two, both missed one in some thousand stage
  // traces, where another job makes and frees memory all the time.)
  Held held = ReadLocks();
  int same = 0;
  for (int tries = 0; tries < 20 && same < 2 && Sum(held) != bound; ++tries) {
    Held again = ReadLocks();
    same = again == held ? same + 1 : 0;
    held = std::move(again);
  }
  return Sum(held);
}

// The file of upper bounds, locked for as long as this object lives.
class Ledger {
 public:
  Ledger() {
    const ssize_t n = pread(lock_.fd(), &content_, sizeof content_, 0);
    // New or damaged: nothing is known, so ask the kernel.
    if (n == sizeof content_ && content_.magic == kMagic) return;
    content_.bound.fill(UINT64_MAX);
    TrueUp();
  }

  ~Ledger() {
    if (pwrite(lock_.fd(), &content_, sizeof content_, 0) != sizeof content_) {
      Die(std::string("cannot write the ledger: ") + strerror(errno));
    }
  }

  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  uint64_t& Bound(int device) { return content_.bound[static_cast<size_t>(device)]; }

  void TrueUp() {
    content_.magic = kMagic;
    content_.bound = Scan(content_.bound);
  }

 private:
  static constexpr uint64_t kMagic = 0x314d49534d454d41ULL;  // "AMEMSIM1"
  struct Content {
    uint64_t magic = 0;
    Bytes bound{};
  };

  const FileLock lock_{"ledger"};
  Content content_;
};

}  // namespace

std::string MemoryName::Format() const {
  return "amem-sim:" + Node().id + (device == kHostMemory ? ":host" : ":gpu") +
         std::to_string(owner) + ":" + std::to_string(bytes) + ":" + std::to_string(flags);
}

std::optional<MemoryName> MemoryName::Parse(const std::string& path) {
  const std::string prefix = "/memfd:amem-sim:" + Node().id + ":";
  if (path.compare(0, prefix.size(), prefix) != 0) return std::nullopt;
  const char* rest = path.c_str() + prefix.size();
  MemoryName name;
  unsigned long long bytes = 0;
  if (sscanf(rest, "gpu%d:%llu:%u", &name.owner, &bytes, &name.flags) == 3) {
    name.device = name.owner;
  } else if (sscanf(rest, "host%d:%llu:%u", &name.owner, &bytes, &name.flags) != 3) {
    return std::nullopt;
  }
  name.bytes = bytes;
  return name;
}

bool HoldMemory(int fd, const MemoryName& name) {
  if (name.device == kHostMemory) return true;
  struct flock lock = {};
  lock.l_type = F_RDLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = LockStart(name.device);
  lock.l_len = kEnds + static_cast<off_t>(name.bytes) - lock.l_start + 1;
  return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

std::vector<uint64_t> UsedBytes() {
  Ledger ledger;
  ledger.TrueUp();
  std::vector<uint64_t> used;
  for (int i = 0; i < kMaxDevices; ++i) used.push_back(ledger.Bound(i));
  return used;
}

bool Admit(int device, uint64_t bytes, const std::function<void()>& create) {
  if (device == kHostMemory) {
    create();
    return true;
  }
  Ledger ledger;
  const uint64_t capacity = Node().memory;
  if (bytes > capacity) return false;
  if (ledger.Bound(device) > capacity - bytes) {
    ledger.TrueUp();
    if (ledger.Bound(device) > capacity - bytes) return false;
  }
  ledger.Bound(device) += bytes;
  create();
  return true;
}

}  // namespace sim
