// amem-holder: keeps amemd's descriptors while there is no amemd.
//
// Exit status: 0 ended by a signal, or (without --stay) nothing worth keeping is left; 1 cannot
// serve; 2 wrong usage.
#include <fcntl.h>
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "common/version.h"
#include "daemon/base/log_format.h"
#include "daemon/holder/arguments.h"

namespace amem {
namespace {

/// As amemd's lines look: with its own in one file they are told apart by the name.
void set_up_log(const std::string& level, bool json) {
  auto logger =
      std::make_shared<spdlog::logger>("holder", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_formatter(log_formatter(json, "holder: "));
  logger->set_level(spdlog::level::from_str(level));
  spdlog::set_default_logger(std::move(logger));
}

int fail(const Status& status) {
  spdlog::critical("amem-holder cannot serve: {}", status.text());
  return 1;
}

/// What a service manager listens on for us, as sd_listen_fds(3) has it; empty: we listen
/// ourselves.
Fd listener_from_manager() {
  constexpr int kFirst = 3;
  const char* pid = std::getenv("LISTEN_PID");
  const char* count = std::getenv("LISTEN_FDS");
  if (pid == nullptr || count == nullptr || std::to_string(::getpid()) != pid) return Fd();
  int type = 0;
  int listens = 0;
  socklen_t size = sizeof(int);
  if (std::string(count) != "1" || ::getsockopt(kFirst, SOL_SOCKET, SO_TYPE, &type, &size) != 0 ||
      type != SOCK_SEQPACKET ||
      ::getsockopt(kFirst, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) {
    spdlog::warn(
        "the socket that the service manager passes is not a listening SOCK_SEQPACKET socket");
    return Fd();
  }
  ::fcntl(kFirst, F_SETFD, FD_CLOEXEC);
  return Fd(kFirst);
}

int serve(HolderSettings settings) {
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGTERM, SIGINT}) sigaddset(&signals, signal);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  for (int signal : {SIGPIPE, SIGHUP}) ::signal(signal, SIG_IGN);
  const Fd ends(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!raise_descriptor_limit())
    spdlog::warn("cannot raise the limit of open files: {}", std::strerror(errno));

  settings.listener = listener_from_manager();
  EventLoop loop;
  if (Status status = loop.open(); !status.ok()) return fail(status);
  const std::string path = settings.path;
  HolderServer server(loop, std::move(settings), [&] { loop.stop(); });
  if (Status status = server.start(); !status.ok()) return fail(status);
  const EventLoop::WatchId watch = loop.watch(ends.get(), EPOLLIN, [&](std::uint32_t) {
    signalfd_siginfo info{};
    if (::read(ends.get(), &info, sizeof info) != sizeof info) return;
    spdlog::info("amem-holder is ending: signal {} from pid {}", info.ssi_signo, info.ssi_pid);
    loop.stop();
  });
  if (watch == 0) return fail(errno_status(Code::kInternal, "epoll_ctl for signals", errno));
  spdlog::info("amem-holder {} serves {}", kVersion, path);
  loop.run();
  server.shut();
  spdlog::info("amem-holder has ended with {} {}", server.size(),
               server.size() == 1 ? "descriptor" : "descriptors");
  // The kernel closes them: the driver may be stuck in the one that is being closed.
  ::_exit(0);
}

int run(int argc, char** argv) {
  HolderArguments arguments;
  CLI::App app;
  add_arguments(app, arguments);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  set_up_log(arguments.log_level, arguments.log_format == "json");
  return serve(std::move(arguments.settings));
}

}  // namespace
}  // namespace amem

int main(int argc, char** argv) { return amem::run(argc, argv); }
