// Groups that may leave partly.
#include "tests/unit/fixtures/turns_fixture.h"

namespace amem {
namespace {

class TurnsPartsTest : public TurnsFixture {
 protected:
  using Parts = std::map<std::string, std::size_t>;

  TurnsPartsTest() { make(some_rules(TurnPolicy::kLease)); }  // of 78 GiB
  static TurnNeeds gib(std::uint64_t number, std::size_t device = 1) {
    return {{some_device(device), number * kGiB}};
  }
  /// Of `all` GiB the parts may leave first.
  void add_group(const std::string& name, std::uint64_t all,
                 const std::vector<std::uint64_t>& parts = {}, bool running = false) {
    TurnTerms terms = some_terms(name, all);
    for (const std::uint64_t part : parts) terms.parts.push_back(gib(part));
    add(terms, running);
  }
  void expect_parts(double time, const Names& out, const Names& in, const Parts& parts) {
    SCOPED_TRACE(time);
    const auto next = turns_->decide(at(time));
    ASSERT_TRUE(next);
    EXPECT_EQ(next->out, out);
    EXPECT_EQ(next->in, in);
    EXPECT_EQ(next->parts, parts);
    last_why_ = next->why;
    turns_->switch_done(next->number, at(time));
  }
};

TEST_F(TurnsPartsTest, NoMorePartsLeaveThanHaveTo) {
  add_group("a", 60, {10, 20, 5}, true);
  add_group("b", 40);
  turns_->wants("b", at(1));
  expect_parts(1, {"a"}, {"b"}, {{"a", 2}});
  EXPECT_NE(last_why_.find("; of group 'a' only 0, 1 leaves"), std::string::npos) << last_why_;
  EXPECT_FALSE(turns_->runs("a")) << "its turn has ended";
}

TEST_F(TurnsPartsTest, WhereAllPartsAreNotEnoughTheGroupLeaves) {
  add_group("a", 60, {10, 20}, true);
  add_group("b", 60);
  turns_->wants("b", at(1));
  expect_parts(1, {"a"}, {"b"}, {});
}

TEST_F(TurnsPartsTest, PartsThatAreEverythingAreTheGroup) {
  add_group("a", 60, {30, 30}, true);
  add_group("b", 78);
  turns_->wants("b", at(1));
  expect_parts(1, {"a"}, {"b"}, {});
}

TEST_F(TurnsPartsTest, WhatStaysIsCountedAndComesBackWithItsGroup) {
  add_group("a", 60, {30}, true);
  add_group("b", 40);
  add_group("c", 10);
  turns_->wants("b", at(1));
  expect_parts(1, {"a"}, {"b"}, {{"a", 1}});
  turns_->wants("c", at(2));  // 30 and 40 are there
  expect_parts(2, {"a"}, {"c"}, {});
  EXPECT_NE(last_why_.find("group 'a' is paused and has memory on the GPUs"), std::string::npos)
      << last_why_;
  turns_->wants_nothing("c", at(3));
  turns_->wants_nothing("b", at(3));
  turns_->wants("a", at(3));
  expect_parts(3, {"b"}, {"a"}, {});
}

TEST_F(TurnsPartsTest, WhatAGroupHasThereItNeedNotFindAgain) {
  add_group("a", 60, {30}, true);
  add_group("b", 40, {22});
  turns_->wants("b", at(1));
  expect_parts(1, {"a"}, {"b"}, {{"a", 1}});
  turns_->wants("a", at(2));
  turns_->wants_nothing("b", at(2));
  expect_parts(2, {"b"}, {"a"}, {{"b", 1}});
  turns_->wants_nothing("a", at(3));
  turns_->wants("b", at(3));
  expect_parts(3, {"a"}, {"b"}, {{"a", 1}});
}

TEST_F(TurnsPartsTest, WhatIsLeftOfOneThatIsOutLeavesBeforeOneThatRuns) {
  add_group("a", 50, {20}, true);
  add_group("b", 40);
  add_group("c", 30);
  turns_->wants("b", at(1));
  expect_parts(1, {"a"}, {"b"}, {{"a", 1}});
  turns_->wants("c", at(2));
  turns_->wants_nothing("b", at(2));
  expect_parts(2, {"a"}, {"c"}, {});
  EXPECT_TRUE(turns_->runs("b"));
}

TEST_F(TurnsPartsTest, OfWhatIsLeftThatOfTheGroupThatYieldedFirstLeavesFirst) {
  for (const char* name : {"a", "b"}) {
    add_group(name, 38, {20});
    turns_->wants(name, at(1));
  }
  expect_parts(1, {}, {"a", "b"}, {});
  turns_->wants_nothing("b", at(5));
  turns_->wants_nothing("a", at(9));
  add_group("x", 41);
  add_group("c", 19);
  turns_->wants("x", at(10));
  expect_parts(10, {"b", "a"}, {"x"}, {{"a", 1}, {"b", 1}});
  turns_->wants("c", at(11));
  for (const char* name : {"a", "b"}) turns_->wants(name, at(12));
  expect_parts(13, {"b"}, {"c"}, {});
}

TEST_F(TurnsPartsTest, OneThatComesInTakesTheRestOfOneThatLeavesPartly) {
  add_group("a", 60, {10, 20}, true);
  add_group("b", 40);
  add_group("c", 30);
  turns_->wants("b", at(1));
  turns_->wants("c", at(1));
  expect_parts(1, {"a"}, {"b", "c"}, {});
}

TEST_F(TurnsPartsTest, EachDeviceCounts) {
  make(some_rules(TurnPolicy::kLease), 2);
  TurnTerms both = some_terms("a", 50);
  both.needs[some_device(2)] = 50 * kGiB;
  both.parts = {gib(30), gib(30, 2)};
  add(both, true);
  TurnTerms other;
  other.group = "b";
  other.needs = {{some_device(1), 50 * kGiB}, {some_device(2), 50 * kGiB}};
  add(other);
  turns_->wants("b", at(1));
  expect_parts(1, {"a"}, {"b"}, {{"a", 2}});
}

TEST_F(TurnsPartsTest, AfterAFailureWhatIsLeftIsWhatTheCallerSays) {
  add_group("a", 60, {30}, true);
  add_group("b", 40);
  add_group("c", 40);
  turns_->wants("b", at(1));
  expect_parts(1, {"a"}, {"b"}, {{"a", 1}});
  turns_->wants_nothing("b", at(2));
  turns_->wants("c", at(2));
  const auto next = turns_->decide(at(2));
  ASSERT_TRUE(next);
  EXPECT_EQ(next->out, (Names{"b"})) << "it has yielded, and alone is enough";
  turns_->set_stays("b", gib(40), at(2));
  turns_->switch_failed(next->number, {}, at(2));
  expect_nothing(2.5);
  turns_->set_stays("a", {}, at(3));
  expect_parts(3, {"b"}, {"c"}, {});
}

TEST_F(TurnsPartsTest, WhetherAGroupHadARestIsKnownUntilItHasCome) {
  add_group("a", 60, {30});
  const auto has_remainder = [this] {
    return turns_->memory().groups.at(turns_->find("a")->id).has_remainder;
  };
  EXPECT_FALSE(has_remainder());
  turns_->set_stays("a", gib(30), at(1));
  EXPECT_TRUE(has_remainder());
  turns_->find("a")->presence = Presence::kComes;
  turns_->set_stays("a", {}, at(2));
  EXPECT_TRUE(has_remainder()) << "a part of it comes";
  turns_->find("a")->presence = Presence::kIn;
  static_cast<void>(turns_->look(at(3)));
  EXPECT_FALSE(has_remainder());
}

TEST_F(TurnsPartsTest, WhatAnOperatorHasPausedIsLeftAlone) {
  add_group("a", 60, {30}, true);
  add_group("b", 40);
  add_group("c", 40);
  turns_->wants("b", at(1));
  expect_parts(1, {"a"}, {"b"}, {{"a", 1}});
  turns_->paused_by_operator("a", at(2));
  turns_->wants_nothing("b", at(2));
  turns_->wants("c", at(2));
  expect_parts(2, {"b"}, {"c"}, {});
}

TEST_F(TurnsPartsTest, WhereGroupsHaveOutgrownTheGpusWhatIsLeftOfOthersLeaves) {
  add_group("a", 60, {30}, true);
  add_group("b", 40);
  turns_->wants("b", at(1));
  expect_parts(1, {"a"}, {"b"}, {{"a", 1}});
  EXPECT_TRUE(turns_->set_needs("b", gib(70), at(2)).ok());
  expect_parts(2, {"a"}, {}, {});
  expect_nothing(3);
}

}  // namespace
}  // namespace amem
