// amemd: the GPU memory broker of a node.
//
// Exit status: 0 ended by a signal, or nothing to do; 1 cannot serve; 2 wrong usage or
// configuration.
#include <malloc.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <thread>

#include "common/protocol.h"
#include "common/version.h"
#include "daemon/base/runtime_dir.h"
#include "daemon/base/service_manager.h"
#include "daemon/base/successor.h"
#include "daemon/base/units.h"
#include "daemon/base/unix_listener.h"
#include "daemon/broker/broker.h"
#include "daemon/broker/holder_supervisor.h"
#include "daemon/control/control_service.h"
#include "daemon/control/ending.h"
#include "daemon/control/supervised.h"
#include "daemon/control/upgrades.h"
#include "daemon/holder/wire.h"
#include "daemon/owners/owner.h"
#include "daemon/record/record_log.h"
#include "daemon/reports/endpoint.h"
#include "daemon/retired_llm_d.h"
#include "daemon/settings/arguments.h"
#include "daemon/settings/log.h"

namespace amem {
namespace {

/// As many as a full node is likely to need; with more the table grows on demand.
constexpr rlim_t kDescriptors = 65536;

/// Each step of a start, and an upgrade as a whole, takes less on the largest node: the driver's
/// initialisation, and taking up what a holder has.
constexpr Duration kLongestStep = std::chrono::minutes(5);
/// The end of the threads, after the operations under way have ended.
constexpr Duration kLongestEnd = std::chrono::seconds(30);

/// Blocked in every thread that comes later, read from the loop.
Fd take_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  return Fd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
}

/// Returns what an amemd and the one that follows it must have in common, or jobs that run are
/// lost.
std::string speaks() {
  return "session " + std::to_string(kProtocolVersion) + ", holder " +
         std::to_string(kHolderVersion) + ", " + kRecordMagic;
}

int fail(const Status& status) {
  spdlog::critical("amemd cannot serve: {}", status.text());
  return 1;
}

/// kInvalidArgument: access.operators names no group; who relies on it must hear of it.
Result<ControlSettings> control_settings(const Config& config) {
  ControlSettings settings;
  settings.socket = {config.runtime_dir + "/" + std::string(kControlSocket), config.control_mode,
                     config.socket_group_id};
  settings.isolation = config.isolation;
  settings.access.see_all = config.see_all;
  settings.listen = config.listen;
  settings.tls_dir = config.tls_dir;
  settings.deadlines = config.deadlines;
  if (!config.operators.empty()) {
    const Result<gid_t> operators = group_id(config.operators);
    if (!operators.ok())
      return Status(Code::kInvalidArgument, "access.operators: " + operators.status().text());
    settings.access.operators = operators.value();
  }
  return settings;
}

/// Without the group the sockets are root's, which is safe, and no use to anybody else.
void find_socket_group(Config& config) {
  if (config.socket_group.empty()) return;
  const Result<gid_t> group = group_id(config.socket_group);
  if (group.ok())
    config.socket_group_id = group.value();
  else
    spdlog::warn(
        "sockets.group: {}. Only {} can open the sockets. Make the group (`groupadd --system {}`) "
        "and add the users who run jobs to it, or set sockets.group",
        group.status().text(), ::geteuid() == 0 ? "root" : "this user", config.socket_group);
}

/// For SIGHUP: reopens the log file, reads the settings again, and applies those that can change
/// while amemd runs.
void reload(const Arguments& arguments, Config& config, Broker& broker) {
  reopen_log();
  ConfigErrors errors;
  const Config next = load_config(arguments, errors);
  for (const std::string& error : errors) spdlog::error("{}", error);
  if (!errors.empty())
    return spdlog::error("amemd keeps all its settings, and has reopened the log");
  for (const auto& [key, warning] : next.retired) spdlog::warn("{}", warning);
  const Reload found = reload(config, next);
  set_log_level(config);
  broker.take_settings();
  for (const std::string& line : found.taken) spdlog::info("reload: {}", line);
  for (const std::string& line : found.waiting)
    spdlog::warn("reload: {} requires a restart of amemd (`amemctl upgrade`)", line);
  spdlog::info("log reopened, settings reloaded");
}

/// `replaced`: not ended for good.
int serve(Config config, const Arguments& arguments, const Successor& successor, bool& replaced) {
  const Fd signals = take_signals();
  // One descriptor per allocation, and one per session: as many as we may have.
  if (!raise_descriptor_limit())
    spdlog::warn("cannot raise the limit of open files: {}", std::strerror(errno));
  reserve_descriptors(signals.get(), kDescriptors);

  RuntimeDir runtime_dir;
  const mode_t mode = ::geteuid() == 0 ? 0755 : 0700;
  if (Status status = runtime_dir.open(config.runtime_dir, mode); !status.ok()) return fail(status);

  // The broker must see every device, whatever its environment was meant for.
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  const ServiceManager manager;
  manager.takes(kLongestStep);
  manager.status("initialises the driver");
  Devices devices;
  if (Status status = devices.open(); !status.ok()) return fail(status);
  for (const Device& device : devices.all())
    spdlog::info("device {}: {}, {}, {}", device.ordinal, to_string(device.uuid), device.name,
                 format_size(device.total));
  Nvml nvml;
  if (Status status = nvml.open(devices); !status.ok())
    spdlog::warn("amemd cannot read the memory usage of devices: {}", status.text());

  if (!kernel_tells_ends())
    spdlog::warn(
        "this kernel has no pidfd, so amemd considers a process as ended when its session ends, "
        "even if it continues to run with memory of its group. Use Linux 5.3 or newer. "
        "docs/security.md describes the consequences");

  EventLoop loop;
  if (Status status = loop.open(); !status.ok()) return fail(status);
  find_socket_group(config);
  const Result<ControlSettings> settings = control_settings(config);
  if (!settings.ok()) return fail(settings.status());
  if (Status status = can_isolate(config.isolation); !status.ok()) return fail(status);
  manager.takes(kLongestStep);
  manager.status("takes up what its holder keeps");
  HolderSupervisor supervisor(loop, config);
  if (Status status = supervisor.attach(); !status.ok()) return fail(status);
  Broker broker(loop, config, devices, nvml, &supervisor.record(), Workers::Runs::kThreads,
                make_evictor());
  if (Status status = broker.recover(supervisor.take_descriptors()); !status.ok())
    return fail(status);
  if (Status status = broker.start(); !status.ok()) return fail(status);
  MetricsEndpoint metrics(
      loop, config.metrics_listen,
      [&](MetricsEndpoint::Answer answer) {
        broker.look_at_devices(
            [&broker, answer = std::move(answer)] { answer(broker.metrics(Caller())); });
      },
      [&](const std::string& name) { return broker.reports().condition(Caller(), name); });
  std::thread ending;  // waits for calls that need the loop to end
  ControlServer* serving = nullptr;
  Supervised supervised(loop, manager, [&] {
    return Supervised::State{broker.summary(), supervisor.record().outlives().ok()};
  });
  const auto end = [&] {
    supervised.end();
    broker.shut();
    metrics.shut();
    serving->close();
    ending = std::thread([&] {
      serving->shut();
      loop.stop();
    });
  };
  Upgrades upgrades(loop, broker, successor, [&] {
    if (ending.joinable()) return;
    replaced = true;
    manager.reloading(kLongestStep);
    end();
  });
  ControlServer control(broker, loop, &upgrades);
  serving = &control;
  if (Status status = control.start(settings.value()); !status.ok()) return fail(status);
  const RetiredLlmd llm_d(loop, config);

  metrics.open();

  supervisor.watch([&] { broker.hold_again(); });

  // What no holder has would be lost, too.
  const auto under_way = [&] {
    const std::string what = control.under_way();
    const Status outlives = supervisor.record().outlives();
    const bool waits = outlives.code() == Code::kUnavailable && broker.serves_groups();
    return what.empty() && waits ? outlives.text() : what;
  };
  Ending when_idle(loop, config.end, under_way, end);
  const EventLoop::WatchId watch = loop.watch(signals.get(), EPOLLIN, [&](std::uint32_t) {
    signalfd_siginfo info{};
    if (::read(signals.get(), &info, sizeof info) != sizeof info) return;
    if (info.ssi_signo == SIGHUP) return reload(arguments, config, broker);
    // A successor would have the signal no more.
    replaced = false;
    if (ending.joinable()) return;
    spdlog::info("amemd is ending: signal {} from pid {}", info.ssi_signo, info.ssi_pid);
    broker.refuse_new_work();
    manager.stopping(config.end + kLongestEnd);
    when_idle.begin();
  });
  if (watch == 0) return fail(errno_status(Code::kInternal, "epoll_ctl for signals", errno));

  spdlog::info("amemd {} serves {} with {} devices", kVersion, config.runtime_dir,
               devices.all().size());
  supervised.begin();
  loop.run();
  ending.join();
  spdlog::info("ended");
  return 0;
}

int run(int argc, char** argv) {
  ::mallopt(M_ARENA_MAX, 2);  // gRPC's threads allocate little; an arena for each is waste
  int exit_status = 0;
  const std::optional<Arguments> arguments = parse_arguments(argc, argv, exit_status);
  if (!arguments) return exit_status;
  if (arguments->speaks) {
    std::cout << speaks();
    return 0;
  }
  ConfigErrors errors;
  const Config config = load_config(*arguments, errors);
  for (const std::string& error : errors) std::cerr << "amemd: " << error << "\n";
  if (!errors.empty()) return 2;
  if (arguments->check_config) {
    for (const auto& [key, warning] : config.retired)
      std::cerr << "amemd: warning: " << warning << "\n";
    std::cout << to_toml(config);
    return 0;
  }
  set_up_logging(config);
  for (const auto& [key, warning] : config.retired) spdlog::warn("{}", warning);
  const Successor successor(argv, speaks());
  bool replaced = false;
  const int ended = serve(config, *arguments, successor, replaced);
  return replaced ? fail(successor.become()) : ended;
}

}  // namespace
}  // namespace amem

int main(int argc, char** argv) { return amem::run(argc, argv); }
