// What operators, users and strangers ask of a broker with three groups of two users, while time
// passes and ranks answer, or do not. Input: a script, of which the sessions' beginnings and
// packets count for nothing.
#include <cstring>
#include <string>
#include <utility>

#include "tests/fuzz/packets.h"
#include "tests/fuzz/world.h"

namespace amem::fuzz {
namespace {

Step packet(std::uint8_t rank, const Message& message) {
  Result<std::string> bytes = encode(message);
  return {Kind::kPacket, rank, bytes.ok() ? std::move(bytes).value() : std::string()};
}

/// Each rank joins and makes memory of its own. "train" has two, which share some; "rollout" is of
/// the same user, "other" of another.
std::vector<Step> three_groups() {
  static constexpr const char* kGroups[] = {"train", "train", "rollout", "other"};
  static constexpr const char* kTags[] = {"nccl", "heap", "nccl", "kv"};
  std::vector<Step> steps;
  for (std::uint8_t rank = 0; rank < 4; ++rank) {
    const bool other_user = rank == 3;
    steps.push_back({Kind::kConnect, static_cast<std::uint8_t>(rank + (other_user ? 4 : 0)), {}});
    Message hello = amem_v1_SessionMessage_init_zero;
    hello.which_body = amem_v1_SessionMessage_hello_tag;
    hello.body.hello.protocol = kProtocolVersion;
    hello.body.hello.rank = rank;
    set_text(hello.body.hello.group, kGroups[rank]);
    steps.push_back(packet(rank, hello));
    Message create = amem_v1_SessionMessage_init_zero;
    create.which_body = amem_v1_SessionMessage_create_tag;
    create.body.create.size = 4096 * (std::uint64_t{4} + 4U * rank);
    std::memcpy(create.body.create.device, kDeviceMarks[rank % 2].data(), 16);
    set_text(create.body.create.tag, kTags[rank]);
    steps.push_back(packet(rank, create));
  }
  Message redeem = amem_v1_SessionMessage_init_zero;
  redeem.which_body = amem_v1_SessionMessage_redeem_tag;
  redeem.body.redeem.id = 1;
  std::memset(redeem.body.redeem.token, 1, sizeof redeem.body.redeem.token);
  steps.push_back(packet(1, redeem));
  return steps;
}

}  // namespace
}  // namespace amem::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace amem::fuzz;
  std::vector<Step> steps = three_groups();
  for (Step& step : read_script(data, size))
    if (step.kind != Kind::kConnect && step.kind != Kind::kPacket) steps.push_back(std::move(step));
  play_whole(std::move(steps));
  return 0;
}
