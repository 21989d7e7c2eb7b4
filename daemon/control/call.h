// ControlCall: the life of a call of the control API. All calls have the same rules:
//
// - It begins on the loop's thread, unless its caller has gone by then. It is charged to its
//   caller's owner. A refusal ends it.
// - When its caller hangs up, or its deadline has passed, what waits for it is told, and it ends.
//   What it has begun goes on.
// - It ends once, with a status. A stream first writes what has been pushed.
// - What it was charged is given back when gRPC has done with it.
//
// An AnswerCall has one message. This one and the request are gRPC's, and there until the call has
// ended. A Stream has any number.
//
// For the loop's thread, except what gRPC calls.
#pragma once

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/status.h"
#include "daemon/base/event_loop.h"
#include "daemon/broker/broker.h"
#include "daemon/owners/account.h"
#include "daemon/owners/caller.h"

namespace amem {

class ControlCall {
 public:
  virtual ~ControlCall() = default;
  ControlCall(const ControlCall&) = delete;
  ControlCall& operator=(const ControlCall&) = delete;

  const Caller& caller() const { return *caller_; }
  bool ended() const { return status_.has_value(); }
  /// The caller has gone. Any thread.
  bool gone() const { return gone_; }
  /// No effect once it has ended.
  void end(const Status& status);
  /// `forget` runs when the caller goes before the end; at once if the call has ended.
  void on_gone(std::function<void()> forget);

 protected:
  explicit ControlCall(EventLoop& loop) : loop_(loop) {}
  /// Besides what it had when it began.
  Status charge(const Amounts& amounts);
  /// Takes the next step, if none is under way: with status_ the last. Called again after each.
  virtual void next() = 0;

  // ---- gRPC's threads ----
  void cancelled();
  void done();

  EventLoop& loop_;
  std::shared_ptr<ControlCall> self_;   // gRPC's reference
  std::optional<grpc::Status> status_;  // set: it has ended

 private:
  friend class Calls;
  /// False: it has been refused, or its caller has gone. Nothing: nobody calls any more.
  bool begins(std::optional<Caller> caller, std::uint64_t backlog);

  std::atomic<bool> gone_ = false;
  std::optional<Caller> caller_;
  std::vector<Charge> charges_;
  std::function<void()> forget_;
};

class AnswerCall final : public ControlCall, public grpc::ServerUnaryReactor {
 public:
  /// Bytes that it is charged for before its work. More than that have only answers of calls that
  /// change nothing, so what is refused has done nothing.
  static constexpr std::size_t kBacklog = 1024;

  explicit AnswerCall(EventLoop& loop) : ControlCall(loop) {}
  /// Ends with what `work` returns, and with what it has put into `response`, which is charged for
  /// while it is on its way.
  template <class Work>
  void give(google::protobuf::Message& response, const Work& work) {
    if (ended()) return;
    Status status = work(caller());
    const std::size_t size = response.SpaceUsedLong() + response.ByteSizeLong();
    Amounts bytes;
    bytes[Resource::kQueuedBytes] = size - std::min(size, kBacklog);
    if (status.ok()) status = charge(bytes);
    if (!status.ok()) response.Clear();
    end(status);
  }

 private:
  void next() override {
    if (status_ && !std::exchange(finished_, true)) Finish(*status_);
  }
  void OnCancel() override { cancelled(); }
  void OnDone() override { done(); }

  bool finished_ = false;
};

template <class T>
class Stream final : public ControlCall, public grpc::ServerWriteReactor<T> {
 public:
  /// Bytes that may wait for a caller that reads too slowly. It is charged for them.
  static constexpr std::size_t kBacklog = 256 << 10;

  explicit Stream(EventLoop& loop) : ControlCall(loop) {}
  /// No effect once it has ended.
  void push(T message) {
    if (ended()) return;
    waiting_ += cost(message);
    queue_.push_back(std::move(message));
    next();
  }
  /// Like push(), unless kBacklog waits already: then false.
  bool try_push(T message) {
    if (!ended() && waiting_ >= kBacklog) return false;
    push(std::move(message));
    return true;
  }
  /// `more` pushes something or ends the call: now, and whenever all that was pushed is written.
  void feed(std::function<void(Stream&)> more) {
    more_ = std::move(more);
    more_(*this);
  }
  /// Tells the caller that the call has been taken up, before there is anything to send.
  void accept() {
    if (ended() || std::exchange(writing_, true)) return;
    this->StartSendInitialMetadata();
  }

 private:
  static std::size_t cost(const T& message) { return sizeof message + message.ByteSizeLong(); }

  void next() override {
    if (this->gone()) queue_.clear();
    if (writing_ || (queue_.empty() && !status_)) return;
    writing_ = true;
    if (queue_.empty()) return this->Finish(*status_);
    batch_.swap(queue_);
    this->StartWrite(&batch_.front());
  }
  void written() {
    writing_ = false;
    next();
    if (!writing_ && more_) more_(*this);
  }

  // ---- gRPC's threads ----
  /// The loop has no work with what follows in the batch.
  void OnWriteDone(bool ok) override {
    waiting_ -= cost(batch_.front());
    batch_.pop_front();
    if (ok && !batch_.empty()) return this->StartWrite(&batch_.front());
    batch_.clear();
    stepped(ok);
  }
  void OnSendInitialMetadataDone(bool ok) override { stepped(ok); }
  void stepped(bool ok) {
    if (!ok) cancelled();
    this->loop_.post([this, self = this->self_] { written(); });
  }
  void OnCancel() override { cancelled(); }
  void OnDone() override { done(); }

  std::deque<T> queue_;
  std::deque<T> batch_;                   // gRPC's threads while writing_
  std::atomic<std::size_t> waiting_ = 0;  // bytes of both
  bool writing_ = false;                  // or finished
  std::function<void(Stream&)> more_;
};

/// The calls of a service.
class Calls {
 public:
  /// Who calls; nothing: nobody any more. Any thread.
  using CallerOf = std::function<std::optional<Caller>(const grpc::CallbackServerContext*)>;

  /// The loop outlives the calls.
  Calls(EventLoop& loop, CallerOf caller_of) : loop_(loop), caller_of_(std::move(caller_of)) {}

  // ---- gRPC's threads ----
  std::optional<Caller> caller_of(const grpc::CallbackServerContext* context) const {
    return caller_of_(context);
  }
  /// `begin` gets the call, an AnswerCall or a Stream, on the loop's thread.
  template <class Kind>
  Kind* begin(const grpc::CallbackServerContext* context,
              std::function<void(const std::shared_ptr<Kind>&)> begin) const {
    const auto call = std::make_shared<Kind>(loop_);
    call->self_ = call;
    loop_.post([call, caller = caller_of_(context), begin = std::move(begin)] {
      if (call->begins(caller, Kind::kBacklog)) begin(call);
    });
    return call.get();
  }
  /// As AnswerCall::give().
  template <class Response, class Work>
  AnswerCall* on_loop(const grpc::CallbackServerContext* context, Response* response,
                      Work work) const {
    return begin<AnswerCall>(context, [response, work](const std::shared_ptr<AnswerCall>& call) {
      call->give(*response, work);
    });
  }
  /// As on_loop(), once the broker has looked at the devices. It outlives the calls.
  template <class Response, class Work>
  AnswerCall* on_look(Broker& broker, const grpc::CallbackServerContext* context,
                      Response* response, Work work) const {
    return begin<AnswerCall>(
        context, [&broker, response, work](const std::shared_ptr<AnswerCall>& call) {
          // An amemd that ends looks at no device any more.
          const std::shared_ptr<AnswerCall> ends(call.get(), [call](AnswerCall* it) {
            it->end({Code::kUnavailable, "amemd is ending"});
          });
          broker.look_at_devices([ends, response, work] { ends->give(*response, work); });
        });
  }

 private:
  EventLoop& loop_;
  const CallerOf caller_of_;
};

}  // namespace amem
