// amem-llm-d: answers llm-d's SnapshotAgentService (docs/llm-d.md) by amemd's control API, with the
// rights of its own user.
//
// Exit status: 0 ended by a signal; 1 cannot serve; 2 wrong usage.
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "addons/llm_d/listener.h"
#include "addons/llm_d/service.h"
#include "client/core/control_client.h"
#include "client/core/endpoint.h"
#include "common/protocol.h"
#include "common/version.h"

namespace amem {
namespace {

/// The most calls under way on a connection, and the most bytes of a request.
constexpr int kMostCalls = 8;
constexpr int kMostBytes = 64 << 10;
/// One for each call under way.
constexpr int kThreads = 64;
constexpr int kPingsAtMostEveryMs = 1000;
/// A connection ends after this multiple of the longest silence, whatever it does: otherwise one
/// whose call never ends would always count as busy.
constexpr int kSilencesOfALife = 10;
/// For calls that are under way when this process ends.
constexpr auto kEndPatience = std::chrono::milliseconds(500);

struct LlmdArguments {
  std::string runtime_dir;
  std::string socket;
  std::vector<std::string> listen;
  bool deep = false;
  int parent = 0;
  int silence_ms = 60'000;
};

void add_arguments(CLI::App& app, LlmdArguments& arguments) {
  app.name("amem-llm-d")->description("amem-llm-d answers llm-d's snapshot agent calls by amemd");
  app.set_version_flag("--version", std::string("amem-llm-d ") + kVersion);
  app.add_option("--listen", arguments.listen,
                 "where llm-d's clients connect: unix:PATH, which only this user may open, or PORT "
                 "on 127.0.0.1 or ADDRESS:PORT, which are without TLS. May be given several times "
                 "(default: unix:RUNTIME_DIR/llm-d.sock)")
      ->type_name("PLACE")
      ->take_all()
      ->allow_extra_args(false);
  app.add_option("--runtime-dir", arguments.runtime_dir,
                 "amemd's runtime directory (default: as amemctl has it)")
      ->type_name("DIR");
  app.add_option("--socket", arguments.socket,
                 "amemd's control socket, if it is not in the runtime directory")
      ->type_name("PATH");
  app.add_flag("--deep", arguments.deep,
               "snapshots are deep pauses, which leave nothing on the GPUs. Requires deep.enabled "
               "of amemd");
  // For amemd, which starts this program while llm_d.enabled works.
  app.add_option("--with-parent", arguments.parent, "end with the process that has this number")
      ->group("");
  app.add_option("--silence", arguments.silence_ms,
                 "how long a connection may have no call, in milliseconds")
      ->check(CLI::PositiveNumber)
      ->group("");
}

/// Blocked in every thread that comes later, and read from the main one.
Fd take_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT}) sigaddset(&signals, signal);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  return Fd(::signalfd(-1, &signals, SFD_CLOEXEC));
}

int fail(const Status& status) {
  spdlog::critical("amem-llm-d cannot serve: {}", status.text());
  return status.code() == Code::kInvalidArgument ? 2 : 1;
}

Result<std::vector<Listener>> open_all(const std::vector<std::string>& places) {
  std::vector<Listener> listeners;
  for (const std::string& place : places) {
    Result<Listener> listener = Listener::open(place);
    if (!listener.ok())
      return Status(listener.status().code(), "--listen: " + listener.status().text());
    listeners.push_back(std::move(listener).value());
    if (listeners.back().is_tcp())
      spdlog::warn(
          "amem-llm-d answers llm-d on {} without TLS. Whoever reaches this port can pause and "
          "resume every group of this user, and with an operator's rights every group. Admit only "
          "llm-d's orchestrator to it",
          listeners.back().place());
  }
  return listeners;
}

/// Until a signal comes. False: poll() has failed.
bool serve(std::vector<Listener>& listeners, const Fd& signals, const Listener::Serve& serve) {
  while (true) {
    std::vector<pollfd> polled = {{signals.get(), POLLIN, 0}};
    for (const Listener& each : listeners) each.append_to(polled);
    if (::poll(polled.data(), polled.size(), -1) < 0) {
      if (errno == EINTR) continue;
      spdlog::critical("amem-llm-d ends: poll: {}", std::strerror(errno));
      return false;
    }
    if (polled.front().revents != 0) {
      signalfd_siginfo info{};
      if (::read(signals.get(), &info, sizeof info) == sizeof info)
        spdlog::info("amem-llm-d is ending: signal {} from pid {}", info.ssi_signo, info.ssi_pid);
      return true;
    }
    const pollfd* found = polled.data() + 1;
    for (Listener& each : listeners) found = each.look(found, serve);
  }
}

int run(const LlmdArguments& arguments) {
  const auto log = spdlog::stderr_logger_mt("amem-llm-d");
  log->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %-7l %v");
  spdlog::set_default_logger(log);
  const Fd signals = take_signals();
  if (!signals) return fail(errno_status(Code::kInternal, "signalfd", errno));
  if (arguments.parent != 0 &&
      (::prctl(PR_SET_PDEATHSIG, SIGTERM) != 0 || ::getppid() != arguments.parent))
    return fail({Code::kUnavailable, "the process that has started it has ended"});

  const Result<std::string> socket =
      client::control_socket(arguments.runtime_dir, arguments.socket);
  if (!socket.ok()) return fail(socket.status());
  std::vector<std::string> places = arguments.listen;
  if (places.empty())
    places.push_back(
        "unix:" + (arguments.runtime_dir.empty() ? default_runtime_dir() : arguments.runtime_dir) +
        "/llm-d.sock");
  Result<std::vector<Listener>> opened = open_all(places);
  if (!opened.ok()) return fail(opened.status());
  std::vector<Listener>& listeners = opened.value();

  client::ControlClient amemd(socket.value());
  std::random_device random;
  LlmdService service(amemd, arguments.deep, std::uint64_t{random()} << 32U | random());
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  builder.RegisterService(&service);
  builder.SetMaxReceiveMessageSize(kMostBytes);
  builder.SetResourceQuota(grpc::ResourceQuota().SetMaxThreads(kThreads));
  for (const auto& [name, value] : std::initializer_list<std::pair<const char*, int>>{
           {GRPC_ARG_MAX_CONCURRENT_STREAMS, kMostCalls},
           {GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, arguments.silence_ms},
           {GRPC_ARG_MAX_CONNECTION_IDLE_MS, arguments.silence_ms},
           {GRPC_ARG_MAX_CONNECTION_AGE_MS, kSilencesOfALife * arguments.silence_ms},
           {GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, arguments.silence_ms},
           {GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kPingsAtMostEveryMs}})
    builder.AddChannelArgument(name, value);
  const auto acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      grpc::InsecureServerCredentials());
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr)
    return fail({Code::kInternal, "gRPC does not start. See the messages above"});
  if (auto* const health = server->GetHealthCheckService())
    health->SetServingStatus(std::string(llm_d::SnapshotAgentService::service_full_name()), true);
  std::string where;
  for (const Listener& each : listeners) where += (where.empty() ? "" : " and ") + each.place();
  spdlog::info("amem-llm-d {} answers llm-d on {} for amemd at {}", kVersion, where, amemd.where());
  const bool told = serve(listeners, signals, [&acceptor](Fd connection) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters made;
    made.fd = connection.release();
    acceptor->HandleNewConnection(&made);
  });
  listeners.clear();
  amemd.cancel();  // else a call would wait for an amemd that hangs
  server->Shutdown(std::chrono::system_clock::now() + kEndPatience);
  spdlog::info("ended");
  return told ? 0 : 1;
}

}  // namespace
}  // namespace amem

int main(int argc, char** argv) {
  amem::LlmdArguments arguments;
  CLI::App app;
  amem::add_arguments(app, arguments);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return amem::run(arguments);
}
