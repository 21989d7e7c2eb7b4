// Stream<T>: the sending half of a server-streaming call, fed from the broker's loop.
//
// push() and finish() queue and return at once; gRPC's threads do the writing. What is queued is
// bounded: by try_push(), or because whoever pushes waits for `on_drained` before the next. The
// object lives until gRPC has done with the call and the last reference has gone. Any thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace amem {

template <class T>
class Stream final : public grpc::ServerWriteReactor<T> {
 public:
  /// What is returned belongs to gRPC as well, until the call ends. `on_done` then runs, on one of
  /// gRPC's threads.
  static std::shared_ptr<Stream> make(std::function<void()> on_done = {}) {
    auto stream = std::shared_ptr<Stream>(new Stream);
    stream->on_done_ = std::move(on_done);
    stream->self_ = stream;
    return stream;
  }
  /// `on_drained` runs whenever all that was queued has been written and the call goes on, on one
  /// of gRPC's threads. Before the call is gRPC's.
  void use(std::function<void()> on_drained) { on_drained_ = std::move(on_drained); }

  /// No effect once finished or cancelled.
  void push(T message) {
    std::unique_lock lock(mutex_);
    if (status_) return;
    enter(std::move(message));
    next(lock);
  }

  /// All of them before any is written, so that `on_drained` runs once they all have been.
  void push(std::vector<T> messages) {
    std::unique_lock lock(mutex_);
    if (status_) return;
    for (T& message : messages) enter(std::move(message));
    next(lock);
  }

  /// Like push(), unless `limit` bytes wait already: then false.
  bool try_push(T message, std::size_t limit) {
    std::unique_lock lock(mutex_);
    if (status_) return true;
    if (queued_ >= limit) return false;
    enter(std::move(message));
    next(lock);
    return true;
  }

  /// Tells the caller that the call has been taken up, before there is anything to send.
  void accept() {
    std::unique_lock lock(mutex_);
    if (status_ || writing_ || finished_) return;
    writing_ = true;
    lock.unlock();
    this->StartSendInitialMetadata();
  }

  /// Ends the call when what is queued has been written.
  void finish(grpc::Status status) {
    std::unique_lock lock(mutex_);
    if (status_) return;
    status_ = std::move(status);
    next(lock);
  }

 private:
  Stream() = default;

  void OnSendInitialMetadataDone(bool ok) override { OnWriteDone(ok); }

  void OnWriteDone(bool ok) override {
    std::unique_lock lock(mutex_);
    writing_ = false;
    if (!ok) give_up();
    if (!on_drained_ || !queue_.empty() || status_) return next(lock);
    lock.unlock();
    on_drained_();
  }

  void OnCancel() override {
    std::unique_lock lock(mutex_);
    give_up();
    next(lock);
  }

  void OnDone() override {
    if (on_done_) on_done_();
    on_done_ = on_drained_ = {};  // they may hold this object
    self_.reset();                // may be the end of it
  }

  // REQUIRE: mutex_ held.
  static std::size_t cost(const T& message) { return sizeof message + message.ByteSizeLong(); }
  void enter(T message) {
    queued_ += cost(message);
    queue_.push_back(std::move(message));
  }
  void give_up() {
    queue_.clear();
    queued_ = 0;
    if (!status_)
      status_ = grpc::Status(grpc::StatusCode::CANCELLED, "the caller cancelled the call");
  }

  /// Starts the next step, if none is under way. gRPC may call back at once, so it is called
  /// without the lock; `writing_` and `finished_` see to it that nobody else calls it meanwhile.
  void next(std::unique_lock<std::mutex>& lock) {
    if (writing_ || finished_) return;
    if (!queue_.empty()) {
      writing_ = true;
      current_ = std::move(queue_.front());
      queue_.pop_front();
      queued_ -= cost(current_);
      lock.unlock();
      this->StartWrite(&current_);
    } else if (status_) {
      finished_ = true;
      const grpc::Status status = *status_;
      lock.unlock();
      this->Finish(status);
    }
  }

  std::mutex mutex_;
  std::deque<T> queue_;                 // the rest under mutex_
  std::size_t queued_ = 0;              // bytes that these take
  std::optional<grpc::Status> status_;  // set: nothing more is queued
  bool writing_ = false;
  bool finished_ = false;
  T current_;  // being written while writing_

  std::function<void()> on_done_;
  std::function<void()> on_drained_;
  std::shared_ptr<Stream> self_;  // gRPC's reference
};

}  // namespace amem
