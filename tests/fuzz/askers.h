// Askers: who asks something of the broker in a world, and what each may see and do. That is told
// anew here, by the rules of docs/security.md from what the node's operator sees, and compared with
// what the broker does.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "daemon/broker/broker.h"

namespace amem::fuzz {

inline constexpr uid_t kUsers[] = {1001, 1002};  // who has ranks

class Askers {
 public:
  static constexpr unsigned kCount = 6;

  /// The broker outlives this object.
  explicit Askers(Broker& broker) : broker_(broker) {}
  Askers(const Askers&) = delete;
  Askers& operator=(const Askers&) = delete;

  /// The n-th of them as the broker knows it: amemd itself, the users, one without ranks, such a
  /// one where everybody sees everything, and one of the operators' group.
  Caller caller(unsigned n) const;

  /// What the broker has to answer of a group that the n-th calls so: kOk, or why not.
  Code sees(unsigned n, const std::string& name) const;
  /// Of groups that it wants to steer, of which the first that it may not decides.
  Code steers(unsigned n, const std::vector<std::string>& names) const;

  /// All groups but those that it steers; with `all`, those too. What the n-th asks for must leave
  /// it as it is.
  std::string untouchable(unsigned n, bool all) const;
  /// A refusal names no group that the n-th does not see, unless it has named it itself.
  void check_refusal(unsigned n, const std::string& text, const std::string& asked) const;
  /// The lists that the n-th gets have what it may see, all of it, by names that it can use.
  void check_lists(unsigned n) const;
  /// What it may see, all parts of the list together.
  std::vector<v1::AllocationInfo> allocations(const Caller& caller) const;
  /// So does the node's status.
  void check_status(unsigned n) const;
  /// Whether an event of a group that is called so may be told to the n-th: who does not see all
  /// hears of its own, by their plain names. Asks the broker nothing, which is in the middle of it.
  static bool may_hear_of(unsigned n, const std::string& name);

 private:
  /// Of the group that it means; `steer`: and wants to steer.
  Code finds(unsigned n, const std::string& name, bool steer, std::string& address) const;
  v1::ListGroupsResponse groups() const;

  Broker& broker_;
};

}  // namespace amem::fuzz
