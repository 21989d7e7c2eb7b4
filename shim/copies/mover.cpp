#include "shim/copies/mover.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "shim/process/fault_points.h"
#include "shim/session/session.h"

namespace amem::shim {
namespace {

/// A kernel copies runs of changed blocks that are shorter than this on average. The copy engine,
/// which is faster for long ones, needs a driver call for each.
constexpr std::uint64_t kShortRun = 1U << 20;

Status unknown_form(const amem_v1_Copy& copy) {
  return {Code::kInternal, "allocation " + std::to_string(copy.id) +
                               " cannot be copied: this shim does not support form " +
                               std::to_string(copy.form)};
}

}  // namespace

Status Mover::prepare(int device, bool hashes) {
  for (const auto& [form, copier] : copiers_.all()) copier->prepare(device);
  if (hashes) hasher_.prepare(device);
  return pool_.prepare(device);
}

void Mover::forget(int device) {
  for (const auto& [form, copier] : copiers_.all()) copier->forget(device);
  hasher_.forget(device);
  pool_.forget(device);
}

Result<Piece> Mover::piece_of(std::uint64_t id, std::uint64_t offset, std::uint64_t length) {
  Result<Residency::Site> site = memory_.residency.site(id);
  if (!site.ok()) return site.status();
  Piece piece;
  piece.id = id;
  piece.offset = offset;
  piece.length = length;
  piece.device = site.value().device;
  piece.address = site.value().address + offset;
  piece.stored = length;
  copiers_.sparse().prepare(piece.device);  // a rank that had only imported until now has not yet
  return piece;
}

Result<Piece> Mover::place(const amem_v1_Copy& copy, SegmentView::Use use) {
  Result<Piece> piece = piece_of(copy.id, copy.offset, copy.length);
  if (!piece.ok() || copy.segment == kZeroSegment) return piece;
  const Result<PoolView::Spot> spot = pool_.staged_at(copy, piece.value().device, use);
  if (!spot.ok()) return spot.status();
  piece.value().pool = spot.value().staged;
  piece.value().in_segment = spot.value().address;
  piece.value().space = spot.value().bytes;
  return piece;
}

const std::vector<Gap>* Mover::left_out(std::uint64_t id) {
  return scratch_.left_out(id, [this](int device, std::span<const Address> at, auto& words) {
    return copiers_.sparse().read(device, at, words);
  });
}

Status Mover::measure(const amem_v1_Measure& measure) {
  if (!copies_began_) copies_began_ = SteadyClock::now();
  for (pb_size_t i = 0; i < measure.ranges_count; ++i) {
    const amem_v1_Measure_Range& range = measure.ranges[i];
    Result<Piece> piece = piece_of(range.id, 0, range.length);
    if (!piece.ok()) return piece.status();
    piece.value().left_out = left_out(range.id);
    if (copiers_.sparse().offer(piece.value())) bytes_ += range.length;
  }
  return copiers_.sparse().start();
}

Status Mover::finish_measure(std::uint64_t& bytes, std::vector<Look>& looks) {
  Status result = copiers_.sparse().look(looks);
  if (Status s = wait(); result.ok()) result = s;
  end_phase(bytes);
  return result;
}

Status Mover::save(const amem_v1_Copies& copies) {
  if (!copies_began_) copies_began_ = SteadyClock::now();
  epoch_ = copies.epoch;
  for (pb_size_t i = 0; i < copies.copies_count; ++i) {
    const amem_v1_Copy& copy = copies.copies[i];
    const SavedPlace at = {copy.id, copy.offset, copy.length, copy.segment, copy.segment_offset};
    const bool known = copy.hash && copy.since != 0 && hashes_.find(at, copy.since) != nullptr;
    Result<Piece> placed =
        place(copy, known ? SegmentView::Use::kUpdate : SegmentView::Use::kWrite);
    if (!placed.ok()) return placed.status();
    Piece& piece = placed.value();
    const std::optional<Form> form = form_of(copy.form);
    if (!form) return unknown_form(copy);
    piece.form = *form;
    piece.left_out = left_out(piece.id);
    piece.place = at;
    // Bytes that need not be saved change all the time: the copiers leave them out.
    // The broker that this rank joined may have asked for no hashes, and another one goes on.
    if (copy.hash) hasher_.prepare(piece.device);
    piece.hash = copy.hash && piece.left_out == nullptr && hasher_.serves(piece);
    if (known && piece.hash) {
      saving_.push_back({piece});
      continue;
    }
    hashes_.drop(piece.id, piece.offset);
    bool taken = false;
    for (const auto& [each, copier] : copiers_.all())
      if (taken = allows(*form, each) && copier->offer(piece); taken) break;
    if (!taken)
      return {Code::kInternal, memory_.brokered.name(piece.id) + " cannot be saved in " +
                                   std::to_string(piece.space) + " bytes of the pool instead of " +
                                   std::to_string(piece.length) +
                                   ", because this rank can no longer look for zeros"};
  }
  Status result;
  for (const auto& [form, copier] : copiers_.all())
    if (Status s = copier->start(); result.ok()) result = s;
  return result;
}

Status Mover::load(const amem_v1_Copies& copies) {
  if (!copies_began_ && copies.copies_count > 0) copies_began_ = SteadyClock::now();
  std::vector<Piece> pieces;
  for (pb_size_t i = 0; i < copies.copies_count; ++i) {
    const amem_v1_Copy& copy = copies.copies[i];
    // A program that runs during the resume of its memory may have freed this meanwhile.
    if (!memory_.brokered.has(copy.id)) continue;
    Result<Piece> placed = place(copy, SegmentView::Use::kRead);
    if (!placed.ok()) return placed.status();
    Piece& piece = placed.value();
    if (copy.segment == kZeroSegment) {
      if (Status s = copiers_.dense().clear(piece); !s.ok()) return s;
      continue;
    }
    const std::optional<Form> form = stored_form_of(copy.form);
    if (!form) return unknown_form(copy);
    piece.form = *form;
    piece.checksum = copy.checksum;
    if (rule(*form).shorter) piece.stored = copy.stored;
    if (options_.verify && piece.checksum != 0) to_verify_.push_back(piece);
    if (copy.in_place) continue;
    bytes_ += piece.stored;
    pieces.push_back(piece);
  }
  return load(pieces);
}

Status Mover::load(std::span<const Piece> pieces) {
  // Dense first: the copy engine begins while the others are still being queued.
  for (auto each = copiers_.all().rbegin(); each != copiers_.all().rend(); ++each) {
    const auto& [form, copier] = *each;
    std::vector<Piece> its;
    std::copy_if(pieces.begin(), pieces.end(), std::back_inserter(its),
                 [form = form](const Piece& piece) { return piece.form == form; });
    if (Status s = copier->load(its); !s.ok()) return s;
  }
  return {};
}

Status Mover::restore(std::uint64_t id, std::uint64_t size) {
  std::vector<Piece> saved = backups_.find(id, 0, size);
  if (saved.empty()) {
    Result<Piece> whole = piece_of(id, 0, size);
    return whole.ok() ? copiers_.dense().clear(whole.value()) : whole.status();
  }
  for (Piece& piece : saved) {
    const Result<Piece> here = piece_of(id, piece.offset, piece.length);
    if (!here.ok()) return here.status();
    piece.device = here.value().device;
    piece.address = here.value().address;
    const Result<CUdeviceptr> staged =
        pool_.load_again(piece.in_segment, piece.stored, piece.device);
    if (!staged.ok()) return staged.status();
    piece.pool = staged.value();
    bytes_ += piece.stored;
  }
  return load(saved);
}

Status Mover::wait(const CopyMarks::Follow& follow) {
  copiers_.dense().follow(follow);
  Status result;
  for (auto each = copiers_.all().rbegin(); each != copiers_.all().rend(); ++each)
    if (Status s = each->second->finish(); result.ok()) result = s;
  copies_ = {};
  if (copies_began_) copies_.add(*copies_began_, SteadyClock::now());
  copies_began_.reset();
  return result;
}

void Mover::end_phase(std::uint64_t& bytes) {
  hasher_.finish();
  pool_.end_copies();
  to_verify_.clear();
  saving_.clear();
  memory_.residency.drop_temporary_mappings();
  bytes = std::exchange(bytes_, 0);
}

CopyMarks::Reached Mover::unmap_ahead() {
  // Checksums are taken when all copies have ended.
  if (!options_.unmap_ahead || options_.verify) return {};
  struct Saved {
    int device = 0;
    std::uint64_t bytes = 0;
    bool dense = true;  // the other forms' copiers do not say how far they are
  };
  std::map<std::uint64_t, Saved> allocations;
  for (const Saving& saving : saving_) {
    const Piece& piece = saving.piece;
    Saved& whole = allocations[piece.id];
    whole.device = piece.device;
    whole.bytes += piece.length;
    whole.dense = whole.dense && piece.form == Form::kDense;
  }
  using Queue = std::multimap<std::uint64_t, std::uint64_t>;  // allocations, by their last copies
  std::map<int, Queue> queues;
  bool copies = false;
  for (const auto& [id, whole] : allocations) {
    const std::uint64_t queued = copiers_.dense().queued(id);
    copies = copies || queued > 0;
    const auto known = memory_.handles.known(id);
    if (whole.dense && known && known->size == whole.bytes)
      queues[whole.device].emplace(queued, id);
  }
  if (!copies) return {};
  return [this, queues = std::move(queues)](int device, std::uint64_t bytes) mutable {
    Queue& queue = queues[device];
    const auto end = queue.upper_bound(bytes);
    std::vector<std::uint64_t> ids;
    std::transform(queue.begin(), end, std::back_inserter(ids),
                   [](const auto& each) { return each.second; });
    queue.erase(queue.begin(), end);
    if (ids.empty()) return;
    memory_.residency.unmap_ahead(ids);
    fault_point("unmappedAhead");
  };
}

Status Mover::finish_save(std::uint64_t& bytes, std::vector<Piece>& stored,
                          CopyMarks::Follow follow) {
  Status result = save_changed();
  for (const auto& [form, copier] : copiers_.all()) {
    std::vector<Piece> its;
    if (Status s = copier->store(its); result.ok()) result = s;
    for (Piece& piece : its) {
      if (piece.form == form) {
        piece.hash = piece.hash && form == Form::kDense;
        saving_.push_back({piece});
      } else if (result.ok() && !copiers_.of(piece.form).offer(piece)) {
        result = {Code::kInternal, memory_.brokered.name(piece.id) + " cannot be saved in form " +
                                       std::string(to_string(piece.form))};
      }
    }
  }
  for (const Saving& each : saving_) bytes_ += each.piece.stored - each.piece.unchanged;
  // The hasher has read what it needs when this returns.
  if (result.ok()) result = hash();
  if (result.ok()) follow.reached = unmap_ahead();
  if (Status s = wait(follow); result.ok()) result = s;
  if (result.ok() && options_.verify) result = compare();
  stored.clear();
  for (Saving& each : saving_) {
    if (result.ok()) backups_.add(each.piece);
    if (result.ok() && !each.hashes.empty())
      hashes_.set(each.piece.place, epoch_, std::move(each.hashes));
    stored.push_back(each.piece);
  }
  if (result.ok() && options_.verify) result = copiers_.sparse().checksums(stored);
  std::erase_if(stored,
                [](const Piece& p) { return !rule(p.form).encoded && p.checksum == 0 && !p.hash; });
  end_phase(bytes);
  return result;
}

Status Mover::save_changed() {
  if (saving_.empty()) return {};
  if (Status s = hash(); !s.ok()) return s;
  fault_point("blocksHashed");
  for (Saving& each : saving_) {
    each.way = way_of(each);
    if (each.way != Saving::Way::kParts) continue;
    if (Status s = copiers_.dense().save_parts(each.piece, each.changed); !s.ok()) return s;
  }
  // Its copier gives it back.
  std::erase_if(saving_, [](const Saving& each) { return each.way == Saving::Way::kWhole; });
  std::vector<Piece> pieces;
  std::vector<std::vector<std::uint32_t>> masks;
  for (const Saving& each : saving_) {
    if (each.way != Saving::Way::kBlocks) continue;
    pieces.push_back(each.piece);
    masks.push_back(masks_of(each.changed, each.piece.length));
  }
  if (Status s = hasher_.copy(pieces, masks); !s.ok()) return s;
  fault_point("changesQueued");
  return copiers_.sparse().start();
}

Mover::Saving::Way Mover::way_of(Saving& saving) {
  Piece& piece = saving.piece;
  saving.changed = changed(*hashes_.of(piece.place), saving.hashes, piece.length);
  hashes_.drop(piece.id, piece.offset);
  if (allows(piece.form, Form::kSparse) && hasher_.many_zeros(piece.device, saving.hashes) &&
      copiers_.sparse().offer(piece))
    return Saving::Way::kWhole;
  piece.form = Form::kDense;
  piece.unchanged = piece.length;
  for (const ByteRun& run : saving.changed) piece.unchanged -= run.length;
  return piece.length - piece.unchanged < saving.changed.size() * kShortRun ? Saving::Way::kBlocks
                                                                            : Saving::Way::kParts;
}

Status Mover::hash() {
  std::vector<Saving*> wanted;
  std::vector<Piece> pieces;
  for (Saving& each : saving_) {
    if (!each.piece.hash || !each.hashes.empty()) continue;
    wanted.push_back(&each);
    pieces.push_back(each.piece);
  }
  std::vector<BlockHashes::Hashes> hashes;
  if (Status s = hasher_.hash(pieces, hashes); !s.ok()) return s;
  for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i]->hashes = std::move(hashes[i]);
  return {};
}

Status Mover::compare() {
  std::vector<Piece> pieces;
  for (const Saving& each : saving_)
    if (each.way != Saving::Way::kWhole) pieces.push_back(each.piece);
  return hasher_.compare(pieces);
}

Status Mover::finish_load(std::uint64_t& bytes, const CopyMarks::Follow& follow) {
  Status result = wait(follow);
  if (result.ok()) result = verify();
  end_phase(bytes);
  return result;
}

Status Mover::give_up() {
  const Status result = wait();
  std::uint64_t bytes = 0;
  end_phase(bytes);
  return result;
}

Status Mover::verify() {
  std::vector<Piece> loaded = to_verify_;
  if (Status s = copiers_.sparse().checksums(loaded); !s.ok()) return s;
  for (std::size_t i = 0; i < loaded.size(); ++i) {
    if (loaded[i].checksum == 0 || loaded[i].checksum == to_verify_[i].checksum) continue;
    return {Code::kDataLoss, "AMEM_VERIFY: " + memory_.brokered.name(loaded[i].id) + ", bytes " +
                                 std::to_string(loaded[i].offset) + " to " +
                                 std::to_string(loaded[i].offset + loaded[i].length) +
                                 ", differ from the saved bytes" + " (" +
                                 std::string(to_string(loaded[i].form)) + ")"};
  }
  return {};
}

}  // namespace amem::shim
