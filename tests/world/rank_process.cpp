#include "tests/world/rank_process.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>
#include <utility>

#include "tests/world/check.h"
#include "tests/world/device_memory.h"

namespace amem::world {
namespace {

/// The shim keeps segments until its process may be asked for something again, and trims nothing
/// while its gate is shut.
bool needs_driver(const Message& message) {
  return message.which_body != amem_v1_SessionMessage_pool_segment_tag &&
         message.which_body != amem_v1_SessionMessage_trim_tag;
}

}  // namespace

void RankProcess::begin_anew(std::unique_ptr<Process> process) {
  RankProcess anew(*truths_, std::move(process), driver_, group_, number_, origin_);
  anew.habits = std::move(habits);
  anew.shown_ = std::move(shown_);
  anew.heard_ = std::move(heard_);
  anew.seq_ = seq_;  // no reply to what it asks for from now on is one of before
  *this = std::move(anew);
}

void RankProcess::connect(const std::string& path) {
  require(connect_socket(path), "the broker takes sessions");
  say_hello();
}

void RankProcess::connect_for_another(const std::string& path) {
  speaks_for_another_ = true;
  if (!connect_socket(path)) socket_.reset();
}

bool RankProcess::connect_socket(const std::string& path) {
  socket_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return process_->connect(socket_.get(), path) == 0;
}

std::uint64_t RankProcess::say_hello() {
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_hello_tag;
  amem_v1_Hello& hello = message.body.hello;
  hello.protocol = kProtocolVersion;
  hello.rank = number_;
  set_text(hello.group, group_);
  set_text(hello.stage, origin_.stage);
  set_text(hello.program, origin_.program);
  std::memcpy(hello.session, key_.data(), key_.size());
  hello.gate_shut = gate_shut_;
  hello.unmaps_segments = habits.unmaps;
  for (const Device& device : driver_ != nullptr ? driver_->all() : std::vector<Device>())
    if (origin_.sees.empty() || origin_.sees.contains(device.uuid))
      std::memcpy(hello.devices[hello.devices_count++], device.uuid.bytes.data(),
                  device.uuid.bytes.size());
  send(message);
  return hello_ = message.seq;
}

// ---- a broker that dies -------------------------------------------------------------------------

void RankProcess::lose_broker() {
  if (!connected()) return;
  // Where it has left something unread the kernel says so once, before what it has sent.
  for (int ends = 0; ends < 2;) {
    Packet packet;
    if (receive(socket_.get(), MSG_DONTWAIT, packet).ok())
      take(std::move(packet));
    else
      ++ends;
  }
  give_up();
}

void RankProcess::give_up() {
  socket_.reset();
  forget_commands();
  hashes_.clear();  // the next broker's pool has other bytes
  taken_.clear();
  quiescing_ = copy_failed_ = map_failed_ = reports_ = false;
  drop_made();
  paused_ = true;
}

void RankProcess::lose_session() {
  socket_.reset();
  forget_commands();
}

std::uint64_t RankProcess::come_back(const std::string& path) {
  end_save();  // who copies is who comes back
  taken_.clear();
  paused_ = false;
  require(connect_socket(path), "the broker takes those who come back");
  const std::uint64_t hello = say_hello();
  // A rank whose Hello the dead broker had not answered joins as a new one.
  if (joined_) say_inventory();
  for (const auto& [seq, bytes] : unanswered_) {
    const auto asking = asking_for_.find(seq);
    const bool own = asking != asking_for_.end() && asking->second.own;
    send_bytes(bytes, own ? std::vector{asking->second.fd.get()} : std::vector<int>());
  }
  return hello;
}

void RankProcess::say_inventory() {
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_inventory_tag;
  amem_v1_Inventory& inventory = message.body.inventory;
  for (const auto& [id, memory] : memory_)
    inventory.items[inventory.items_count++] = {
        id, memory.pinned ? 1U << amem_v1_PinReason_PIN_REASON_NIC : 0, !memory.fd || memory.stale};
  inventory.last = true;
  send(message);
}

void RankProcess::die() {
  process_->end();
  socket_.reset();
  memory_.clear();
  forget_commands();
  saves_.reset();
  paused_ = stopped_ = false;
}

void RankProcess::fork() { child_.reset(::fcntl(socket_.get(), F_DUPFD_CLOEXEC, 0)); }

void RankProcess::say(const Message& message, const std::vector<int>& fds) {
  const Result<std::string> bytes = encode(message);
  require(bytes.ok(), "what a rank says can be sent");
  send_bytes(bytes.value(), fds);
}

void RankProcess::send(Message& message, const std::vector<int>& fds) {
  message.seq = ++seq_;
  say(message, fds);
}

void RankProcess::ask_for(Message& message, const std::vector<int>& fds) {
  message.seq = ++seq_;
  Result<std::string> bytes = encode(message);
  require(bytes.ok(), "what a rank asks for can be sent");
  send_bytes(bytes.value(), fds);
  unanswered_[message.seq] = std::move(bytes).value();
}

void RankProcess::send_bytes(const std::string& bytes, const std::vector<int>& fds) const {
  if (connected()) process_->send(socket_.get(), bytes, fds);
}

// ---- what comes ---------------------------------------------------------------------------------

bool RankProcess::read() {
  bool any = false;
  while (connected() && read_one()) any = true;
  return any;
}

bool RankProcess::read_one() {
  Packet packet;
  const Status status = receive(socket_.get(), MSG_DONTWAIT, packet);
  if (status.code() == Code::kResourceExhausted) return false;
  if (!status.ok()) {
    require(status.code() == Code::kUnavailable, "what the broker sends decodes");
    lose_session();
    return false;
  }
  take(std::move(packet));
  return true;
}

void RankProcess::take(Packet packet) {
  if (shown_) shown_(packet);
  if (speaks_for_another_ && packet.message.which_body == amem_v1_SessionMessage_reply_tag)
    return take_unasked(packet);
  if (packet.message.which_body == amem_v1_SessionMessage_reply_tag) {
    reply(packet);
    if (heard_) heard_(std::move(packet));
    return;
  }
  if (packet.message.which_body == amem_v1_SessionMessage_turn_reports_tag) {
    reports_ = packet.message.body.turn_reports.on;
    return say_work();
  }
  commands_.push_back(std::move(packet));
  if (!is_free() && needs_driver(commands_.back().message))
    wrong_ = "nothing is asked of a process that is " + std::string(word_of(process_->state())) +
             ", but rank " + std::to_string(number_) + " gets " + name_of(commands_.back().message);
}

bool RankProcess::is_detached() const {
  const auto detaches = [](const Packet& each) {
    return each.message.which_body == amem_v1_SessionMessage_ask_tag &&
           each.message.body.ask.phase == number_of(RankPhase::kDetach);
  };
  return detached_ || !is_free() || std::any_of(commands_.begin(), commands_.end(), detaches);
}

std::string RankProcess::may_be_locked() const {
  if (runs()) return "only what is paused is locked";
  if (saves()) return "no process is locked that saves";
  const bool asked = std::any_of(commands_.begin(), commands_.end(),
                                 [](const Packet& each) { return needs_driver(each.message); });
  return asked ? "no process is locked that has not done what it was told" : "";
}

void RankProcess::reply(Packet& packet) {
  const std::uint64_t seq = packet.message.seq;
  const amem_v1_Reply& reply = packet.message.body.reply;
  if (seq == hello_) {
    refused_ = reply.code != 0;
    if (refused_) return;
    const amem_v1_Welcome& welcome = reply.result.welcome;
    id_ = welcome.rank_id;
    // One that comes back is told otherwise what becomes of its gate.
    if (!joined_) gate_shut_ = welcome.gate_shut;
    joined_ = true;
    std::memcpy(key_.data(), welcome.session, key_.size());
    return;
  }
  unanswered_.erase(seq);
  if (const auto asked = asks_.extract(seq)) {
    --asked_;
    const Asks& what = asked.mapped();
    if (reply.code == 0 && !what.pause) returned_.push_back({what.tag, commands_.size()});
    return look_at_returned();
  }
  const auto asking = asking_for_.find(seq);
  if (asking == asking_for_.end() && heard_) return;  // somebody else has asked
  require(asking != asking_for_.end(), "what was asked is answered once");
  Memory memory = std::move(asking->second);
  asking_for_.erase(asking);
  --pending_;
  require(reply.code == 0 || packet.fds.empty(), "nothing comes with a refusal");
  if (reply.code == 0 && reply.which_result == amem_v1_Reply_created_tag) {
    take_created(reply.result.created, memory, packet.fds);
  } else if (reply.code == 0) {
    require(packet.fds.size() == 1, "memory comes with a descriptor");
    if (habits.keeps) memory.fd = std::move(packet.fds.front());
    const amem_v1_Redeemed& redeemed = reply.result.redeemed;
    memory.truth = truths_->at(redeemed.id);
    memory.size = redeemed.size;
    std::memcpy(memory.device.bytes.data(), redeemed.device, memory.device.bytes.size());
    memory.tag = redeemed.tag;
    memory.guest = redeemed.guest;
    memory_[redeemed.id] = std::move(memory);
  }
  if (quiescing_) report();
}

/// One, or the parts of one that it has asked for in parts.
void RankProcess::take_created(const amem_v1_Created& created, Memory& asked,
                               std::vector<Fd>& fds) {
  const std::size_t count = std::max<std::size_t>(created.count, 1);
  require(fds.size() == (asked.own ? 0U : count),
          "memory comes with a descriptor for each, unless the rank has made it");
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t id = created.id + i;
    Memory memory;
    memory.tag = asked.tag;
    memory.device = asked.device;
    memory.own = asked.own;
    memory.gpu_direct_rdma = asked.gpu_direct_rdma;
    memory.size = count > 1 ? std::min(asked.part, asked.size - i * asked.part) : asked.size;
    memory.fd = asked.own ? std::move(asked.fd) : std::move(fds[i]);
    if (!habits.keeps) memory.fd.reset();
    memory.truth = (*truths_)[id] = std::make_shared<Truth>();
    Truth& truth = *memory.truth;
    std::memcpy(truth.token.data(), created.token, truth.token.size());
    truth.group = address();
    truth.device = memory.device;
    truth.value = static_cast<std::uint8_t>(id);
    if (habits.fills) fill(memory.fd, memory.size, truth.value);
    memory_[id] = std::move(memory);
  }
}

void RankProcess::look_at_returned() {
  for (const Returned& each : returned_)
    for (const auto& [id, memory] : memory_)
      if (each.commands == 0 && memory.tag == each.tag && !memory.guest && !memory.usable())
        wrong_ = "what a rank has asked for is there, but not allocation " + std::to_string(id);
  std::erase_if(returned_, [](const Returned& each) { return each.commands == 0; });
}

void RankProcess::take_unasked(Packet& packet) {
  const amem_v1_Reply& reply = packet.message.body.reply;
  if (packet.fds.size() != 1) return;
  Memory memory;
  memory.fd = std::move(packet.fds.front());
  const bool made = reply.which_result == amem_v1_Reply_created_tag;
  memory_[made ? reply.result.created.id : reply.result.redeemed.id] = std::move(memory);
}

/// What passed the gate before it shut must have returned.
void RankProcess::report() {
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_cut_status_tag;
  message.body.cut_status.epoch = epoch_;
  message.body.cut_status.permits = steps_;
  message.body.cut_status.captures = static_cast<std::uint32_t>(pending_);
  for (const amem_v1_DeviceCut& device : habits.cut)
    message.body.cut_status.devices[message.body.cut_status.devices_count++] = device;
  send(message);
}

void RankProcess::unmap(const amem_v1_UnmapSegment& asked, Mood mood) {
  require(habits.unmaps, "only a rank that says so is asked to unmap a segment");
  if (mood == Mood::kSilent) return;
  const bool keeps = mood != Mood::kWell;
  if (!keeps) segments_.erase(asked.index);
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_segment_unmapped_tag;
  message.body.segment_unmapped.number = asked.number;
  if (keeps) message.body.segment_unmapped.code = static_cast<std::uint32_t>(Code::kUnavailable);
  send(message);
}

// ---- commands -----------------------------------------------------------------------------------

std::string RankProcess::next_command() const {
  return saves_ ? "the rest of a Save" : name_of(commands_.front().message);
}

std::string RankProcess::name_of(const Message& message) {
  switch (message.which_body) {
    case amem_v1_SessionMessage_quiesce_tag:
      return "Quiesce";
    case amem_v1_SessionMessage_measure_tag:
      return "Measure";
    case amem_v1_SessionMessage_save_tag:
      return message.body.save.last ? "Save" : "a part of a Save";
    case amem_v1_SessionMessage_release_tag:
      return "Release";
    case amem_v1_SessionMessage_make_tag:
      return "Make";
    case amem_v1_SessionMessage_map_tag:
      return "Map";
    case amem_v1_SessionMessage_load_tag:
      return "Load";
    case amem_v1_SessionMessage_ask_tag:
      return "the word " + std::string(to_string(
                               rank_phase_of(message.body.ask.phase).value_or(RankPhase::kNone)));
    default:
      return "message " + std::to_string(message.which_body);
  }
}

void RankProcess::handle(Mood mood) {
  if (saves_) {
    const amem_v1_Copies what = saves_->what;
    copy_failed_ = copy_failed_ || mood == Mood::kFails;
    end_save();
    return saved(what, mood);
  }
  carry_out(next_packet(), mood);
  look_at_returned();
}

Packet RankProcess::next_packet() {
  Packet packet = std::move(commands_.front());
  commands_.pop_front();
  for (Returned& each : returned_) --each.commands;  // those at 0 have been looked at
  return packet;
}

void RankProcess::carry_out(Packet packet, Mood mood) {
  const Message& m = packet.message;
  if (is_lost() && mood != Mood::kSilent) mood = Mood::kFails;
  const bool well = mood != Mood::kFails;
  if (m.which_body == amem_v1_SessionMessage_unmap_segment_tag)
    return unmap(m.body.unmap_segment, mood);
  if (m.which_body != amem_v1_SessionMessage_pool_segment_tag &&
      m.which_body != amem_v1_SessionMessage_quiesce_tag &&
      m.which_body != amem_v1_SessionMessage_permit_tag &&
      m.which_body != amem_v1_SessionMessage_trim_tag)
    quiescing_ = false;
  if (m.which_body != amem_v1_SessionMessage_pool_segment_tag &&
      m.which_body != amem_v1_SessionMessage_trim_tag &&
      m.which_body != amem_v1_SessionMessage_ask_tag)
    rests_ = detached_ = false;
  switch (m.which_body) {
    case amem_v1_SessionMessage_pool_segment_tag:
      require(packet.fds.size() == 1, "a segment comes with a descriptor");
      if (habits.keeps) segments_[m.body.pool_segment.index] = std::move(packet.fds.front());
      return;
    case amem_v1_SessionMessage_trim_tag:
      return;
    case amem_v1_SessionMessage_quiesce_tag:
      epoch_ = m.body.quiesce.epoch;
      steps_ = 0;
      gate_shut_ = quiescing_ = true;
      if (mood == Mood::kDenies) return done(RankPhase::kQuiet, epoch_, 0, false, mood);
      if (mood != Mood::kFails && mood != Mood::kSilent) report();
      return;
    case amem_v1_SessionMessage_permit_tag:
      ++steps_;
      return report();
    case amem_v1_SessionMessage_measure_tag:
      if (mood != Mood::kSilent) look(m.body.measure);
      if (m.body.measure.last) done(RankPhase::kMeasure, m.body.measure.epoch, 0, well, mood);
      return;
    case amem_v1_SessionMessage_save_tag:
      if (mood != Mood::kLies) begin_save(m.body.save, well);
      if (mood == Mood::kSlow) return;
      end_save();
      return saved(m.body.save, mood);
    case amem_v1_SessionMessage_release_tag:
      release(m.body.release, well);
      copy_failed_ = map_failed_ = false;
      if (m.body.release.more) return;
      rests_ = gate_shut_ && !m.body.release.more_waves &&
               (m.body.release.undo || m.body.release.tags_count == 0);
      return done(RankPhase::kRelease, m.body.release.epoch, m.body.release.wave, well, mood);
    case amem_v1_SessionMessage_make_tag:
      return make(m.body.make, mood);
    case amem_v1_SessionMessage_map_tag:
      map_failed_ = map_failed_ || !well || !map(packet);
      if (m.body.map.last)
        done(RankPhase::kMap, m.body.map.epoch, 0, !std::exchange(map_failed_, false), mood);
      return;
    case amem_v1_SessionMessage_load_tag:
      copy_failed_ = copy_failed_ || !well || (mood != Mood::kLies && !load(m.body.load));
      if (m.body.load.last)
        done(RankPhase::kLoad, m.body.load.epoch, 0, !std::exchange(copy_failed_, false), mood);
      return;
    case amem_v1_SessionMessage_ask_tag:
      return take_word(m.body.ask, well, mood);
    default:
      require(false, "the broker sends what is a broker's to send");
  }
}

void RankProcess::take_word(const amem_v1_Ask& ask, bool well, Mood mood) {
  const std::optional<RankPhase> phase = rank_phase_of(ask.phase);
  require(phase.has_value(), "what the broker asks for in one word is a phase");
  switch (*phase) {
    case RankPhase::kOpen:
      gate_shut_ = rests_ = detached_ = false;
      for (auto& [id, memory] : memory_) memory.arrived = false;
      break;
    case RankPhase::kDetach:
      // Wherever the pool is: of one that the driver would not support, nothing stays mapped.
      if (well) segments_.clear();
      detached_ = well;
      break;
    case RankPhase::kAllowFrees:
      detached_ = false;
      break;
    default:
      require(false, "a word is one of these");
  }
  done(*phase, ask.epoch, ask.wave, well, mood);
}

void RankProcess::done(RankPhase phase, std::uint64_t epoch, std::uint32_t wave, bool well,
                       Mood mood) {
  if (mood == Mood::kSilent) return;
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_phase_done_tag;
  amem_v1_PhaseDone& answer = message.body.phase_done;
  answer.phase = number_of(phase);
  answer.epoch = epoch;
  answer.wave = wave;
  if (!well || mood == Mood::kDenies) {
    answer.code = static_cast<std::uint32_t>(habits.failure);
    set_text(answer.text, habits.why);
  }
  send(message);
  if (mood == Mood::kTwice) send(message);
}

bool RankProcess::map(Packet& packet) {
  const amem_v1_Map& map = packet.message.body.map;
  require(packet.fds.size() == map.ids_count, "each allocation has its descriptor");
  for (pb_size_t i = 0; i < map.ids_count; ++i) {
    const auto found = memory_.find(map.ids[i]);
    if (found == memory_.end()) continue;  // freed meanwhile
    Memory& memory = found->second;
    if (memory.made)
      require(memory_id(memory.made) == memory_id(packet.fds[i]),
              "all have what its maker has made");
    memory.fd = memory.made ? std::move(memory.made) : std::move(packet.fds[i]);
    if (!habits.keeps) memory.fd.reset();
    memory.arrived = true;
    memory.stale = false;
  }
  return true;
}

void RankProcess::release(const amem_v1_Release& what, bool well) {
  const std::set<std::string> tags(what.tags, what.tags + what.tags_count);
  const std::set<std::uint64_t> ids(what.ids, what.ids + what.ids_count);
  if (what.undo) drop_made();
  for (auto& [id, held] : memory_) {
    const bool chosen = what.undo      ? held.arrived
                        : what.listed  ? ids.contains(id)
                        : tags.empty() ? true
                                       : !held.guest && tags.contains(held.tag) != what.except;
    if (!chosen || !held.fd || held.pinned) continue;
    held.arrived = false;
    if (well)
      held.fd.reset();
    else
      held.stale = true;
  }
}

void RankProcess::drop_leftovers() {
  for (auto& [id, memory] : memory_)
    if (std::exchange(memory.stale, false)) memory.fd.reset();
}

// ---- the program --------------------------------------------------------------------------------

void RankProcess::create(const DeviceUuid& device, std::uint64_t size, const std::string& tag,
                         bool own, std::uint64_t part) {
  ask_for_memory({.device = device, .size = size, .tag = tag, .own = own, .part = part});
}

std::uint64_t RankProcess::ask_for_memory(const Wish& wish) {
  Memory memory;
  memory.size = wish.size;
  memory.tag = wish.tag;
  memory.device = wish.device;
  memory.own = wish.own;
  memory.part = wish.part;
  memory.gpu_direct_rdma = wish.gpu_direct_rdma;
  if (wish.own) {
    Result<CreatedMemory> made = made_on(*driver_, wish.device, wish.size, wish.gpu_direct_rdma);
    if (!made.ok()) return 0;
    memory.fd = std::move(made.value().fd);
  }
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_create_tag;
  amem_v1_Create& create = message.body.create;
  create.size = wish.size;
  std::memcpy(create.device, wish.device.bytes.data(), wish.device.bytes.size());
  set_text(create.tag, wish.tag);
  create.made = wish.own;
  create.part = wish.part;
  create.gpu_direct_rdma = wish.gpu_direct_rdma;
  create.policy = wish.policy;
  ask_for(message, wish.own ? std::vector{memory.fd.get()} : std::vector<int>());
  ++pending_;
  asking_for_[message.seq] = std::move(memory);
  return message.seq;
}

void RankProcess::open(std::uint64_t id, const Token& token) {
  if (!memory_.contains(id)) ask_to_open(id, token);
}

std::uint64_t RankProcess::ask_to_open(std::uint64_t id, const Token& token) {
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_redeem_tag;
  message.body.redeem.id = id;
  std::memcpy(message.body.redeem.token, token.data(), token.size());
  ask_for(message);
  ++pending_;
  asking_for_[message.seq].opens = id;
  return message.seq;
}

bool RankProcess::is_opening(std::uint64_t id) const {
  return std::any_of(asking_for_.begin(), asking_for_.end(),
                     [id](const auto& asking) { return asking.second.opens == id; });
}

void RankProcess::free_one(std::uint64_t chance, bool only_its_own) {
  if (memory_.empty()) return;
  const auto it = std::next(memory_.begin(), static_cast<std::ptrdiff_t>(chance % memory_.size()));
  if (is_opening(it->first)) return;
  if (only_its_own && it->second.truth.use_count() > 2) return;  // beside the table of all
  free(it->first);
}

void RankProcess::free(std::uint64_t id) {
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_free_tag;
  message.body.free.id = id;
  memory_.erase(id);
  send(message);
}

void RankProcess::free_guests() {
  for (std::uint64_t i = 0; i < memory_.size();)
    if (const auto it = std::next(memory_.begin(), static_cast<std::ptrdiff_t>(i));
        it->second.guest && !is_opening(it->first))
      free_one(i);
    else
      ++i;
}

void RankProcess::write_one(std::uint64_t chance, std::uint8_t value) {
  if (memory_.empty()) return;
  const auto it = std::next(memory_.begin(), static_cast<std::ptrdiff_t>(chance % memory_.size()));
  if (!it->second.usable()) return;
  Truth& truth = *it->second.truth;
  // What was there before comes again, so that old bytes in the pool may be right, or seem so.
  if (chance / memory_.size() % 2 == 0) value = truth.before;
  truth.before = std::exchange(truth.value, value);
  fill(it->second.fd, it->second.size, value);
}

void RankProcess::ask(bool pause, bool deep, const std::string& tag) {
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_group_request_tag;
  message.body.group_request.op =
      pause ? amem_v1_GroupOp_GROUP_OP_PAUSE : amem_v1_GroupOp_GROUP_OP_RESUME;
  message.body.group_request.deep = deep;
  message.body.group_request.tags_count = tag.empty() ? 0 : 1;
  set_text(message.body.group_request.tags[0], tag);
  ask_for(message);
  asks_[message.seq] = {pause, tag};
  ++asked_;
}

bool RankProcess::waits_for_resume() const {
  return pending_ == 0 && !runs() && std::all_of(asks_.begin(), asks_.end(), [](const auto& each) {
           return !each.second.pause && !each.second.tag.empty();
         });
}

bool RankProcess::has_offloaded() const {
  return runs() && std::any_of(memory_.begin(), memory_.end(), [](const auto& each) {
           return !each.second.guest && !each.second.usable();
         });
}

void RankProcess::work(bool waiting, bool worked) {
  const bool news = waiting != waiting_ || worked != worked_;
  waiting_ = waiting;
  worked_ = worked;
  if (news) say_work();
}

void RankProcess::say_work() {
  if (!reports_ || !connected()) return;
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_work_tag;
  message.body.work.waiting = waiting_;
  message.body.work.worked = worked_;
  if (waiting_) set_text(message.body.work.call, "cuLaunchKernel");
  send(message);
}

void RankProcess::pin(std::uint64_t id) {
  memory_.at(id).pinned = true;
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_pin_tag;
  message.body.pin.id = id;
  message.body.pin.reason = amem_v1_PinReason_PIN_REASON_NIC;
  send(message);
}

void RankProcess::unpin(std::uint64_t id) {
  memory_.at(id).pinned = false;
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_unpin_tag;
  message.body.unpin.id = id;
  message.body.unpin.reason = amem_v1_PinReason_PIN_REASON_NIC;
  send(message);
}

std::vector<RankProcess::Has> RankProcess::has() const {
  std::vector<Has> all;
  for (const auto& [id, memory] : memory_)
    all.push_back({id, memory.size, memory.device, memory.tag, memory.guest, memory.pinned,
                   memory.usable(), memory.fd && !memory.stale});
  return all;
}

bool RankProcess::has_pins() const {
  return std::any_of(memory_.begin(), memory_.end(),
                     [](const auto& each) { return each.second.pinned; });
}

void RankProcess::count(std::map<std::uint64_t, std::uint64_t>& sizes, std::uint64_t& asked) const {
  for (const auto& [id, memory] : memory_) sizes[id] = memory.size;
  for (const auto& [seq, memory] : asking_for_) asked += memory.size;
}

std::map<std::uint64_t, MemoryId> RankProcess::mapped() const {
  std::map<std::uint64_t, MemoryId> mapped;
  for (const auto& [id, memory] : memory_)
    if (memory.fd) mapped[id] = memory_id(memory.fd);
  return mapped;
}

std::string RankProcess::check(bool all) const {
  for (const auto& [id, memory] : memory_) {
    const std::string what = "allocation " + std::to_string(id) + " of rank " +
                             std::to_string(number_) + " of group " + group_;
    if (!memory.usable()) {
      if (all) return what + " is not there";
      continue;
    }
    if (!has_bytes(memory.fd, memory.size, memory.truth->value) &&
        !(memory.truth->may_be_dropped && has_bytes(memory.fd, memory.size, 0)))
      return what + " has other bytes";
  }
  return "";
}

}  // namespace amem::world
