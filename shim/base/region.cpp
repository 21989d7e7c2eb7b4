#include "shim/base/region.h"

#include <algorithm>

namespace amem::shim {
namespace {

constexpr std::size_t kMaxTag = 31;  // session.options: Create.tag

// Plain data, so that it needs no destructor: a thread may allocate in those of others.
struct State {
  char tag[kMaxTag + 1];  // empty: in no region
  amem_v1_RegionPolicy policy;
  bool unbrokered;
};
thread_local State state __attribute__((tls_model("initial-exec")));

/// What has begun last ends first.
Status unbrokered_now() {
  return {Code::kFailedPrecondition,
          "this thread allocates unbrokered memory now. End that before a region begins or ends"};
}

bool allowed(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

}  // namespace

bool valid_region_tag(std::string_view tag) {
  return !tag.empty() && tag.size() <= kMaxTag && std::all_of(tag.begin(), tag.end(), allowed) &&
         tag != kNcclTag;
}

Status Region::begin(std::string_view tag, int policy) {
  if (!valid_region_tag(tag))
    return {Code::kInvalidArgument,
            "\"" + std::string(tag.substr(0, 2 * kMaxTag)) +
                "\" is not a valid tag for a region. Use 1 to 31 of the characters A-Z a-z 0-9 . _ "
                "-, but not \"nccl\", which is for NCCL"};
  if (policy < _amem_v1_RegionPolicy_MIN || policy > _amem_v1_RegionPolicy_MAX)
    return {Code::kInvalidArgument,
            std::to_string(policy) +
                " is not a valid policy of a region. Use 0 (the tag's), 1 (keep) or 2 (discard)"};
  if (state.unbrokered) return unbrokered_now();
  if (state.tag[0] != '\0')
    return {Code::kFailedPrecondition, "this thread is already in region \"" +
                                           std::string(state.tag) +
                                           "\", and regions cannot nest. End it first"};
  state.tag[tag.copy(state.tag, kMaxTag)] = '\0';
  state.policy = static_cast<amem_v1_RegionPolicy>(policy);
  return {};
}

Status Region::end() {
  if (state.unbrokered) return unbrokered_now();
  if (state.tag[0] == '\0')
    return {Code::kFailedPrecondition,
            "this thread is not in a region. The thread that began a region must end it"};
  state = {};
  return {};
}

std::optional<Label> Region::current() {
  if (state.tag[0] == '\0') return std::nullopt;
  return Label{state.tag, state.policy};
}

Status Region::begin_unbrokered() {
  if (state.unbrokered)
    return {Code::kFailedPrecondition, "this thread already allocates unbrokered memory"};
  state.unbrokered = true;
  return {};
}

Status Region::end_unbrokered() {
  if (!state.unbrokered)
    return {
        Code::kFailedPrecondition,
        "this thread does not allocate unbrokered memory. The thread that began this must end it"};
  state.unbrokered = false;
  return {};
}

bool Region::unbrokered() { return state.unbrokered; }

}  // namespace amem::shim
