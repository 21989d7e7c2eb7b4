#include "daemon/base/service_manager.h"

#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace amem {
namespace {

/// A manager whose queue is full for so long gets no message.
constexpr timeval kPatience{.tv_sec = 1, .tv_usec = 0};

std::string variable(const char* name) {
  const char* const value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): before threads
  return value == nullptr ? "" : value;
}

std::string usec(Duration duration) {
  return std::to_string(std::chrono::duration_cast<std::chrono::microseconds>(duration).count());
}

/// Of this process; a variable that its parent has left names another one.
std::optional<Duration> watchdog_of_environment() {
  const std::string pid = variable("WATCHDOG_PID");
  if (!pid.empty() && pid != std::to_string(::getpid())) return std::nullopt;
  const std::string text = variable("WATCHDOG_USEC");
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value <= 0) return std::nullopt;
  return std::chrono::microseconds(value);
}

Result<Fd> connect_to(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.size() < 2 || name.size() >= sizeof address.sun_path ||
      (name[0] != '/' && name[0] != '@'))
    return Status(Code::kInvalidArgument, "this is no address of a Unix socket");
  std::memcpy(address.sun_path, name.data(), name.size());
  if (name[0] == '@') address.sun_path[0] = '\0';
  Fd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket ||
      ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof kPatience) != 0)
    return errno_status(Code::kInternal, "socket", errno);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0)
    return errno_status(Code::kUnavailable, "connect", errno);
  return socket;
}

}  // namespace

ServiceManager::ServiceManager()
    : ServiceManager(variable("NOTIFY_SOCKET"), watchdog_of_environment()) {}

ServiceManager::ServiceManager(const std::string& socket, std::optional<Duration> watchdog) {
  if (socket.empty()) {
    sigevent event{};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGKILL;
    timer_t timer{};
    if (!watchdog) return;
    if (::timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) {
      spdlog::warn("amemd has no watchdog (WATCHDOG_USEC): timer_create: {}", std::strerror(errno));
      return;
    }
    timer_ = timer;
    watchdog_ = watchdog;
    return;
  }
  Result<Fd> connected = connect_to(socket);
  if (!connected.ok()) {
    spdlog::warn("amemd cannot report to its service manager at '{}' (NOTIFY_SOCKET): {}", socket,
                 connected.status().text());
    return;
  }
  socket_ = std::move(connected).value();
  watchdog_ = watchdog;
}

ServiceManager::~ServiceManager() {
  if (timer_) ::timer_delete(*timer_);
}

void ServiceManager::takes(Duration at_most) const { send("EXTEND_TIMEOUT_USEC=" + usec(at_most)); }

bool ServiceManager::ready() const { return send("READY=1"); }

void ServiceManager::reloading(Duration at_most) const {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const auto since = std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
  send("RELOADING=1\nMONOTONIC_USEC=" + usec(since));
  takes(at_most);
  guard(false);
}

void ServiceManager::stopping(Duration at_most) const {
  send("STOPPING=1");
  takes(at_most);
}

void ServiceManager::status(std::string_view text) const {
  std::string line(text);
  std::replace(line.begin(), line.end(), '\n', ' ');
  send("STATUS=" + line);
}

void ServiceManager::alive() const {
  itimerspec left{};
  if (timer_ && ::timer_gettime(*timer_, &left) == 0 &&
      left.it_value.tv_sec + left.it_value.tv_nsec > 0)
    kill_after(*watchdog_);
  if (watchdog_) send("WATCHDOG=1");
}

void ServiceManager::guard(bool on) const {
  const Duration time = on && watchdog_ ? *watchdog_ : Duration{};
  if (timer_) kill_after(time);
  if (watchdog_) send("WATCHDOG_USEC=" + usec(time));
}

void ServiceManager::kill_after(Duration time) const {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
  itimerspec when{};
  when.it_value.tv_sec = seconds.count();
  when.it_value.tv_nsec = std::chrono::nanoseconds(time - seconds).count();
  ::timer_settime(*timer_, 0, &when, nullptr);
}

bool ServiceManager::send(const std::string& lines) const {
  if (!socket_) return false;
  if (::send(socket_.get(), lines.data(), lines.size(), MSG_NOSIGNAL) >= 0) return true;
  spdlog::warn("amemd cannot report to its service manager ({}): {}",
               lines.substr(0, lines.find('=')), std::strerror(errno));
  return false;
}

}  // namespace amem
