// Transaction: the operations of one command of an operator: the pauses of the groups that go out,
// the resumes of those that come in, or both, a swap. It decides which begins when, which waits for
// which others, and what becomes of the others when one fails.
//
// Out: all begin at once. None releases anything before every one has its cut and has saved; so
// until then a failure of one calls all of them off. In: all begin at once. None opens before every
// one has loaded and all that go out are paused; so until then a failure of one rolls all of them
// back. A transaction for one group alone waits for nobody.
//
// Swap, duplex: those that come in begin as soon as all that go out have their cut, and load while
// these save. In turn: they begin when all that go out are paused. Either way: when a pause fails
// those that come in end paused; when a resume fails all end paused.
//
// A deep pause goes on after everything has left: what comes in opens then, unless it is in turn,
// and a failure from there on is in the result and changes nothing for the others.
//
// Pure; the caller carries out what a call returns, in order, before the next call; what it brings
// about may lead to further calls. Not synchronised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"
#include "daemon/base/ids.h"
#include "daemon/phases/cut.h"
#include "daemon/phases/task.h"

namespace amem {

class Transaction {
 public:
  struct Effect {
    enum What : std::uint8_t {
      kBegin,     // the member's operation, barrier() or not
      kVacated,   // all memory that was to go out has gone: it may take what there is
      kGoOn,      // it need not wait for the others any more: release or open
      kGiveUp,    // it ends as it began, with why_given_up()
      kAsk,       // all that go out have saved, or all that come in may open: may they, by go_on()?
                  // Of a transaction over several nodes; the member is the first of them
      kWithdraw,  // what was asked does not hold any more; the member as for kAsk
      kFinish,    // all have ended, with result(); of no member
    };
    What what;
    std::size_t member;
    friend bool operator==(const Effect&, const Effect&) = default;
  };
  using Effects = std::vector<Effect>;

  /// Names of groups, all different. Members are counted from 0, those that go out first.
  /// REQUIRES: there is one. `pause`: the task of those that go out. `spans_nodes`: other nodes
  /// have a part of the transaction, too, and decide on it with this one.
  Transaction(const std::vector<std::string>& out, const std::vector<std::string>& in, Task pause,
              bool duplex, bool spans_nodes = false);

  Effects start();
  /// All nodes are as far: those that go out may release, or those that come in may open. Nothing:
  /// they do not.
  Effects may_go_on(Side side);
  /// The other nodes never will be; what has not gone on ends as it began.
  Effects give_up(const Status& why);
  /// The member has its cut: its memory is on its way out.
  Effects leaves(std::size_t member);
  /// The member has a barrier, and has done all that it may before it.
  Effects ready(std::size_t member);
  /// It was ready, and has failed; ended() follows once it has rolled back.
  Effects unready(std::size_t member);
  /// The member goes out by a deep pause, and nothing that it leaves is on its devices any more.
  Effects left(std::size_t member);
  Effects ended(std::size_t member, const Status& status);

  /// Returns whether a member that has begun began with a barrier, which lasts until kGoOn or
  /// kGiveUp.
  bool has_barrier(std::size_t member) const { return members_[member].barrier; }
  /// Returns whether the member has a barrier, and over what.
  Barrier barrier(std::size_t member) const {
    if (!has_barrier(member)) return Barrier::kNone;
    return spans_nodes_ ? Barrier::kAcrossNodes : Barrier::kWithinNode;
  }
  Side side_of(std::size_t member) const { return member < outgoing_ ? Side::kOut : Side::kIn; }
  bool goes_out(std::size_t member) const { return side_of(member) == Side::kOut; }
  const std::string& name(std::size_t member) const { return members_[member].name; }
  bool swaps() const { return outgoing_ > 0 && outgoing_ < members_.size(); }
  /// Every other member has ended, or left.
  bool last(std::size_t member) const;
  Status why_given_up() const;
  /// Names each group. REQUIRES: all that have begun have ended.
  Status result() const;
  /// The names of those that go out, or come in: "'a', 'b'".
  std::string names(Side side) const;

 private:
  enum class MemberState : std::uint8_t { kBefore, kUnderWay, kLeaves, kReady, kReleased, kEnded };
  struct Member {
    std::string name;
    MemberState state = MemberState::kBefore;
    bool barrier = false;
    Status status = {};
    bool left = false;  // by left()
    bool gone() const { return left || (state == MemberState::kEnded && status.ok()); }
  };

  std::size_t first(Side side) const { return side == Side::kOut ? 0 : outgoing_; }
  std::size_t end(Side side) const { return side == Side::kOut ? outgoing_ : members_.size(); }
  /// Returns whether `is` holds for all members that go out, or come in.
  template <class Is>
  bool all(Side side, Is is) const;
  void begin(Side side, bool barrier, Effects& effects);
  void go_on(Side side, Effects& effects);
  void give_up(Side side, Effects& effects);
  void release_if_all_may(Effects& effects);
  void open_if_all_may(Effects& effects);
  /// In a swap, begins what comes in, or lets it go on, as far as what goes out has left.
  void bring_in(Effects& effects);
  /// Goes on, or asks first.
  void go_on_or_ask(Side side, Effects& effects);
  bool broken() const { return broken_ || !given_up_.ok(); }
  void finish_if_ended(std::size_t member, Effects& effects);

  std::vector<Member> members_;
  std::size_t outgoing_;
  Task pause_;
  bool duplex_;
  bool spans_nodes_;
  PerSide<bool> may_;    // by may_go_on()
  PerSide<bool> asked_;  // whether they may
  PerSide<bool> withdrawn_;
  bool vacated_ = false;             // those that come in know that all that go out have left
  bool broken_ = false;              // by a failure of a member that had not left
  Status given_up_;                  // not OK: why, by the other nodes
  std::vector<std::size_t> failed_;  // in the order in which they ended
};

/// The other nodes of a transaction that spans several, as this node's part of it sees them.
///
/// Their cut is one, taken elsewhere; and nothing of the transaction is released, or opened, before
/// all nodes are as far. Who implements it answers by the calls of Operations that take a
/// transaction's number. For the loop's thread; must not block.
class RemoteNodes {
 public:
  virtual ~RemoteNodes() = default;
  /// Returns the transaction's name on all nodes.
  virtual const std::string& transaction() const = 0;
  /// These ranks of a group that goes out are told to be quiet. Answered by permit() and
  /// cut_taken().
  virtual void quiesces(const std::string& group, const std::vector<RankId>& ranks) = 0;
  /// One of them has reported; nothing: it has gone.
  virtual void reported(const std::string& group, RankId rank,
                        const std::optional<CutReport>& report) = 0;
  /// All that go out here have saved, or all that come in have loaded and may open as far as this
  /// node is concerned. Answered by may_go_on() or give_up().
  virtual void asks(Side side) = 0;
  /// One of them is on its way back: what was asked does not hold any more, and the transaction
  /// will end with an error here.
  virtual void withdraws(Side side) = 0;
};

}  // namespace amem
