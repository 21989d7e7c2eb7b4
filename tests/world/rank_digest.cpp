// What a rank is, for those who must know whether they have seen the same before. Bytes count as
// those of the allocation whose program has written them last, or as nobody's.
#include <sys/stat.h>
#include <unistd.h>

#include "tests/world/device_memory.h"
#include "tests/world/digest.h"
#include "tests/world/rank_process.h"

namespace amem::world {
namespace {

constexpr std::uint64_t kPage = 4096;

/// 0: nobody's.
std::uint64_t whose(const Truths& truths, char byte) {
  for (const auto& [id, truth] : truths)
    if (truth->value == static_cast<std::uint8_t>(byte)) return id;
  return 0;
}

}  // namespace

void RankProcess::add_to(Digest& digest) const {
  std::uint64_t flags = 0;
  for (const bool flag :
       {lives(), connected(), joined_, paused_, refused_, gate_shut_, quiescing_, rests_, detached_,
        stopped_, copy_failed_, map_failed_, saves_.has_value(), has_child()})
    flags = 2 * flags + (flag ? 1 : 0);
  digest.add(flags);
  digest.add(static_cast<std::uint64_t>(pending_));
  digest.add(static_cast<std::uint64_t>(asked_));
  if (lives()) digest.add(static_cast<std::uint64_t>(process_->state()));
  digest.add(commands_.size());
  for (const Packet& packet : commands_) {
    Message message = packet.message;
    message.seq = 0;
    digest.add(encode(message).value());
    digest.add(packet.fds.size());
  }
  for (const Returned& each : returned_) {
    digest.add(each.tag);
    digest.add(each.commands);
  }
  digest.add(memory_.size());
  for (const auto& [id, memory] : memory_) {
    digest.add(id);
    flags = 0;
    for (const bool flag : {static_cast<bool>(memory.fd), static_cast<bool>(memory.made),
                            memory.own, memory.arrived, memory.stale, memory.pinned, memory.guest,
                            memory.fd && has_bytes(memory.fd, memory.size, memory.truth->value)})
      flags = 2 * flags + (flag ? 1 : 0);
    digest.add(flags);
  }
  digest.add(segments_.size());
  for (const auto& [index, segment] : segments_) {
    digest.add(index);
    struct stat file {};
    if (::fstat(segment.get(), &file) != 0) continue;
    for (std::uint64_t at = 0; at < static_cast<std::uint64_t>(file.st_size); at += kPage)
      digest.add(whose(*truths_, read_bytes(segment, at, 1)[0]));
  }
  const auto add_hashed = [&](const Saved& each) {
    for (const std::uint64_t part :
         {each.epoch, each.place.id, each.place.offset, each.place.segment_offset,
          whose(*truths_, each.bytes.empty() ? '\0' : each.bytes[0])})
      digest.add(part);
  };
  for (const Saved& each : taken_) add_hashed(each);
  for (const auto& [place, each] : hashes_) add_hashed(each);
  if (saves_)
    for (const Write& write : saves_->writes) {
      digest.add(write.offset);
      digest.add(whose(*truths_, write.bytes[0]));
    }
}

}  // namespace amem::world
