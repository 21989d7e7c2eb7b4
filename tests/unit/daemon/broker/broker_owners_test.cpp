// Two users on one node: what each is told, may steer and may take.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <set>

#include "tests/unit/fixtures/all_allocations.h"
#include "tests/unit/fixtures/owners_fixture.h"

namespace amem {
namespace {

using testing::HasSubstr;
using testing::Not;

class Heard final : public EventSink {
 public:
  void event(const v1::Event& event) override { groups.push_back(event.group()); }
  void ended() override {}
  std::vector<std::string> groups;
};

TEST_F(OwnersTest, EachHasNamesOfItsOwn) {
  join_as(kAlice, a);
  join_as(kBob, b);
  EXPECT_EQ(status().groups_size(), 2);
  EXPECT_EQ(status().groups(0).name(), "train@65533") << "the name alone is ambiguous";
  const v1::NodeStatus bobs = status_for(caller(kBob));
  ASSERT_EQ(bobs.groups_size(), 1);
  EXPECT_EQ(bobs.groups(0).name(), "train");
  EXPECT_EQ(bobs.groups(0).address(), "train@65534");
  EXPECT_EQ(bobs.groups(0).owner(), "uid 65534");

  a.create(gpu(0), 2 * kMiB);
  EXPECT_TRUE(try_pause(caller(kAlice), "train").ok());
  EXPECT_EQ(group("train@65533").state(), kPaused);
  EXPECT_EQ(group("train@65534").state(), kRunning);
  const Status which = try_pause(Caller{}, "train");
  EXPECT_EQ(which.code(), Code::kInvalidArgument);
  EXPECT_THAT(which.text(), HasSubstr("'train@65533' 'train@65534'"));
  EXPECT_TRUE(resume("train@65533").ok()) << "an operator can name it";
}

TEST_F(OwnersTest, EachMayHaveSeveralJobsOfOneName) {
  join_as(kAlice, a, "train:one");
  join_as(kAlice, b, "train:two");
  join_as(kBob, c, "train:one");
  const auto names = [&](const Caller& caller) {
    std::set<std::string> all;
    const v1::NodeStatus status = status_for(caller);
    for (const v1::GroupInfo& group : status.groups()) all.insert(group.name());
    return all;
  };
  EXPECT_EQ(names(caller(kAlice)), (std::set<std::string>{"train:one", "train:two"}));
  EXPECT_EQ(names(caller(kBob)), (std::set<std::string>{"train"}));
  EXPECT_EQ(names(Caller{}),
            (std::set<std::string>{"train:one@65533", "train:two", "train:one@65534"}));
  const Status which = try_pause(Caller{}, "train@65533");
  EXPECT_EQ(which.code(), Code::kInvalidArgument);
  EXPECT_THAT(which.text(), HasSubstr("'train:one@65533' 'train:two'"));
  EXPECT_THAT(try_pause(caller(kAlice), "train").text(), HasSubstr("'train:one' 'train:two'"));
  EXPECT_TRUE(try_pause(caller(kBob), "train").ok());
  EXPECT_EQ(group("train:one@65533").state(), kRunning);
}

TEST_F(OwnersTest, NobodySeesOrSteersAnothers) {
  join_as(kAlice, a, "secret");
  a.create(gpu(0), 4 * kMiB);
  const Caller bob = caller(kBob);

  const Status refused = try_pause(bob, "secret");
  EXPECT_EQ(refused.code(), Code::kNotFound);
  std::string nothing = try_pause(bob, "nothing").text();
  EXPECT_EQ(refused.text(), nothing.replace(nothing.find("nothing"), 7, "secret"))
      << "the same words as for a group that does not exist";
  EXPECT_EQ(try_pause(bob, "secret@65533").code(), Code::kNotFound);
  on_loop([&] {
    EXPECT_EQ(broker->set_policy(bob, "secret", "nccl", v1::POLICY_KEEP).code(), Code::kNotFound);
    EXPECT_EQ(broker->reports().ranks(bob, "secret").status().code(), Code::kNotFound);
    EXPECT_EQ(all_allocations(*broker, bob, "secret").status().code(), Code::kNotFound);
    EXPECT_TRUE(broker->reports().ranks(bob, "").value().empty());
    EXPECT_TRUE(all_allocations(*broker, bob, "").value().empty());
    v1::ListGroupsResponse groups;
    broker->reports().groups(bob, groups);
    EXPECT_EQ(groups.groups_size(), 0);
    v1::ListQuotasResponse quotas;
    broker->reports().quotas(bob, quotas);
    ASSERT_EQ(quotas.owners_size(), 1);
    EXPECT_EQ(quotas.owners(0).uid(), kBob);
  });
  auto watcher = std::make_shared<Watcher>();
  on_loop([&] { broker->swap(bob, {"secret"}, {"secret"}, Operation::kPause, {}, watcher); });
  EXPECT_EQ(complete(watcher).code(), Code::kNotFound);
  const v1::NodeStatus seen = status_for(bob);
  EXPECT_EQ(seen.groups_size(), 0);
  EXPECT_EQ(seen.devices(0).brokered_bytes(), 0U);
  EXPECT_EQ(seen.times_size(), 0);
  EXPECT_EQ(group("secret").state(), kRunning);

  EXPECT_TRUE(try_pause(caller(kAlice), "secret").ok());
  EXPECT_EQ(status_for(bob).pool().used_bytes(), 0U);
  EXPECT_EQ(status_for(caller(kAlice)).pool().used_bytes(), 4 * kMiB);
}

TEST_F(OwnersTest, WhereEverybodySeesNobodySteersAnothers) {
  join_as(kAlice, a, "open");
  const Caller bob = caller(kBob, true);
  EXPECT_EQ(status_for(bob).groups_size(), 1);
  const Status refused = try_pause(bob, "open");
  EXPECT_EQ(refused.code(), Code::kPermissionDenied);
  EXPECT_THAT(refused.text(), HasSubstr("belongs to uid 65533"));
  EXPECT_EQ(group("open").state(), kRunning);
}

TEST_F(OwnersTest, EventsAreToldToWhoMaySee) {
  auto bobs = std::make_shared<Heard>();
  auto all = std::make_shared<Heard>();
  const Caller bob = caller(kBob);
  on_loop([&] {
    broker->events().subscribe(bob, "", bobs);
    broker->events().subscribe(Caller{}, "", all);
  });
  join_as(kAlice, a, "secret");
  join_as(kBob, b, "own");
  on_loop([] { return 0; });
  EXPECT_THAT(bobs->groups, Not(testing::Contains("secret")));
  EXPECT_THAT(bobs->groups, testing::Contains("own"));
  EXPECT_THAT(all->groups, testing::IsSupersetOf({"secret", "own"}));
  on_loop([&] {
    broker->events().unsubscribe(bobs.get());
    broker->events().unsubscribe(all.get());
  });
}

TEST_F(OwnersTest, MemoryIsNotOpenedAcrossOwners) {
  join_as(kAlice, a, "one");
  join_as(kBob, b, "two");
  const std::uint64_t memory = a.create(gpu(0), 2 * kMiB);
  const Packet reply = b.try_redeem(memory, a.token(memory));
  EXPECT_EQ(ScriptedRank::code(reply), Code::kNotFound) << "whose it is is not told";
  EXPECT_THAT(reply.message.body.reply.text, Not(HasSubstr("65533")));
  EXPECT_TRUE(reply.fds.empty());
}

class MeasuringOwnersTest : public OwnersTest {
 protected:
  void configure(Config& set) const override {
    OwnersTest::configure(set);
    ASSERT_TRUE(set.quotas.set(Resource::kDeviceBytes, "64MiB").ok());
  }
};

/// What its policy alone keeps, no rank reaches part of the pool for.
TEST_F(MeasuringOwnersTest, WhatIsMadeAnewMeanwhileIsDrawnForTheSave) {
  constexpr pb_size_t kMeasure = amem_v1_SessionMessage_measure_tag;
  ASSERT_NO_FATAL_FAILURE(come_and_go());
  join_as(kBob, b, "two");
  b.habits.mask = 0;
  b.habits.sparse_bytes = 4096;
  b.create(gpu(0), 24 * kMiB, "cache", amem_v1_RegionPolicy_REGION_POLICY_DISCARD);
  ASSERT_TRUE(set_policy("cache", v1::POLICY_KEEP, "two").ok());
  b.moods[kMeasure] = Mood::kLate;
  const auto watcher = begin(Operation::kPause, "two");
  ASSERT_TRUE(eventually([&] { return b.received[kMeasure] == 1; }));
  ASSERT_TRUE(eventually([&] { return status().pool().ready_bytes() == kPool; }));
  b.catch_up();
  EXPECT_TRUE(complete(watcher).ok()) << watcher->status().text();
}

/// What the pool's memory held for one owner, no other finds there.
TEST_F(OwnersTest, ASegmentOfThePoolIsMadeAnewForAnother) {
  struct Keep {
    dev_t device;
    ino_t inode;
    auto operator<=>(const Keep&) const = default;
  };
  const auto identities = [](const ScriptedRank& rank) {
    std::set<Keep> all;
    for (const auto& [index, fd] : rank.segments) {
      struct stat st {};
      EXPECT_EQ(::fstat(fd.get(), &st), 0);
      all.insert({st.st_dev, st.st_ino});
    }
    return all;
  };
  // Four segments of 8 MiB, of which each may have two: both together have had all.
  std::set<Keep> alices;
  for (int turn = 0; turn < 3; ++turn) {
    join_as(kAlice, a, "one");
    const std::uint64_t memory = a.create(gpu(0), 12 * kMiB);
    a.write(memory, 0xa5);
    const Status paused = pause("one");
    ASSERT_TRUE(paused.ok()) << paused.text();
    ASSERT_TRUE(resume("one").ok());
    EXPECT_EQ(a.segments.size(), 2U);
    alices.merge(identities(a));
    a.die();
    ASSERT_TRUE(eventually([&] { return status().groups_size() == 0; }));

    join_as(kBob, b, "two");
    b.create(gpu(1), 12 * kMiB);
    ASSERT_TRUE(eventually([&] {
      b.pump(milliseconds(0));
      return b.segments.size() == 2;
    }));
    for (const Keep& keep : identities(b)) EXPECT_FALSE(alices.contains(keep));
    for (const auto& [index, fd] : b.segments) {
      std::string bytes(8 * kMiB, 'x');
      EXPECT_EQ(::pread(fd.get(), bytes.data(), bytes.size(), 0),
                static_cast<ssize_t>(bytes.size()));
      EXPECT_EQ(bytes.find_first_not_of('\0'), std::string::npos) << "turn " << turn;
    }
    b.die();
    ASSERT_TRUE(eventually(
        [&] { return status().groups_size() == 0 && status().pool().ready_bytes() == kPool; }));
  }
}

/// The pool is of memfds, because the driver makes no host memory.
class MemfdPoolTest : public OwnersTest {
 protected:
  void configure(Config& set) const override {
    OwnersTest::configure(set);
    faults("cuMemCreate:*:801");
  }
  void SetUp() override {
    OwnersTest::SetUp();
    faults("");
  }
};

TEST_F(MemfdPoolTest, WhoKeepsASegmentAfterItsEndHoldsNoMemoryByIt) {
  join_as(kAlice, a, "one");
  const std::uint64_t memory = a.create(gpu(0), 12 * kMiB);
  a.write(memory, 0xa5);
  ASSERT_TRUE(pause("one").ok());
  std::vector<Fd> kept;
  for (const auto& [index, fd] : a.segments) kept.push_back(fd.duplicate());
  a.die();
  ASSERT_TRUE(eventually([&] { return status().groups_size() == 0; }));
  // Bob takes the two that nobody has had, so that what is left was Alice's.
  join_as(kBob, b, "two");
  b.create(gpu(1), 12 * kMiB);
  join_as(kCarol, c, "three");
  c.create(gpu(1), 12 * kMiB);
  ASSERT_EQ(kept.size(), 2U);
  ASSERT_TRUE(eventually([&] {
    c.pump(milliseconds(0));
    return c.segments.size() == 2;
  }));
  for (const Fd& fd : kept) {
    struct stat st {};
    EXPECT_TRUE(eventually([&] { return ::fstat(fd.get(), &st) == 0 && st.st_blocks == 0; }))
        << st.st_blocks << " blocks of memory";
  }
}

TEST_F(OwnersTest, QuotasRefuseByNameAndHurtNobodyElse) {
  join_as(kAlice, a, "one");
  join_as(kAlice, b, "one", 1);
  ground::as_user(kAlice, [&] {  // sessions: refused, not queued
    c.connect(simulated_node->dir() + "/session.sock");
    EXPECT_EQ(ScriptedRank::code(c.hello("one", 2)), Code::kUnavailable);
  });
  join_as(kBob, d, "two");
  EXPECT_EQ(quota(kAlice, Resource::kSessions).refusals(), 1U);

  // Of a quota only its owner's ranks hear.
  for (ScriptedRank* rank : {&a, &b}) rank->moods[amem_v1_SessionMessage_trim_tag] = Mood::kSilent;
  const std::uint64_t first = a.create(gpu(0), 4 * kMiB);
  a.create(gpu(0), 4 * kMiB);
  Packet reply = a.try_create(gpu(0), 12 * kMiB, "heap");
  EXPECT_EQ(ScriptedRank::code(reply), Code::kResourceExhausted);
  EXPECT_THAT(
      reply.message.body.reply.text,
      HasSubstr("uid 65533 has 8 MiB of at most 16 MiB (quotas.device) and requests 12 MiB more"));
  b.create(gpu(0), 2 * kMiB);
  reply = b.try_create(gpu(0), 2 * kMiB, "heap");
  EXPECT_EQ(ScriptedRank::code(reply), Code::kResourceExhausted);
  EXPECT_THAT(reply.message.body.reply.text, HasSubstr("3 of at most 3 (quotas.allocations)"));
  EXPECT_NE(d.create(gpu(0), 12 * kMiB), 0U);

  EXPECT_EQ(quota(kAlice, Resource::kDeviceBytes).used(), 10 * kMiB);
  EXPECT_EQ(quota(kAlice, Resource::kAllocations).used(), 3U);
  a.free(first);
  EXPECT_NE(b.create(gpu(0), 4 * kMiB), 0U) << "what is freed is given back";
  a.die();
  b.die();
  EXPECT_TRUE(eventually([&] {
    return quota(kAlice, Resource::kDeviceBytes).used() == 0 &&
           quota(kAlice, Resource::kAllocations).used() == 0 &&
           quota(kAlice, Resource::kSessions).used() == 0 &&
           quota(kAlice, Resource::kDescriptors).used() == 0 &&
           quota(kAlice, Resource::kPoolBytes).used() == 0;
  }));
}

TEST_F(OwnersTest, PoliciesAndOpenedMemoryAreChargedToTheGroupsOwner) {
  join_as(kAlice, a, "train", 0);
  join_as(kAlice, b, "train", 1);
  const auto set = [&](const std::string& tag, v1::Policy policy, v1::Form form) {
    return on_loop([&] { return broker->set_policy(caller_, "train", tag, policy, form); });
  };
  EXPECT_TRUE(set("kv", v1::POLICY_DISCARD, v1::FORM_UNSPECIFIED).ok());
  EXPECT_TRUE(set("kv", v1::POLICY_KEEP, v1::FORM_DENSE).ok());
  EXPECT_TRUE(set("more", v1::POLICY_UNSPECIFIED, v1::FORM_DENSE).ok());
  EXPECT_EQ(quota(kAlice, Resource::kPolicies).used(), 2U);
  const Status refused = set("third", v1::POLICY_DISCARD, v1::FORM_UNSPECIFIED);
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_THAT(refused.text(), HasSubstr("quotas.policies"));
  EXPECT_EQ(group("train").policies_size(), 2) << "what is refused is not set";

  const std::uint64_t id = a.create(gpu(0), 2 * kMiB);
  b.share(a, id);
  EXPECT_EQ(quota(kAlice, Resource::kAllocations).used(), 2U);
  a.die();
  b.die();
  EXPECT_TRUE(eventually([&] {
    return quota(kAlice, Resource::kPolicies).used() == 0 &&
           quota(kAlice, Resource::kAllocations).used() == 0;
  }));
}

TEST_F(OwnersTest, ThePoolOfOneDoesNotKeepTheOthersFromPausing) {
  join_as(kAlice, a, "one");
  a.create(gpu(0), 16 * kMiB);
  ASSERT_TRUE(pause("one").ok());
  join_as(kAlice, b, "more");
  EXPECT_NE(b.create(gpu(0), 2 * kMiB), 0U) << "what is paused is on no device";
  const Status full = pause("more");
  EXPECT_EQ(full.code(), Code::kResourceExhausted);
  EXPECT_THAT(full.text(),
              HasSubstr("Remedies: to restart amemd with a quotas.pool of 24MiB or more; "
                        "to resume or end 'one' (16 MiB)"));
  join_as(kBob, d, "two");
  d.create(gpu(0), 16 * kMiB);
  EXPECT_TRUE(pause("two").ok());
}

TEST_F(OwnersTest, WhatOthersKeepOfThePoolIsNotFreeAndOnlyOperatorsLearnWhoKeepsIt) {
  const auto share = [&](const Caller& caller, uid_t uid) {
    const v1::NodeStatus status = status_for(caller);
    for (const v1::PoolShare& each : status.pool().shares())
      if (each.owner() == "uid " + std::to_string(uid)) return each;
    return v1::PoolShare();
  };
  join_as(kAlice, a, "one");
  a.create(gpu(0), 12 * kMiB);
  join_as(kBob, b, "two");
  b.create(gpu(1), 12 * kMiB);
  join_as(kCarol, d, "three");
  d.habits.mask = ~0U;
  d.create(gpu(0), 6 * kMiB);
  const Caller carol = caller(kCarol);
  EXPECT_EQ(status_for(carol).pool().shares_size(), 1);
  EXPECT_EQ(share(carol, kCarol).available_bytes(), 0U);
  EXPECT_EQ(share(Caller{}, kAlice).segment_bytes(), 16 * kMiB);
  EXPECT_EQ(share(Caller{}, kAlice).available_bytes(), 16 * kMiB);
  EXPECT_EQ(status().pool().unowned_bytes(), 0U);
  EXPECT_EQ(status().pool().segment_bytes(), 8 * kMiB);

  const Status hers = try_pause(carol, "three");
  EXPECT_EQ(hers.code(), Code::kResourceExhausted);
  EXPECT_THAT(hers.text(), HasSubstr("other owners keep 32 MiB until their last processes end"));
  EXPECT_THAT(hers.text(), HasSubstr("a pool.size of 40MiB or more")) << "a whole segment";
  const Status operators = try_pause(Caller{}, "three");
  EXPECT_THAT(operators.text(),
              HasSubstr("; of the pool, uid 65534 keeps 16 MiB, uid 65533 keeps 16 MiB"));
  v1::ListHistoryResponse history;
  const Status asked = on_loop([&] { return broker->reports().history(carol, {}, history); });
  EXPECT_TRUE(asked.ok());
  EXPECT_EQ(history.operations_size(), 2);
  for (const std::string& text : {hers.text(), history.DebugString()}) {
    EXPECT_THAT(text, Not(HasSubstr("65533")));
    EXPECT_THAT(text, Not(HasSubstr("65534")));
  }

  a.die();
  ASSERT_TRUE(eventually([&] { return share(carol, kCarol).available_bytes() == 16 * kMiB; }));
  EXPECT_TRUE(try_pause(carol, "three").ok());
}

class GuardedTest : public OwnersTest {
 protected:
  void configure(Config& set) const override {
    const std::string dir = simulated_node->dir() + "/dev";
    std::filesystem::remove_all(dir);
    std::filesystem::create_directory(dir);
    std::filesystem::create_symlink("/dev/null", dir + "/nvidia0");
    set.device_nodes = dir;
  }
  static void show(ScriptedRank& rank, const char* path, int flags) {
    Message message = amem_v1_SessionMessage_init_zero;
    message.which_body = amem_v1_SessionMessage_device_nodes_tag;
    const Fd fd(::open(path, flags | O_CLOEXEC));
    ASSERT_TRUE(fd) << path;
    (void)send_message(rank.socket(), message, {fd.get()});
  }
};

TEST_F(GuardedTest, ADeviceIsServedToWhoMayOpenItsNode) {
  join_as(kAlice, a);
  const auto code = [&](std::size_t device) {
    return ScriptedRank::code(a.try_create(gpu(device), 2 * kMiB, "heap"));
  };
  const Packet refused = a.try_create(gpu(0), 2 * kMiB, "heap");
  EXPECT_EQ(ScriptedRank::code(refused), Code::kPermissionDenied);
  EXPECT_THAT(refused.message.body.reply.text, HasSubstr("/nvidia0"));
  EXPECT_TRUE(refused.fds.empty());
  EXPECT_EQ(code(1), Code::kOk) << "has no node, as of a simulated driver";
  show(a, "/dev/null", O_PATH);  // which needs no right at all
  EXPECT_EQ(code(0), Code::kPermissionDenied);
  show(a, "/dev/null", O_RDONLY);
  EXPECT_EQ(code(0), Code::kPermissionDenied);
  show(a, "/dev/zero", O_RDWR);
  EXPECT_EQ(code(0), Code::kPermissionDenied);
  show(a, "/dev/null", O_RDWR);
  EXPECT_EQ(code(0), Code::kOk);
  join_as(kAlice, b, "train", 1);
  EXPECT_EQ(ScriptedRank::code(b.try_create(gpu(0), 2 * kMiB, "heap")), Code::kPermissionDenied)
      << "each process shows its own";
}

TEST_F(GuardedTest, WhatIsNotGuardedIsNamed) {
  DeviceNodes nodes;
  const DeviceNodes::Gaps gaps = nodes.open(config.device_nodes, devices, nvml);
  EXPECT_FALSE(gaps.simulated);
  ASSERT_EQ(gaps.lines.size(), 1U);
  EXPECT_THAT(gaps.lines[0],
              HasSubstr("device 1 (" + to_string(gpu(1)) +
                        ") would be served to every user who may join: " + config.device_nodes +
                        "/nvidia1: No such file or directory. Make the node"));
  const Nvml none;
  const DeviceNodes::Gaps unknown = nodes.open(config.device_nodes, devices, none);
  ASSERT_EQ(unknown.lines.size(), 2U);
  EXPECT_THAT(unknown.lines[0], HasSubstr("libnvidia-ml.so.1 does not report which node"));
  EXPECT_FALSE(nodes.guarded(gpu(0)));
  EXPECT_TRUE(nodes.open("/nowhere", devices, nvml).simulated);
  EXPECT_TRUE(nodes.open("", devices, nvml).lines.empty());
  config.device_nodes_set = true;
  const Status refused =
      on_loop([&] { return Broker(*loop, config, devices, nvml, nullptr, ground::kRuns).start(); });
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_THAT(refused.text(), HasSubstr("isolation.device_nodes: device 1"));
}

TEST_F(GuardedTest, SoIsWhatATicketIsFor) {
  join_as(kAlice, a);
  join_as(kAlice, b, "train", 1);
  join_as(kAlice, c, "guests");
  show(a, "/dev/null", O_RDWR);
  const std::uint64_t memory = a.create(gpu(0), 2 * kMiB);
  for (ScriptedRank* rank : {&b, &c}) {
    const Packet refused = rank->try_redeem(memory, a.token(memory));
    EXPECT_EQ(ScriptedRank::code(refused), Code::kPermissionDenied);
    EXPECT_THAT(refused.message.body.reply.text, HasSubstr("has not shown that it may open"));
    EXPECT_THAT(refused.message.body.reply.text, HasSubstr("/nvidia0"));
    EXPECT_TRUE(refused.fds.empty());
    const Packet wrong = rank->try_redeem(memory, Token{});
    EXPECT_THAT(wrong.message.body.reply.text, Not(HasSubstr("/nvidia0")));
    show(*rank, "/dev/null", O_RDWR);
    EXPECT_EQ(ScriptedRank::code(rank->try_redeem(memory, a.token(memory))), Code::kOk);
  }
  join_as(kBob, d);
  const Packet others = d.try_redeem(memory, a.token(memory));
  EXPECT_EQ(ScriptedRank::code(others), Code::kNotFound) << "of others' memory not even the device";
}

}  // namespace
}  // namespace amem
