// How a rank copies: what it saves it reads at the beginning, and writes at the end.
#include <iterator>
#include <utility>

#include "common/form.h"
#include "common/sparse.h"
#include "tests/world/device_memory.h"
#include "tests/world/rank_process.h"

namespace amem::world {

void RankProcess::begin_save(const amem_v1_Copies& copies, bool well) {
  Saves& saves = saves_.emplace();
  saves.what = copies;
  std::erase_if(taken_, [&](const Hashed& each) { return each.epoch != copies.epoch; });
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
    std::string now = read_bytes(found->second.fd, c.offset, c.length);
    const std::string* const before = known(c);
    for (std::size_t at = 0; at < now.size(); at += sparse::kBlock) {
      std::string block = now.substr(at, sparse::kBlock);
      if (before == nullptr || block != before->substr(at, sparse::kBlock))
        saves.writes.push_back({&pool->second, c.segment_offset + at, std::move(block)});
    }
    hashes_.erase({c.id, c.offset});  // before the first byte is overwritten
    if (c.hash) saves.hashed.push_back({c, copies.epoch, std::move(now)});
  }
}

const std::string* RankProcess::known(const amem_v1_Copy& copy) const {
  const auto found = hashes_.find({copy.id, copy.offset});
  if (!copy.hash || copy.since == 0 || found == hashes_.end()) return nullptr;
  const Hashed& hashed = found->second;
  const bool there = hashed.epoch == copy.since && hashed.place.length == copy.length &&
                     hashed.place.segment == copy.segment &&
                     hashed.place.segment_offset == copy.segment_offset;
  return there ? &hashed.bytes : nullptr;
}

void RankProcess::tell_hashed(const amem_v1_Copies& what) {
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_saved_tag;
  amem_v1_Saved& told = message.body.saved;
  told.epoch = what.epoch;
  told.wave = what.wave;
  for (Hashed& each : std::exchange(taken_, {})) {
    told.pieces[told.pieces_count++] = {
        each.place.id, each.place.offset, each.place.length, number_of(Form::kDense), 0, true, 0};
    hashes_[{each.place.id, each.place.offset}] = std::move(each);
    if (told.pieces_count < kMaxPiecesPerMessage) continue;
    send(message);
    told.pieces_count = 0;
  }
  if (told.pieces_count > 0) send(message);
}

void RankProcess::end_save() {
  if (!saves_) return;
  for (const Write& write : saves_->writes) write_bytes(*write.segment, write.offset, write.bytes);
  std::move(saves_->hashed.begin(), saves_->hashed.end(), std::back_inserter(taken_));
  saves_.reset();
}

void RankProcess::saved(const amem_v1_Copies& what, Mood mood) {
  if (!what.last) return;
  if (!copy_failed_ && mood != Mood::kSilent) tell_hashed(what);
  taken_.clear();
  done(RankPhase::kSave, what.epoch, what.wave, !std::exchange(copy_failed_, false), mood);
}

bool RankProcess::load(const amem_v1_Copies& copies) {
  bool all = true;
  for (pb_size_t i = 0; i < copies.copies_count; ++i) {
    const amem_v1_Copy& c = copies.copies[i];
    const auto found = memory_.find(c.id);
    if (found == memory_.end()) continue;  // freed meanwhile
    if (c.stored != 0) continue;           // of one that has said so, and saved nothing
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

}  // namespace amem::world
