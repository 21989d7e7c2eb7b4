// Two groups that take turns with a device, driven by a test.
#pragma once

#include "broker_fixture.h"

namespace amem {

inline constexpr pb_size_t kSave = amem_v1_SessionMessage_save_tag;
inline constexpr pb_size_t kMap = amem_v1_SessionMessage_map_tag;
inline constexpr pb_size_t kLoad = amem_v1_SessionMessage_load_tag;

/// Group train, rank a, and group rollout, rank b. Each has some memory that is kept and more that
/// is discarded, so that the pool is no bound.
class SwapTest : public BrokerTest {
 protected:
  static constexpr std::uint64_t kPiece = 10 * kMiB;  // of what is discarded
  struct Group {
    std::string name;
    std::vector<std::uint64_t> kept;  // each of 2 MiB, full of its index and `mark`
    std::uint8_t mark = 0;
  };

  void make(FakeRank& rank, Group& group, std::uint64_t scratch, std::size_t kept,
            std::size_t ordinal = 0) {
    join(rank, group.name);
    ASSERT_TRUE(set_policy("scratch", v1::POLICY_DISCARD, group.name).ok());
    for (std::uint64_t left = scratch; left > 0; left -= std::min(left, kPiece))
      ASSERT_NE(rank.create(gpu(ordinal), std::min(left, kPiece), "scratch"), 0U);
    for (std::size_t i = 0; i < kept; ++i) {
      group.kept.push_back(rank.create(gpu(ordinal), 2 * kMiB));
      ASSERT_NE(group.kept.back(), 0U);
      rank.write(group.kept.back(), static_cast<std::uint8_t>(group.mark + i));
    }
  }
  /// Train runs, rollout is paused.
  void make_both(std::uint64_t train_scratch, std::uint64_t rollout_scratch,
                 std::size_t rollout_kept = 3, std::size_t rollout_device = 0) {
    make(b, rollout, rollout_scratch, rollout_kept, rollout_device);
    ASSERT_TRUE(pause("rollout").ok());
    make(a, train, train_scratch, 3);
    b.received.clear();
  }
  void expect_intact(FakeRank& rank, const Group& group) {
    for (std::size_t i = 0; i < group.kept.size(); ++i)
      EXPECT_TRUE(rank.holds(group.kept[i], static_cast<std::uint8_t>(group.mark + i)))
          << group.name << " " << i;
  }
  void expect_states(v1::GroupState of_train, v1::GroupState of_rollout) {
    EXPECT_EQ(group("train").state(), of_train) << group("train").note();
    EXPECT_EQ(group("rollout").state(), of_rollout) << group("rollout").note();
  }

  std::shared_ptr<Watcher> begin_swap(const std::string& out, const std::string& in,
                                      Duration timeout = {}) {
    auto watcher = std::make_shared<Watcher>();
    on_loop([&] { broker->swap(out, in, timeout, watcher); });
    return watcher;
  }
  Status swap(const std::string& out, const std::string& in) {
    return complete(begin_swap(out, in));
  }
  /// Train has begun to save, and takes its time.
  std::shared_ptr<Watcher> swap_with_a_late_save() {
    a.moods[kSave] = Mood::kLate;
    auto watcher = begin_swap("train", "rollout");
    EXPECT_TRUE(eventually([&] { return a.received[kSave] > 0; }));
    return watcher;
  }
  bool rollout_reaches(const std::string& phase) {
    return eventually([&] { return group("rollout").phase() == phase; });
  }
  std::uint64_t mapped(const FakeRank& rank) const {
    std::uint64_t bytes = 0;
    for (const auto& [id, held] : rank.memory) bytes += held.fd ? held.size : 0;
    return bytes;
  }
  /// Both can still be used, and have their bytes.
  void expect_usable() {
    settle();
    Status swapped;
    if (group("rollout").state() == kRunning) {
      expect_intact(b, rollout);
      swapped = swap("rollout", "train");
    } else if (group("train").state() == kPaused) {
      swapped = resume("train");
    }
    ASSERT_TRUE(swapped.ok()) << swapped.text();
    expect_intact(a, train);
    swapped = swap("train", "rollout");
    ASSERT_TRUE(swapped.ok()) << swapped.text();
    expect_intact(b, rollout);
    swapped = swap("rollout", "train");
    ASSERT_TRUE(swapped.ok()) << swapped.text();
    expect_intact(a, train);
  }

  Group train{"train", {}, 10};
  Group rollout{"rollout", {}, 100};
};

}  // namespace amem
