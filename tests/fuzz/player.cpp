#include "tests/fuzz/player.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/descriptors.h"
#include "common/form.h"
#include "common/ticket.h"
#include "tests/fuzz/check.h"
#include "tests/fuzz/outside.h"

namespace amem::fuzz {
namespace {

constexpr pid_t kFirstPid = 1000;
constexpr std::size_t kMostDescriptors = 253;  // the kernel's limit for a packet

/// What may come beside a packet. A rank has no business to send any of it.
std::vector<Fd> descriptors(unsigned choice) {
  std::vector<Fd> fds;
  const auto nulls = [&fds](std::size_t count) {
    while (fds.size() < count) fds.emplace_back(::open("/dev/null", O_RDWR | O_CLOEXEC));
  };
  switch (choice) {
    case 1:
      nulls(1);
      break;
    case 2: {
      Result<Fd> ticket = make_ticket({1, 0, 4096, {1}});
      if (ticket.ok()) fds.push_back(std::move(ticket).value());
      break;
    }
    case 3: {
      int ends[2];
      if (::pipe2(ends, O_CLOEXEC) == 0) {
        fds.emplace_back(ends[0]);
        fds.emplace_back(ends[1]);
      }
      break;
    }
    case 4:
      nulls(kMaxMapsPerMessage + 1);
      break;
    default:
      break;
  }
  return fds;
}

}  // namespace

void Player::connect(const std::string& path, int number, uid_t uid) {
  hang_up();
  commands_.clear();
  epoch_ = 0;
  uid_ = uid;
  socket_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  // As many wait as the backlog allows.
  if (::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    return socket_.reset();
  processes_.emplace_back(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  outside::connects(kFirstPid + number, uid, processes_.back().get());
}

void Player::die() {
  hang_up();
  const std::uint64_t one = 1;
  for (const Fd& process : processes_)
    require(::write(process.get(), &one, sizeof one) == sizeof one, "a process ends");
}

void Player::send(const std::string& bytes, unsigned beside) {
  if (!connected()) return;
  const std::vector<Fd> fds = descriptors(beside);
  std::vector<int> numbers;
  for (const Fd& fd : fds) numbers.push_back(fd.get());
  // What the socket has no space for is lost, as by a rank that gives up.
  (void)send_with<kMostDescriptors>(socket_.get(), bytes.data(), bytes.size(), numbers.data(),
                                    numbers.size());
}

int Player::read(const Seen& seen) {
  int count = 0;
  Packet packet;
  while (connected()) {
    const Status status = receive(socket_.get(), MSG_DONTWAIT, packet);
    if (status.code() == Code::kResourceExhausted) break;
    if (!status.ok()) {
      require(status.code() != Code::kInvalidArgument, "what the broker sends decodes");
      hang_up();
      break;
    }
    ++count;
    seen(*this, packet);
    if (packet.message.which_body != amem_v1_SessionMessage_reply_tag)
      commands_.push_back(packet.message);
  }
  return count;
}

void Player::answer(unsigned how) {
  std::deque<Message> commands = std::move(commands_);
  commands_.clear();
  for (const Message& command : commands) answer(command, how);
}

void Player::send_message(const Message& message) {
  const Result<std::string> bytes = encode(message);
  require(bytes.ok(), "a rank's answer can be sent");
  send(bytes.value(), 0);
}

void Player::answer(const Message& command, unsigned how) {
  const bool well = how == 0;
  switch (command.which_body) {
    case amem_v1_SessionMessage_quiesce_tag:
      epoch_ = command.body.quiesce.epoch;
      steps_ = 0;
      return report_cut();
    case amem_v1_SessionMessage_step_tag:
      ++steps_;
      return report_cut();
    case amem_v1_SessionMessage_measure_tag: {
      const amem_v1_Measure& measure = command.body.measure;
      if (how == 2) measured(measure);
      if (measure.last) done(RankPhase::kMeasure, measure.epoch, 0, how != 1);
      return;
    }
    case amem_v1_SessionMessage_save_tag: {
      const amem_v1_Copies& save = command.body.save;
      if (how == 2) saved(save);
      if (save.last) done(RankPhase::kSave, save.epoch, save.wave, how != 1);
      return;
    }
    case amem_v1_SessionMessage_release_tag: {
      const amem_v1_Release& release = command.body.release;
      if (!release.more) done(RankPhase::kRelease, release.epoch, release.wave, how != 1);
      return;
    }
    case amem_v1_SessionMessage_map_tag:
      if (command.body.map.last) done(RankPhase::kMap, command.body.map.epoch, 0, how != 1);
      return;
    case amem_v1_SessionMessage_load_tag:
      if (command.body.load.last)
        done(RankPhase::kLoad, command.body.load.epoch, 0, how != 1 && how != 3);
      return;
    case amem_v1_SessionMessage_ask_tag:
      return done(RankPhase::kOpen, command.body.ask.epoch, 0, well || how != 1);
    case amem_v1_SessionMessage_pool_segment_tag:
    case amem_v1_SessionMessage_trim_tag:
      return;
    default:
      require(false, "the broker sends what is a broker's to send");
  }
}

void Player::report_cut() {
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_cut_status_tag;
  message.body.cut_status.epoch = epoch_;
  message.body.cut_status.steps = steps_;
  send_message(message);
}

void Player::done(RankPhase phase, std::uint64_t epoch, std::uint32_t wave, bool well) {
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_phase_done_tag;
  amem_v1_PhaseDone& answer = message.body.phase_done;
  answer.phase = number_of(phase);
  answer.epoch = epoch;
  answer.wave = wave;
  answer.code = static_cast<std::uint32_t>(well ? Code::kOk : Code::kInternal);
  send_message(message);
}

/// Of each allocation only the first blocks, and few of those are not zero.
void Player::measured(const amem_v1_Measure& measure) {
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_measured_tag;
  amem_v1_Measured& measured = message.body.measured;
  measured.epoch = measure.epoch;
  for (pb_size_t i = 0; i < measure.ranges_count; ++i) {
    measured.sections[measured.sections_count++] = {measure.ranges[i].id, 0, 1};
    measured.masks[measured.masks_count++] = i % 4 == 0 ? 1 : 0;
  }
  send_message(message);
}

/// Every other allocation has hashes, where they are wanted. Else every piece that may be is
/// sparse, and takes a quarter of its length.
void Player::saved(const amem_v1_Copies& copies) {
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_saved_tag;
  amem_v1_Saved& saved = message.body.saved;
  saved.epoch = copies.epoch;
  saved.wave = copies.wave;
  for (pb_size_t i = 0; i < copies.copies_count; ++i) {
    const amem_v1_Copy& copy = copies.copies[i];
    const bool hashed = copy.hash && copy.id % 2 == 0;
    if (hashed)
      saved.pieces[saved.pieces_count++] = {
          copy.id, copy.offset, copy.length, number_of(Form::kDense), 0, true, copy.length / 2};
    else if (copy.form != number_of(Form::kDense))
      saved.pieces[saved.pieces_count++] = {
          copy.id, copy.offset, copy.length / 4, number_of(Form::kSparse), 7, false, 0};
  }
  send_message(message);
}

}  // namespace amem::fuzz
