// FakeRank: a scripted rank for tests of the broker: speaks the session protocol over a real
// session socket, without shim or driver. It keeps the bytes of its allocations by reading and
// writing the simulated driver's memory through the descriptors that the broker sends.
//
// One thread plays all ranks of a test: pump() lets each answer what it has been sent. To the
// broker each is a process: one that only connects and then waits for its end.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/packet.h"
#include "common/protocol.h"

namespace amem {

class FakeRank {
 public:
  struct Memory {
    Token token{};
    std::uint64_t size = 0;
    Fd fd;  // what is mapped; empty while released
    std::string tag;
    bool pinned = false;
    bool arrived = false;  // in the resume under way
  };
  enum class Mood { kGood, kSilent, kFailing, kDying, kLate };  // kLate: with catch_up()

  /// How it takes the command of that body tag.
  std::map<pb_size_t, Mood> moods;
  Code failure = Code::kInternal;  // what it answers when it is failing
  /// What CutStatus reports; by default one idle device.
  amem_v1_CutStatus cut = amem_v1_CutStatus_init_zero;
  std::uint32_t steps_taken = 0;
  std::function<void(FakeRank&)> on_step;

  ~FakeRank() { die(); }
  void die() {
    if (process_ > 0) {
      ::kill(process_, SIGKILL);
      ::waitpid(process_, nullptr, 0);
    }
    process_ = -1;
    lose_session();
  }
  /// Its process lives on.
  void lose_session() { socket_.reset(); }
  pid_t process() const { return process_; }
  bool alive() const { return static_cast<bool>(socket_); }
  int socket() const { return socket_.get(); }

  void connect(const std::string& path) {
    die();
    socket_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    int answer[2];
    int life[2];
    ASSERT_EQ(::pipe2(answer, O_CLOEXEC), 0);
    const Fd reader(answer[0]);
    Fd writer(answer[1]);
    ASSERT_EQ(::pipe2(life, O_CLOEXEC), 0);
    const Fd lifeline(life[0]);
    life_.reset(life[1]);
    process_ = ::fork();  // the kernel notes who connects
    if (process_ == 0) {  // only raw calls: the test may have threads
      const int error = connect_socket(path);
      if (::write(writer.get(), &error, sizeof error) != sizeof error) ::_exit(1);
      ::dup2(lifeline.get(), 0);
      ::close_range(1, ~0U, 0);  // nothing of the test's may stay open because of it
      char end = 0;
      while (::read(0, &end, 1) < 0) {  // until the test dies
      }
      ::_exit(0);
    }
    ASSERT_GT(process_, 0);
    writer.reset();
    int error = -1;
    ASSERT_EQ(::read(reader.get(), &error, sizeof error), static_cast<ssize_t>(sizeof error));
    ASSERT_EQ(error, 0) << std::strerror(error);
    char end = 0;
    ASSERT_EQ(::read(reader.get(), &end, 1), 0) << "it has closed everything";
  }
  /// The rank is this process.
  void connect_here(const std::string& path) {
    socket_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect_socket(path), 0);
  }

  void send(const Message& message) { (void)send_message(socket_.get(), message); }

  /// The reply to a request, answering nothing else meanwhile but remembering pool segments. An
  /// empty packet when the broker has closed the session.
  Packet ask(Message message) {
    message.seq = ++seq_;
    send(message);
    return await_reply(message.seq);
  }
  Packet await_reply(std::uint64_t seq) {
    for (;;) {
      Packet packet = next(std::chrono::seconds(10));
      if (!alive()) return packet;
      if (packet.message.which_body == amem_v1_SessionMessage_reply_tag &&
          packet.message.seq == seq)
        return packet;
      pending_.push_back(std::move(packet));
    }
  }
  static Code code(const Packet& packet) {
    return packet.message.which_body == amem_v1_SessionMessage_reply_tag
               ? static_cast<Code>(packet.message.body.reply.code)
               : Code::kUnavailable;
  }

  Packet hello(const std::string& group, int number = 0) {
    Message message = amem_v1_SessionMessage_init_zero;
    message.which_body = amem_v1_SessionMessage_hello_tag;
    message.body.hello.protocol = kProtocolVersion;
    message.body.hello.rank = number;
    set_text(message.body.hello.group, group);
    set_text(message.body.hello.version, "test");
    set_text(message.body.hello.program, "fake_rank");
    Packet packet = ask(message);
    if (code(packet) == Code::kOk) id = packet.message.body.reply.result.welcome.rank_id;
    return packet;
  }

  Packet try_create(const DeviceUuid& device, std::uint64_t size, const std::string& tag,
                    amem_v1_RegionPolicy policy = amem_v1_RegionPolicy_REGION_POLICY_UNSPECIFIED) {
    Message message = amem_v1_SessionMessage_init_zero;
    message.which_body = amem_v1_SessionMessage_create_tag;
    message.body.create.size = size;
    std::memcpy(message.body.create.device, device.bytes.data(), device.bytes.size());
    message.body.create.gpu_direct_rdma = true;
    set_text(message.body.create.tag, tag);
    message.body.create.policy = policy;
    return ask(message);
  }
  /// The new allocation's id; 0 and a test failure when there is none.
  std::uint64_t create(
      const DeviceUuid& device, std::uint64_t size, const std::string& tag = "nccl",
      amem_v1_RegionPolicy policy = amem_v1_RegionPolicy_REGION_POLICY_UNSPECIFIED) {
    Packet packet = try_create(device, size, tag, policy);
    EXPECT_EQ(code(packet), Code::kOk) << packet.message.body.reply.text;
    if (code(packet) != Code::kOk || packet.fds.size() != 1) return 0;
    const auto& created = packet.message.body.reply.result.created;
    Memory& m = memory[created.id];
    std::memcpy(m.token.data(), created.token, m.token.size());
    m.size = size;
    m.tag = tag;
    m.fd = std::move(packet.fds.front());
    return created.id;
  }

  Packet try_redeem(std::uint64_t allocation, const Token& token) {
    Message message = amem_v1_SessionMessage_init_zero;
    message.which_body = amem_v1_SessionMessage_redeem_tag;
    message.body.redeem.id = allocation;
    std::memcpy(message.body.redeem.token, token.data(), token.size());
    return ask(message);
  }
  /// Takes part in a peer's allocation.
  void share(const FakeRank& owner, std::uint64_t allocation) {
    const Memory& theirs = owner.memory.at(allocation);
    Packet packet = try_redeem(allocation, theirs.token);
    ASSERT_EQ(code(packet), Code::kOk) << packet.message.body.reply.text;
    ASSERT_EQ(packet.fds.size(), 1U);
    ASSERT_EQ(packet.message.body.reply.result.redeemed.size, theirs.size);
    Memory& m = memory[allocation];
    m.token = theirs.token;
    m.size = theirs.size;
    m.tag = packet.message.body.reply.result.redeemed.tag;
    m.fd = std::move(packet.fds.front());
  }

  void free(std::uint64_t allocation) {
    Message message = amem_v1_SessionMessage_init_zero;
    message.which_body = amem_v1_SessionMessage_free_tag;
    message.body.free.id = allocation;
    send(message);
    memory.erase(allocation);
  }
  void pin(std::uint64_t allocation) {
    Message message = amem_v1_SessionMessage_init_zero;
    message.which_body = amem_v1_SessionMessage_pin_tag;
    message.body.pin.id = allocation;
    send(message);
    memory.at(allocation).pinned = true;
  }
  /// Sends a GroupRequest; its seq, for await_reply().
  std::uint64_t request(amem_v1_GroupOp op, std::uint32_t timeout_ms = 0,
                        const std::vector<std::string>& tags = {}) {
    Message message = amem_v1_SessionMessage_init_zero;
    message.seq = ++seq_;
    message.which_body = amem_v1_SessionMessage_group_request_tag;
    message.body.group_request.op = op;
    message.body.group_request.timeout_ms = timeout_ms;
    for (const std::string& tag : tags)
      set_text(message.body.group_request.tags[message.body.group_request.tags_count++], tag);
    send(message);
    return message.seq;
  }

  /// Fills, or checks, an allocation's bytes on its device.
  void write(std::uint64_t allocation, std::uint8_t value) {
    const Memory& m = memory.at(allocation);
    const std::string bytes(m.size, static_cast<char>(value));
    ASSERT_EQ(::pwrite(m.fd.get(), bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
  }
  bool holds(std::uint64_t allocation, std::uint8_t value) const {
    const Memory& m = memory.at(allocation);
    std::string bytes(m.size, static_cast<char>(~value));
    return ::pread(m.fd.get(), bytes.data(), bytes.size(), 0) ==
               static_cast<ssize_t>(bytes.size()) &&
           bytes == std::string(m.size, static_cast<char>(value));
  }

  void send_cut() {
    Message message = amem_v1_SessionMessage_init_zero;
    message.which_body = amem_v1_SessionMessage_cut_status_tag;
    message.body.cut_status = cut;
    message.body.cut_status.epoch = epoch;
    message.body.cut_status.steps = steps_taken;
    send(message);
  }

  void done(amem_v1_Phase phase, std::uint64_t of_epoch, bool failing = false) {
    Message message = amem_v1_SessionMessage_init_zero;
    message.which_body = amem_v1_SessionMessage_phase_done_tag;
    message.body.phase_done.epoch = of_epoch;
    message.body.phase_done.wave = wave;
    message.body.phase_done.phase = phase;
    if (failing) {
      message.body.phase_done.code = static_cast<std::uint32_t>(failure);
      set_text(message.body.phase_done.text, "scripted failure");
    }
    send(message);
  }

  /// Takes all commands well from now on, and those first that it has been late with.
  void catch_up() {
    moods.clear();
    std::vector<Packet> packets = std::move(late_);
    late_.clear();
    for (Packet& packet : packets)
      if (alive()) handle(packet);
  }

  /// Answers everything that has come, waiting at most `patience` for the first packet. False when
  /// there was nothing.
  bool pump(std::chrono::milliseconds patience) {
    bool any = false;
    while (alive()) {
      std::vector<Packet> packets = std::move(pending_);
      pending_.clear();
      if (packets.empty()) {
        Packet packet = next(any ? std::chrono::milliseconds(0) : patience);
        if (!alive() || packet.message.which_body == 0) return any;
        packets.push_back(std::move(packet));
      }
      any = true;
      for (Packet& packet : packets)
        if (alive()) handle(packet);
    }
    return any;
  }

  /// Tells how it has stored a piece.
  void send_saved(std::uint64_t allocation, std::uint64_t offset, std::uint64_t stored, bool sparse,
                  std::uint64_t sum = 0) {
    Message message = amem_v1_SessionMessage_init_zero;
    message.which_body = amem_v1_SessionMessage_saved_tag;
    message.body.saved.epoch = epoch;
    message.body.saved.wave = wave;
    message.body.saved.pieces[message.body.saved.pieces_count++] = {allocation, offset, stored,
                                                                    sparse, sum};
    send(message);
  }

  /// Not 0: pieces that may be sparse, and whose bytes are all the same, are saved in so many.
  std::uint64_t sparse_bytes = 0;
  std::uint64_t checksum = 0;       // told of every piece; 0: none
  std::vector<amem_v1_Copy> saves;  // as they came
  std::vector<amem_v1_Copy> loads;
  std::uint32_t id = 0;
  std::uint64_t epoch = 0;
  std::uint32_t wave = 0;  // of the command that came last
  bool gate_shut = false;
  std::map<std::uint64_t, Memory> memory;
  std::map<std::uint32_t, Fd> segments;
  std::map<pb_size_t, int> received;  // by body tag
  std::vector<Packet> replies;        // that came while pumping

 private:
  /// The next packet; an empty one when none came in time. Pool segments are taken silently.
  Packet next(std::chrono::milliseconds patience) {
    const auto until = std::chrono::steady_clock::now() + patience;
    for (;;) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
      pollfd p{socket_.get(), POLLIN, 0};
      if (::poll(&p, 1, static_cast<int>(std::max<long>(0, left.count()))) <= 0) return {};
      Packet packet;
      if (!receive(socket_.get(), MSG_DONTWAIT, packet).ok()) {
        die();
        return {};
      }
      if (packet.message.which_body != amem_v1_SessionMessage_pool_segment_tag) return packet;
      EXPECT_EQ(packet.fds.size(), 1U);
      segments[packet.message.body.pool_segment.index] = std::move(packet.fds.front());
    }
  }

  void handle(Packet& packet) {
    const Message& m = packet.message;
    ++received[m.which_body];
    if (m.which_body == amem_v1_SessionMessage_save_tag) epoch = m.body.save.epoch;
    if (m.which_body == amem_v1_SessionMessage_save_tag)
      wave = m.body.save.wave;
    else if (m.which_body == amem_v1_SessionMessage_release_tag)
      wave = m.body.release.wave;
    else if (m.which_body != amem_v1_SessionMessage_reply_tag)
      wave = 0;
    const Mood mood = moods.contains(m.which_body) ? moods.at(m.which_body) : Mood::kGood;
    if (mood == Mood::kDying) return die();
    if (mood == Mood::kSilent) return;
    if (mood == Mood::kLate) return late_.push_back(std::move(packet));
    const bool failing = mood == Mood::kFailing;
    switch (m.which_body) {
      case amem_v1_SessionMessage_quiesce_tag:
        epoch = m.body.quiesce.epoch;
        steps_taken = 0;
        gate_shut = true;
        send_cut();
        break;
      case amem_v1_SessionMessage_step_tag:
        ++steps_taken;
        if (on_step) on_step(*this);
        send_cut();
        break;
      case amem_v1_SessionMessage_save_tag:
        copy(m.body.save, true);
        if (m.body.save.last) done(amem_v1_Phase_PHASE_SAVE, m.body.save.epoch, failing);
        break;
      case amem_v1_SessionMessage_release_tag:
        release(m.body.release);
        if (!m.body.release.more) done(amem_v1_Phase_PHASE_RELEASE, m.body.release.epoch, failing);
        break;
      case amem_v1_SessionMessage_map_tag:
        ASSERT_EQ(packet.fds.size(), m.body.map.ids_count);
        for (pb_size_t i = 0; i < m.body.map.ids_count; ++i) {
          EXPECT_TRUE(memory.contains(m.body.map.ids[i]));
          EXPECT_FALSE(memory[m.body.map.ids[i]].fd) << "mapped twice";
          memory[m.body.map.ids[i]].fd = std::move(packet.fds[i]);
          memory[m.body.map.ids[i]].arrived = true;
        }
        if (m.body.map.last) done(amem_v1_Phase_PHASE_MAP, m.body.map.epoch, failing);
        break;
      case amem_v1_SessionMessage_load_tag:
        copy(m.body.load, false);
        if (m.body.load.last) done(amem_v1_Phase_PHASE_LOAD, m.body.load.epoch, failing);
        break;
      case amem_v1_SessionMessage_open_tag:
        gate_shut = false;
        for (auto& [allocation, held] : memory) held.arrived = false;
        done(amem_v1_Phase_PHASE_OPEN, m.body.open.epoch, failing);
        break;
      case amem_v1_SessionMessage_reply_tag:
        replies.push_back(std::move(packet));
        break;
      default:
        ADD_FAILURE() << "unexpected message " << m.which_body;
    }
  }

  void release(const amem_v1_Release& what) {
    const std::set<std::string> tags(what.tags, what.tags + what.tags_count);
    const std::set<std::uint64_t> ids(what.ids, what.ids + what.ids_count);
    for (auto& [allocation, held] : memory) {
      const bool chosen = what.undo     ? held.arrived
                          : what.listed ? ids.contains(allocation)
                                        : tags.empty() || tags.contains(held.tag);
      if (chosen && !held.pinned) held.fd.reset();
    }
  }

  void copy(const amem_v1_Copies& copies, bool save) {
    for (pb_size_t i = 0; i < copies.copies_count; ++i) {
      const amem_v1_Copy& c = copies.copies[i];
      std::string bytes(c.length, '\0');
      const int device = memory.at(c.id).fd.get();
      if (device < 0) continue;  // the script left out its map
      const auto length = static_cast<ssize_t>(c.length);
      const auto at = static_cast<off_t>(c.offset);
      if (!save && c.segment == kZeroSegment) {
        EXPECT_EQ(::pwrite(device, bytes.data(), c.length, at), length);
        continue;
      }
      (save ? saves : loads).push_back(c);
      const bool sparse = save ? sparse_bytes > 0 && c.form != amem_v1_Form_FORM_DENSE
                               : c.form == amem_v1_Form_FORM_SPARSE;
      if (save && (sparse || checksum != 0))
        send_saved(c.id, c.offset, sparse ? sparse_bytes : c.length, sparse, checksum);
      ASSERT_TRUE(segments.contains(c.segment));
      const int pool = segments.at(c.segment).get();
      const auto pool_at = static_cast<off_t>(c.segment_offset);
      EXPECT_EQ(::pread(save ? device : pool, bytes.data(), c.length, save ? at : pool_at), length);
      if (sparse && !save) std::fill(bytes.begin(), bytes.end(), bytes.front());
      const auto to_pool = static_cast<std::size_t>(sparse ? sparse_bytes : c.length);
      EXPECT_EQ(::pwrite(save ? pool : device, bytes.data(), save ? to_pool : c.length,
                         save ? pool_at : at),
                save ? static_cast<ssize_t>(to_pool) : length);
    }
  }

  /// 0 or an errno.
  int connect_socket(const std::string& path) const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    const auto* to = reinterpret_cast<const sockaddr*>(&address);
    return ::connect(socket_.get(), to, sizeof address) == 0 ? 0 : errno;
  }

  Fd socket_;
  Fd life_;  // whose end is the process's
  pid_t process_ = -1;
  std::uint64_t seq_ = 0;
  std::vector<Packet> pending_;
  std::vector<Packet> late_;
};

}  // namespace amem
