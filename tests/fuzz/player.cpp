#include "tests/fuzz/player.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/descriptors.h"
#include "common/form.h"
#include "common/ticket.h"
#include "tests/world/check.h"
#include "tests/world/death.h"

namespace amem::fuzz {
namespace {

using world::require;

using world::Mood;
using world::RankProcess;

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

void Player::connect(const std::string& path, uid_t uid) {
  hang_up();
  uid_ = uid;
  ranks_.emplace_back(truths_, checkpoints_, "", number_, world::Origin{.user = uid});
  ranks_.back().show([this](const Packet& packet) { seen_(*this, packet); });
  ranks_.back().connect_for_another(path);
}

void Player::hang_up() {
  if (connected()) ranks_.back().lose_session();
}

void Player::die() {
  for (RankProcess& rank : ranks_)
    if (rank.lives()) rank.die();
}

void Player::send(const std::string& bytes, unsigned beside) {
  if (!connected()) return;
  const world::death::Others not_the_broker;
  const std::vector<Fd> fds = descriptors(beside);
  std::vector<int> numbers;
  for (const Fd& fd : fds) numbers.push_back(fd.get());
  // What the socket has no space for is lost, as by a rank that gives up.
  (void)send_with<kMostDescriptors>(ranks_.back().socket(), bytes.data(), bytes.size(),
                                    numbers.data(), numbers.size());
}

void Player::ignore() {
  if (!ranks_.empty()) ranks_.back().forget_commands();
}

void Player::answer(unsigned how) {
  while (connected() && ranks_.back().has_command()) {
    const Message& command = ranks_.back().next_message();
    const auto is = [&command](pb_size_t body) { return command.which_body == body; };
    Mood mood = how == 1 && !is(amem_v1_SessionMessage_quiesce_tag) ? Mood::kFails : Mood::kWell;
    if (how == 3 && is(amem_v1_SessionMessage_load_tag)) mood = Mood::kFails;
    if (how == 2 && is(amem_v1_SessionMessage_measure_tag)) measured(command.body.measure);
    if (how == 2 && is(amem_v1_SessionMessage_save_tag)) {
      saved(command.body.save);
      mood = Mood::kLies;
    }
    ranks_.back().handle(mood);
  }
}

void Player::send_message(const Message& message) {
  const Result<std::string> bytes = encode(message);
  require(bytes.ok(), "a rank's answer can be sent");
  send(bytes.value(), 0);
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
