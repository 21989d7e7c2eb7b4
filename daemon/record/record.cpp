#include "daemon/record/record.h"

#include <google/protobuf/message_lite.h>
#include <spdlog/spdlog.h>

#include <chrono>

namespace amem {
namespace {

/// Until a holder that is behind is given what is left.
constexpr Duration kFlushAgain = std::chrono::milliseconds(20);

}  // namespace

void Row::erase() {
  Record* const record = std::exchange(record_, nullptr);
  if (record == nullptr || !record->log_) return;
  if (const Status status = record->log_->erase(key_); !status.ok())
    spdlog::error("{}", status.text());
}

RowReservation::~RowReservation() {
  if (record_ != nullptr && record_->log_) record_->log_->release(bytes_);
}

void HolderEntry::drop() {
  if (Record* const record = std::exchange(record_, nullptr)) record->drop(key_);
}

Status Record::write(Row& row, RowKind kind, std::uint64_t id,
                     const google::protobuf::MessageLite& message, RowReservation* space) {
  if (!log_) return {};
  buffer_.clear();
  message.AppendToString(&buffer_);
  const Status status =
      log_->put(row_key(kind, id), buffer_, space != nullptr ? &space->bytes_ : nullptr);
  if (status.ok()) {
    row.record_ = this;
    row.key_ = row_key(kind, id);
  } else if (!std::exchange(full_, true)) {
    spdlog::error("{}. If amemd ends now, what it could not write is lost", status.text());
  }
  return status;
}

Result<RowReservation> Record::make_space(std::uint64_t bytes) {
  if (!log_) return RowReservation();
  if (Status status = log_->promise(bytes); !status.ok()) return status;
  return RowReservation(this, bytes);
}

std::uint64_t Record::bytes_of(const google::protobuf::MessageLite& message) {
  return RecordLog::bytes_of(message.ByteSizeLong());
}

HolderEntry Record::hold(HolderKind kind, std::uint64_t id, SharedFd fd, std::uint32_t lane) {
  if (!holder_) return {};
  holder_->put(holder_key(kind, id), std::move(fd), lane);
  return {this, holder_key(kind, id)};
}

void Record::flush() { flush_within(again_ ? Duration::zero() : HolderClient::kFlushLimit); }

void Record::flush_soon() { flush_within(Duration::zero()); }

void Record::flush_within(Duration limit) {
  if (!holder_) return;
  const bool again = again_.has_value();
  if (again) loop_->cancel(*std::exchange(again_, std::nullopt));
  const Status status = holder_->flush(limit);
  if (holder_->lost()) return;  // the supervisor finds another
  if (holder_->behind()) again_ = loop_->at(Clock::now() + kFlushAgain, [this] { flush_soon(); });
  // Once for a holder that is behind, however often it is asked.
  if (!status.ok() && !(again && holder_->behind())) spdlog::error("{}", status.text());
  if (again && !holder_->behind()) spdlog::info("the holder has everything");
}

Status Record::outlives() const {
  if (!holder_)
    return {Code::kFailedPrecondition,
            "amemd has no holder, so paused memory would be lost if amemd ended. Its log says why, "
            "at its start (the setting holder)"};
  return holder_->has_everything();
}

void Record::drop(HolderKey key) {
  if (!holder_) return;
  holder_->drop(key);
  if (std::exchange(flush_is_due_, true)) return;
  loop_->post([this] {
    flush_is_due_ = false;
    flush();
  });
}

void Record::await_closed(const std::set<std::uint32_t>& lanes, Duration limit,
                          std::function<void(bool)> done) {
  if (!holder_ || lanes.empty()) return done(true);
  const auto pending = std::make_shared<PendingClose>();
  pending->missing = 1;  // until all are asked: the first may answer while the next is asked
  pending->done = std::move(done);
  pending->timer = loop_->at(Clock::now() + limit, [this, pending] {
    spdlog::warn(
        "the holder still closes descriptors that amemd dropped. The GPU's driver frees their "
        "memory slowly, or hangs");
    std::erase_if(questions_, [&](const auto& each) { return each.second == pending; });
    pending->done(false);
  });
  for (const std::uint32_t lane : lanes) {
    const Result<std::uint64_t> number =
        holder_->ask_closed(lane, again_ ? Duration::zero() : HolderClient::kFlushLimit);
    if (!number.ok()) {  // flush() and the supervisor report it
      pending->all = false;
      continue;
    }
    questions_.emplace(number.value(), pending);
    ++pending->missing;
  }
  answered(*pending);
}

void Record::answered(PendingClose& pending) {
  if (--pending.missing > 0) return;
  loop_->cancel(pending.timer);
  pending.done(pending.all);
}

void Record::all_closed(std::uint64_t number) {
  const auto question = questions_.extract(number);
  if (!question.empty()) answered(*question.mapped());
}

void Record::detach() {
  flush_within(HolderClient::kFlushLimit);
  if (again_) loop_->cancel(*std::exchange(again_, std::nullopt));
  for (const auto& [number, pending] : questions_) loop_->cancel(pending->timer);
  questions_.clear();
  if (holder_) holder_->detach();
  holder_.reset();
  log_.reset();
}

void Record::replace(std::shared_ptr<HolderClient> holder) {
  if (again_) loop_->cancel(*std::exchange(again_, std::nullopt));
  holder_ = std::move(holder);
  if (holder_) holder_->on_closed([this](std::uint64_t number) { all_closed(number); });
  // The one before has closed everything with its end.
  while (!questions_.empty()) all_closed(questions_.begin()->first);
}

void Record::hold_again(const HolderEntry& holder_entry, SharedFd fd, std::uint32_t lane) {
  if (holder_entry && holder_) holder_->put(holder_entry.key_, std::move(fd), lane);
}

}  // namespace amem
