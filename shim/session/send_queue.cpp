#include "shim/session/send_queue.h"

#include <sys/socket.h>

#include <iterator>
#include <utility>

#include "common/packet.h"
#include "shim/base/log.h"

namespace amem::shim {

bool SendQueue::connect(int socket) {
  std::lock_guard lock(mutex_);
  socket_ = socket;
  state_ = State::kOpen;
  send_now();
  return !parcels_.empty();
}

void SendQueue::disconnect() {
  std::lock_guard lock(mutex_);
  state_ = State::kClosed;
  parcels_.clear();
  full_since_.reset();
}

Status SendQueue::failure() {
  std::lock_guard lock(mutex_);
  return std::exchange(failure_, {});
}

void SendQueue::collect(std::vector<Parcel> first) {
  std::lock_guard lock(mutex_);
  state_ = State::kCollecting;
  ++connection_;
  parcels_.assign(std::make_move_iterator(first.begin()), std::make_move_iterator(first.end()));
}

bool SendQueue::add(Parcel parcel, std::uint64_t* request) {
  std::lock_guard lock(mutex_);
  if (state_ == State::kClosed) return false;
  if (request != nullptr && std::exchange(*request, connection_) == connection_) return false;
  parcels_.push_back(std::move(parcel));
  if (state_ == State::kCollecting) return false;
  send_now();
  return !parcels_.empty();
}

/// REQUIRES: the lock is held, and the queue is open.
void SendQueue::send_now() {
  while (!parcels_.empty()) {
    std::vector<int> fds;
    for (const Fd& fd : parcels_.front().fds) fds.push_back(fd.get());
    const Status sent = send_encoded(socket_, parcels_.front().bytes, fds);
    if (sent.code() == Code::kResourceExhausted) {
      if (!full_since_) full_since_ = Clock::now();
      return;
    }
    full_since_.reset();
    if (sent.ok()) {
      parcels_.pop_front();
      continue;
    }
    // It would be missed: a free, or an answer. So the connection ends with it.
    log_debug(sent.text());
    if (sent.code() != Code::kUnavailable) failure_ = sent;
    parcels_.clear();
    ::shutdown(socket_, SHUT_RDWR);  // the service thread sees it
  }
}

bool SendQueue::flush() {
  std::lock_guard lock(mutex_);
  if (state_ != State::kOpen) return true;
  send_now();
  if (!full_since_ || Clock::now() - *full_since_ < deadline_) return true;
  log_error("the broker has read nothing for " + std::to_string(deadline_.count()) +
            " ms. It is stopped or stuck, so this rank ends its session");
  return false;
}

std::optional<SendQueue::Clock::time_point> SendQueue::full() {
  std::lock_guard lock(mutex_);
  if (!full_since_) return std::nullopt;
  return *full_since_ + deadline_;
}

}  // namespace amem::shim
