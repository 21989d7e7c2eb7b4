// Accounts: the account of each owner that has something, or has had a line in the log within the
// last minute.
//
// For the loop's thread.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "daemon/base/event_loop.h"
#include "daemon/owners/account.h"
#include "daemon/owners/owner.h"

namespace amem {

class Accounts {
 public:
  /// The loop outlives this object and the accounts.
  Accounts(EventLoop& loop, const Quotas& quotas) : loop_(loop), quotas_(quotas) {}

  /// An owner has one account as long as anybody holds it. Root and the broker's own user, outside
  /// of compartments, have no quotas but that of log lines.
  std::shared_ptr<Account> of(const Owner& owner);
  /// By owner.
  std::vector<std::shared_ptr<const Account>> all() const;

 private:
  EventLoop& loop_;
  const Quotas quotas_;
  std::map<Owner, std::shared_ptr<Account>> accounts_;
};

}  // namespace amem
