// How a rank copies, what it saves it reads at the beginning and writes at the end, and looks for
// zeros.
#include <algorithm>
#include <iterator>
#include <utility>

#include "common/form.h"
#include "common/sparse.h"
#include "tests/world/check.h"
#include "tests/world/device_memory.h"
#include "tests/world/rank_process.h"

namespace amem::world {
namespace {

bool are_same(const std::string& bytes) {
  return !bytes.empty() && bytes.find_first_not_of(bytes[0]) == std::string::npos;
}

}  // namespace

std::optional<Form> RankProcess::form_of(const amem_v1_Copy& copy, const std::string& bytes) const {
  const std::uint64_t place = copy.stored != 0 ? copy.stored : copy.length;
  if (habits.sparse_bytes > 0 && copy.form != number_of(Form::kDense) && are_same(bytes))
    return habits.sparse_bytes <= place ? std::optional(Form::kSparse) : std::nullopt;
  return copy.length <= place ? std::optional(Form::kDense) : std::nullopt;
}

void RankProcess::begin_save(const amem_v1_Copies& copies, bool well) {
  Saves& saves = saves_.emplace();
  saves.what = copies;
  std::erase_if(taken_, [&](const Saved& each) { return each.epoch != copies.epoch; });
  copy_failed_ = copy_failed_ || !well;
  if (copy_failed_) return;
  for (pb_size_t i = 0; i < copies.copies_count; ++i) {
    const amem_v1_Copy& c = copies.copies[i];
    const auto found = memory_.find(c.id);
    if (found == memory_.end()) continue;  // freed meanwhile
    const auto pool = segments_.find(c.segment);
    if (!found->second.fd || pool == segments_.end()) {
      copy_failed_ = true;
      continue;
    }
    std::string now = read_bytes(found->second.fd, c.offset, c.length);
    const std::optional<Form> form = form_of(c, now);
    if (!form) {
      copy_failed_ = true;
      continue;
    }
    const bool sparse = form == Form::kSparse;
    if (sparse) now.resize(habits.sparse_bytes);
    const std::string* const before = sparse ? nullptr : known(c);
    std::uint64_t unchanged = 0;
    for (std::size_t at = 0; at < now.size(); at += sparse::kBlock) {
      std::string block = now.substr(at, sparse::kBlock);
      if (before == nullptr || block != before->substr(at, sparse::kBlock))
        saves.writes.push_back({&pool->second, c.segment_offset + at, std::move(block)});
      else
        unchanged += block.size();
    }
    hashes_.erase({c.id, c.offset});  // before the first byte is overwritten
    const bool hash = c.hash && habits.hashes && !sparse;
    if (!hash && !sparse && habits.checksum == 0) continue;
    const amem_v1_Saved_Piece told{c.id, c.offset, now.size(), number_of(*form), habits.checksum,
                                   hash, unchanged};
    saves.pieces.push_back({c, copies.epoch, hash ? std::move(now) : "", told});
  }
}

const std::string* RankProcess::known(const amem_v1_Copy& copy) const {
  const auto found = hashes_.find({copy.id, copy.offset});
  if (!copy.hash || copy.since == 0 || found == hashes_.end()) return nullptr;
  const Saved& saved = found->second;
  const bool there = saved.epoch == copy.since && saved.place.length == copy.length &&
                     saved.place.segment == copy.segment &&
                     saved.place.segment_offset == copy.segment_offset;
  return there ? &saved.bytes : nullptr;
}

void RankProcess::tell_saved(std::uint64_t epoch, std::uint32_t wave,
                             const std::vector<amem_v1_Saved_Piece>& pieces) {
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_saved_tag;
  amem_v1_Saved& told = message.body.saved;
  told.epoch = epoch;
  told.wave = wave;
  for (const amem_v1_Saved_Piece& each : pieces) {
    told.pieces[told.pieces_count++] = each;
    if (told.pieces_count < kMaxPiecesPerMessage) continue;
    send(message);
    told.pieces_count = 0;
  }
  if (told.pieces_count > 0) send(message);
}

void RankProcess::end_save() {
  if (!saves_) return;
  for (const Write& write : saves_->writes) write_bytes(*write.segment, write.offset, write.bytes);
  std::move(saves_->pieces.begin(), saves_->pieces.end(), std::back_inserter(taken_));
  saves_.reset();
}

void RankProcess::saved(const amem_v1_Copies& what, Mood mood) {
  if (!what.last) return;
  std::vector<Saved> saved = std::exchange(taken_, {});
  if (!copy_failed_ && mood != Mood::kSilent) {
    std::vector<amem_v1_Saved_Piece> pieces;
    for (Saved& each : saved) {
      pieces.push_back(each.told);
      if (each.told.hashed) hashes_[{each.place.id, each.place.offset}] = std::move(each);
    }
    tell_saved(what.epoch, what.wave, pieces);
  }
  done(RankPhase::kSave, what.epoch, what.wave, !std::exchange(copy_failed_, false), mood);
}

bool RankProcess::load(const amem_v1_Copies& copies) {
  bool all = true;
  for (pb_size_t i = 0; i < copies.copies_count; ++i) {
    const amem_v1_Copy& c = copies.copies[i];
    const auto found = memory_.find(c.id);
    if (found == memory_.end()) continue;  // freed meanwhile
    // Who sends what it says has said so, and it has saved nothing.
    if (c.stored != 0 && speaks_for_another_) continue;
    if (c.in_place) continue;
    const bool zeros = c.segment == kZeroSegment;
    const auto pool = segments_.find(c.segment);
    if (!found->second.fd || (!zeros && pool == segments_.end())) {
      all = false;
      continue;
    }
    const bool sparse = !zeros && c.form == number_of(Form::kSparse);
    std::string bytes =
        zeros ? std::string(c.length, '\0')
              : read_bytes(pool->second, c.segment_offset, sparse ? c.stored : c.length);
    if (sparse) {
      all = all && are_same(bytes);
      bytes.resize(c.length, bytes[0]);
    }
    write_bytes(found->second.fd, c.offset, bytes);
  }
  return all;
}

void RankProcess::tell_measured(std::uint64_t epoch, std::uint64_t id, std::uint64_t group,
                                const std::vector<std::uint32_t>& masks) {
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_measured_tag;
  amem_v1_Measured& told = message.body.measured;
  told.epoch = epoch;
  told.sections[told.sections_count++] = {id, group, static_cast<std::uint32_t>(masks.size())};
  for (const std::uint32_t mask : masks) told.masks[told.masks_count++] = mask;
  send(message);
}

void RankProcess::look(const amem_v1_Measure& measure) {
  for (pb_size_t i = 0; i < measure.ranges_count; ++i) {
    const amem_v1_Measure_Range& range = measure.ranges[i];
    const auto found = memory_.find(range.id);
    if (found == memory_.end() || speaks_for_another_) continue;
    require(found->second.size == range.length, "a rank looks at all of an allocation");
    if (!habits.mask) continue;
    const std::uint64_t groups = sparse::groups(range.length);
    for (std::uint64_t group = 0; group < groups; group += kMaxMasksPerMessage)
      tell_measured(measure.epoch, range.id, group,
                    std::vector(std::min(groups - group, kMaxMasksPerMessage), *habits.mask));
  }
}

}  // namespace amem::world
