#include "shim/session/session.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <optional>
#include <string>
#include <system_error>

#include "common/peer.h"
#include "common/version.h"
#include "shim/base/log.h"

namespace amem::shim {
namespace {

constexpr std::chrono::seconds kHelloDeadline{10};
/// A program's own and those of a resume's packet.
constexpr rlim_t kDescriptors = 1024;

void set_timeout(int socket, int option, std::chrono::microseconds timeout) {
  const timeval value{timeout.count() / 1'000'000, timeout.count() % 1'000'000};
  ::setsockopt(socket, SOL_SOCKET, option, &value, sizeof value);
}

Result<Fd> connect_to(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return Status(Code::kInvalidArgument, "the socket path " + path + " is too long");
  path.copy(address.sun_path, path.size());
  Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket) return errno_status(Code::kUnavailable, "socket", errno);
  set_timeout(socket.get(), SO_SNDTIMEO, kHelloDeadline);  // also where too many wait to connect
  int connected = 0;
  do
    connected =
        ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  while (connected != 0 && errno == EINTR);
  if (connected != 0)
    return errno_status(Code::kUnavailable, "connecting to the broker at " + path, errno);
  if (Status s = check_broker(socket.get(), path); !s.ok()) return s;
  return socket;
}

Status status_of(const amem_v1_Reply& reply) {
  if (reply.code == 0) return {};
  return {static_cast<Code>(reply.code), reply.text};
}

}  // namespace

Status Session::connect(const std::string& socket_path, const Identity& identity) {
  Result<Fd> connected = connect_to(socket_path);
  if (!connected.ok()) return connected.status();
  Fd socket = std::move(connected).value();

  Message hello = amem_v1_SessionMessage_init_zero;
  hello.seq = next_seq_++;
  hello.which_body = amem_v1_SessionMessage_hello_tag;
  amem_v1_Hello& h = hello.body.hello;
  h.protocol = kProtocolVersion;
  set_text(h.version, kVersion);
  set_text(h.group, identity.group);
  set_text(h.program, identity.program);
  h.rank = identity.rank;
  h.pid = ::getpid();
  if (Status sent = send_message(socket.get(), hello); !sent.ok()) return sent;

  set_timeout(socket.get(), SO_RCVTIMEO, kHelloDeadline);
  Packet answer;
  if (Status s = receive(socket.get(), 0, answer); !s.ok()) {
    if (s.code() == Code::kResourceExhausted)
      return {Code::kDeadlineExceeded, "the broker at " + socket_path + " did not answer in 10 s"};
    return s;
  }
  if (::fcntl(socket.get(), F_SETFL, O_NONBLOCK) != 0)
    return errno_status(Code::kUnavailable, "fcntl on a session", errno);
  if (answer.message.which_body != amem_v1_SessionMessage_reply_tag)
    return {Code::kInternal,
            "the broker at " + socket_path + " answered Hello with something else"};
  const amem_v1_Reply& reply = answer.message.body.reply;
  if (Status s = status_of(reply); !s.ok()) return s;
  if (reply.which_result != amem_v1_Reply_welcome_tag)
    return {Code::kInternal, "the broker at " + socket_path + " sent no Welcome"};

  welcome_ = reply.result.welcome;
  socket_ = std::move(socket);
  return {};
}

Status Session::start(Handler& handler) {
  wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_) {
    const int why = errno;
    socket_.reset();
    return errno_status(Code::kUnavailable, "eventfd", why);
  }
  handler_ = &handler;
  alive_.store(true, std::memory_order_release);

  // The program's signals are none of the service thread's business.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Status started;
  try {
    // A thread of its own: neither the program nor the first reply waits for this.
    std::thread([any = wake_.duplicate()] {
      reserve_descriptors(any.get(), kDescriptors);
    }).detach();
    std::thread([this] { serve(); }).detach();
  } catch (const std::system_error& error) {
    alive_.store(false, std::memory_order_release);
    socket_.reset();  // the broker counts on no rank that nobody speaks for
    started = {Code::kUnavailable, std::string("no thread for the session: ") + error.what()};
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

Result<Packet> Session::call(Message& message, std::chrono::milliseconds deadline,
                             std::chrono::microseconds soon) {
  const auto begin = Clock::now();
  Unanswered waiting;
  std::unique_lock lock(mutex_);
  message.seq = next_seq_++;
  waiting_[message.seq] = &waiting;
  lock.unlock();
  Status sent = alive() ? send(message) : Status(Code::kUnavailable, "the broker is gone");
  if (sent.ok() && soon.count() > 0) look_for_answer(waiting, begin + soon);
  lock.lock();
  const auto answered = [&] { return waiting.done || !alive(); };
  if (sent.ok())
    answered_.wait_until(lock, begin + deadline, [&] { return answered() || ending_; });
  if (sent.ok() && ending_)
    answered_.wait_until(lock, std::min(begin + deadline, Clock::now() + kEndDeadline), answered);
  waiting_.erase(message.seq);
  if (!sent.ok()) return sent;
  if (!waiting.done) {
    if (!alive()) return Status(Code::kUnavailable, "the broker is gone");
    if (ending_)
      return Status(Code::kUnavailable, "the process is ending and waits for the broker no longer");
    return Status(Code::kDeadlineExceeded,
                  "the broker did not answer in " + std::to_string(deadline.count()) + " ms");
  }
  if (Status s = status_of(waiting.packet.message.body.reply); !s.ok()) return s;
  return std::move(waiting.packet);
}

void Session::look_for_answer(const Unanswered& waiting, Clock::time_point until) {
  const auto seen = [&] { return waiting.done.load(std::memory_order_acquire); };
  while (!seen() && alive() && Clock::now() < until) {
    pollfd fd{socket_.get(), POLLIN, 0};
    if (::poll(&fd, 1, 0) <= 0) continue;
    std::unique_lock reading(reading_);
    Incoming in;
    in.status = receive(socket_.get(), MSG_DONTWAIT, in.packet);
    if (in.status.code() == Code::kResourceExhausted) continue;  // another thread has it
    const bool reply =
        in.status.ok() && in.packet.message.which_body == amem_v1_SessionMessage_reply_tag;
    if (reply && deliver(in.packet)) continue;
    const bool ended = !in.status.ok();
    left_.push_back(std::move(in));
    wake();
    if (ended) return;
  }
}

void Session::post(const Message& message) {
  if (!alive()) return;
  if (Status s = send(message); !s.ok()) log_debug(s.text());
}

Status Session::send(const Message& message) {
  Result<std::string> bytes = encode(message);
  if (!bytes.ok()) return bytes.status();
  std::lock_guard lock(sending_);
  outgoing_.push_back(std::move(bytes).value());
  flush();
  if (!outgoing_.empty()) wake();
  return {};
}

/// REQUIRES: sending_ is held.
void Session::flush() {
  while (!outgoing_.empty()) {
    const Status sent = send_encoded(socket_.get(), outgoing_.front(), {});
    if (sent.code() == Code::kResourceExhausted) {
      if (!full_since_) full_since_ = Clock::now();
      return;
    }
    full_since_.reset();
    if (sent.ok()) {
      outgoing_.pop_front();
      continue;
    }
    // It would be missed: a free, or an answer. So the session ends with it.
    log_debug(sent.text());
    outgoing_.clear();
    ::shutdown(socket_.get(), SHUT_RDWR);  // the service thread sees it
  }
}

/// False: the broker has read nothing for too long.
bool Session::flush_in_time() {
  std::lock_guard lock(sending_);
  flush();
  if (!full_since_ || Clock::now() - *full_since_ < send_deadline_) return true;
  log_error("the broker has read nothing for " + std::to_string(send_deadline_.count()) +
            " ms: it is stopped, or stuck; this rank gives it up");
  return false;
}

bool Session::is_full() {
  std::lock_guard lock(sending_);
  return full_since_.has_value();
}

void Session::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

void Session::run_at(Clock::time_point when, std::function<void()> task) {
  {
    std::lock_guard lock(mutex_);
    tasks_.push_back({when, std::move(task)});
  }
  wake();
}

void Session::end() {
  std::lock_guard lock(mutex_);
  ending_ = true;
  answered_.notify_all();
}

void Session::stop(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  stopped_ = true;
  served_.wait_until(lock, deadline, [&] { return !serving_; });
}

/// What may use the driver: not once that is about to end.
template <class Work>
void Session::work(const Work& work) {
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return;
    serving_ = true;
  }
  work();
  std::lock_guard lock(mutex_);
  serving_ = false;
  served_.notify_all();
}

void Session::run_due_tasks() {
  std::vector<DueTask> due;
  {
    std::lock_guard lock(mutex_);
    const auto later = std::stable_partition(
        tasks_.begin(), tasks_.end(),
        [now = Clock::now()](const DueTask& task) { return task.when <= now; });
    due.assign(std::make_move_iterator(tasks_.begin()), std::make_move_iterator(later));
    tasks_.erase(tasks_.begin(), later);
  }
  for (DueTask& task : due) task.run();
}

/// For poll: -1 when there is nothing to be done at a certain time.
int Session::milliseconds_to_wait() {
  std::optional<Clock::time_point> next;
  {
    std::lock_guard lock(sending_);
    if (full_since_) next = *full_since_ + send_deadline_;
  }
  std::lock_guard lock(mutex_);
  for (const DueTask& task : tasks_)
    if (!stopped_ && (!next || task.when < *next)) next = task.when;
  if (!next) return -1;
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(*next - Clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(wait.count(), 0, 60'000));
}

/// False: its caller has given up, and the packet is as it was.
bool Session::deliver(Packet& packet) {
  std::lock_guard lock(mutex_);
  const auto it = waiting_.find(packet.message.seq);
  if (it == waiting_.end()) return false;
  it->second->packet = std::move(packet);
  it->second->done.store(true, std::memory_order_release);
  answered_.notify_all();
  return true;
}

/// Handles one packet, first those that others have left. False: the session has ended.
bool Session::serve_next(bool readable) {
  Incoming in;
  {
    std::lock_guard reading(reading_);
    if (!left_.empty()) {
      in = std::move(left_.front());
      left_.pop_front();
    } else if (readable) {
      in.status = receive(socket_.get(), MSG_DONTWAIT, in.packet);
    } else {
      return true;
    }
    if (!left_.empty()) wake();
  }
  if (in.status.code() == Code::kResourceExhausted) return true;
  if (!in.status.ok()) {
    if (in.status.code() != Code::kUnavailable) log_error("from the broker: " + in.status.text());
    return false;
  }
  if (in.packet.message.which_body != amem_v1_SessionMessage_reply_tag)
    work([&] { handler_->command(in.packet); });
  else if (!deliver(in.packet))
    handler_->unclaimed(in.packet);  // a descriptor beside it closes with the packet
  return true;
}

void Session::serve() {
  pthread_setname_np(pthread_self(), "amem-session");
  pollfd fds[2] = {{socket_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
  for (;;) {
    // No deadline but the tasks' and that of messages that wait: this thread's whole job is to wait
    // for the broker, whose death ends the wait.
    fds[0].events = static_cast<short>(is_full() ? POLLIN | POLLOUT : POLLIN);
    if (::poll(fds, 2, milliseconds_to_wait()) < 0 && errno != EINTR) break;
    if (fds[1].revents != 0) {
      std::uint64_t count = 0;
      [[maybe_unused]] const ssize_t n = ::read(wake_.get(), &count, sizeof count);
    }
    work([&] { run_due_tasks(); });
    if (!flush_in_time()) break;
    if (!serve_next((fds[0].revents & ~POLLOUT) != 0)) break;
  }
  {
    std::lock_guard lock(mutex_);
    alive_.store(false, std::memory_order_release);
    answered_.notify_all();
  }
  ::shutdown(socket_.get(), SHUT_RDWR);  // not closed: other threads may be about to use the number
  handler_->lost();
}

void Session::abandon_after_fork() noexcept {
  alive_.store(false, std::memory_order_release);
  socket_.reset();
  wake_.reset();
}

}  // namespace amem::shim
