#include "shim/phases/phases.h"

#include <algorithm>
#include <array>
#include <utility>

#include "shim/base/log.h"
#include "shim/gate/wait_log.h"
#include "shim/memory/paused_memory.h"
#include "shim/process/fault_points.h"

namespace amem::shim {
namespace {

constexpr std::chrono::milliseconds kRetry{250};
/// Returns the command that a Release asks for.
RankCommand command_of(const amem_v1_Release& release) {
  if (release.undo) return RankCommand::kUndo;
  if (release.tags_count > 0) return RankCommand::kReleaseTags;
  if (release.more_waves) return RankCommand::kReleaseWave;
  return release.listed ? RankCommand::kReleaseList : RankCommand::kReleaseAll;
}

}  // namespace

void Phases::command(Packet& packet) {
  const Message& m = packet.message;
  switch (m.which_body) {
    case amem_v1_SessionMessage_pool_segment_tag:
      detachment_.add(m.body.pool_segment,
                      packet.fds.size() == 1 ? std::move(packet.fds.front()) : Fd());
      break;
    case amem_v1_SessionMessage_unmap_segment_tag:
      unmap(m.body.unmap_segment);
      break;
    case amem_v1_SessionMessage_quiesce_tag:
      if (const Result<RankState> next = begin(RankCommand::kQuiesce); !next.ok())
        return done(m.body.quiesce.epoch, RankPhase::kQuiet, next.status(), 0);
      exit_.arm();  // in front of what libraries loaded meanwhile have registered
      report_.defer();
      heap_.set_caching(false);
      // Nothing here may wait for the lock of the brokered memory: who has it may wait in the
      // driver for work that only the cut lets through.
      mover_.backups().begin();
      scratch_.begin();
      wait_log().paused_by(m.body.quiesce.paused_by);
      cut_.begin(m.body.quiesce.epoch);
      enter(RankState::kCuts);
      break;
    case amem_v1_SessionMessage_trim_tag:
      if (state_ != RankState::kDetached) heap_.trim();
      break;
    case amem_v1_SessionMessage_permit_tag:
      cut_.permit(m.body.permit);
      break;
    case amem_v1_SessionMessage_measure_tag:
      cut_.end();
      measure(m.body.measure);
      break;
    case amem_v1_SessionMessage_save_tag:
      cut_.end();
      copy(m.body.save, true);
      break;
    case amem_v1_SessionMessage_release_tag:
      cut_.end();
      release(m.body.release);
      break;
    case amem_v1_SessionMessage_make_tag:
      make(m.body.make);
      break;
    case amem_v1_SessionMessage_map_tag:
      map(packet);
      break;
    case amem_v1_SessionMessage_load_tag:
      copy(m.body.load, false);
      break;
    case amem_v1_SessionMessage_ask_tag:
      cut_.end();
      ask(m.body.ask);
      break;
    case amem_v1_SessionMessage_turn_reports_tag:
      work_.set(m.body.turn_reports.on);
      break;
    default:
      log_warn("the broker sent a message of the unknown kind " + std::to_string(m.which_body));
  }
}

void Phases::unmap(const amem_v1_UnmapSegment& asked) {
  const Status status = mover_.under_way() ? Status(Code::kUnavailable, "copies are under way")
                                           : detachment_.unmap(asked.index);
  if (!status.ok())
    log_debug("pool segment " + std::to_string(asked.index) + " stays: " + status.text());
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_segment_unmapped_tag;
  message.body.segment_unmapped.number = asked.number;
  message.body.segment_unmapped.code = static_cast<std::uint32_t>(status.code());
  session_.post(message);
}

void Phases::join_shut(const std::string& paused_by, bool first_turn) {
  wait_log().paused_by(paused_by);
  first_turn ? gate_.close_before_first_turn() : gate_.close();
  enter(RankState::kPaused);
}

/// A free that is inside already when a step begins goes on beside it. That is safe: it holds the
/// lock of the brokered memory while it changes the table, and waits there for memory that is on
/// its way back.
Result<RankState> Phases::begin(RankCommand command) {
  const std::optional<RankState> next = after(state_, command);
  if (!next)
    return Status(Code::kFailedPrecondition,
                  std::string("this process ") + describe(state_) + ", so it cannot " +
                      describe(command) +
                      (state_ == RankState::kFailed ? ". Its log says why. Restart the job" : ""));
  if (state_ == RankState::kDetached && command != RankCommand::kDetach) {
    detachment_.attach();
    enter(RankState::kPaused);
  }
  if (state_ == RankState::kPaused && frees_wait_for(command))
    enter(brings_back(command) ? RankState::kReturns : RankState::kLeaves);
  return *next;
}

void Phases::enter(RankState state) {
  state_ = state;
  gate_.set(gate_of(state));
}

void Phases::unclaimed(const Packet& reply) { memory_.handles.unclaimed(reply.message.body.reply); }

void Phases::measure(const amem_v1_Measure& measure) {
  const Result<RankState> next = begin(RankCommand::kSave);
  if (!next.ok()) {
    if (measure.last) done(measure.epoch, RankPhase::kMeasure, next.status(), 0);
    return;
  }
  enter(next.value());
  clock_.begin(RankPhase::kMeasure);
  if (copy_status_.ok()) copy_status_ = mover_.measure(measure);
  if (!measure.last) return;
  std::uint64_t bytes = 0;
  std::vector<Look> looks;
  const Status finished = mover_.finish_measure(bytes, looks);
  if (copy_status_.ok()) copy_status_ = finished;
  if (copy_status_.ok()) measured(measure.epoch, looks);
  done(measure.epoch, RankPhase::kMeasure, copy_status_, bytes);
  copy_status_ = {};
}

void Phases::measured(std::uint64_t epoch, std::span<const Look> looks) {
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_measured_tag;
  amem_v1_Measured& told = message.body.measured;
  told.epoch = epoch;
  const auto post = [&] {
    session_.post(message);
    told.sections_count = told.masks_count = 0;
  };
  for (const Look& look : looks) {
    for (std::span<const std::uint32_t> left = look.masks; !left.empty();) {
      if (told.sections_count == kMaxSectionsPerMessage || told.masks_count == kMaxMasksPerMessage)
        post();
      const auto section =
          left.first(std::min<std::size_t>(left.size(), kMaxMasksPerMessage - told.masks_count));
      told.sections[told.sections_count++] = {look.id, look.masks.size() - left.size(),
                                              static_cast<std::uint32_t>(section.size())};
      std::copy(section.begin(), section.end(), told.masks + told.masks_count);
      told.masks_count = static_cast<pb_size_t>(told.masks_count + section.size());
      left = left.subspan(section.size());
    }
  }
  if (told.sections_count > 0) post();
}

void Phases::copy(const amem_v1_Copies& copies, bool save) {
  const RankPhase phase = save ? RankPhase::kSave : RankPhase::kLoad;
  const Result<RankState> next = begin(save ? RankCommand::kSave : RankCommand::kReturn);
  if (!next.ok()) {
    if (copies.last) done(copies.epoch, phase, next.status(), 0, copies.wave);
    return;
  }
  enter(next.value());
  clock_.begin(phase);
  if (!save) fault_point("loadBegins");
  if (copy_status_.ok()) copy_status_ = save ? mover_.save(copies) : mover_.load(copies);
  if (!copies.last) return;
  std::uint64_t bytes = 0;
  std::vector<Piece> stored;
  CopyMarks::Follow follow;
  if (copies.tell_ms > 0) {
    follow.interval = std::chrono::milliseconds(copies.tell_ms);
    follow.tell = [&](std::uint64_t done, std::uint64_t of) {
      Message message = amem_v1_SessionMessage_init_zero;
      message.which_body = amem_v1_SessionMessage_copied_tag;
      message.body.copied = {copies.epoch, copies.wave, done, of};
      session_.post(message);
    };
  }
  // Also after a failure: nothing may still be in flight.
  const Status finished =
      save ? mover_.finish_save(bytes, stored, follow) : mover_.finish_load(bytes, follow);
  if (copy_status_.ok()) copy_status_ = finished;
  if (save && copy_status_.ok()) saved(copies, stored);
  if (!save && copy_status_.ok()) copy_status_ = scratch_.spoil();
  done(copies.epoch, phase, copy_status_, bytes, copies.wave);
  copy_status_ = {};
}

void Phases::saved(const amem_v1_Copies& save, std::span<const Piece> pieces) {
  while (!pieces.empty()) {
    Message message = amem_v1_SessionMessage_init_zero;
    message.which_body = amem_v1_SessionMessage_saved_tag;
    amem_v1_Saved& saved = message.body.saved;
    saved.epoch = save.epoch;
    saved.wave = save.wave;
    const auto part = pieces.first(std::min(pieces.size(), kMaxPiecesPerMessage));
    for (const Piece& p : part)
      saved.pieces[saved.pieces_count++] = {p.id,       p.offset, p.stored,   number_of(p.form),
                                            p.checksum, p.hash,   p.unchanged};
    session_.post(message);
    pieces = pieces.subspan(part.size());
  }
}

void Phases::release(const amem_v1_Release& release) {
  const bool first = !has_left(state_);
  const Result<RankState> next = begin(command_of(release));
  if (!next.ok()) {
    if (!release.more) done(release.epoch, RankPhase::kRelease, next.status(), 0, release.wave);
    return;
  }
  clock_.begin(RankPhase::kRelease);
  fault_point("releaseBegins");
  listed_.insert(release.ids, release.ids + release.ids_count);
  if (release.more) return;
  // Nothing runs on the devices now: no lock of the driver's is held by somebody who waits for work
  // that only another command of the broker lets through.
  if (!release.undo && first) report_.send(true);
  std::set<std::string> tags;
  for (pb_size_t i = 0; i < release.tags_count; ++i) tags.insert(release.tags[i]);
  const std::set<std::uint64_t> listed = std::exchange(listed_, {});
  std::uint64_t bytes = 0;
  Status s = release.undo     ? undo(bytes)
             : release.listed ? memory_.residency.leave(listed, bytes)
                              : memory_.residency.leave(tags, release.except, bytes);
  // Maps again what a pause has unmapped and does not take.
  if (const Status mapped = memory_.residency.map_again(); s.ok()) s = mapped;
  fault_point("releaseDone");
  copy_status_ = {};
  map_status_ = {};
  mapped_bytes_ = 0;
  if (!s.ok() && !std::exchange(retry_due_, true))
    session_.run_at(Session::Clock::now() + kRetry, [this] { drop_leftovers(); });
  done(release.epoch, RankPhase::kRelease, s, bytes, release.wave);
  enter(next.value());
}

void Phases::drop_leftovers() {
  if (state_ == RankState::kDetached) {  // which requires that there are none
    retry_due_ = false;
    return;
  }
  retry_due_ = !memory_.residency.drop_leftovers().ok();
  if (retry_due_)
    session_.run_at(Session::Clock::now() + kRetry, [this] { drop_leftovers(); });
  else
    log_info("the driver has now freed the memory that it did not free in a pause");
}

// A resume may fail between packets, with copies under way to memory that undo() unmaps.
Status Phases::undo(std::uint64_t& bytes) {
  // What the attempt took does not count in the next one's times.
  clock_.end(RankPhase::kMap);
  clock_.end(RankPhase::kLoad);
  memory_.residency.take_timings();
  if (const Status s = mover_.give_up(); !s.ok()) log_warn(s.text());
  return memory_.residency.undo(bytes);
}

void Phases::make(const amem_v1_Make& make) {
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_made_tag;
  amem_v1_Made& made = message.body.made;
  made.epoch = make.epoch;
  made.number = make.number;
  const Result<RankState> next = begin(RankCommand::kReturn);
  if (next.ok()) {
    clock_.begin(RankPhase::kMap);
    enter(next.value());
  }
  std::vector<Fd> fds;
  for (pb_size_t i = 0; i < make.ids_count; ++i) {
    Result<Fd> fd = next.ok() ? memory_.residency.make(make.ids[i]) : Result<Fd>(next.status());
    if (!fd.ok()) {
      // In a swap this is expected: the broker asks again when something has left.
      log_debug(fd.status().text());
      made.code = static_cast<std::uint32_t>(fd.status().code());
      set_text(made.text, fd.status().text());
      break;
    }
    if (!fd.value()) continue;  // the program has freed it meanwhile
    made.ids[made.ids_count++] = make.ids[i];
    fds.push_back(std::move(fd).value());
  }
  session_.post(message, std::move(fds));
}

// The copies that follow a packet need access to what it has mapped; they run while the next packet
// is mapped.
void Phases::map(Packet& packet) {
  const amem_v1_Map& map = packet.message.body.map;
  const Result<RankState> next = begin(RankCommand::kReturn);
  if (!next.ok()) {
    if (map.last) done(map.epoch, RankPhase::kMap, next.status(), 0);
    return;
  }
  enter(next.value());
  clock_.begin(RankPhase::kMap);
  if (map_status_.ok() && packet.fds.size() != map.ids_count)
    map_status_ = {Code::kInternal, std::to_string(map.ids_count) + " allocations came with " +
                                        std::to_string(packet.fds.size()) + " descriptors" +
                                        kNoSpaceForDescriptors};
  for (pb_size_t i = 0; map_status_.ok() && i < map.ids_count; ++i) {
    map_status_ = memory_.residency.come_back(map.ids[i], packet.fds[i]);
    packet.fds[i].reset();
  }
  std::uint64_t bytes = 0;
  const Status granted = memory_.residency.finish_return(bytes);
  if (map_status_.ok()) map_status_ = granted;
  mapped_bytes_ += bytes;
  fault_point("mapDone");
  if (!map.last) return;
  done(map.epoch, RankPhase::kMap, map_status_, mapped_bytes_);
  map_status_ = {};
  mapped_bytes_ = 0;
}

void Phases::ask(const amem_v1_Ask& ask) {
  // The table of what a rank is asked for in one word.
  struct Row {
    RankPhase phase;
    Status (*run)(Phases&);
  };
  static constexpr std::array kRows = {
      Row{RankPhase::kOpen, [](Phases& phases) { return phases.open(); }},
      Row{RankPhase::kDetach, [](Phases& phases) { return phases.detach(); }},
      Row{RankPhase::kAllowFrees, [](Phases& phases) { return phases.allow_frees(); }},
#ifdef AMEM_TEST_SEAMS
      Row{RankPhase::kTest, [](Phases&) { return Status(); }},
#endif
  };
  for (const Row& row : kRows) {
    if (number_of(row.phase) != ask.phase) continue;
    return done(ask.epoch, row.phase, row.run(*this), 0, ask.wave);
  }
  done(ask.epoch, static_cast<RankPhase>(ask.phase),
       {Code::kUnimplemented, "this shim does not support phase " + std::to_string(ask.phase) +
                                  ". Start the job with the shim of amemd's version"},
       0, ask.wave);
}

Status Phases::open() {
  const Result<RankState> next = begin(RankCommand::kOpen);
  if (!next.ok()) return next.status();
  Status mapped = memory_.residency.map_again();
  memory_.residency.arrived();
  heap_.set_caching(true);
  if (mapped.ok()) {
    enter(next.value());
  } else {
    mapped = {mapped.code(), mapped.text() +
                                 ", after a pause that was called off. This process cannot go on: "
                                 "its calls fail from now on. Restart the job"};
    enter(RankState::kFailed);
  }
  mover_.backups().drop_others([this](std::uint64_t id) { return memory_.brokered.is_paused(id); });
  mover_.hashes().drop_others([this](std::uint64_t id) { return memory_.brokered.has(id); });
  if (memory_.brokered.bytes_paused() == 0) mover_.pool().views_end();
  report_.go_on();
  return mapped;
}

Status Phases::detach() {
  const Result<RankState> next = begin(RankCommand::kDetach);
  if (!next.ok()) return next.status();
  if (state_ == next.value()) return {};
  const Status detached = detachment_.detach();
  if (detached.ok()) enter(next.value());
  return detached;
}

Status Phases::allow_frees() {
  const Result<RankState> next = begin(RankCommand::kAllowFrees);
  if (next.ok()) enter(next.value());
  return next.status();
}

void Phases::done(std::uint64_t epoch, RankPhase phase, const Status& status, std::uint64_t bytes,
                  std::uint32_t wave) {
  if (!status.ok()) log_error(status.text());
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_phase_done_tag;
  amem_v1_PhaseDone& d = message.body.phase_done;
  d.epoch = epoch;
  d.wave = wave;
  d.phase = number_of(phase);
  d.code = static_cast<std::uint32_t>(status.code());
  set_text(d.text, status.text());
  d.bytes = bytes;
  d.has_spent = true;
  amem_v1_Spent& spent = d.spent;
  const SteadyClock::time_point began = clock_.end(phase);
  spent.busy_us = micros(SteadyClock::now() - began);
  const auto tell = [began](const CallTime& of, std::uint64_t& us, bool& told,
                            amem_v1_Period& when) {
    us = micros(of.total);
    told = of.last > began;
    if (!told) return;
    when.from_us = micros(std::max(of.first, began) - began);
    when.to_us = micros(of.last - began);
  };
  if (phase == RankPhase::kSave || phase == RankPhase::kLoad)
    tell(mover_.copies(), spent.copy_us, spent.has_copy, spent.copy);
  // What a resume maps while it loads is told with its Map.
  if (phase != RankPhase::kLoad) {
    const Timings timings = memory_.residency.take_timings();
    tell(timings.import, spent.import_us, spent.has_import, spent.import);
    tell(timings.map, spent.map_us, spent.has_map, spent.map);
    tell(timings.access, spent.access_us, spent.has_access, spent.access);
    tell(timings.unmap, spent.unmap_us, spent.has_unmap, spent.unmap);
    tell(timings.release, spent.release_us, spent.has_release, spent.release);
    spent.handles = timings.handles;
  }
  session_.post(message);
}

/// A gate that is open stays so, and one that is shut, too. Of what the dead broker was in the
/// middle of nothing may be left: its packets, or copies to a pool that the next one has.
void Phases::disconnected() {
  cut_.end();
  work_.set(false);  // until the next one asks
  if (mover_.under_way())
    if (const Status s = mover_.give_up(); !s.ok()) log_warn(s.text());
  mover_.hashes().clear();  // the next broker's pool has other bytes
  copy_status_ = {};
  map_status_ = {};
  mapped_bytes_ = 0;
  detachment_.drop_segments();
  listed_.clear();
  memory_.residency.drop_made();
  // A pause that had not got to its Release is called off by the next broker, if there is one.
  if (const Status s = memory_.residency.map_again(); !s.ok()) log_error(s.text());
  clock_ = {};
  memory_.residency.take_timings();
}

Comeback Phases::comes_back(const Session::Mark& mark) {
  std::vector<SendQueue::Parcel> first;
  const auto showing = memory_.handles.show_again(first);
  report_.tell_again(first);
  Comeback comeback;
  comeback.gate_shut = state_ != RankState::kRuns;
  comeback.items = memory_.brokered.list([&] { return mark(std::move(first)); });
  return comeback;
}

void Phases::returned() {
  orphan_.ends();
  report_.changed();  // what has changed while there was nobody to tell
}

bool Phases::waits_for_broker(const Status& why, bool hope) {
  // It may bring the memory back.
  if (state_ == RankState::kPaused) gate_.set(Gate::Mode::kMemoryLeft);
  const bool waits = orphan_.waits_for_broker(state_, why, hope);
  gate_.set(gate_of(state_));
  return waits;
}

void Phases::lost() {
  cut_.end();
  work_.set(false);
  orphan_.ends();
  memory_.residency.drop_made();
  const Status mapped = memory_.residency.map_again();
  if (!mapped.ok()) log_error(mapped.text());
  if (has_left(state_) && memory_.brokered.bytes_paused() > 0) {
    memory_.residency.arrived();
    log_error(
        "the broker ended while this group was paused. Its memory is lost, and every call that "
        "needs it fails from now on. Restart the job");
    enter(RankState::kFailed);
    detachment_.attach();  // last: the driver may have put the process away for good
    return;
  }
  detachment_.attach();
  PausedMemory::fail();
  // What a resume was bringing back may not have its bytes.
  std::uint64_t unloaded = 0;
  if (const Status s = undo(unloaded); !s.ok()) log_error(s.text());
  log_warn("the broker has ended. Mapped memory stays, but pause and resume no longer work");
  if (const std::uint64_t bytes = memory_.brokered.bytes_paused(); bytes > 0)
    log_error(std::to_string(bytes) +
              " bytes of paused tags are lost. The program must not touch them");
  enter(mapped.ok() ? RankState::kRuns : RankState::kFailed);
}

}  // namespace amem::shim
