// Stream<T>: the sending half of a server-streaming call, fed from the broker's loop.
//
// push() and finish() queue and return at once; gRPC's threads do the writing. The object lives
// until gRPC has done with the call and the last reference has gone. Any thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

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

  /// No effect once finished or cancelled.
  void push(T message) {
    std::unique_lock lock(mutex_);
    if (status_) return;
    queue_.push_back(std::move(message));
    next(lock);
  }

  /// Like push(), unless `limit` messages wait already: then false.
  bool try_push(T message, std::size_t limit) {
    std::unique_lock lock(mutex_);
    if (status_) return true;
    if (queue_.size() >= limit) return false;
    queue_.push_back(std::move(message));
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
    next(lock);
  }

  void OnCancel() override {
    std::unique_lock lock(mutex_);
    give_up();
    next(lock);
  }

  void OnDone() override {
    if (on_done_) on_done_();
    self_.reset();  // may be the end of this object
  }

  /// REQUIRES: mutex_ held.
  void give_up() {
    queue_.clear();
    if (!status_) status_ = grpc::Status(grpc::StatusCode::CANCELLED, "cancelled by the caller");
  }

  /// Starts the next step, if none is under way. gRPC may call back at once, so it is called
  /// without the lock; `writing_` and `finished_` see to it that nobody else calls it meanwhile.
  void next(std::unique_lock<std::mutex>& lock) {
    if (writing_ || finished_) return;
    if (!queue_.empty()) {
      writing_ = true;
      current_ = std::move(queue_.front());
      queue_.pop_front();
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
  std::optional<grpc::Status> status_;  // set: nothing more is queued
  bool writing_ = false;
  bool finished_ = false;
  T current_;  // being written while writing_

  std::function<void()> on_done_;
  std::shared_ptr<Stream> self_;  // gRPC's reference
};

}  // namespace amem
