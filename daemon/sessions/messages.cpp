#include "daemon/sessions/messages.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "common/utf8.h"

namespace amem {
namespace {

/// How often a rank says how far its copies are.
constexpr std::uint32_t kTellMs = 250;

Message message_of(pb_size_t body) {
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = body;
  return message;
}

Status told_status(std::uint32_t code, const char* why) {
  if (code == 0) return {};
  const bool known = code <= static_cast<std::uint32_t>(Code::kDataLoss);
  std::string text = printable(why);
  if (text.empty()) text = "it gives no reason";
  return {known ? static_cast<Code>(code) : Code::kUnknown, std::move(text)};
}

}  // namespace

Message quiesce_message(Epoch epoch, const std::string& paused_by) {
  Message message = message_of(amem_v1_SessionMessage_quiesce_tag);
  message.body.quiesce.epoch = epoch.attempt;
  set_text(message.body.quiesce.paused_by, paused_by);
  return message;
}

Message permit_message(Epoch epoch, const Cut::Permit& permit) {
  Message message = message_of(amem_v1_SessionMessage_permit_tag);
  message.body.permit.epoch = epoch.attempt;
  std::memcpy(message.body.permit.device, permit.device.bytes.data(), permit.device.bytes.size());
  message.body.permit.in_turn = permit.in_turn;
  return message;
}

Message release_message(Epoch epoch, const Selection& what, bool undo) {
  Message message = message_of(amem_v1_SessionMessage_release_tag);
  amem_v1_Release& release = message.body.release;
  release.epoch = epoch.attempt;
  release.wave = epoch.wave;
  release.undo = undo;
  for (const std::string& tag : what.tags) set_text(release.tags[release.tags_count++], tag);
  release.except = what.except;
  return message;
}

Message release_message(Epoch epoch, const AllocationId* begin, const AllocationId* end, bool more,
                        bool more_waves) {
  Message message = message_of(amem_v1_SessionMessage_release_tag);
  amem_v1_Release& release = message.body.release;
  release.epoch = epoch.attempt;
  release.wave = epoch.wave;
  release.listed = true;
  release.more = more;
  release.more_waves = more_waves;
  for (const AllocationId* id = begin; id != end; ++id) release.ids[release.ids_count++] = *id;
  return message;
}

Message ask_message(Epoch epoch, RankPhase what) {
  Message message = message_of(amem_v1_SessionMessage_ask_tag);
  message.body.ask.epoch = epoch.attempt;
  message.body.ask.wave = epoch.wave;
  message.body.ask.phase = number_of(what);
  return message;
}

Message pool_segment_message(std::uint32_t index, std::uint64_t size, Place place,
                             const DeviceUuid& device) {
  Message message = message_of(amem_v1_SessionMessage_pool_segment_tag);
  message.body.pool_segment.index = index;
  message.body.pool_segment.size = size;
  message.body.pool_segment.place = number_of(place);
  std::memcpy(message.body.pool_segment.device, device.bytes.data(), device.bytes.size());
  return message;
}

Message unmap_segment_message(std::uint32_t index, std::uint64_t number) {
  Message message = message_of(amem_v1_SessionMessage_unmap_segment_tag);
  message.body.unmap_segment.index = index;
  message.body.unmap_segment.number = number;
  return message;
}

Message reply_message(std::uint64_t seq, const Status& status) {
  Message message = message_of(amem_v1_SessionMessage_reply_tag);
  message.seq = seq;
  message.body.reply.code = static_cast<std::uint32_t>(status.code());
  set_text(message.body.reply.text, status.text());
  return message;
}

Message welcome_message(std::uint64_t seq, RankId rank, bool gate_shut, Epoch epoch,
                        const Offers& offers, const Token& key, const std::string& paused_by,
                        bool first_turn) {
  Message message = reply_message(seq, {});
  message.body.reply.which_result = amem_v1_Reply_welcome_tag;
  auto& welcome = message.body.reply.result.welcome;
  welcome.rank_id = rank;
  welcome.gate_shut = gate_shut;
  welcome.epoch = epoch.attempt;
  welcome.hashes = offers.hashes;
  welcome.has_spares = offers.has_spares;
  welcome.takes_parts = offers.takes_parts;
  welcome.withdraws = true;
  welcome.first_turn = first_turn;
  set_text(welcome.paused_by, paused_by);
  std::memcpy(welcome.session, key.data(), key.size());
  return message;
}

Message all_closed_message(std::uint64_t seq, std::uint64_t spare_bytes) {
  Message message = reply_message(seq, {});
  message.body.reply.which_result = amem_v1_Reply_all_closed_tag;
  message.body.reply.result.all_closed.spare_bytes = spare_bytes;
  return message;
}

Message created_message(std::uint64_t seq, const Allocation& first, std::size_t count) {
  Message message = reply_message(seq, {});
  message.body.reply.which_result = amem_v1_Reply_created_tag;
  auto& created = message.body.reply.result.created;
  created.id = first.id;
  std::memcpy(created.token, first.token.data(), first.token.size());
  created.count = static_cast<std::uint32_t>(count);
  return message;
}

Message redeemed_message(std::uint64_t seq, const Allocation& allocation, bool guest) {
  Message message = reply_message(seq, {});
  message.body.reply.which_result = amem_v1_Reply_redeemed_tag;
  auto& redeemed = message.body.reply.result.redeemed;
  redeemed.id = allocation.id;
  redeemed.size = allocation.size;
  std::memcpy(redeemed.device, allocation.device.bytes.data(), allocation.device.bytes.size());
  redeemed.gpu_direct_rdma = allocation.gpu_direct_rdma;
  set_text(redeemed.tag, allocation.tag);
  redeemed.guest = guest;
  return message;
}

Message measure_message(Epoch epoch, const MeasureRange* begin, const MeasureRange* end,
                        bool last) {
  Message message = message_of(amem_v1_SessionMessage_measure_tag);
  amem_v1_Measure& measure = message.body.measure;
  measure.epoch = epoch.attempt;
  measure.last = last;
  for (const MeasureRange* range = begin; range != end; ++range)
    measure.ranges[measure.ranges_count++] = {range->id, range->length};
  return message;
}

Message copies_message(CopyKind kind, Epoch epoch, const CopyRange* begin, const CopyRange* end,
                       bool last) {
  const bool save = kind == CopyKind::kSave;
  Message message =
      message_of(save ? amem_v1_SessionMessage_save_tag : amem_v1_SessionMessage_load_tag);
  amem_v1_Copies& copies = save ? message.body.save : message.body.load;
  copies.epoch = epoch.attempt;
  copies.wave = epoch.wave;
  copies.last = last;
  copies.tell_ms = kTellMs;
  for (const CopyRange* range = begin; range != end; ++range)
    copies.copies[copies.copies_count++] = {
        range->id,      range->offset,         range->length,
        range->segment, range->segment_offset, number_of(range->form),
        range->stored,  range->checksum,       range->hash,
        range->since,   range->in_place};
  return message;
}

Message map_message(Epoch epoch, const Allocation* const* begin, const Allocation* const* end,
                    bool last) {
  Message message = message_of(amem_v1_SessionMessage_map_tag);
  amem_v1_Map& map = message.body.map;
  map.epoch = epoch.attempt;
  map.last = last;
  for (const Allocation* const* a = begin; a != end; ++a) map.ids[map.ids_count++] = (*a)->id;
  return message;
}

Message make_message(Epoch epoch, std::uint64_t number, const std::vector<AllocationId>& ids) {
  Message message = message_of(amem_v1_SessionMessage_make_tag);
  amem_v1_Make& make = message.body.make;
  make.epoch = epoch.attempt;
  make.number = number;
  for (const AllocationId id : ids) make.ids[make.ids_count++] = id;
  return message;
}

CutReport cut_report(const amem_v1_CutStatus& message) {
  CutReport report;
  report.permits = message.permits;
  report.captures = message.captures;
  for (pb_size_t i = 0; i < message.devices_count; ++i) {
    const amem_v1_DeviceCut& device = message.devices[i];
    report.devices.push_back({make_uuid(device.device), device.busy, device.waiting, device.ready,
                              printable(device.error)});
  }
  return report;
}

RegionPolicy region_policy(amem_v1_RegionPolicy policy) {
  switch (policy) {
    case amem_v1_RegionPolicy_REGION_POLICY_KEEP:
      return RegionPolicy::kKeep;
    case amem_v1_RegionPolicy_REGION_POLICY_DISCARD:
      return RegionPolicy::kDiscard;
    default:
      return RegionPolicy::kNone;
  }
}

PinReason pin_reason(amem_v1_PinReason reason) {
  switch (reason) {
    case amem_v1_PinReason_PIN_REASON_NIC:
      return PinReason::kNic;
    case amem_v1_PinReason_PIN_REASON_GDRCOPY:
      return PinReason::kGdrCopy;
    case amem_v1_PinReason_PIN_REASON_DMA_BUF:
      return PinReason::kDmaBuf;
    case amem_v1_PinReason_PIN_REASON_P2P_TOKENS:
      return PinReason::kP2pTokens;
    case amem_v1_PinReason_PIN_REASON_STORAGE:
      return PinReason::kStorage;
    default:
      return PinReason::kUnknown;
  }
}

CommandTimes command_times(const amem_v1_Spent& spent) {
  // A rank's numbers are for people only; nonsense in them must not overflow.
  const auto us = [](std::uint64_t value) -> Duration {
    return std::chrono::microseconds(std::min<std::uint64_t>(value, 3'600'000'000));
  };
  // A period must lie in the time that the rank was busy, and go forward.
  const auto when = [&](bool told, const amem_v1_Period& period) -> Period {
    if (!told) return {};
    const Duration to = std::min(us(period.to_us), us(spent.busy_us));
    return {std::min(us(period.from_us), to), to};
  };
  return {us(spent.busy_us),
          us(spent.copy_us),
          us(spent.import_us),
          us(spent.map_us),
          us(spent.access_us),
          us(spent.unmap_us),
          us(spent.release_us),
          spent.handles,
          when(spent.has_copy, spent.copy),
          when(spent.has_import, spent.import),
          when(spent.has_map, spent.map),
          when(spent.has_access, spent.access),
          when(spent.has_unmap, spent.unmap),
          when(spent.has_release, spent.release)};
}

Status phase_status(const amem_v1_PhaseDone& message) {
  return told_status(message.code, message.text);
}

Status made_status(const amem_v1_Made& message) { return told_status(message.code, message.text); }

}  // namespace amem
