// Talk: both directions of a bidirectional call, as one end has them: what it says is queued, what
// it hears comes one after the other, on gRPC's threads.
//
// `Base`: grpc::ServerBidiReactor or grpc::ClientBidiReactor. `In`, `Out`: messages with a repeated
// field `each`; one write takes all that wait. push(): any thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <mutex>
#include <type_traits>
#include <utility>

namespace amem {

template <class Base, class In, class Out>
class Talk : public Base {
 public:
  using Item = std::remove_pointer_t<decltype(std::declval<Out&>().add_each())>;

  /// No effect once the call has ended, or is about to. `more`: another item follows at once, and
  /// may go in the same message.
  void push(Item item, bool more = false) {
    std::unique_lock lock(mutex_);
    if (closed_) return;
    queue_.push_back(std::move(item));
    if (!more) next(lock);
  }

 protected:
  virtual void heard(In items) = 0;
  /// Nothing more is heard; `push` has no effect any more. Called once.
  virtual void silent() = 0;
  /// After close(), once what was queued has been written or cannot be.
  virtual void written() {}

  void listen() { this->StartRead(&in_); }
  /// Nothing more is queued.
  void close() {
    std::unique_lock lock(mutex_);
    closed_ = true;
    next(lock);
  }

 private:
  /// The most of one message, which has to be far below gRPC's limit of 4 MiB.
  static constexpr std::size_t kAtOnce = 512;

  void OnReadDone(bool ok) final {
    if (ok) {
      heard(std::move(in_));
      in_ = In();
      return listen();
    }
    silent();
  }

  void OnWriteDone(bool ok) final {
    std::unique_lock lock(mutex_);
    writing_ = false;
    if (!ok) queue_.clear();
    next(lock);
  }

  /// gRPC may call back at once, so it is called without the lock.
  void next(std::unique_lock<std::mutex>& lock) {
    if (writing_ || finished_) return;
    if (!queue_.empty()) {
      writing_ = true;
      out_.Clear();
      for (std::size_t i = 0; i < kAtOnce && !queue_.empty(); ++i) {
        *out_.add_each() = std::move(queue_.front());
        queue_.pop_front();
      }
      lock.unlock();
      this->StartWrite(&out_);
    } else if (closed_) {
      finished_ = true;
      lock.unlock();
      written();
    }
  }

  std::mutex mutex_;
  std::deque<Item> queue_;  // the rest under mutex_
  bool writing_ = false;
  bool closed_ = false;
  bool finished_ = false;
  Out out_;  // being written while writing_
  In in_;    // being read
};

}  // namespace amem
