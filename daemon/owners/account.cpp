#include "daemon/owners/account.h"

#include <unistd.h>

#include <algorithm>

#include "daemon/base/units.h"

namespace amem {
namespace {

constexpr std::string_view kResourceNames[kResources] = {
    "sessions", "allocations", "device", "pool", "descriptors", "queue", "calls", "policies"};

std::string amount(Resource resource, std::uint64_t value) {
  return is_bytes(resource) ? format_size(value) : std::to_string(value);
}

}  // namespace

std::string_view to_string(Resource resource) {
  return kResourceNames[static_cast<std::size_t>(resource)];
}

Account::Account(Owner owner, const Quotas& quotas, EventLoop& loop)
    : owner_(std::move(owner)),
      most_(quotas.most),
      log_(loop, "lines about processes of " + to_string(owner_), quotas.log_lines),
      refusals_log_(loop, "lines about refusals to " + to_string(owner_), quotas.log_lines) {}

bool Account::has_space(Resource resource, std::uint64_t amount) const {
  return amount <= most_[resource] - std::min(used_[resource], most_[resource]);
}

bool Account::has_space(const Amounts& amounts) const {
  return std::all_of(std::begin(kAllResources), std::end(kAllResources),
                     [&](Resource resource) { return has_space(resource, amounts[resource]); });
}

Result<Charge> Account::take(const Amounts& amounts) {
  for (const Resource resource : kAllResources) {
    if (has_space(resource, amounts[resource])) continue;
    const std::uint64_t used = used_[resource];
    ++refusals_[resource];
    const std::string name(to_string(resource));
    return Status(Code::kResourceExhausted,
                  to_string(owner_) + " has " + amount(resource, used) + " of at most " +
                      amount(resource, most_[resource]) + " (quotas." + name + ") and requests " +
                      amount(resource, amounts[resource]) +
                      " more. Free some, or ask the operator for a larger quotas." + name);
  }
  for (const Resource resource : kAllResources) used_[resource] += amounts[resource];
  return Charge(shared_from_this(), amounts);
}

Result<Charge> Account::take(Resource resource, std::uint64_t amount) {
  Amounts amounts;
  amounts[resource] = amount;
  return take(amounts);
}

Charge Account::charge(const Amounts& amounts) {
  for (const Resource resource : kAllResources) used_[resource] += amounts[resource];
  return {shared_from_this(), amounts};
}

void Account::give_back(const Amounts& amounts) {
  for (const Resource resource : kAllResources) used_[resource] -= amounts[resource];
}

SharedFd charged(SharedFd fd, Charge charge) {
  struct ChargedFd {
    SharedFd fd;
    Charge charge;
  };
  auto charged_fd = std::make_shared<ChargedFd>(ChargedFd{std::move(fd), std::move(charge)});
  const Fd* part = charged_fd->fd.get();
  return {std::move(charged_fd), part};
}

Amounts Accounts::most_of(const Owner& owner) const {
  const bool own = owner.compartment.empty() && (owner.uid == 0 || owner.uid == ::geteuid());
  return own ? Quotas().most : quotas_.most;
}

void Accounts::limit(const Amounts& most) {
  quotas_.most = most;
  for (const auto& [owner, account] : accounts_) account->most_ = most_of(owner);
}

std::shared_ptr<Account> Accounts::of(const Owner& owner) {
  if (const auto it = accounts_.find(owner); it != accounts_.end()) return it->second;
  std::erase_if(accounts_, [](const auto& each) {
    return each.second.use_count() == 1 && each.second->log().quiet() &&
           each.second->refusals_log().quiet();
  });
  Quotas quotas = quotas_;
  quotas.most = most_of(owner);
  return accounts_.emplace(owner, std::make_shared<Account>(owner, quotas, loop_)).first->second;
}

std::vector<std::shared_ptr<const Account>> Accounts::all() const {
  std::vector<std::shared_ptr<const Account>> all;
  for (const auto& [owner, account] : accounts_) all.push_back(account);
  return all;
}

}  // namespace amem
