// QuotaSettings: what an owner may have, as it is configured: amounts, shares of what there is, or
// nothing. Plain values.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/status.h"
#include "daemon/owners/account.h"

namespace amem {

class QuotaSettings {
 public:
  /// Of a node that users share.
  static QuotaSettings shared_node();

  /// "1024", "64GiB" for bytes, "50%" of the pool or of the devices, "none".
  Status set(Resource resource, std::string_view text);
  /// In a form that set() reads back.
  std::string get(Resource resource) const;

  /// `pool`, `devices`: bytes that there are. The pool is given in whole segments, so a share of it
  /// is no less than one.
  Quotas resolve(std::uint64_t pool, std::uint64_t segment, std::uint64_t devices) const;

  std::uint64_t log_lines = 300;  // a minute

 private:
  struct Limit {
    std::uint64_t value = kNoQuota;
    bool percent = false;
  };
  Limit& of(Resource resource) { return limits_[static_cast<std::size_t>(resource)]; }
  const Limit& of(Resource resource) const { return limits_[static_cast<std::size_t>(resource)]; }

  std::array<Limit, kResources> limits_{};
};

}  // namespace amem
