#include "daemon/record/record.h"

#include <google/protobuf/message_lite.h>
#include <spdlog/spdlog.h>

namespace amem {

void Row::erase() {
  Record* const record = std::exchange(record_, nullptr);
  if (record == nullptr || !record->log_) return;
  if (const Status status = record->log_->erase(key_); !status.ok())
    spdlog::error("{}", status.text());
}

void Kept::drop() {
  if (Record* const record = std::exchange(record_, nullptr)) record->drop(key_);
}

Status Record::write(Row& row, RowKind kind, std::uint64_t id,
                     const google::protobuf::MessageLite& message) {
  if (!log_) return {};
  buffer_.clear();
  message.AppendToString(&buffer_);
  const Status status = log_->put(row_key(kind, id), buffer_);
  if (status.ok()) {
    row.record_ = this;
    row.key_ = row_key(kind, id);
  } else if (!std::exchange(full_, true)) {
    spdlog::error("{}; should amemd end now, what it could not write is lost", status.text());
  }
  return status;
}

Kept Record::keep(HolderKind kind, std::uint64_t id, SharedFd fd) {
  if (!holder_) return {};
  holder_->put(holder_key(kind, id), std::move(fd));
  return {this, holder_key(kind, id)};
}

void Record::flush() {
  if (!holder_) return;
  if (const Status status = holder_->flush(); !status.ok() && !holder_->lost())
    spdlog::error("{}", status.text());
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

void Record::settle(Duration limit) {
  if (!holder_ || holder_->lost()) return;
  if (const Status status = holder_->settle(limit); !status.ok()) spdlog::warn("{}", status.text());
}

void Record::detach() {
  flush();
  if (holder_) holder_->detach();
  holder_.reset();
  log_.reset();
}

void Record::replace(std::shared_ptr<Holder> holder) { holder_ = std::move(holder); }

void Record::keep_again(const Kept& kept, SharedFd fd) {
  if (kept && holder_) holder_->put(kept.key_, std::move(fd));
}

}  // namespace amem
