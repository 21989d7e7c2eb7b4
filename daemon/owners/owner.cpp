#include "daemon/owners/owner.h"

#include <fcntl.h>
#include <linux/nsfs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <cerrno>
#include <fstream>

#include "common/fd.h"

namespace amem {
namespace {

Status untold(pid_t pid, const std::string& what) {
  return {
      Code::kPermissionDenied,
      "amemd cannot find the owner of pid " + std::to_string(pid) + ": " + what +
          ". With this isolation.by, amemd must see the processes of its ranks as the host does "
          "(for a container: hostPID, and the host's cgroup namespace)"};
}

ino_t inode_of(const Fd& fd) {
  struct stat st {};
  return fd && ::fstat(fd.get(), &st) == 0 ? st.st_ino : 0;
}

/// The namespace of the process that was made directly in amemd's own. Namespaces within it are
/// the same owner's: whoever may make one could else be as many owners as it likes.
Result<std::string> user_namespace_of(pid_t pid) {
  const ino_t own = inode_of(Fd(::open("/proc/self/ns/user", O_RDONLY | O_CLOEXEC)));
  const std::string path = "/proc/" + std::to_string(pid) + "/ns/user";
  Fd current(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (own == 0 || inode_of(current) == 0) return untold(pid, path + " cannot be read");
  if (inode_of(current) == own) return std::string();
  for (;;) {
    Fd parent(::ioctl(current.get(), NS_GET_PARENT));
    if (!parent) return untold(pid, "its user namespace is not inside amemd's");
    if (inode_of(parent) == own) return "user:[" + std::to_string(inode_of(current)) + "]";
    current = std::move(parent);
  }
}

Result<std::string> cgroup_of(pid_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/cgroup";
  std::ifstream file(path);
  const Result<std::string> group = unified_cgroup(file);
  if (!group.ok()) return untold(pid, path + " " + group.status().text());
  return compartment_of_cgroup(group.value());
}

}  // namespace

std::string to_string(const Owner& owner) {
  return owner.compartment.empty() ? "uid " + std::to_string(owner.uid) : owner.compartment;
}

std::string key_of(const Owner& owner) {
  return owner.compartment.empty() ? std::to_string(owner.uid) : owner.compartment;
}

Result<std::string> unified_cgroup(std::istream& file) {
  std::string unified;
  for (std::string line; std::getline(file, line);) {
    // There containers are in groups of version 1, and may all be in one of version 2.
    if (!line.starts_with("0::"))
      return Status(Code::kFailedPrecondition,
                    "has groups of cgroup v1 (" + line.substr(0, line.find(":/")) +
                        "), as on a host with both versions. Boot it with "
                        "systemd.unified_cgroup_hierarchy=1, or set isolation.by to uid or userns");
    unified = line.substr(3);
  }
  if (unified.empty()) return Status(Code::kFailedPrecondition, "has no line of cgroup v2");
  // Seen from a cgroup namespace of amemd's own, all others would look alike.
  if (unified.starts_with("/.."))
    return Status(Code::kFailedPrecondition, "has a path outside amemd's cgroup namespace");
  return unified;
}

Status can_isolate(Isolation by) {
  if (by != Isolation::kCgroup) return {};
  std::ifstream file("/proc/self/cgroup");
  const Result<std::string> own = unified_cgroup(file);
  if (own.ok()) return {};
  return {own.status().code(),
          "isolation.by = \"cgroup\": /proc/self/cgroup " + own.status().text()};
}

std::string compartment_of_cgroup(std::string_view path) {
  constexpr std::size_t kNames = 2;
  // Below other names whoever was given a part of the tree could make one that looks so.
  const bool kubernetes = path.starts_with("/kubepods") || path.starts_with("/kubelet");
  std::size_t end = 0;
  for (std::size_t names = 0; end < path.size() && (kubernetes || names < kNames); ++names) {
    const std::size_t begin = end + 1;
    end = std::min(path.find('/', begin), path.size());
    // "pod12ab", "kubepods-burstable-pod12ab.slice", but not "kubepods" or "kubepods-burstable".
    std::string_view name = path.substr(begin, end - begin);
    if (name.starts_with("kubepods")) name.remove_prefix(std::string_view("kubepods").size());
    if (kubernetes && name.find("pod") != std::string_view::npos) break;
  }
  return std::string(path.substr(0, end));
}

Result<Owner> owner_of(pid_t pid, uid_t uid, Isolation by) {
  if (by == Isolation::kUid) return Owner{uid, {}};
  if (pid <= 0) return untold(pid, "it is not in a pid namespace that amemd sees");
  Result<std::string> compartment =
      by == Isolation::kCgroup ? cgroup_of(pid) : user_namespace_of(pid);
  if (!compartment.ok()) return compartment.status();
  if (compartment.value().empty()) return Owner{uid, {}};
  return Owner{0, std::move(compartment).value()};
}

}  // namespace amem
