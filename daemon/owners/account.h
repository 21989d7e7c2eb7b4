// Account: what one owner has of what the broker can run out of, and the most that it may have.
//
// Whoever takes something for an owner charges its account, and keeps the Charge with what was
// taken: it is given back when that goes, whichever way. A refusal costs the broker nothing but the
// words.
//
// For the loop's thread; a Charge may be destroyed on any once the loop has ended.
#pragma once

#include <array>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/fd.h"
#include "common/status.h"
#include "daemon/base/clock.h"
#include "daemon/base/event_loop.h"
#include "daemon/base/log_limit.h"
#include "daemon/owners/owner.h"

namespace amem {

enum class Resource : std::uint8_t {
  kSessions,
  kAllocations,
  kDeviceBytes,  // resident, on all devices
  kPoolBytes,    // in segments that are the owner's
  kDescriptors,  // open in the broker
  kQueuedBytes,  // of messages that wait for the owner's processes
  kCalls,        // of the control API, under way
  kPolicies,     // tags of the owner's groups for which one is set
};
inline constexpr Resource kAllResources[] = {
    Resource::kSessions,    Resource::kAllocations, Resource::kDeviceBytes, Resource::kPoolBytes,
    Resource::kDescriptors, Resource::kQueuedBytes, Resource::kCalls,       Resource::kPolicies};
inline constexpr std::size_t kResources = std::size(kAllResources);
std::string_view to_string(Resource resource);
/// Whether its amounts are bytes.
constexpr bool is_bytes(Resource resource) {
  return resource == Resource::kDeviceBytes || resource == Resource::kPoolBytes ||
         resource == Resource::kQueuedBytes;
}

/// An amount of each resource.
class Amounts {
 public:
  std::uint64_t& operator[](Resource resource) { return of_[static_cast<std::size_t>(resource)]; }
  std::uint64_t operator[](Resource resource) const {
    return of_[static_cast<std::size_t>(resource)];
  }

 private:
  std::array<std::uint64_t, kResources> of_{};
};

/// Whether an owner that has so many of something gets one more where all have `all` and there are
/// no more than `most`: while more are free than it has. So there is a share for who comes later,
/// however much those before have taken.
constexpr bool leaves_a_share(std::size_t has, std::size_t all, std::size_t most) {
  return all < most && has < most - all;
}

/// All there is.
inline constexpr std::uint64_t kNoQuota = ~std::uint64_t{0};

struct Quotas {
  Quotas() {
    for (const Resource resource : kAllResources) most[resource] = kNoQuota;
  }

  Amounts most;
  std::uint64_t log_lines = 300;  // a minute
};

class Charge;

class Account : public std::enable_shared_from_this<Account> {
 public:
  /// The loop outlives the account.
  Account(Owner owner, const Quotas& quotas, EventLoop& loop);

  const Owner& owner() const { return owner_; }
  std::uint64_t used(Resource resource) const { return used_[resource]; }
  std::uint64_t most(Resource resource) const { return most_[resource]; }

  /// How often something was refused for want of this one.
  std::uint64_t refusals(Resource resource) const { return refusals_[resource]; }

  bool has_space(const Amounts& amounts) const;
  /// All of the amounts or none. kResourceExhausted: names owner, resource, what it has and may
  /// have, and the setting.
  Result<Charge> take(const Amounts& amounts);
  Result<Charge> take(Resource resource, std::uint64_t amount);
  /// Charges for what the owner has already, from before a restart: over its quotas if they are
  /// smaller now.
  Charge charge(const Amounts& amounts);

  /// When ranks were last told to free what they keep because this owner's lacked memory: the
  /// owner's own, and everybody's.
  struct Trims {
    Time own{};
    Time all{};
  };
  Trims& trims() { return trims_; }

  // Lines that the owner's processes cause, of each kind as many a minute as its quota says: that
  // they come and go; what they were refused. So who is refused much still ends with a line.
  LogLimit& log() { return log_; }
  LogLimit& refusals_log() { return refusals_log_; }

 private:
  friend class Accounts;
  friend class Charge;
  bool has_space(Resource resource, std::uint64_t amount) const;
  void give_back(const Amounts& amounts);

  const Owner owner_;
  Amounts most_;
  Amounts used_;
  Amounts refusals_;
  Trims trims_;
  LogLimit log_;
  LogLimit refusals_log_;
};

/// What was taken from an account; gives it back at its end. Move-only.
class Charge {
 public:
  Charge() = default;
  Charge(Charge&& other) noexcept = default;
  Charge& operator=(Charge&& other) noexcept {
    std::swap(account_, other.account_);
    std::swap(amounts_, other.amounts_);
    return *this;
  }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;
  ~Charge() {
    if (account_) account_->give_back(amounts_);
  }
  /// Whose; null: of nobody.
  const std::shared_ptr<Account>& account() const { return account_; }

 private:
  friend class Account;
  Charge(std::shared_ptr<Account> account, const Amounts& amounts)
      : account_(std::move(account)), amounts_(amounts) {}

  std::shared_ptr<Account> account_;
  Amounts amounts_;
};

/// Memory on a device, and the descriptor that keeps it there.
inline Amounts of_device_memory(std::uint64_t bytes) {
  Amounts amounts;
  amounts[Resource::kDeviceBytes] = bytes;
  amounts[Resource::kDescriptors] = 1;
  return amounts;
}

/// Returns a descriptor that is charged for while anybody has it.
SharedFd charged(SharedFd fd, Charge charge);

/// The account of each owner that has something, or has had a line in the log within the last
/// minute. For the loop's thread.
class Accounts {
 public:
  /// The loop outlives this object and the accounts.
  Accounts(EventLoop& loop, const Quotas& quotas) : loop_(loop), quotas_(quotas) {}

  /// An owner has one account while anybody holds it. Root and the broker's own user have only the
  /// quota of log lines, unless they are in a compartment.
  std::shared_ptr<Account> of(const Owner& owner);
  /// By owner.
  std::vector<std::shared_ptr<const Account>> all() const;
  /// From now on; who has more keeps it. The number of log lines stays.
  void limit(const Amounts& most);

 private:
  Amounts most_of(const Owner& owner) const;

  EventLoop& loop_;
  Quotas quotas_;
  std::map<Owner, std::shared_ptr<Account>> accounts_;
};

}  // namespace amem
