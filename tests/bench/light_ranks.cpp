#include "tests/bench/light_ranks.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "common/rank_phase.h"

namespace amem::bench {
namespace {

constexpr std::size_t kWindow = 32;

Message message_of(pb_size_t body) {
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = body;
  return message;
}

Status done(int socket, RankPhase phase, std::uint64_t epoch, std::uint32_t wave = 0) {
  Message message = message_of(amem_v1_SessionMessage_phase_done_tag);
  message.body.phase_done.epoch = epoch;
  message.body.phase_done.wave = wave;
  message.body.phase_done.phase = number_of(phase);
  return send_message(socket, message);
}

Status idle(int socket, std::uint64_t epoch) {
  Message message = message_of(amem_v1_SessionMessage_cut_status_tag);
  message.body.cut_status.epoch = epoch;
  return send_message(socket, message);
}

Status check(const Packet& packet) {
  const amem_v1_Reply& reply = packet.message.body.reply;
  return reply.code == 0 ? Status() : Status(static_cast<Code>(reply.code), reply.text);
}

}  // namespace

template <class Fill, class Take>
Status LightRanks::ask_many(Rank& rank, std::size_t count, Fill fill, Take take) {
  std::size_t sent = 0;
  Packet packet;
  for (std::size_t answered = 0; answered < count;) {
    for (; sent < count && sent < answered + kWindow; ++sent) {
      Message message = fill(sent);
      message.seq = sent + 1;
      if (Status s = send_message(rank.socket.get(), message); !s.ok()) return s;
    }
    if (Status s = receive(rank.socket.get(), 0, packet); !s.ok()) return s;
    if (packet.message.which_body != amem_v1_SessionMessage_reply_tag) continue;
    if (Status s = check(packet); !s.ok()) return s;
    take(packet.message.body.reply);
    ++answered;
  }
  return {};
}

Status LightRanks::join(Rank& rank, const Shape& shape, int number) {
  rank.socket.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (shape.socket.size() >= sizeof address.sun_path)
    return {Code::kInvalidArgument, "the socket's path is too long: " + shape.socket};
  shape.socket.copy(address.sun_path, shape.socket.size());
  if (::connect(rank.socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    return errno_status(Code::kUnavailable, "connect to " + shape.socket, errno);
  Message hello = message_of(amem_v1_SessionMessage_hello_tag);
  hello.body.hello.protocol = kProtocolVersion;
  hello.body.hello.rank = number;
  set_text(hello.body.hello.group, shape.group);
  set_text(hello.body.hello.version, "bench");
  set_text(hello.body.hello.program, "control_bench");
  return ask_many(
      rank, 1, [&](std::size_t) { return hello; }, [](const amem_v1_Reply&) {});
}

Status LightRanks::create(Rank& rank, const Shape& shape, const DeviceUuid& device) {
  Message create = message_of(amem_v1_SessionMessage_create_tag);
  create.body.create.size = shape.size;
  std::memcpy(create.body.create.device, device.bytes.data(), device.bytes.size());
  set_text(create.body.create.tag, "nccl");
  return ask_many(
      rank, static_cast<std::size_t>(shape.allocations), [&](std::size_t) { return create; },
      [&](const amem_v1_Reply& reply) {
        Owned& owned = rank.owned.emplace_back();
        owned.id = reply.result.created.id;
        std::memcpy(owned.token.data(), reply.result.created.token, owned.token.size());
      });
}

Status LightRanks::redeem(Rank& rank, const Rank& owner) {
  return ask_many(
      rank, owner.owned.size() / 2,
      [&](std::size_t i) {
        const Owned& owned = owner.owned[2 * i];
        Message redeem = message_of(amem_v1_SessionMessage_redeem_tag);
        redeem.body.redeem.id = owned.id;
        std::memcpy(redeem.body.redeem.token, owned.token.data(), owned.token.size());
        return redeem;
      },
      [](const amem_v1_Reply&) {});
}

Status LightRanks::set_up(const Shape& shape) {
  ranks_.resize(static_cast<std::size_t>(shape.ranks));
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (Status s = join(ranks_[i], shape, static_cast<int>(i)); !s.ok()) return s;
    if (Status s = create(ranks_[i], shape, shape.devices[i % shape.devices.size()]); !s.ok())
      return s;
    allocations_ += ranks_[i].owned.size();
  }
  holds_ = allocations_;
  for (std::size_t i = 0; shape.shared && ranks_.size() > 1 && i < ranks_.size(); ++i) {
    const Rank& owner = ranks_[(i + 1) % ranks_.size()];
    if (Status s = redeem(ranks_[i], owner); !s.ok()) return s;
    holds_ += owner.owned.size() / 2;
  }
  return {};
}

Status LightRanks::handle(Rank& rank, const Packet& packet) {
  const Message& m = packet.message;
  const int socket = rank.socket.get();
  switch (m.which_body) {
    case amem_v1_SessionMessage_quiesce_tag:
      return idle(socket, m.body.quiesce.epoch);
    case amem_v1_SessionMessage_save_tag:
      if (!m.body.save.last) return {};
      return done(socket, RankPhase::kSave, m.body.save.epoch, m.body.save.wave);
    case amem_v1_SessionMessage_release_tag:
      return done(socket, RankPhase::kRelease, m.body.release.epoch, m.body.release.wave);
    case amem_v1_SessionMessage_map_tag:
      if (packet.fds.size() != m.body.map.ids_count)
        return {Code::kInternal, "a Map came without its descriptors"};
      if (!m.body.map.last) return {};
      return done(socket, RankPhase::kMap, m.body.map.epoch);
    case amem_v1_SessionMessage_load_tag:
      if (!m.body.load.last) return {};
      return done(socket, RankPhase::kLoad, m.body.load.epoch);
    case amem_v1_SessionMessage_ask_tag:
      return done(socket, RankPhase::kOpen, m.body.ask.epoch);
    default:
      return {};  // pool segments
  }
}

Status LightRanks::answer() {
  const Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = i;
    if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, ranks_[i].socket.get(), &event) != 0)
      return errno_status(Code::kInternal, "epoll_ctl", errno);
  }
  Packet packet;
  while (!stop_) {
    epoll_event events[64];
    const int n = ::epoll_wait(epoll.get(), events, 64, 50);
    for (int i = 0; i < n; ++i) {
      Rank& rank = ranks_[events[i].data.u64];
      for (;;) {
        const Status received = receive(rank.socket.get(), MSG_DONTWAIT, packet);
        if (received.code() == Code::kResourceExhausted) break;
        if (!received.ok()) return received;
        if (Status s = handle(rank, packet); !s.ok()) return s;
      }
    }
  }
  return {};
}

}  // namespace amem::bench
