#include "daemon/owners/accounts.h"

#include <unistd.h>

namespace amem {

std::shared_ptr<Account> Accounts::of(const Owner& owner) {
  if (const auto it = accounts_.find(owner); it != accounts_.end()) return it->second;
  std::erase_if(accounts_, [](const auto& each) {
    return each.second.use_count() == 1 && each.second->log().quiet() &&
           each.second->refusals_log().quiet();
  });
  Quotas quotas = quotas_;
  if (owner.compartment.empty() && (owner.uid == 0 || owner.uid == ::geteuid()))
    for (const Resource resource : kAllResources) quotas.most[resource] = kNoQuota;
  return accounts_.emplace(owner, std::make_shared<Account>(owner, quotas, loop_)).first->second;
}

std::vector<std::shared_ptr<const Account>> Accounts::all() const {
  std::vector<std::shared_ptr<const Account>> all;
  for (const auto& [owner, account] : accounts_) all.push_back(account);
  return all;
}

}  // namespace amem
