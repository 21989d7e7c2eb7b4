// Packets that a rank may send, and requests of an operator, with numbers that mean something in a
// world: for seeds, and for a fuzzer that is to begin with what is nearly right.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <string>

#include "amem/v1/broker.pb.h"
#include "common/packet.h"
#include "common/protocol.h"
#include "tests/fuzz/script.h"

namespace amem::fuzz {

/// Numbers from 0 to below `end`.
using Choose = std::function<std::uint32_t(std::uint32_t end)>;

inline const char* some_tag(const Choose& choose) {
  static constexpr const char* kTags[] = {"nccl", "heap", "kv", "", "a-tag-of-no-allocation"};
  return kTags[choose(std::size(kTags))];
}

inline const char* some_group(const Choose& choose) {
  static constexpr const char* kGroups[] = {"train",      "rollout",    "other",       ".no-name",
                                            "train@1001", "train@1002", "rollout@1001"};
  return kGroups[choose(8) < 6 ? choose(2) : choose(std::size(kGroups))];
}

/// The body of that kind.
inline Message packet_of(pb_size_t body, const Choose& choose) {
  Message message = amem_v1_SessionMessage_init_zero;
  message.seq = choose(8);
  message.which_body = body;
  auto& b = message.body;
  const auto device = [&](pb_byte_t(&field)[16]) {
    std::memcpy(field, kDeviceMarks[choose(std::size(kDeviceMarks))].data(), sizeof field);
  };
  const auto size = [&] { return std::uint64_t{4096} * (choose(8) == 0 ? choose(70) : choose(9)); };
  switch (body) {
    case amem_v1_SessionMessage_hello_tag:
      b.hello.protocol = choose(16) == 0 ? choose(8) : kProtocolMark;
      b.hello.rank = static_cast<std::int32_t>(choose(4)) - 1;
      set_text(b.hello.group, some_group(choose));
      set_text(b.hello.program, "fuzz");
      break;
    case amem_v1_SessionMessage_create_tag:
      b.create.size = size();
      device(b.create.device);
      b.create.gpu_direct_rdma = choose(2) != 0;
      set_text(b.create.tag, some_tag(choose));
      b.create.policy = static_cast<amem_v1_RegionPolicy>(choose(4));
      break;
    case amem_v1_SessionMessage_redeem_tag:
      b.redeem.id = choose(12);
      std::memset(b.redeem.token, static_cast<int>(b.redeem.id), sizeof b.redeem.token);
      break;
    case amem_v1_SessionMessage_free_tag:
      b.free.id = choose(12);
      break;
    case amem_v1_SessionMessage_pin_tag:
      b.pin.id = choose(12);
      break;
    case amem_v1_SessionMessage_group_request_tag: {
      auto& request = b.group_request;
      request.op = static_cast<amem_v1_GroupOp>(1 + choose(3));
      request.timeout_ms = choose(4) * 1000;
      request.tags_count = static_cast<pb_size_t>(choose(3));
      for (pb_size_t i = 0; i < request.tags_count; ++i)
        set_text(request.tags[i], some_tag(choose));
      request.except = choose(4) == 0;
      request.discard_count = static_cast<pb_size_t>(choose(4) == 0);
      set_text(request.discard[0], some_tag(choose));
      request.force = choose(2) == 0;
      break;
    }
    case amem_v1_SessionMessage_cut_status_tag:
      b.cut_status.epoch = choose(8);
      b.cut_status.permits = choose(4);
      b.cut_status.captures = choose(8) == 0;
      b.cut_status.devices_count = static_cast<pb_size_t>(choose(3));
      for (pb_size_t i = 0; i < b.cut_status.devices_count; ++i) {
        auto& cut = b.cut_status.devices[i];
        device(cut.device);
        cut.busy = choose(3) == 0;
        cut.waiting = choose(4);
        cut.ready = choose(3);
      }
      break;
    case amem_v1_SessionMessage_phase_done_tag:
      b.phase_done.epoch = choose(8);
      b.phase_done.phase = choose(9);
      b.phase_done.code = choose(4) == 0 ? choose(18) : 0;
      b.phase_done.bytes = size();
      b.phase_done.wave = choose(4) == 0 ? choose(4) : 0;
      break;
    case amem_v1_SessionMessage_copied_tag:
      b.copied.epoch = choose(8);
      b.copied.wave = choose(4) == 0 ? choose(4) : 0;
      b.copied.bytes = size();
      b.copied.of = choose(4) == 0 ? ~std::uint64_t{0} : size();
      break;
    case amem_v1_SessionMessage_unbrokered_tag:
      b.unbrokered.kinds_count = static_cast<pb_size_t>(choose(3));
      for (pb_size_t i = 0; i < b.unbrokered.kinds_count; ++i) {
        device(b.unbrokered.kinds[i].device);
        set_text(b.unbrokered.kinds[i].kind, "vmm");
        b.unbrokered.kinds[i].bytes = choose(2) != 0 ? size() : ~std::uint64_t{0};
      }
      break;
    case amem_v1_SessionMessage_unknown_calls_tag:
      b.unknown_calls.calls_count = static_cast<pb_size_t>(choose(3));
      for (pb_size_t i = 0; i < b.unknown_calls.calls_count; ++i) {
        set_text(b.unknown_calls.calls[i].name, "cuExample");
        b.unknown_calls.calls[i].fate = static_cast<amem_v1_UnknownCalls_Fate>(choose(5));
      }
      break;
    case amem_v1_SessionMessage_saved_tag:
      b.saved.epoch = choose(8);
      b.saved.wave = choose(4) == 0 ? choose(4) : 0;
      b.saved.pieces_count = static_cast<pb_size_t>(choose(4));
      for (pb_size_t i = 0; i < b.saved.pieces_count; ++i)
        b.saved.pieces[i] = {choose(12), choose(4) == 0 ? size() : 0,
                             size() / 4, choose(4) != 0,
                             choose(3),  choose(4) == 0,
                             choose(3)};
      break;
    case amem_v1_SessionMessage_set_policy_tag:
      set_text(b.set_policy.tag, some_tag(choose));
      b.set_policy.policy = static_cast<amem_v1_RegionPolicy>(choose(4));
      b.set_policy.force = choose(2) == 0;
      break;
    default:
      break;
  }
  return message;
}

inline std::string some_packet(const Choose& choose) {
  static constexpr pb_size_t kBodies[] = {
      amem_v1_SessionMessage_hello_tag,        amem_v1_SessionMessage_create_tag,
      amem_v1_SessionMessage_redeem_tag,       amem_v1_SessionMessage_free_tag,
      amem_v1_SessionMessage_pin_tag,          amem_v1_SessionMessage_group_request_tag,
      amem_v1_SessionMessage_cut_status_tag,   amem_v1_SessionMessage_phase_done_tag,
      amem_v1_SessionMessage_unbrokered_tag,   amem_v1_SessionMessage_await_closed_tag,
      amem_v1_SessionMessage_set_policy_tag,   amem_v1_SessionMessage_saved_tag,
      amem_v1_SessionMessage_pool_segment_tag, amem_v1_SessionMessage_copied_tag};
  const Result<std::string> bytes = encode(packet_of(kBodies[choose(std::size(kBodies))], choose));
  return bytes.ok() ? bytes.value() : std::string();
}

/// Of the kind that World::control() takes for `what`, below kControls.
inline std::string some_request(unsigned what, const Choose& choose) {
  const auto tags = [&](auto* list) {
    for (std::uint32_t left = choose(6) < 4 ? 0 : choose(3); left > 0; --left)
      list->Add(some_tag(choose));
  };
  switch (what) {
    case 0: {
      v1::PauseRequest pause;
      pause.set_group(some_group(choose));
      pause.set_timeout_ms(choose(4) * 500);
      tags(pause.mutable_tags());
      tags(pause.mutable_except_tags());
      tags(pause.mutable_discard());
      pause.set_force(choose(2) == 0);
      return pause.SerializeAsString();
    }
    case 1: {
      v1::ResumeRequest resume;
      resume.set_group(some_group(choose));
      resume.set_timeout_ms(choose(4) * 500);
      tags(resume.mutable_tags());
      tags(resume.mutable_except_tags());
      return resume.SerializeAsString();
    }
    case 2: {
      v1::SwapRequest swap;
      swap.set_out(some_group(choose));
      swap.set_in(some_group(choose));
      tags(swap.mutable_discard());
      return swap.SerializeAsString();
    }
    case 3: {
      v1::SetPolicyRequest set;
      set.set_group(some_group(choose));
      set.set_tag(some_tag(choose));
      set.set_policy(static_cast<v1::Policy>(choose(4)));
      set.set_form(static_cast<v1::Form>(choose(5)));
      set.set_force(choose(2) == 0);
      return set.SerializeAsString();
    }
    default: {
      v1::ListRanksRequest list;  // the others have the same one field
      list.set_group(choose(2) != 0 ? some_group(choose) : "");
      return list.SerializeAsString();
    }
  }
}

inline Step some_step(const Choose& choose) {
  Step step;
  step.kind = static_cast<Kind>(choose(static_cast<std::uint32_t>(Kind::kCount)));
  if (choose(2) != 0) step.kind = choose(2) != 0 ? Kind::kPacket : Kind::kAnswer;
  step.more = static_cast<std::uint8_t>(choose(4));  // which rank, in the plainest way
  if (step.kind == Kind::kControl) {
    const unsigned what = choose(choose(2) != 0 ? 3 : kControls);
    const unsigned asker = choose(3) == 0 ? choose(6) : choose(2);  // mostly who may
    step.more = static_cast<std::uint8_t>(what + kControls * asker);
    step.payload = some_request(what, choose);
  } else if (step.kind == Kind::kPass) {
    step.more = static_cast<std::uint8_t>(choose(8));
  } else if (choose(4) == 0) {
    step.more = static_cast<std::uint8_t>(choose(32));
  }
  if (step.kind == Kind::kPacket) step.payload = some_packet(choose);
  return step;
}

}  // namespace amem::fuzz
