// Who operates: by uid, by group, and where uids say less than they seem to.
#include "daemon/owners/caller.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/owners/account.h"

namespace amem {
namespace {

constexpr uid_t kUser = 1001;
constexpr gid_t kOperators = 500;

class CallerTest : public testing::Test {
 protected:
  PeerCredentials peer(uid_t uid, const std::string& compartment = "") {
    PeerCredentials peer;
    peer.pid = ::getpid();
    peer.uid = uid;
    peer.groups = {100, 200};
    peer.process =
        std::make_shared<const Fd>(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
    peer.account = accounts.of({uid, compartment});
    return peer;
  }

  EventLoop loop;
  Accounts accounts{loop, Quotas()};
};

TEST_F(CallerTest, RootAndTheBrokersUserOperate) {
  for (const uid_t uid : {uid_t{0}, ::geteuid()}) {
    const Caller caller = caller_of(peer(uid), Isolation::kUid, {});
    EXPECT_TRUE(caller.operates);
    EXPECT_TRUE(caller.may_steer(*accounts.of({kUser, ""})));
  }
}

TEST_F(CallerTest, AUserHasItsOwn) {
  const Caller caller = caller_of(peer(kUser), Isolation::kUid, {});
  EXPECT_FALSE(caller.operates);
  EXPECT_FALSE(caller.sees_all);
  EXPECT_TRUE(caller.may_steer(*accounts.of({kUser, ""})));
  EXPECT_FALSE(caller.may_see(*accounts.of({kUser + 1, ""})));
  EXPECT_NE(caller.who.find("uid 1001"), std::string::npos);
}

TEST_F(CallerTest, WhereAllSeeOnlyOwnersSteer) {
  const Caller caller = caller_of(peer(kUser), Isolation::kUid, {.operators = {}, .see_all = true});
  EXPECT_TRUE(caller.may_see(*accounts.of({0, ""})));
  EXPECT_FALSE(caller.may_steer(*accounts.of({0, ""})));
}

TEST_F(CallerTest, MembersOfTheOperatorsGroupOperate) {
  const AccessRules access{kOperators, false};
  PeerCredentials member = peer(kUser);
  EXPECT_FALSE(caller_of(member, Isolation::kUid, access).operates);
  member.groups.push_back(kOperators);
  EXPECT_TRUE(caller_of(member, Isolation::kUid, access).operates);
}

TEST_F(CallerTest, RootInACompartmentIsNoOperator) {
  EXPECT_FALSE(caller_of(peer(0, "user:[12]"), Isolation::kUserNamespace, {}).operates);
  EXPECT_TRUE(caller_of(peer(0), Isolation::kUserNamespace, {}).operates);
  EXPECT_TRUE(caller_of(peer(0, "/system.slice"), Isolation::kCgroup, {}).operates)
      << "on the node: this process's own pid namespace";
  PeerCredentials elsewhere = peer(0, "/kubepods/pod1");
  elsewhere.pid = 0;  // what the kernel says of a process that amemd does not see
  EXPECT_FALSE(caller_of(elsewhere, Isolation::kCgroup, {}).operates);
  PeerCredentials ended = peer(0, "/system.slice");
  ended.process = nullptr;
  EXPECT_FALSE(caller_of(ended, Isolation::kCgroup, {}).operates)
      << "its number may be another's by now";
}

}  // namespace
}  // namespace amem
