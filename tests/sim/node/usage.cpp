#include "tests/sim/node/usage.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "tests/sim/node/node.h"

namespace sim {
namespace {

using Inode = std::pair<dev_t, ino_t>;

// A process of another node, by what its environment says: then it has nothing of ours. What it was
// found to be holds as long as it lives; its entry in /proc has a number of its own until then.
bool IsStranger(const std::string& process, ino_t number) {
  static auto* const strangers = new std::map<std::string, ino_t>();
  const auto known = strangers->find(process);
  if (known != strangers->end()) {
    if (known->second == number) return true;
    strangers->erase(known);
  }
  const int fd = open((process + "/environ").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  std::string text(1, '\0');
  char buffer[4096];
  for (ssize_t n; (n = read(fd, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(n));
  close(fd);
  constexpr std::string_view kName("\0AMEM_SIM_DIR=", 14);
  const size_t at = text.find(kName);
  if (at == std::string::npos || text[at + kName.size()] != '/') return false;
  char resolved[PATH_MAX];
  if (realpath(text.c_str() + at + kName.size(), resolved) == nullptr || resolved == Node().dir)
    return false;
  strangers->emplace(process, number);
  return true;
}

class Scan {
 public:
  Scan() : used_(kMaxDevices, 0), prefix_("/memfd:amem-sim:" + Node().id + ":gpu") {}

  std::vector<uint64_t> Run() {
    if (Node().alone) {
      OwnDescriptors();
      return used_;
    }
    DIR* proc = opendir("/proc");
    if (proc == nullptr) Die(std::string("cannot read /proc: ") + strerror(errno));
    while (const dirent* entry = readdir(proc)) {
      if (entry->d_name[0] < '0' || entry->d_name[0] > '9') continue;
      const std::string process = std::string("/proc/") + entry->d_name;
      if (IsStranger(process, entry->d_ino)) continue;
      // Descriptors before mappings: a process that maps and then closes is caught by one or the
      // other.
      Descriptors(process);
      Mappings(process);
    }
    closedir(proc);
    return used_;
  }

 private:
  static constexpr size_t kMostNames = 4096;

  void Count(const std::string& path, const Inode& inode) {
    if (const std::optional<MemoryName> name = MemoryName::Parse(path)) Count(*name, inode);
  }

  void Count(const MemoryName& name, const Inode& inode) {
    if (name.device < 0 || name.device >= kMaxDevices) return;
    if (seen_.insert(inode).second) used_[static_cast<size_t>(name.device)] += name.bytes;
  }

  void Descriptors(const std::string& process) {
    DIR* dir = opendir((process + "/fd").c_str());
    if (dir == nullptr) return;
    char target[320];
    while (const dirent* entry = readdir(dir)) {
      const ssize_t length = readlinkat(dirfd(dir), entry->d_name, target, sizeof target - 1);
      if (length <= 0) continue;
      const std::string_view view(target, static_cast<size_t>(length));
      if (view.substr(0, prefix_.size()) != prefix_) continue;
      struct stat info;
      if (fstatat(dirfd(dir), entry->d_name, &info, 0) != 0) continue;
      Count(std::string(view), Inode{info.st_dev, info.st_ino});
    }
    closedir(dir);
  }

  // Of this process alone, which is asked often: what a file is called is looked up once, and what
  // the driver has mapped it has a descriptor of.
  void OwnDescriptors() {
    static auto* const names = new std::map<Inode, std::optional<MemoryName>>();
    if (names->size() > kMostNames) names->clear();
    DIR* dir = opendir("/proc/self/fd");
    if (dir == nullptr) Die(std::string("cannot read /proc/self/fd: ") + strerror(errno));
    while (const dirent* entry = readdir(dir)) {
      struct stat info;
      if (fstat(atoi(entry->d_name), &info) != 0 || !S_ISREG(info.st_mode)) continue;
      const Inode inode(info.st_dev, info.st_ino);
      auto known = names->find(inode);
      if (known == names->end()) {
        char target[320];
        const ssize_t length = readlinkat(dirfd(dir), entry->d_name, target, sizeof target);
        if (length <= 0) continue;
        const std::string path(target, static_cast<size_t>(length));
        known = names->emplace(inode, MemoryName::Parse(path)).first;
      }
      if (known->second) Count(*known->second, inode);
    }
    closedir(dir);
  }

  void Mappings(const std::string& process) {
    const int fd = open((process + "/maps").c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    std::string text;
    char buffer[65536];
    for (;;) {
      const ssize_t n = read(fd, buffer, sizeof buffer);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) break;
      text.append(buffer, static_cast<size_t>(n));
      size_t begin = 0;
      for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
        Line(text.substr(begin, end - begin));
      }
      text.erase(0, begin);
    }
    close(fd);
  }

  // "7f00-7f20 rw-s 00000000 00:01 1234    /memfd:amem-sim:... (deleted)"
  void Line(const std::string& line) {
    const size_t path = line.find(prefix_);
    if (path == std::string::npos) return;
    unsigned major_id = 0;
    unsigned minor_id = 0;
    unsigned long long inode = 0;
    if (sscanf(line.c_str(), "%*s %*s %*s %x:%x %llu", &major_id, &minor_id, &inode) != 3) return;
    Count(line.substr(path), {makedev(major_id, minor_id), static_cast<ino_t>(inode)});
  }

  std::vector<uint64_t> used_;
  const std::string prefix_;
  std::set<Inode> seen_;
};

// The file of upper bounds, locked for as long as this object lives. Opened anew each time, so that
// flock excludes threads as well as processes.
class Ledger {
 public:
  Ledger() {
    const std::string path = Node().dir + "/ledger";
    fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd_ < 0) Die("cannot open " + path + ": " + strerror(errno));
    while (flock(fd_, LOCK_EX) != 0) {
      if (errno != EINTR) Die("cannot lock " + path + ": " + strerror(errno));
    }
    const ssize_t n = pread(fd_, &content_, sizeof content_, 0);
    // New or damaged: nothing is known, so ask the kernel.
    if (n != sizeof content_ || content_.magic != kMagic) TrueUp();
  }

  ~Ledger() {
    if (pwrite(fd_, &content_, sizeof content_, 0) != sizeof content_) {
      Die(std::string("cannot write the ledger: ") + strerror(errno));
    }
    // Unlocked by hand: a child forked meanwhile holds the same open file, and close would leave it
    // locked.
    flock(fd_, LOCK_UN);
    close(fd_);
  }

  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  uint64_t& Bound(int device) { return content_.bound[static_cast<size_t>(device)]; }

  void TrueUp() {
    const std::vector<uint64_t> used = Scan().Run();
    content_.magic = kMagic;
    for (size_t i = 0; i < used.size(); ++i) content_.bound[i] = used[i];
  }

 private:
  static constexpr uint64_t kMagic = 0x314d49534d454d41ULL;  // "AMEMSIM1"
  struct Content {
    uint64_t magic = 0;
    std::array<uint64_t, kMaxDevices> bound{};
  };

  int fd_ = -1;
  Content content_;
};

}  // namespace

std::string MemoryName::Format() const {
  const std::string where = device == kHostMemory ? "host0" : "gpu" + std::to_string(device);
  return "amem-sim:" + Node().id + ":" + where + ":" + std::to_string(bytes) + ":" +
         std::to_string(flags);
}

std::optional<MemoryName> MemoryName::Parse(const std::string& path) {
  const std::string prefix = "/memfd:amem-sim:" + Node().id + ":";
  if (path.compare(0, prefix.size(), prefix) != 0) return std::nullopt;
  const char* rest = path.c_str() + prefix.size();
  MemoryName name;
  unsigned long long bytes = 0;
  if (sscanf(rest, "host0:%llu:%u", &bytes, &name.flags) == 2) {
    name.device = kHostMemory;
  } else if (sscanf(rest, "gpu%d:%llu:%u", &name.device, &bytes, &name.flags) != 3) {
    return std::nullopt;
  }
  name.bytes = bytes;
  return name;
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
