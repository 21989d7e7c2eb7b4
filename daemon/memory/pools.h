// Pools: the host pool, divided among the owners of ranks.
//
// A segment of the pool is one owner's at a time, because whoever has been given a segment can read
// and write all of it. Owners draw segments as their ranks come to need them, each charged to its
// account; what an owner has it keeps until the last of its processes has ended and nothing of it
// is saved. Then its segments are in stock again. Before somebody else gets one, it is made anew.
//
// A pool that is larger than configured, because pool.size was smaller at the last start of amemd,
// gives segments back to the system as soon as they are in stock. One that is larger than its
// reserve gives them back when they have been in stock for a time.
//
// For the loop's thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/base/clock.h"
#include "daemon/memory/extents.h"
#include "daemon/memory/pool.h"
#include "daemon/memory/reach.h"
#include "daemon/memory/retained.h"
#include "daemon/owners/account.h"
#include "daemon/record/record.h"

namespace amem {

/// A segment, and what the next amemd needs of it.
struct RecordedSegment {
  PoolSegment segment;
  std::uint64_t id = 0;  // never used twice
  Row row;
  HolderEntry holder_entry;
};

/// An owner's part. Segments are numbered from 0 in each, as its ranks know them.
struct OwnPool {
  explicit OwnPool(std::uint64_t chunk) : extents(chunk) {}

  /// Free, or has only what is retained.
  std::uint64_t available() const { return extents.available() + retained.bytes(); }
  /// Has saved bytes that somebody needs.
  std::uint64_t used() const { return extents.used() - retained.bytes(); }
  /// These are free now.
  void give_back(const Extents& freed);

  ExtentAllocator extents;
  Retained retained;  // of it
  Reach reach;
  struct Drawn {
    RecordedSegment of;  // of size 0: there is none of this number
    Charge charge;
    std::uint64_t leaving =
        0;              // Pools::withdraw() has it from its processes by this number; 0: not
    bool left = false;  // it did, and the number is free
  };
  std::vector<Drawn> segments;
  Time needed{};              // its space, for the last time
  std::size_t processes = 0;  // that may have some of it mapped
};

class Pools {
 public:
  using Use = std::function<void(PoolSegment)>;

  /// `renew` has a new segment made, which the caller passes to add(). `release` returns the memory
  /// to the system. The record outlives this object.
  /// `more` has one made of that size or says not_made().
  using More = std::function<void(std::uint64_t size)>;
  Pools(std::uint64_t chunk, Record& record, Use renew, Use release, More more)
      : chunk_(chunk),
        record_(record),
        renew_(std::move(renew)),
        release_(std::move(release)),
        more_(std::move(more)) {}

  /// A segment that nobody has had. `id`: never used before.
  void add(PoolSegment segment, std::uint64_t id);
  /// One from before a restart, with its row and what the holder has of it. What is an owner's now
  /// comes in the order of its numbers in that owner's part.
  void restore(RecordedSegment segment, const std::optional<Owner>& last);
  void restore(RecordedSegment segment, const std::shared_ptr<Account>& account);
  /// The rows are read. What nobody has anything in any more is in stock again.
  void restored();
  /// Its size, in bytes.
  struct Bounds {
    std::uint64_t most = 0;
    std::uint64_t reserve = 0;  // at most `most`; no less than that while the host has memory
    std::uint64_t segment = 0;  // of what is made beyond the reserve, at most
  };
  /// From now on it has these bounds. Returns how much of the reserve is missing: the caller makes
  /// it, and says started() when that has ended. Once restored(); to be called once.
  std::uint64_t limit(const Bounds& bounds);
  /// Nothing of the reserve is being made any more.
  void started() { starting_ = 0; }
  /// Whether there is anything beyond the reserve.
  bool elastic() const { return bounds_.reserve < bounds_.most; }
  /// Bytes that it has, or will have, beyond the reserve.
  std::uint64_t beyond_reserve() const;
  /// Bytes that it has beyond the most, because their owners' processes may have them mapped.
  std::uint64_t excess() const;
  /// Whether those that are being made anew are likely to come soon; until it is said otherwise.
  void expect_renewals(bool expect) { expect_renewals_ = expect; }

  /// The owner's part, empty at first. The reference stays valid until leave() or saved_less().
  OwnPool& of(const std::shared_ptr<Account>& account);
  /// Null: the owner has none.
  OwnPool* find(const std::shared_ptr<Account>& account);
  const OwnPool* find(const std::shared_ptr<Account>& account) const;

  /// A process of the owner's may map what its ranks are given, until it leave()s.
  void enter(const std::shared_ptr<Account>& account) { ++of(account).processes; }
  void leave(const std::shared_ptr<Account>& account);
  /// Some space of the owner's part has been given back.
  void saved_less(const std::shared_ptr<Account>& account);

  /// The segments that the rank is to reach from now on besides those that it does.
  std::vector<std::uint32_t> extend(const std::shared_ptr<Account>& account, RankId rank);
  /// Makes so many bytes free in the owner's part: what is retained goes first, then segments are
  /// drawn. kResourceExhausted: they are not to be had; what there was has been drawn. The text
  /// says of what there is too little.
  Status make_space(const std::shared_ptr<Account>& account, std::uint64_t bytes);
  /// Draws segments until so many bytes are free in the owner's part, as far as there are any, and
  /// leaves there what is retained.
  void draw(const std::shared_ptr<Account>& account, std::uint64_t bytes);
  /// Returns how much can still be made for this owner beyond what it can have.
  std::uint64_t can_make(const std::shared_ptr<Account>& account) const;
  /// Has a segment more made for this owner, unless one is on its way. False: can_make() nothing.
  bool make_more(const std::shared_ptr<Account>& account);
  /// That could not be made, and why.
  void not_made(std::uint64_t bytes, Status why);
  /// Returns why nothing more can be made, as a try of the last second has shown; OK: none has.
  Status no_more() const;
  /// Gives back what is beyond the reserve and has been in stock since before. Returns since when
  /// the next is there; nothing: none is.
  std::optional<Time> release_idle(Time before);

  /// Withdraws a segment that has nothing which anybody needs from an owner that has not needed
  /// space since before, if there is one beyond the reserve. Its processes still have it: unless
  /// they say that they do not, it has stayed(), and goes only when it has left(). Whoever lacks
  /// space meanwhile gets it again. Nothing: there is none. `number`: not 0, never used before.
  std::optional<std::uint32_t> withdraw(const std::shared_ptr<Account>& account, Time before,
                                        std::uint64_t number);
  /// Of what was withdrawn with this number; nothing if it has been used again since.
  void stayed(const std::shared_ptr<Account>& account, std::uint32_t index, std::uint64_t number);
  void left(const std::shared_ptr<Account>& account, std::uint32_t index, std::uint64_t number);

  /// The most that make_space() can make free for the owner.
  struct Space {
    std::uint64_t own = 0;     // in its part
    std::uint64_t stock = 0;   // to be drawn
    std::uint64_t coming = 0;  // others had it: once it is made anew, if that is likely to be soon
    std::uint64_t all() const { return own + stock + coming; }
  };
  Space space(const std::shared_ptr<Account>& account) const;

  /// Those who have a part.
  using EachOwner = std::function<void(const std::shared_ptr<Account>&, const OwnPool&)>;
  void each_owner(const EachOwner& owner) const;
  /// Calls `segment` for the segments of all owners, and those in stock.
  void each(const std::function<void(const RecordedSegment&)>& segment) const;
  /// Bytes that are being made anew and are likely to come soon.
  std::uint64_t coming() const { return expect_renewals_ ? renewing_ : 0; }
  /// Bytes that are being made anew.
  std::uint64_t renewing() const { return renewing_; }
  /// Returns the part of these that this owner may have.
  std::uint64_t coming(const Account& account) const;

  std::uint64_t chunk() const { return chunk_; }
  /// Bytes of all that there is, except what is being made anew.
  std::uint64_t total() const;
  /// Bytes that hold something of these owners, except what is retained.
  std::uint64_t used(const std::function<bool(const Account&)>& owners) const;
  /// Bytes that hold something of these owners which has been loaded again.
  std::uint64_t retained(const std::function<bool(const Account&)>& owners) const;
  /// Returns the place of the newest segment; empty: there is none.
  std::string place() const;
  /// Bytes that nobody has, with what is coming().
  std::uint64_t unowned() const;
  /// Returns the size of the largest segment, whoever has it.
  std::uint64_t largest_segment() const;

 private:
  struct Stocked {
    RecordedSegment of;
    std::optional<Owner> last;  // whose it was
    Time since{};               // in stock
  };

  /// `drawn`: it is the owner's now, with this number.
  void write(RecordedSegment& segment, const std::optional<Owner>& owner,
             std::optional<std::uint32_t> drawn);

  std::optional<std::uint32_t> draw(const std::shared_ptr<Account>& account, OwnPool& pool,
                                    int node, bool only);
  /// The number that the owner's next segment gets.
  static std::uint32_t next_number(OwnPool& pool);
  /// Makes so much space free there, as far as what is leaving can stay for that.
  void keep_leaving(const std::shared_ptr<Account>& account, OwnPool& pool, std::uint64_t bytes);
  /// Bytes of what owners' processes are being asked for.
  std::uint64_t leaving(const OwnPool& pool) const;
  /// What was withdrawn with this number; null: it has left, or has been used again since.
  OwnPool::Drawn* find_leaving(const std::shared_ptr<Account>& account, std::uint32_t index,
                               std::uint64_t number);
  static bool was_others(const Stocked& stocked, const Owner& owner);
  /// The owner gets the one of the highest rank first; 0: it cannot get it.
  static int rank(const Stocked& stocked, const Owner& owner, int node, bool only);
  /// Has one that was others' made anew, for the next who asks. Its size; 0: there is none, or the
  /// owner may have no more.
  std::uint64_t renew_one(const Account& account, int node, bool only);
  void dissolve_if_idle(const std::shared_ptr<Account>& account);
  /// Gives back from the stock what is too much. Of the last segment only a part may be: then one
  /// of the rest's size is made in its place.
  void shrink();
  /// Bytes that there are or will be.
  std::uint64_t all() const { return total() + renewing_ + making_ + starting_; }
  void put_in_stock(RecordedSegment segment, const std::optional<Owner>& last) {
    stock_.push_back({std::move(segment), last, Clock::now()});
  }

  const std::uint64_t chunk_;
  Record& record_;
  const Use renew_;
  const Use release_;
  const More more_;
  static constexpr std::uint64_t kNoBound = std::numeric_limits<std::uint64_t>::max();
  Bounds bounds_{kNoBound, kNoBound, 0};
  std::list<Stocked> stock_;
  std::uint64_t renewing_ = 0;  // bytes
  std::uint64_t making_ = 0;    // by more_
  std::uint64_t starting_ = 0;  // of the reserve, by the caller of limit()
  bool expect_renewals_ = true;
  Status refused_;  // the last of what could not be made
  Time refused_at_{};
  std::map<std::shared_ptr<Account>, OwnPool> pools_;
};

}  // namespace amem
