#include "daemon/broker/recovery.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include "daemon/base/units.h"

namespace amem {
namespace {

template <class Row>
bool parse(std::string_view bytes, std::uint64_t id, auto& into) {
  Row row;
  if (!row.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return false;
  into[static_cast<typename std::remove_reference_t<decltype(into)>::key_type>(id)] =
      std::move(row);
  return true;
}

Token token_of(const std::string& bytes) {
  Token token{};
  std::memcpy(token.data(), bytes.data(), std::min(bytes.size(), token.size()));
  return token;
}

std::optional<Fd> take(HolderDescriptors& descriptors, HolderKind kind, std::uint64_t id) {
  const auto found = descriptors.extract(holder_key(kind, id));
  if (found.empty()) return std::nullopt;
  return std::move(found.mapped());
}

std::optional<Interrupted> interrupted(const v1::record::Group& row) {
  if (!row.has_under_way()) return std::nullopt;
  const v1::record::UnderWay& what = row.under_way();
  Interrupted found;
  found.task.op = what.resume() ? Operation::kResume : Operation::kPause;
  found.task.selection.tags = {what.tags().begin(), what.tags().end()};
  found.task.selection.except = what.except();
  found.task.deep = what.deep();
  found.task.partial = what.partial();
  found.task.selection.ranks = {what.ranks().begin(), what.ranks().end()};
  found.restart = static_cast<OnRestart>(what.restart());
  found.phase = what.phase();
  found.loaded = what.loaded();
  found.failed = what.failed();
  return found;
}

/// The ranks may be saving, or have been, what no Release has been sent for.
bool may_be_saving(const v1::record::Group& row) {
  if (!row.has_under_way() || row.under_way().resume()) return false;
  // What is rolled back is a pause of a group that was paused partly.
  const v1::record::Restart restart = row.under_way().restart();
  return restart == v1::record::CALL_OFF || restart == v1::record::ROLL_BACK ||
         row.under_way().waves();
}

/// Returns whether the record says that not all of its bytes are saved yet.
bool is_being_saved(const v1::record::Group& group, const v1::record::Saved& saved) {
  if (saved.leaves()) return false;
  return saved.attempt() > group.epoch() ||
         (saved.attempt() == group.epoch() && may_be_saving(group));
}

}  // namespace

Result<std::uint64_t> recorded_chunk(const RecordLog& log) {
  v1::record::Life life;
  bool read = true;
  log.each([&](RowKey key, std::string_view bytes) {
    if (kind_of_row(key) == RowKind::kLife)
      read = life.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  });
  if (!read || (log.rows() > 0 && life.chunk() == 0))
    return Status(Code::kDataLoss, "the record of what this node holds lacks its own description");
  return life.chunk();
}

Status Recovery::run(HolderDescriptors descriptors) {
  Record& record = node_.records.record();
  if (Status status = read(*record.log()); !status.ok()) return status;
  node_.records.go_on(life_);
  node_.allocations.continue_at(life_.allocations());
  ranks_.continue_at(life_.ranks());
  groups_.continue_at(life_.groups());

  take_pool(descriptors);
  find_members(descriptors);
  for (const auto& [id, row] : allocations_read_) of_group_[row.group()].push_back(id);
  std::map<GroupId, std::map<AllocationId, Memory>> memory;
  for (auto group = members_.begin(); group != members_.end();) {
    std::string missing = find_lost(group->first);
    if (missing.empty()) missing = find_memory(group->first, descriptors, memory[group->first]);
    if (missing.empty()) {
      ++group;
      continue;
    }
    leave(group->first, group->second, missing, descriptors);
    group = members_.erase(group);
  }
  // A rank that is not taken up may write to what it has open of another group.
  for (auto group = members_.begin(); group != members_.end();) {
    auto& found = memory[group->first];
    const std::string unknown = find_unknown_guest(found);
    if (unknown.empty()) {
      ++group;
      continue;
    }
    give_back(group->first, found);
    leave(group->first, group->second, unknown, descriptors);
    members_.erase(group);
    group = members_.begin();  // its own ranks may be guests, too
  }
  for (auto& [id, members] : members_) {
    const v1::record::Group& row = groups_read_.at(id);
    std::optional<Interrupted> what = interrupted(row);
    if (what && std::any_of(memory[id].begin(), memory[id].end(), [&](const auto& each) {
          return left_for_later(row, *what, each.second);
        })) {
      what->task.partial = true;
      what->task.deep = false;  // a process with memory on its devices is not checkpointed
    }
    take_group(id, members, std::move(what));
  }
  take_limbo(descriptors);  // what is given back is written beside it
  for (const auto& [id, members] : members_)
    for (const auto& [allocation, what] : memory[id])
      take_memory(node_.groups.at(id), allocation, what, descriptors);
  take_guests_memory(descriptors);
  node_.pools.restored();
  drop_unadopted(descriptors);
  record.flush_soon();  // of processes that were found by their numbers
  for (auto& [id, group] : node_.groups) stages_.restored(group);
  for (auto& [id, group] : node_.groups) groups_.drive(group);
  if (!node_.ranks.empty())
    spdlog::info(
        "amemd continues {} groups with {} allocations, and waits for {} ranks to reconnect",
        node_.groups.size(), node_.allocations.size(), node_.ranks.size());
  return {};
}

Status Recovery::read(const RecordLog& log) {
  std::size_t bad = 0;
  log.each([&](RowKey key, std::string_view bytes) {
    const std::uint64_t id = id_of_row(key);
    bool read = false;
    switch (kind_of_row(key)) {
      case RowKind::kLife:
        read = life_.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
        break;
      case RowKind::kGroup:
        read = parse<v1::record::Group>(bytes, id, groups_read_);
        break;
      case RowKind::kRank:
        read = parse<v1::record::Rank>(bytes, id, ranks_read_);
        break;
      case RowKind::kAllocation:
        read = parse<v1::record::Allocation>(bytes, id, allocations_read_);
        break;
      case RowKind::kSaved:
        read = parse<v1::record::Saved>(bytes, id, saved_read_);
        break;
      case RowKind::kSegment:
        read = parse<v1::record::Segment>(bytes, id, segments_read_);
        break;
      case RowKind::kLimbo:
        read = parse<v1::record::Limbo>(bytes, id, limbo_read_);
        break;
    }
    if (!read) ++bad;
    if (kind_of_row(key) != RowKind::kLife) rows_.insert(key);
  });
  if (bad == 0) return {};
  return {Code::kDataLoss, std::to_string(bad) + " of " + std::to_string(log.rows()) +
                               " rows of the record of what this node holds cannot be read"};
}

// ---- the pool -----------------------------------------------------------------------------------

void Recovery::take_pool(HolderDescriptors& descriptors) {
  struct Drawn {
    std::uint64_t id;
    const v1::record::Segment* row;
  };
  std::map<Owner, std::map<std::uint32_t, Drawn>> drawn;
  const auto segment = [&](std::uint64_t id, const v1::record::Segment& row, Fd fd) {
    RecordedSegment taken;
    taken.segment = {std::make_shared<const Fd>(std::move(fd)), row.size(), *place_of(row.place()),
                     row.numa_node()};
    taken.id = id;
    taken.row = adopt(RowKind::kSegment, id);
    taken.holder_entry = node_.records.record().adopt(HolderKind::kSegment, id);
    return taken;
  };
  const auto descriptor = [&](std::uint64_t id, const v1::record::Segment& row) {
    std::optional<Fd> fd = take(descriptors, HolderKind::kSegment, id);
    if (fd && !place_of(row.place())) {
      spdlog::error(
          "record: a segment of the pool has the place {}, which this amemd does not support. The "
          "bytes saved there are lost",
          row.place());
      fd.reset();
    }
    return fd;
  };
  for (const auto& [id, row] : segments_read_) {
    if (row.drawn()) {
      drawn[from_record(row.owner())][row.index()] = {id, &row};
      continue;
    }
    std::optional<Fd> fd = descriptor(id, row);
    if (!fd) continue;
    node_.pools.restore(segment(id, row, std::move(*fd)),
                        row.has_owner() ? std::optional(from_record(row.owner())) : std::nullopt);
  }
  for (const auto& [owner, segments] : drawn) {
    const std::shared_ptr<Account> account = accounts_.of(owner);
    for (const auto& [index, each] : segments) {
      std::optional<Fd> fd = descriptor(each.id, *each.row);
      // Numbers go on without a gap; what was saved in one that is not there is missed later.
      while (node_.pools.of(account).segments.size() < index)
        node_.pools.restore(RecordedSegment{}, account);
      if (fd) node_.pools.restore(segment(each.id, *each.row, std::move(*fd)), account);
    }
  }
}

void Recovery::leave(GroupId id, std::map<RankId, Member>& members, const std::string& why,
                     HolderDescriptors& descriptors) {
  spdlog::error(
      "amemd cannot continue group '{}': {}. Its ranks run without amem, or wait for ever "
      "(AMEM_ORPHAN). Restart them",
      groups_read_[id].name(), why);
  left_.insert(id);
  for (const auto& [rank, member] : members) group_of_.erase(rank);
  leave_to_writers(id, members, descriptors);
}

/// The group is not taken up: what its ranks may be saving to is in their limbo.
void Recovery::leave_to_writers(GroupId id, std::map<RankId, Member>& members,
                                HolderDescriptors& descriptors) {
  const v1::record::Group& group = groups_read_.at(id);
  const bool saving = may_be_saving(group);
  for (const AllocationId allocation : of_group_[id]) {
    const auto found = saved_read_.find(allocation);
    if (!saving || found == saved_read_.end()) continue;
    const v1::record::Saved& saved = found->second;
    const bool lives = members.contains(saved.saver()) || lost_[id].contains(saved.saver());
    if (!lives) continue;
    v1::record::Limbo& limbo = limbo_read_[saved.saver()];
    limbo.mutable_extents()->MergeFrom(saved.extents());
    *limbo.mutable_owner() = group.owner();
  }
  for (auto& [rank, member] : members)
    if (limbo_read_.contains(rank) && member.process.held)
      descriptors.emplace(holder_key(HolderKind::kProcess, rank), std::move(member.process.fd));
}

void Recovery::take_limbo(HolderDescriptors& descriptors) {
  for (const auto& [id, row] : limbo_read_) {
    const auto rank_row = ranks_read_.find(id);
    Rank* rank = node_.find_rank(id);
    std::shared_ptr<Account> account = rank != nullptr ? rank->peer.account : nullptr;
    if (account == nullptr && row.has_owner()) account = accounts_.of(from_record(row.owner()));
    if (account == nullptr && rank_row != ranks_read_.end())
      if (const auto group = groups_read_.find(rank_row->second.group());
          group != groups_read_.end())
        account = account_of(group->second.owner());
    if (account == nullptr) continue;
    Extents taken;
    // What is in a Saved as well goes the same way with that.
    for (const Extent& extent : from_record(row.extents()))
      if (node_.pools.of(account).extents.take_again({extent}).ok()) taken.push_back(extent);
    if (rank != nullptr) {
      rank->limbo = std::move(taken);
      rank->limbo_row = adopt(RowKind::kLimbo, id);
      if (rank->limbo.empty())
        rank->limbo_row.erase();
      else
        (void)node_.records.write_limbo(*rank);
      continue;
    }
    v1::record::Limbo of = row;
    if (rank_row != ranks_read_.end()) {
      of.set_pid(rank_row->second.pid());
      of.set_pid_namespace(rank_row->second.pid_namespace());
    }
    Row limbo_row = adopt(RowKind::kLimbo, id);
    (void)node_.records.write_limbo(limbo_row, id, taken, account->owner(), of);
    Process process = find_process(descriptors, id, of.pid(), of.pid_namespace());
    if (process.lost) {
      spdlog::warn(
          "{} of the pool stay in use: pid {} may still write there, and the descriptor of this "
          "process is lost. Restart amemd and amem-holder when no job needs them",
          format_size(std::accumulate(
              taken.begin(), taken.end(), std::uint64_t{0},
              [](std::uint64_t sum, const Extent& extent) { return sum + extent.length; })),
          of.pid());
      saved_.write_off(account, std::move(taken), std::move(limbo_row));
      continue;
    }
    SharedFd fd = process.fd ? std::make_shared<const Fd>(std::move(process.fd)) : nullptr;
    HolderEntry holder_entry = fd != nullptr ? hold_process(id, process.held, fd) : HolderEntry();
    saved_.await_end(std::move(fd), account, std::move(taken), std::move(limbo_row),
                     std::move(holder_entry));
  }
}

// ---- groups -------------------------------------------------------------------------------------

/// The holder has the descriptor before the row is written, and the row goes first. So where it is
/// missing the holder had not been given everything, or had no space for it, and the process may
/// well live. What has its number now is it, or it has ended: either way its end is not missed.
Recovery::Process Recovery::find_process(HolderDescriptors& descriptors, RankId id, pid_t pid,
                                         std::uint64_t pid_namespace) {
  if (std::optional<Fd> fd = take(descriptors, HolderKind::kProcess, id))
    return {std::move(*fd), true, false};
  if (pid <= 0 || pid_namespace == 0 || pid_namespace != amem::pid_namespace())
    return {{}, false, true};
  Numbered found = process_with(pid);
  const bool lost = !found.process && !found.ended;
  return {std::move(found.process), false, lost};
}

HolderEntry Recovery::hold_process(RankId id, bool held, const SharedFd& process) {
  Record& record = node_.records.record();
  return held ? record.adopt(HolderKind::kProcess, id)
              : record.hold(HolderKind::kProcess, id, process);
}

void Recovery::find_members(HolderDescriptors& descriptors) {
  for (const auto& [id, row] : ranks_read_) {
    if (!groups_read_.contains(row.group())) continue;
    Process process = find_process(descriptors, id, row.pid(), row.pid_namespace());
    if (process.lost) {
      lost_[row.group()].insert(id);
      (void)members_[row.group()];
    }
    if (!process.fd) continue;
    members_[row.group()][id] = {row, std::move(process)};
    group_of_[id] = row.group();
  }
}

std::string Recovery::find_lost(GroupId id) const {
  const auto found = lost_.find(id);
  if (found == lost_.end()) return {};
  const v1::record::Rank& row = ranks_read_.at(*found->second.begin());
  return "rank " + std::to_string(row.number()) + " (pid " + std::to_string(row.pid()) +
         ") may still run, and the descriptor of its process is lost";
}

std::string Recovery::find_unknown_guest(const std::map<AllocationId, Memory>& memory) const {
  for (const auto& [id, what] : memory) {
    if (!what.resident) continue;
    for (const RankId guest : what.row.guests()) {
      const auto row = ranks_read_.find(guest);
      if (row == ranks_read_.end() || group_of_.contains(guest)) continue;
      const auto group = groups_read_.find(row->second.group());
      const bool ended = group == groups_read_.end() || !left_.contains(group->first);
      if (ended) continue;
      return "rank " + std::to_string(row->second.number()) + " of group '" + group->second.name() +
             "' may have allocation " + std::to_string(id) +
             " open, and amemd does not continue that group";
    }
  }
  return {};
}

bool Recovery::left_for_later(const v1::record::Group& group, const Interrupted& what,
                              const Memory& memory) {
  if (what.restart != OnRestart::kRelease || !memory.resident) return false;
  if (!what.task.selection.takes(memory.row.tag(), memory.sharers)) return false;
  if (memory.saved == nullptr) return true;
  return !memory.saved->stayed() && group.under_way().waves() && !memory.saved->leaves();
}

void Recovery::take_group(GroupId id, std::map<RankId, Member>& members,
                          std::optional<Interrupted> what) {
  const v1::record::Group& row = groups_read_.at(id);
  const std::shared_ptr<Account> account = account_of(row.owner());
  std::vector<Rank> ranks;
  Members labels;
  for (auto& [rank_id, member] : members) {
    Rank rank;
    rank.id = rank_id;
    rank.group = id;
    rank.peer.pid = member.row.pid();
    rank.peer.uid = member.row.uid();
    rank.peer.groups = {member.row.gids().begin(), member.row.gids().end()};
    rank.peer.process = std::make_shared<const Fd>(std::move(member.process.fd));
    rank.peer.account = account;
    rank.number = member.row.number();
    rank.program = member.row.program();
    rank.shim_version = member.row.shim_version();
    rank.key = token_of(member.row.session());
    rank.row = adopt(RowKind::kRank, rank_id);
    rank.holder_entry = hold_process(rank_id, member.process.held, rank.peer.process);
    // What is known; it says more when it reconnects.
    if (may_be_saving(row)) rank.saving.insert(Epoch(row.epoch()));
    labels.add(rank_id, rank_label(rank));
    ranks.push_back(std::move(rank));
  }
  const RestartState restart_state{row.paused() ? GroupState::kPaused : GroupState::kRunning,
                                   Epoch(row.epoch()),
                                   std::move(what),
                                   row.by_operator(),
                                   row.deep(),
                                   row.lost(),
                                   row.losses()};
  GroupEntry& group = groups_.restore(id, row.name(), account, restart_state, std::move(labels));
  group.tag_discards = {row.tag_discards().begin(), row.tag_discards().end()};
  group.rank_discards = {row.rank_discards().begin(), row.rank_discards().end()};
  for (const auto& [tag, form] : row.tag_forms())
    group.tag_forms[tag] = form_of(form).value_or(Form::kAuto);
  for (const v1::record::Share& share : row.shares())
    group.shares.push_back({share.transaction(), share.out() ? Side::kOut : Side::kIn,
                            share.asked(), share.went_on(), share.given_up()});
  for (const v1::record::RestoreNeed& need : row.restore_needs())
    if (need.device().size() == sizeof(DeviceUuid::bytes))
      group.restore_needs[make_uuid(need.device().data())] = need.bytes();
  group.ended = {row.ended().begin(), row.ended().end()};
  group.stage = row.stage();
  group.paused_by_stage = row.by_stage();
  group.leased = row.leased();
  group.first_turn = row.starts()          ? FirstTurn::kDue
                     : row.start_lapsed()  ? FirstTurn::kLapsed
                     : row.asks_by_calls() ? FirstTurn::kEndedUnasked
                                           : FirstTurn::kOver;
  if (row.weight() > 0) {
    group.wishes.weight = row.weight();
    group.wishes.priority = row.priority();
    group.wishes.longest_wait = std::chrono::milliseconds(row.longest_wait_ms());
    group.wishes.by_operator = row.wishes_by_operator();
  }
  group.wishes.leave_first = {row.leave_first().begin(), row.leave_first().end()};
  group.wishes.return_order = {row.return_order().begin(), row.return_order().end()};
  Amounts one;
  one[Resource::kPolicies] = 1;
  const auto charge = [&](const auto& policies) {
    for (const auto& [tag, policy] : policies)
      if (!group.policies.contains(tag)) group.policies.emplace(tag, account->charge(one));
  };
  charge(group.tag_discards);
  charge(group.rank_discards);
  charge(group.tag_forms);
  group.row = adopt(RowKind::kGroup, id);
  for (Rank& rank : ranks) ranks_.expect(std::move(rank));
}

// ---- memory -------------------------------------------------------------------------------------

std::string Recovery::find_memory(GroupId id, const HolderDescriptors& descriptors,
                                  std::map<AllocationId, Memory>& found) {
  const v1::record::Group& group = groups_read_.at(id);
  const bool rolls_back = group.has_under_way() && group.under_way().resume() &&
                          group.under_way().restart() == v1::record::ROLL_BACK;
  ExtentAllocator& pool = node_.pools.of(account_of(group.owner())).extents;
  std::string missing;
  for (const AllocationId allocation : of_group_[id]) {
    const v1::record::Allocation& row = allocations_read_.at(allocation);
    Memory memory{.row = row};
    for (const RankId rank : row.sharers())
      if (const auto of = group_of_.find(rank); of != group_of_.end() && of->second == id)
        memory.sharers.push_back(rank);
    if (memory.sharers.empty()) continue;  // its guests' alone, perhaps
    const auto saved = saved_read_.find(allocation);
    if (saved != saved_read_.end()) memory.saved = &saved->second;
    const bool left =
        memory.saved != nullptr && !memory.saved->stayed() && !is_being_saved(group, *memory.saved);
    memory.incoming = !descriptors.contains(holder_key(HolderKind::kMemory, allocation));
    // What a resume has made before it could open is made again by the next.
    memory.resident =
        !memory.incoming || (descriptors.contains(holder_key(HolderKind::kIncoming, allocation)) &&
                             !(rolls_back && left));
    const std::string name = "allocation " + std::to_string(allocation) + " (" +
                             format_size(row.size()) + ", tag '" + row.tag() + "')";
    if (!memory.resident && !left)
      missing = name + " was on its device, and its descriptor is lost";
    if (memory.saved != nullptr && missing.empty())
      for (const v1::record::Saved::Piece& piece : memory.saved->pieces())
        if (!stored_form_of(piece.form()))
          missing = name + ": the pool has its bytes in form " + std::to_string(piece.form()) +
                    ", which this amemd does not support";
    if (memory.saved != nullptr && missing.empty())
      if (const Status taken = pool.take_again(from_record(memory.saved->extents())); !taken.ok())
        missing = name + ": " + taken.text();
    if (!missing.empty()) break;
    found.emplace(allocation, std::move(memory));
  }
  if (!missing.empty()) give_back(id, found);
  return missing;
}

void Recovery::give_back(GroupId id, std::map<AllocationId, Memory>& found) {
  ExtentAllocator& pool = node_.pools.of(account_of(groups_read_.at(id).owner())).extents;
  for (const auto& [allocation, memory] : found)
    if (memory.saved != nullptr) (void)pool.give_back(from_record(memory.saved->extents()));
  found.clear();
}

void Recovery::take_memory(GroupEntry& group, AllocationId id, const Memory& memory,
                           HolderDescriptors& descriptors) {
  Allocation a;
  a.id = id;
  a.group = group.id;
  a.sharers = memory.sharers;
  if (a.shared_by(memory.row.maker())) a.maker = memory.row.maker();
  fill(a, memory.row, group.account);
  const auto what = restart_state_of(group.machine).under_way;
  if (memory.resident)
    put_on_device(a, memory.incoming ? HolderKind::kIncoming : HolderKind::kMemory, group.account,
                  descriptors);
  if (memory.saved != nullptr) {
    const v1::record::Saved& saved = *memory.saved;
    a.saved.saver = saved.saver();
    a.saved.attempt = saved.attempt();
    a.saved.extents = from_record(saved.extents());
    for (const v1::record::Saved::Piece& piece : saved.pieces())
      a.saved.pieces.push_back({piece.length(), piece.bytes(),
                                stored_form_of(piece.form()).value_or(Form::kDense),
                                piece.checksum()});
    a.stayed = saved.stayed();
    a.saved.row = adopt(RowKind::kSaved, id);
    // It has returned in a resume that was opening.
    const bool back = what && what->restart == OnRestart::kOpen && what->loaded;
    a.paused = !a.resident() ||
               (a.stayed ? saved.paused() : back && what->task.selection.takes(a.tag, a.sharers));
  }
  // A pause that goes on in waves had saved this before its ranks were told. It needs its saver no
  // more, even if that ends before it has reconnected.
  const bool goes_on = what && what->restart == OnRestart::kRelease;
  if (goes_on && memory.saved != nullptr && memory.saved->leaves()) a.saved.saver = 0;
  const bool for_later = what && left_for_later(groups_read_.at(group.id), *what, memory);
  // It may have been dropped, and amemd of an earlier version wrote no attempt then.
  if (goes_on && memory.saved != nullptr && !for_later && a.saved.attempt == 0)
    a.saved.attempt = groups_read_.at(group.id).epoch();
  Allocation& added = node_.allocations.add(std::move(a));
  if (!for_later) return;
  saved_.give_back(added);
  added.saved.saver = 0;
  added.saved.attempt = 0;
  added.saved.row.erase();
}

void Recovery::fill(Allocation& a, const v1::record::Allocation& row,
                    const std::shared_ptr<Account>& account) {
  a.token = token_of(row.token());
  a.size = row.size();
  if (row.device().size() == sizeof a.device.bytes) a.device = make_uuid(row.device().data());
  a.gpu_direct_rdma = row.gpu_direct_rdma();
  a.tag = row.tag();
  a.region = static_cast<RegionPolicy>(row.region());
  for (const RankId rank : row.guests())
    if (const auto of = group_of_.find(rank); of != group_of_.end())
      a.guests.push_back({rank, of->second});
  Amounts entry;
  entry[Resource::kAllocations] = 1;
  a.charge = account->charge(entry);
  a.row = adopt(RowKind::kAllocation, a.id);
}

void Recovery::put_on_device(Allocation& a, HolderKind kind,
                             const std::shared_ptr<Account>& account,
                             HolderDescriptors& descriptors) {
  std::optional<Fd> fd = take(descriptors, kind, a.id);
  a.fd = charged(workers_.closing(a.device, std::move(*fd)),
                 account->charge(of_device_memory(a.size)));
  a.holder_entry = node_.records.record().adopt(kind, a.id);
}

/// Memory whose sharers have all gone, and which ranks of other groups have open still.
void Recovery::take_guests_memory(HolderDescriptors& descriptors) {
  for (const auto& [id, row] : allocations_read_) {
    const auto is_of_group = [this, of = row.group()](RankId rank) {
      return group_of_.contains(rank) && group_of_[rank] == of;
    };
    const bool shared = std::any_of(row.sharers().begin(), row.sharers().end(), is_of_group);
    const auto guest = std::find_if(row.guests().begin(), row.guests().end(),
                                    [&](RankId rank) { return group_of_.contains(rank); });
    if (shared || guest == row.guests().end()) continue;
    HolderKind kind = HolderKind::kMemory;
    if (!descriptors.contains(holder_key(kind, id))) kind = HolderKind::kIncoming;
    if (!descriptors.contains(holder_key(kind, id))) continue;
    const std::shared_ptr<Account> account = node_.groups.at(group_of_[*guest]).account;
    Allocation a;
    a.id = id;
    a.group = kNoGroup;
    fill(a, row, account);
    put_on_device(a, kind, account, descriptors);
    node_.allocations.add(std::move(a));
  }
}

// ---- what nobody has any more -------------------------------------------------------------------

Row Recovery::adopt(RowKind kind, std::uint64_t id) {
  rows_.erase(row_key(kind, id));
  return node_.records.record().adopt_row(kind, id);
}

void Recovery::drop_unadopted(const HolderDescriptors& descriptors) {
  Record& record = node_.records.record();
  for (const RowKey key : rows_) record.adopt_row(kind_of_row(key), id_of_row(key)).erase();
  for (const auto& [key, fd] : descriptors) record.adopt(kind_of(key), id_of(key)).drop();
}

}  // namespace amem
