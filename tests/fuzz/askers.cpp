#include "tests/fuzz/askers.h"

#include <iterator>
#include <set>

#include "tests/world/check.h"

namespace amem::fuzz {
namespace {

using world::require;

constexpr uid_t kNobodysUser = 1003;  // has no ranks

struct Kind {
  bool has_account;
  uid_t uid;
  bool operates;
  bool sees_all;
};
constexpr Kind kKinds[] = {
    {false, 0, true, true},
    {true, kUsers[0], false, false},
    {true, kUsers[1], false, false},
    {true, kNobodysUser, false, false},
    {true, kNobodysUser, false, true},
    {true, kNobodysUser, true, true},
};
static_assert(std::size(kKinds) == Askers::kCount);

bool own(const Kind& kind, uid_t uid) { return kind.has_account && kind.uid == uid; }
bool may_see(const Kind& kind, uid_t uid) { return kind.sees_all || own(kind, uid); }
bool may_steer(const Kind& kind, uid_t uid) { return kind.operates || own(kind, uid); }

/// "train" of "train@1001".
std::string plain(const std::string& address) { return address.substr(0, address.find('@')); }

}  // namespace

Caller Askers::caller(unsigned n) const {
  const Kind& kind = kKinds[n];
  if (!kind.has_account) return {};
  Caller caller;
  caller.account = broker_.accounts().of({kind.uid, {}});
  caller.who = "pid 1 of uid " + std::to_string(kind.uid);
  caller.operates = kind.operates;
  caller.sees_all = kind.sees_all;
  return caller;
}

v1::ListGroupsResponse Askers::groups() const {
  v1::ListGroupsResponse list;
  broker_.reports().groups(Caller{}, list);
  return list;
}

Code Askers::finds(unsigned n, const std::string& name, bool steer, std::string& address) const {
  const Kind& kind = kKinds[n];
  const v1::ListGroupsResponse list = groups();
  const v1::GroupInfo* found = nullptr;
  std::size_t count = 0;
  for (const v1::GroupInfo& group : list.groups()) {
    const bool named = plain(group.address()) == name;
    if (named && own(kind, group.uid())) {
      address = group.address();
      return Code::kOk;
    }
    if (!may_see(kind, group.uid()) || (!named && group.address() != name)) continue;
    found = &group;
    ++count;
  }
  if (count != 1) return count == 0 ? Code::kNotFound : Code::kInvalidArgument;
  address = found->address();
  return steer && !may_steer(kind, found->uid()) ? Code::kPermissionDenied : Code::kOk;
}

Code Askers::sees(unsigned n, const std::string& name) const {
  std::string address;
  return finds(n, name, false, address);
}

Code Askers::steers(unsigned n, const std::vector<std::string>& names) const {
  std::string address;
  for (const std::string& name : names)
    if (const Code code = finds(n, name, true, address); code != Code::kOk) return code;
  return Code::kOk;
}

std::string Askers::untouchable(unsigned n, bool all) const {
  std::string bytes;
  const v1::ListGroupsResponse present = groups();
  for (const v1::GroupInfo& group : present.groups())
    if (all || !may_steer(kKinds[n], group.uid())) bytes += group.SerializeAsString();
  return bytes;
}

void Askers::check_refusal(unsigned n, const std::string& text, const std::string& asked) const {
  const v1::ListGroupsResponse present = groups();
  for (const v1::GroupInfo& group : present.groups())
    require(may_see(kKinds[n], group.uid()) || text.find(group.address()) == std::string::npos ||
                asked.find(group.address()) != std::string::npos,
            "a refusal tells nobody of groups that it does not see");
}

std::vector<v1::AllocationInfo> Askers::allocations(const Caller& caller) const {
  Result<AllocationList> list = broker_.reports().list_allocations(caller, "");
  require(list.ok(), "everybody may ask for what it sees");
  std::vector<v1::AllocationInfo> all;
  while (true) {
    const auto part = broker_.reports().allocations(caller, list.value(), 3, 1 << 20);
    if (part.empty()) return all;
    all.insert(all.end(), part.begin(), part.end());
  }
}

void Askers::check_lists(unsigned n) const {
  const Kind& kind = kKinds[n];
  const Caller who = caller(n);
  std::set<std::string> groups_seen;
  const v1::ListGroupsResponse present = groups();
  for (const v1::GroupInfo& group : present.groups()) {
    if (may_see(kind, group.uid())) groups_seen.insert(group.address());
  }
  v1::ListGroupsResponse list;
  broker_.reports().groups(who, list);
  for (const v1::GroupInfo& group : list.groups()) {
    require(groups_seen.erase(group.address()) == 1, "nobody is told of others' groups");
    std::string address;
    require(finds(n, group.name(), false, address) == Code::kOk && address == group.address(),
            "a group has the name by which it can be called");
  }
  require(groups_seen.empty(), "everybody is told of its groups");

  const auto all_ranks = broker_.reports().ranks(Caller{}, "");
  const auto ranks = broker_.reports().ranks(who, "");
  const auto all_allocations = this->allocations(Caller{});
  const auto allocations = this->allocations(who);
  require(all_ranks.ok() && ranks.ok(), "everybody may ask for what it sees");
  std::set<std::uint32_t> ranks_seen;
  for (const v1::RankInfo& rank : all_ranks.value())
    if (may_see(kind, rank.uid())) ranks_seen.insert(rank.id());
  std::set<std::uint64_t> memory_seen;
  for (const v1::AllocationInfo& a : all_allocations)
    if (ranks_seen.contains(a.owner())) memory_seen.insert(a.id());
  for (const v1::AllocationInfo& a : allocations)
    require(memory_seen.erase(a.id()) == 1, "nobody is told of others' memory");
  require(memory_seen.empty(), "everybody is told of its memory");
  for (const v1::RankInfo& rank : ranks.value())
    require(ranks_seen.erase(rank.id()) == 1, "nobody is told of others' ranks");
  require(ranks_seen.empty(), "everybody is told of its ranks");

  v1::ListQuotasResponse quotas;
  broker_.reports().quotas(who, quotas);
  for (const v1::OwnerQuotas& owner : quotas.owners())
    require(may_see(kind, owner.uid()), "nobody is told of others' quotas");
}

void Askers::check_status(unsigned n) const {
  const Kind& kind = kKinds[n];
  v1::NodeStatus status;
  broker_.reports().status(caller(n), status);
  std::uint64_t saved = 0;
  for (const v1::GroupInfo& group : status.groups()) {
    require(may_see(kind, group.uid()), "a status tells nobody of others' groups");
    saved += group.saved_bytes();
  }
  require(saved <= status.pool().used_bytes(), "a status has the caller's part of the pool");
  for (const v1::PoolShare& share : status.pool().shares()) {
    const std::string uid = share.owner().substr(std::string("uid ").size());
    require(may_see(kind, static_cast<uid_t>(std::stoul(uid))),
            "a status tells nobody of others' segments");
    require(share.free_bytes() <= share.available_bytes(), "what is free can be had");
  }
  require(kind.sees_all || kind.uid != kNobodysUser || status.pool().used_bytes() == 0,
          "who has saved nothing has nothing in the pool");
  require(kind.sees_all || status.times().empty(),
          "how long others' operations took is told to those who see them");
}

bool Askers::may_hear_of(unsigned n, const std::string& name) {
  const Kind& kind = kKinds[n];
  if (name.empty() || kind.sees_all) return true;
  return kind.uid != kNobodysUser && name.find('@') == std::string::npos;
}

}  // namespace amem::fuzz
