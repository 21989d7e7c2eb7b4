// On whose behalf a process acts.
#include "daemon/owners/owner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

namespace amem {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST(Compartment, APodOfKubernetesIsOne) {
  for (const char* container : {"", "/cri-containerd-77aa.scope", "/cri-containerd-77aa.scope/a/b"})
    EXPECT_EQ(compartment_of_cgroup("/kubepods.slice/kubepods-burstable.slice/"
                                    "kubepods-burstable-pod12ab.slice" +
                                    std::string(container)),
              "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12ab.slice");
  EXPECT_EQ(compartment_of_cgroup("/kubepods.slice/kubepods-pod12ab.slice/x.scope"),
            "/kubepods.slice/kubepods-pod12ab.slice");
  EXPECT_EQ(compartment_of_cgroup("/kubepods/besteffort/pod12ab/77aa"),
            "/kubepods/besteffort/pod12ab");
  EXPECT_EQ(compartment_of_cgroup("/kubelet/kubepods/burstable/pod12ab/77aa"),
            "/kubelet/kubepods/burstable/pod12ab");
}

TEST(Compartment, ElsewhereItIsWhatAUserCannotChange) {
  EXPECT_EQ(compartment_of_cgroup("/user.slice/user-1000.slice/session-3.scope"),
            "/user.slice/user-1000.slice");
  EXPECT_EQ(compartment_of_cgroup("/system.slice/docker-77aa.scope"),
            "/system.slice/docker-77aa.scope");
  EXPECT_EQ(compartment_of_cgroup("/"), "/");
  // A user who was given a part of the tree makes names in it as it likes.
  EXPECT_EQ(
      compartment_of_cgroup("/user.slice/user-1000.slice/user@1000.service/kubepods/pod1/pod2"),
      "/user.slice/user-1000.slice");
}

TEST(OwnerOf, ByUid) {
  const auto owner = owner_of(0, 1000, Isolation::kUid);
  ASSERT_TRUE(owner.ok());
  EXPECT_EQ(to_string(owner.value()), "uid 1000");
}

TEST(OwnerOf, ByCgroup) {
  std::ifstream file("/proc/self/cgroup");
  const auto group = unified_cgroup(file);
  const auto owner = owner_of(::getpid(), 1000, Isolation::kCgroup);
  EXPECT_EQ(can_isolate(Isolation::kCgroup).ok(), group.ok());
  EXPECT_TRUE(can_isolate(Isolation::kUid).ok());
  if (!group.ok()) {
    EXPECT_EQ(owner.status().code(), Code::kPermissionDenied);
    EXPECT_THAT(owner.status().text(), HasSubstr(group.status().text()));
    return;
  }
  ASSERT_TRUE(owner.ok()) << owner.status().text();
  EXPECT_THAT(to_string(owner.value()), StartsWith("/"));
}

Result<std::string> unified(const std::string& text) {
  std::istringstream file(text);
  return unified_cgroup(file);
}

TEST(UnifiedCgroup, TellsContainersApartOnlyWhereThereIsVersion2Alone) {
  EXPECT_EQ(unified("0::/kubepods.slice/pod1/a\n").value(), "/kubepods.slice/pod1/a");
  EXPECT_EQ(unified("0::/\n").value(), "/");
  // All pods of such a host are in containerd's group of version 2.
  const auto both = unified(
      "12:memory:/kubepods/pod1/a\n1:name=systemd:/kubepods/pod1/a\n0::/system.slice/"
      "containerd.service\n");
  EXPECT_EQ(both.status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(both.status().text(), HasSubstr("cgroup v1 (12:memory)"));
  EXPECT_THAT(unified("1:name=systemd:/a\n0::/b\n").status().text(), HasSubstr("name=systemd"));
  EXPECT_THAT(unified("").status().text(), HasSubstr("no line of cgroup v2"));
  EXPECT_THAT(unified("0::/../../a\n").status().text(),
              HasSubstr("outside amemd's cgroup namespace"));
}

TEST(OwnerOf, ByUserNamespace) {
  const auto own = owner_of(::getpid(), ::getuid(), Isolation::kUserNamespace);
  ASSERT_TRUE(own.ok()) << own.status().text();
  EXPECT_EQ(own.value().compartment, "");
  int ready[2];
  int done[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(done), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(done[1]);  // else it would never see its end
    char byte = 'y';
    if (::unshare(CLONE_NEWUSER) != 0) byte = 'n';
    [[maybe_unused]] ssize_t n = ::write(ready[1], &byte, 1);
    // A namespace within the namespace is no other owner.
    n = ::read(done[0], &byte, 1);
    byte = ::unshare(CLONE_NEWUSER) == 0 ? 'y' : 'n';
    n = ::write(ready[1], &byte, 1);
    n = ::read(done[0], &byte, 1);
    ::_exit(0);
  }
  char byte = 'n';
  const auto next = [&] { return ::read(ready[0], &byte, 1) == 1 && byte == 'y'; };
  if (next()) {
    const auto outer = owner_of(child, 1000, Isolation::kUserNamespace);
    ASSERT_TRUE(outer.ok()) << outer.status().text();
    EXPECT_THAT(outer.value().compartment, StartsWith("user:["));
    ASSERT_EQ(::write(done[1], "x", 1), 1);
    if (next()) {
      const auto inner = owner_of(child, 1000, Isolation::kUserNamespace);
      ASSERT_TRUE(inner.ok()) << inner.status().text();
      EXPECT_EQ(inner.value(), outer.value());
    }
  }
  ::close(done[1]);
  ::waitpid(child, nullptr, 0);
  for (const int fd : {ready[0], ready[1], done[0]}) ::close(fd);
}

TEST(OwnerOf, WhatCannotBeToldIsRefused) {
  for (const Isolation by : {Isolation::kCgroup, Isolation::kUserNamespace})
    for (const pid_t pid : {pid_t{0}, pid_t{0x7ffffff}}) {
      const auto owner = owner_of(pid, 1000, by);
      ASSERT_FALSE(owner.ok());
      EXPECT_EQ(owner.status().code(), Code::kPermissionDenied);
      EXPECT_THAT(owner.status().text(), HasSubstr("isolation.by"));
    }
}

}  // namespace
}  // namespace amem
