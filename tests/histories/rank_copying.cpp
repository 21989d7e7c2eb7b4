// How a rank copies: what it saves it reads at the beginning, and writes at the end.
#include <utility>

#include "tests/histories/device_memory.h"
#include "tests/histories/rank_process.h"

namespace amem::histories {

void RankProcess::begin_save(const amem_v1_Copies& copies, bool well) {
  Saves& saves = saves_.emplace();
  saves.what = copies;
  copy_failed_ = copy_failed_ || !well;
  if (copy_failed_) return;
  for (pb_size_t i = 0; i < copies.copies_count; ++i) {
    const amem_v1_Copy& c = copies.copies[i];
    const auto found = memory_.find(c.id);
    if (found == memory_.end()) continue;  // freed meanwhile
    const auto pool = segments_.find(c.segment);
    if (!found->second.fd || pool == segments_.end() || c.stored != 0) {
      copy_failed_ = true;
      continue;
    }
    saves.writes.push_back(
        {&pool->second, c.segment_offset, read_bytes(found->second.fd, c.offset, c.length)});
  }
}

void RankProcess::end_save() {
  if (!saves_) return;
  for (const Write& write : saves_->writes) write_bytes(*write.segment, write.offset, write.bytes);
  saves_.reset();
}

void RankProcess::saved(const amem_v1_Copies& what, Mood mood) {
  if (what.last)
    done(RankPhase::kSave, what.epoch, what.wave, !std::exchange(copy_failed_, false), mood);
}

bool RankProcess::load(const amem_v1_Copies& copies) {
  bool all = true;
  for (pb_size_t i = 0; i < copies.copies_count; ++i) {
    const amem_v1_Copy& c = copies.copies[i];
    const auto found = memory_.find(c.id);
    if (found == memory_.end()) continue;  // freed meanwhile
    const bool zeros = c.segment == kZeroSegment;
    const auto pool = segments_.find(c.segment);
    if (!found->second.fd || (!zeros && pool == segments_.end())) {
      all = false;
      continue;
    }
    write_bytes(
        found->second.fd, c.offset,
        zeros ? std::string(c.length, '\0') : read_bytes(pool->second, c.segment_offset, c.length));
  }
  return all;
}

}  // namespace amem::histories
