#include "daemon/settings/quota_settings.h"

#include <algorithm>

#include "common/numbers.h"
#include "daemon/base/units.h"

namespace amem {
namespace {

constexpr bool may_be_share(Resource resource) {
  return resource == Resource::kDeviceBytes || resource == Resource::kPoolBytes;
}

}  // namespace

QuotaSettings QuotaSettings::shared_node() {
  QuotaSettings s;
  s.of(Resource::kSessions) = {1024, false};
  s.of(Resource::kAllocations) = {std::uint64_t{1} << 18U, false};
  s.of(Resource::kDescriptors) = {300000, false};
  s.of(Resource::kQueuedBytes) = {std::uint64_t{512} << 20U, false};
  s.of(Resource::kCalls) = {256, false};
  s.of(Resource::kPolicies) = {8192, false};
  // As in tmpfs: nobody can keep the others from pausing by being first.
  s.of(Resource::kPoolBytes) = {50, true};
  return s;
}

Status QuotaSettings::set(Resource resource, std::string_view text) {
  const auto wrong = [&] {
    return Status(Code::kInvalidArgument,
                  "\"" + std::string(text) + "\" is not a valid quota. Write " +
                      (is_bytes(resource) ? "a size" : "a number") +
                      (may_be_share(resource) ? ", a share such as 50%" : "") + ", or none");
  };
  Limit limit;
  if (text != "none" && text.ends_with('%') && may_be_share(resource)) {
    const auto share = number_of_text<std::uint64_t>(text.substr(0, text.size() - 1));
    if (!share || *share > 100) return wrong();
    limit = {*share, true};
  } else if (text != "none" && is_bytes(resource)) {
    const Result<std::uint64_t> size = parse_size(text);
    if (!size.ok()) return wrong();
    limit.value = size.value();
  } else if (text != "none") {
    const auto number = number_of_text<std::uint64_t>(text);
    if (!number) return wrong();
    limit.value = *number;
  }
  of(resource) = limit;
  return {};
}

std::string QuotaSettings::get(Resource resource) const {
  const Limit& limit = of(resource);
  if (limit.percent) return std::to_string(limit.value) + "%";
  if (limit.value == kNoQuota) return "none";
  return is_bytes(resource) ? exact_size(limit.value) : std::to_string(limit.value);
}

Quotas QuotaSettings::resolve(std::uint64_t pool, std::uint64_t segment,
                              std::uint64_t devices) const {
  Quotas quotas;
  for (const Resource resource : kAllResources) {
    const Limit& limit = of(resource);
    const std::uint64_t whole = resource == Resource::kPoolBytes ? pool : devices;
    const std::uint64_t share = whole / 100 * limit.value + whole % 100 * limit.value / 100;
    quotas.most[resource] = limit.percent ? share : limit.value;
  }
  const Limit& of_pool = of(Resource::kPoolBytes);
  std::uint64_t& most = quotas.most[Resource::kPoolBytes];
  if (of_pool.percent && of_pool.value > 0) most = std::max(most, std::min(pool, segment));
  quotas.log_lines = log_lines;
  return quotas;
}

}  // namespace amem
