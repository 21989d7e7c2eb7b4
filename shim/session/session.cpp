#include "shim/session/session.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <iterator>
#include <numeric>
#include <optional>
#include <string>
#include <system_error>

#include "shim/base/log.h"
#include "shim/base/no_cancel.h"

namespace amem::shim {
namespace {

/// A program's own and those of a resume's packet.
constexpr rlim_t kDescriptors = 1024;

Status status_of(const amem_v1_Reply& reply) {
  if (reply.code == 0) return {};
  return {static_cast<Code>(reply.code), reply.text};
}

Token key_of(const amem_v1_Welcome& welcome) {
  Token key;
  std::memcpy(key.data(), welcome.session, key.size());
  return key;
}

/// For a packet, which closes what goes with it. None where the process has no space for one: the
/// broker misses it then.
std::vector<Fd> copy_of(const Fd* fd) {
  std::vector<Fd> fds;
  if (fd == nullptr) return fds;
  if (Fd copy = fd->duplicate()) fds.push_back(std::move(copy));
  return fds;
}

/// The broker, or whoever is there, will not change its mind about this rank.
bool final_refusal(Code code) {
  return code == Code::kNotFound || code == Code::kFailedPrecondition ||
         code == Code::kPermissionDenied || code == Code::kInvalidArgument;
}

std::string seconds(std::chrono::milliseconds time) {
  const auto tenths = time.count() / 100;
  return std::to_string(tenths / 10) + (tenths % 10 != 0 ? "." + std::to_string(tenths % 10) : "") +
         " s";
}

}  // namespace

std::vector<std::uint64_t> given_by(const amem_v1_Reply& reply) {
  if (reply.code != 0) return {};
  if (reply.which_result == amem_v1_Reply_redeemed_tag) return {reply.result.redeemed.id};
  if (reply.which_result != amem_v1_Reply_created_tag) return {};
  const amem_v1_Created& created = reply.result.created;
  std::vector<std::uint64_t> ids(std::clamp<std::size_t>(created.count, 1, kMaxMapsPerMessage));
  std::iota(ids.begin(), ids.end(), created.id);
  return ids;
}

Status Session::connect(const std::string& socket_path, const Identity& identity,
                        std::chrono::milliseconds reconnect) {
  path_ = socket_path;
  identity_ = identity;
  reconnect_ = reconnect;
  const Status first = join();
  if (first.code() != Code::kAborted || reconnect.count() <= 0) return first;
  // That broker may have put this rank on record, and then the next one waits for it.
  log_warn(first.text() + ". This rank of group " + identity.group + " tries to join for " +
           seconds(reconnect) + " (AMEM_RECONNECT)");
  Retries retries(Clock::now(), reconnect, static_cast<unsigned>(::getpid()));
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (answered_.wait_until(lock, retries.next(Clock::now()), [&] { return ending_; }))
        return first;
    }
    const Status s = join();
    if (s.code() == Code::kAborted) retries.again(Clock::now());
    if (s.ok() || final_refusal(s.code()) || retries.over(Clock::now())) return s;
  }
}

Status Session::join() {
  NewSocket socket(joining_);
  if (Status s = socket.connect(path_); !s.ok()) return s;
  Result<amem_v1_Welcome> welcome = say_hello(socket.get(), path_, identity_);
  if (!welcome.ok()) return welcome.status();
  welcome_ = welcome.value();
  heed(welcome_);
  key_ = key_of(welcome_);
  socket_ = socket.take();
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
  online_.store(true);
  outgoing_.connect(socket_.get());
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
    online_.store(false);
    outgoing_.disconnect();
    socket_.reset();  // the broker counts on no rank that nobody speaks for
    started = {Code::kUnavailable,
               std::string("cannot start a thread for the session: ") + error.what()};
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

Result<ReplyPacket> Session::call(Message& message, std::chrono::milliseconds deadline,
                                  std::chrono::microseconds soon, const Fd* fd) {
  Unanswered waiting;
  waiting.fd = fd;
  return call(message, deadline, soon, waiting);
}

Result<std::uint64_t> Session::await_closed(const amem_v1_AwaitClosed& what,
                                            std::chrono::milliseconds deadline,
                                            std::chrono::microseconds soon) {
  const auto request = new_message(amem_v1_SessionMessage_await_closed_tag);
  request->body.await_closed = what;
  Unanswered waiting;
  waiting.of_this_broker = true;
  const Result<ReplyPacket> answer = call(*request, deadline, soon, waiting);
  if (!answer.ok()) return answer.status();
  const amem_v1_Reply& reply = answer.value().reply;
  return reply.which_result == amem_v1_Reply_all_closed_tag ? reply.result.all_closed.spare_bytes
                                                            : 0;
}

Result<ReplyPacket> Session::call(Message& message, std::chrono::milliseconds deadline,
                                  std::chrono::microseconds soon, Unanswered& waiting) {
  const NoCancel no_cancel;
  const auto begin = Clock::now();
  waiting.request = &message;
  if (message.which_body == amem_v1_SessionMessage_group_request_tag)
    waiting.thread = static_cast<pid_t>(::syscall(SYS_gettid));
  std::unique_lock lock(mutex_);
  message.seq = next_seq_++;
  waiting_[message.seq] = &waiting;
  lock.unlock();
  const auto given_up = [&] { return !alive() || (waiting.of_this_broker && !online()); };
  Status sent = given_up() ? Status(Code::kUnavailable, "the broker has ended")
                           : send(message, copy_of(waiting.fd), &waiting);
  if (sent.ok() && soon.count() > 0) look_for_answer(waiting, begin + soon);
  lock.lock();
  if (waiting.withdrawn) post_withdraw(message.seq);  // which may have come before the request
  const auto answered = [&] { return waiting.done || given_up(); };
  if (sent.ok())
    answered_.wait_until(lock, begin + deadline, [&] { return answered() || ending_; });
  if (sent.ok() && ending_)
    answered_.wait_until(lock, std::min(begin + deadline, Clock::now() + kEndDeadline), answered);
  waiting_.erase(message.seq);
  if (!sent.ok()) return sent;
  if (!waiting.done) {
    if (given_up()) return Status(Code::kUnavailable, "the broker has ended");
    if (ending_)
      return Status(Code::kUnavailable, "the process is ending and no longer waits for the broker");
    const char* const what = online_.load() ? "the broker did not answer in "
                                            : "the broker has ended, and no other has started in ";
    return Status(Code::kDeadlineExceeded, what + std::to_string(deadline.count()) + " ms");
  }
  if (Status s = status_of(waiting.answer.reply); !s.ok()) return s;
  return std::move(waiting.answer);
}

void Session::withdraw(pid_t thread) {
  const NoCancel no_cancel;
  std::lock_guard lock(mutex_);
  for (const auto& [seq, request] : waiting_) {
    if (request->thread != thread || request->done) continue;
    request->withdrawn = true;
    post_withdraw(seq);
  }
}

void Session::post_withdraw(std::uint64_t request) {
  if (!withdraws_ || !online()) return;
  const auto message = new_message(amem_v1_SessionMessage_withdraw_tag);
  message->body.withdraw.request = request;
  post(*message);
}

void Session::look_for_answer(const Unanswered& waiting, Clock::time_point until) {
  const auto seen = [&] { return waiting.done.load(std::memory_order_acquire); };
  while (!seen() && online_.load(std::memory_order_acquire) && Clock::now() < until) {
    pollfd fd{socket_.get(), POLLIN, 0};
    if (::poll(&fd, 1, 0) <= 0) continue;
    std::unique_lock reading(reading_);
    // What a broker says that has been given up would not be in the list of what the rank holds.
    if (!online_.load(std::memory_order_relaxed)) return;
    found_.status = receive(socket_.get(), MSG_DONTWAIT, found_.packet);
    if (found_.status.code() == Code::kResourceExhausted) continue;  // another thread has it
    const bool ended = !found_.status.ok();
    const bool reply =
        !ended && found_.packet.message.which_body == amem_v1_SessionMessage_reply_tag;
    if (reply && deliver(found_.packet)) continue;
    left_.push_back(std::move(found_));
    wake();
    if (ended) return;
  }
}

void Session::post(const Message& message, std::vector<Fd> fds) {
  if (ended()) return;
  const NoCancel no_cancel;
  if (Status s = send(message, std::move(fds), nullptr); !s.ok()) log_debug(s.text());
}

Status Session::send(const Message& message, std::vector<Fd> fds, Unanswered* request) {
  Result<std::string> bytes = encode(message);
  if (!bytes.ok()) return bytes.status();
  if (outgoing_.add({std::move(bytes).value(), std::move(fds)},
                    request != nullptr ? &request->sent : nullptr))
    wake();
  return {};
}

/// Notes what this broker does and another may not do.
void Session::heed(const amem_v1_Welcome& welcome) {
  withdraws_ = welcome.withdraws;
  has_spares_ = welcome.has_spares;
  takes_parts_ = welcome.takes_parts;
}

void Session::taken(std::uint64_t id) {
  std::lock_guard lock(mutex_);
  const auto it = std::find(given_.begin(), given_.end(), id);
  if (it != given_.end()) given_.erase(it);
}

void Session::wake() {
  const NoCancel no_cancel;
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

bool Session::ending() {
  std::lock_guard lock(mutex_);
  return ending_;
}

void Session::stop(Clock::time_point deadline) {
  const NoCancel no_cancel;
  std::unique_lock lock(mutex_);
  stopped_ = true;
  served_.wait_until(lock, deadline, [&] { return !serving_; });
}

/// Runs work that may use the driver: not once the driver is about to end.
template <class Function>
void Session::work(const Function& work) {
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return;
    serving_ = true;
  }
  const Served served(*this);
  work();
}

Session::Served::~Served() {
  std::lock_guard lock(session_.mutex_);
  session_.serving_ = false;
  session_.served_.notify_all();
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
  std::optional<Clock::time_point> next = outgoing_.full();
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
  const std::vector<std::uint64_t> given = given_by(packet.message.body.reply);
  given_.insert(given_.end(), given.begin(), given.end());
  it->second->answer = {packet.message.body.reply, std::move(packet.fds)};
  it->second->done.store(true, std::memory_order_release);
  answered_.notify_all();
  return true;
}

/// Handles one packet, first those that others have left. Not OK: why the connection has ended.
Status Session::serve_next(bool readable) {
  Incoming in;
  {
    std::lock_guard reading(reading_);
    if (!left_.empty()) {
      in = std::move(left_.front());
      left_.pop_front();
    } else if (readable) {
      in.status = receive(socket_.get(), MSG_DONTWAIT, in.packet);
    } else {
      return {};
    }
    if (!left_.empty()) wake();
  }
  if (in.status.code() == Code::kResourceExhausted) return {};
  if (!in.status.ok()) {
    if (in.status.code() != Code::kUnavailable) log_error("from the broker: " + in.status.text());
    return in.status;
  }
  if (in.packet.message.which_body != amem_v1_SessionMessage_reply_tag)
    work([&] { handler_->command(in.packet); });
  else if (!deliver(in.packet))
    handler_->unclaimed(in.packet);  // a descriptor beside it closes with the packet
  return {};
}

/// Sleeps until one of the descriptors has something, or a wake(). The first one is for that.
void Session::sleep(pollfd* fds, std::size_t count, int milliseconds) {
  fds[0] = {wake_.get(), POLLIN, 0};
  if (::poll(fds, count, milliseconds) <= 0)
    for (std::size_t i = 0; i < count; ++i) fds[i].revents = 0;
  if (fds[0].revents == 0) return;
  std::uint64_t wakes = 0;
  [[maybe_unused]] const ssize_t n = ::read(wake_.get(), &wakes, sizeof wakes);
}

/// Until the connection ends, and then why. kUnavailable: the broker's end is closed.
Status Session::serve_broker() {
  for (;;) {
    // No deadline but the tasks' and the waiting messages': this thread's whole job is to wait for
    // the broker, whose death ends the wait.
    const short events = outgoing_.full() ? POLLIN | POLLOUT : POLLIN;
    pollfd fds[2] = {{}, {socket_.get(), events, 0}};
    sleep(fds, 2, milliseconds_to_wait());
    work([&] { run_due_tasks(); });
    if (!outgoing_.flush()) return {Code::kDeadlineExceeded, "the broker reads nothing"};
    if (Status s = serve_next((fds[1].revents & ~POLLOUT) != 0); !s.ok()) return s;
  }
}

void Session::serve() {
  pthread_setname_np(pthread_self(), "amem-session");
  try {
    while (come_back(serve_broker())) {
    }
  } catch (const std::exception& error) {
    // The process has no memory left, or no thread. The program may go on without a broker; what
    // this one has been told and has not done is not known, so nothing of it is answered.
    log_error(std::string("the session with the broker ends: the shim has failed: ") +
              error.what());
    (void)leave({Code::kInternal, "the shim has failed"});
  }
  set_alive(false);
  ended_.store(true, std::memory_order_release);
  work([&] { handler_->lost(); });
}

void Session::set_alive(bool alive) {
  std::lock_guard lock(mutex_);
  alive_.store(alive, std::memory_order_release);
  answered_.notify_all();
}

/// Nothing is sent or read any more. The result: why the connection has ended.
Status Session::leave(const Status& end) {
  std::lock_guard reading(reading_);
  online_.store(false, std::memory_order_release);
  // If a broker has died with something of ours unread, the kernel says so first: its last answers
  // are still here.
  while (end.code() == Code::kUnavailable) {
    Packet packet;
    if (!receive(socket_.get(), MSG_DONTWAIT, packet).ok()) break;
    if (packet.message.which_body == amem_v1_SessionMessage_reply_tag) deliver(packet);
  }
  left_.clear();
  outgoing_.disconnect();
  ::shutdown(socket_.get(), SHUT_RDWR);
  {
    std::lock_guard lock(mutex_);
    answered_.notify_all();  // those who wait for this broker only
  }
  const Status failed = outgoing_.failure();
  return failed.ok() ? end : failed;
}

/// False: the session is lost.
bool Session::come_back(const Status& end) {
  Status why = leave(end);
  bool hope = why.code() == Code::kUnavailable && key_ != Token() && reconnect_.count() > 0;
  if (hope) {
    log_warn("the broker has ended. Rank " + std::to_string(rank_id()) + " of group " +
             identity_.group + " tries to reconnect for " + seconds(reconnect_) +
             " (AMEM_RECONNECT)");
    work([&] { handler_->disconnected(); });
  }
  Retries retries(Clock::now(), reconnect_, static_cast<unsigned>(::getpid()));
  while (hope) {
    if (!idle_until(retries.next(Clock::now()))) return false;
    why = try_to_come_back();
    if (why.ok()) return true;
    log_debug(why.text());
    if (why.code() == Code::kAborted) retries.again(Clock::now());
    hope = !final_refusal(why.code());
    if (!hope || !retries.over(Clock::now())) continue;
    set_alive(false);
    bool waits_for_broker = false;
    if (!ending()) work([&] { waits_for_broker = handler_->waits_for_broker(why, true); });
    if (!waits_for_broker) return false;
    retries.go_on();
  }
  set_alive(false);
  if (!ending()) work([&] { handler_->waits_for_broker(why, false); });
  return false;
}

Status Session::try_to_come_back() {
  NewSocket socket(joining_);
  if (Status s = socket.connect(path_); !s.ok()) return s;
  Comeback comeback = handler_->comes_back([this](auto first) { return mark(std::move(first)); });
  comeback.key = key_;
  const Result<amem_v1_Welcome> welcome = say_hello(socket.get(), path_, identity_, &comeback);
  if (!welcome.ok()) {
    outgoing_.disconnect();
    return welcome.status();
  }
  key_ = key_of(welcome.value());
  {
    std::lock_guard reading(reading_);
    if (::dup3(socket.get(), socket_.get(), O_CLOEXEC) < 0) {
      outgoing_.disconnect();
      return errno_status(Code::kUnavailable, "dup3 of a session", errno);
    }
    online_.store(true, std::memory_order_release);
  }
  set_alive(true);
  if (outgoing_.connect(socket_.get())) wake();
  {
    std::lock_guard lock(mutex_);
    heed(welcome.value());
    for (const auto& [seq, request] : waiting_)
      if (request->withdrawn) post_withdraw(seq);
  }
  log_warn("rank " + std::to_string(rank_id()) + " of group " + identity_.group +
           " has reconnected to the broker at " + path_);
  work([&] { handler_->returned(); });
  return {};
}

std::vector<std::uint64_t> Session::mark(std::vector<SendQueue::Parcel> first) {
  std::lock_guard lock(mutex_);
  outgoing_.collect(std::move(first));
  std::vector<Unanswered*> requests;
  for (const auto& [seq, request] : waiting_)
    if (!request->done.load(std::memory_order_relaxed)) requests.push_back(request);
  std::sort(requests.begin(), requests.end(), [](const Unanswered* a, const Unanswered* b) {
    return a->request->seq < b->request->seq;
  });
  for (Unanswered* request : requests) {
    Result<std::string> bytes = encode(*request->request);
    if (bytes.ok()) outgoing_.add({std::move(bytes).value(), copy_of(request->fd)}, &request->sent);
  }
  return given_;
}

/// Runs tasks meanwhile. False: the driver is about to end.
bool Session::idle_until(Clock::time_point when) {
  for (;;) {
    work([&] { run_due_tasks(); });
    {
      std::lock_guard lock(mutex_);
      if (stopped_) return false;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(when - Clock::now());
    if (left.count() <= 0) return true;
    const int task = milliseconds_to_wait();
    pollfd fds[1];
    sleep(
        fds, 1,
        task < 0 ? static_cast<int>(left.count()) : std::min(task, static_cast<int>(left.count())));
  }
}

void Session::abandon_after_fork() noexcept {
  alive_.store(false, std::memory_order_release);
  ended_.store(true, std::memory_order_release);
  online_.store(false, std::memory_order_release);
  if (const int joining = joining_.exchange(-1); joining >= 0) ::close(joining);
  socket_.reset();
  wake_.reset();
}

}  // namespace amem::shim
