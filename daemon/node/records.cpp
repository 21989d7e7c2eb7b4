#include "daemon/node/records.h"

#include <string>

#include "daemon/node/node.h"

namespace amem {
namespace {

// So many ids are reserved at a time, that a new one seldom costs a row.
constexpr AllocationId kAllocations = 1U << 20U;
constexpr std::uint32_t kRanks = 256;
constexpr std::uint32_t kGroups = 256;
constexpr std::uint64_t kSegments = 4096;

std::string bytes_of(const auto& sixteen) {
  return {reinterpret_cast<const char*>(sixteen.data()), sixteen.size()};
}

}  // namespace

void to_record(const Owner& owner, v1::record::Owner& row) {
  row.set_uid(owner.uid);
  row.set_compartment(owner.compartment);
}

Owner from_record(const v1::record::Owner& owner) { return {owner.uid(), owner.compartment()}; }

void to_record(const Extents& extents,
               google::protobuf::RepeatedPtrField<v1::record::Extent>& rows) {
  rows.Clear();
  for (const Extent& extent : extents) {
    v1::record::Extent& row = *rows.Add();
    row.set_segment(extent.segment);
    row.set_offset(extent.offset);
    row.set_length(extent.length);
  }
}

Extents from_record(const google::protobuf::RepeatedPtrField<v1::record::Extent>& rows) {
  Extents extents;
  for (const v1::record::Extent& row : rows)
    extents.push_back({row.segment(), row.offset(), row.length()});
  return extents;
}

namespace {

v1::record::Group row_of(const GroupEntry& group, bool waves) {
  v1::record::Group row;
  row.set_name(group.machine.name());
  to_record(group.account->owner(), *row.mutable_owner());
  for (const auto& [tag, discard] : group.tag_discards)
    (*row.mutable_tag_discards())[tag] = discard;
  for (const auto& [tag, discard] : group.rank_discards)
    (*row.mutable_rank_discards())[tag] = discard;
  for (const auto& [tag, form] : group.tag_forms) (*row.mutable_tag_forms())[tag] = number_of(form);
  const RestartState restart_state = restart_state_of(group.machine);
  row.set_paused(restart_state.stable_state == GroupState::kPaused);
  row.set_epoch(restart_state.epoch.attempt);
  row.set_by_operator(restart_state.by_operator);
  row.set_deep(restart_state.deep);
  row.set_lost(restart_state.lost);
  row.set_losses(restart_state.losses);
  for (const auto& [number, label] : group.ended) (*row.mutable_ended())[number] = label;
  for (const auto& [device, bytes] : group.restore_needs) {
    v1::record::RestoreNeed& need = *row.add_restore_needs();
    need.set_device(bytes_of(device.bytes));
    need.set_bytes(bytes);
  }
  row.set_stage(group.stage);
  row.set_by_stage(group.paused_by_stage);
  row.set_leased(group.leased);
  row.set_starts(group.first_turn == FirstTurn::kDue);
  row.set_asks_by_calls(group.first_turn == FirstTurn::kEndedUnasked);
  row.set_start_lapsed(group.first_turn == FirstTurn::kLapsed);
  if (group.wishes != TurnWishes()) {
    row.set_weight(group.wishes.weight);
    row.set_priority(group.wishes.priority);
    row.set_longest_wait_ms(to_us(group.wishes.longest_wait) / 1000);
    row.set_wishes_by_operator(group.wishes.by_operator);
  }
  for (const std::string& tag : group.wishes.leave_first) row.add_leave_first(tag);
  for (const std::string& tag : group.wishes.return_order) row.add_return_order(tag);
  for (const FleetShare& share : group.shares) {
    v1::record::Share& each = *row.add_shares();
    each.set_transaction(share.transaction);
    each.set_out(share.side == Side::kOut);
    each.set_asked(share.asked);
    each.set_went_on(share.went_on);
    each.set_given_up(share.given_up);
  }
  if (const auto& under_way = restart_state.under_way) {
    v1::record::UnderWay& what = *row.mutable_under_way();
    what.set_resume(under_way->task.op == Operation::kResume);
    for (const std::string& tag : under_way->task.selection.tags) what.add_tags(tag);
    what.set_except(under_way->task.selection.except);
    what.set_restart(static_cast<v1::record::Restart>(under_way->restart));
    what.set_phase(under_way->phase);
    what.set_loaded(under_way->loaded);
    what.set_failed(under_way->failed);
    what.set_waves(waves);
    what.set_deep(under_way->task.deep);
    what.set_partial(under_way->task.partial);
    for (const RankId rank : under_way->task.selection.ranks) what.add_ranks(rank);
  }
  return row;
}

void to_record(const Allocation& allocation, bool leaves, v1::record::Saved& row) {
  row.Clear();
  row.set_saver(allocation.saved.saver);
  row.set_attempt(allocation.saved.attempt);
  to_record(allocation.saved.extents, *row.mutable_extents());
  for (const Stored& stored : allocation.saved.pieces) {
    v1::record::Saved::Piece& piece = *row.add_pieces();
    piece.set_length(stored.length);
    piece.set_bytes(stored.bytes);
    piece.set_form(number_of(stored.form));
    piece.set_checksum(stored.checksum);
  }
  row.set_stayed(allocation.stayed);
  row.set_paused(allocation.paused);
  row.set_leaves(leaves);
}

}  // namespace

Status Records::write(GroupEntry& group, bool waves, RowReservation* space) {
  if (!record_.has_log()) return {};
  return record_.write(group.row, RowKind::kGroup, group.id, row_of(group, waves), space);
}

std::uint64_t Records::bytes_of_release(const GroupEntry& group) const {
  // A longer name of the phase, what waves add, a share that goes on.
  constexpr std::uint64_t kLater = 128;
  return Record::bytes_of(row_of(group, true)) + kLater;
}

std::uint64_t Records::bytes_of_release(const Allocation& allocation) const {
  constexpr std::uint64_t kPart = 48;  // of each extent, once it has been saved
  v1::record::Saved row;
  to_record(allocation, true, row);
  return Record::bytes_of(row) +
         kPart * (allocation.saved.extents.size() - allocation.saved.pieces.size());
}

Status Records::write(Rank& rank) {
  if (!record_.has_log()) return {};
  v1::record::Rank row;
  row.set_group(rank.group);
  row.set_pid(rank.peer.pid);
  row.set_uid(rank.peer.uid);
  for (const gid_t gid : rank.peer.groups) row.add_gids(gid);
  row.set_number(rank.number);
  row.set_program(rank.program);
  row.set_shim_version(rank.shim_version);
  row.set_session(bytes_of(rank.key));
  row.set_pid_namespace(pid_namespace());
  return record_.write(rank.row, RowKind::kRank, rank.id, row);
}

Status Records::write(Allocation& allocation) {
  if (!record_.has_log()) return {};
  v1::record::Allocation& row = allocation_;
  row.Clear();
  row.set_group(allocation.group);
  row.set_token(bytes_of(allocation.token));
  row.set_size(allocation.size);
  row.set_device(bytes_of(allocation.device.bytes));
  row.set_gpu_direct_rdma(allocation.gpu_direct_rdma);
  row.set_tag(allocation.tag);
  row.set_region(static_cast<std::uint32_t>(allocation.region));
  for (const RankId rank : allocation.sharers) row.add_sharers(rank);
  for (const Guest& guest : allocation.guests) row.add_guests(guest.rank);
  row.set_maker(allocation.maker);
  return record_.write(allocation.row, RowKind::kAllocation, allocation.id, row);
}

Status Records::write_saved(Allocation& allocation, bool leaves, RowReservation* space) {
  if (!record_.has_log()) return {};
  to_record(allocation, leaves, saved_);
  return record_.write(allocation.saved.row, RowKind::kSaved, allocation.id, saved_, space);
}

Status Records::write_limbo(Rank& rank) {
  v1::record::Limbo limbo;
  limbo.set_pid(rank.peer.pid);
  limbo.set_pid_namespace(pid_namespace());
  return write_limbo(rank.limbo_row, rank.id, rank.limbo, rank.peer.account->owner(), limbo);
}

Status Records::write_limbo(Row& row, RankId rank, const Extents& extents, const Owner& owner,
                            v1::record::Limbo limbo) {
  if (!record_.has_log()) return {};
  limbo.clear_extents();
  to_record(extents, *limbo.mutable_extents());
  to_record(owner, *limbo.mutable_owner());
  return record_.write(row, RowKind::kLimbo, rank, limbo);
}

// ---- ids ----------------------------------------------------------------------------------------

void Records::begin(std::uint64_t chunk) {
  life_.set_chunk(chunk);
  (void)write_life();  // it is empty
}

void Records::go_on(const v1::record::Life& life) {
  life_ = life;
  life_row_ = record_.adopt_row(RowKind::kLife, 0);
}

Status Records::used_allocation(AllocationId id) {
  if (id < life_.allocations()) return {};
  life_.set_allocations(id + kAllocations);
  return write_life();
}

Status Records::used_rank(RankId id) {
  if (id < life_.ranks()) return {};
  life_.set_ranks(id + kRanks);
  return write_life();
}

Status Records::used_group(GroupId id) {
  if (id < life_.groups()) return {};
  life_.set_groups(id + kGroups);
  return write_life();
}

Status Records::used_segment(std::uint64_t id) {
  if (id < life_.segments()) return {};
  life_.set_segments(id + kSegments);
  return write_life();
}

Status Records::write_life() { return record_.write(life_row_, RowKind::kLife, 0, life_); }

}  // namespace amem
