#include "tests/bench/light_ranks.h"

#include <poll.h>
#include <sys/epoll.h>

#include <cerrno>
#include <memory>

#include "common/fd.h"

namespace amem::bench {
namespace {

constexpr std::size_t kWindow = 32;

}  // namespace

Status LightRanks::ask_many(world::RankProcess& rank, std::size_t count,
                            const std::function<void(std::size_t)>& ask) {
  const std::size_t before = answered_;
  for (std::size_t sent = 0; answered_ < before + count;) {
    for (; sent < count && before + sent < answered_ + kWindow; ++sent) ask(sent);
    pollfd readable{rank.socket(), POLLIN, 0};
    (void)::poll(&readable, 1, -1);
    rank.read();
    if (!refused_.ok()) return refused_;
    if (!rank.connected()) return {Code::kUnavailable, "amemd has ended a session"};
  }
  return {};
}

Status LightRanks::set_up(const Shape& shape) {
  for (int number = 0; number < shape.ranks; ++number) {
    world::RankProcess& rank =
        ranks_.emplace_back(truths_, std::make_unique<world::ThisProcess>(), nullptr, shape.group,
                            number, world::Origin{.program = "control_bench"});
    rank.habits.fills = rank.habits.hashes = rank.habits.keeps = false;
    rank.hear([this](const Packet& packet) {
      const amem_v1_Reply& reply = packet.message.body.reply;
      ++answered_;
      if (reply.code != 0) refused_ = Status(static_cast<Code>(reply.code), reply.text);
    });
    if (Status s = ask_many(rank, 1, [&](std::size_t) { rank.connect(shape.socket); }); !s.ok())
      return s;
    const DeviceUuid& device =
        shape.devices[static_cast<std::size_t>(number) % shape.devices.size()];
    if (Status s = ask_many(rank, static_cast<std::size_t>(shape.allocations),
                            [&](std::size_t) { rank.create(device, shape.size, "nccl", false); });
        !s.ok())
      return s;
    allocations_ += rank.has().size();
  }
  holds_ = allocations_;
  for (std::size_t i = 0; shape.shared && ranks_.size() > 1 && i < ranks_.size(); ++i) {
    const std::vector<world::RankProcess::Has> owned = ranks_[(i + 1) % ranks_.size()].has();
    const auto own = static_cast<std::size_t>(shape.allocations);
    if (Status s = ask_many(ranks_[i], own / 2,
                            [&](std::size_t n) {
                              const std::uint64_t id = owned[2 * n].id;
                              ranks_[i].open(id, truths_.at(id)->token);
                            });
        !s.ok())
      return s;
    holds_ += own / 2;
  }
  return {};
}

Status LightRanks::answer() {
  const Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = i;
    if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, ranks_[i].socket(), &event) != 0)
      return errno_status(Code::kInternal, "epoll_ctl", errno);
  }
  while (!stop_) {
    epoll_event events[64];
    const int n = ::epoll_wait(epoll.get(), events, 64, 50);
    for (int i = 0; i < n; ++i) {
      world::RankProcess& rank = ranks_[events[i].data.u64];
      rank.read();
      while (rank.has_command()) rank.handle(world::Mood::kLies);
      if (!rank.connected()) return {Code::kUnavailable, "amemd has ended a session"};
    }
  }
  return {};
}

}  // namespace amem::bench
