#include "addons/checkpoint/proof_programs.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>
#include <utility>
#include <vector>

#include "addons/checkpoint/answer.h"
#include "addons/checkpoint/process_calls.h"
#include "common/descriptors.h"
#include "daemon/base/child.h"
#include "daemon/base/own_program.h"

namespace amem {
namespace {

constexpr std::string_view kCheck = "check\n";

/// amem takes away what a rank shares before its checkpoint. Nobody does that here, so NCCL must
/// not share memory in the ways that a process with a checkpoint must not. It opens no port, and of
/// the files with its settings it reads only the node's (/etc/nccl.conf).
constexpr std::array kNcclSettings = {"NCCL_CUMEM_ENABLE=0", "NCCL_CUMEM_HOST_ENABLE=0",
                                      "NCCL_NVLS_ENABLE=0", "NCCL_RAS_ENABLE=0",
                                      "NCCL_CONF_FILE=/dev/null"};

/// The simulated driver and sanitizers read these; they name no library.
bool may_have(std::string_view variable) {
  const std::string_view name = variable.substr(0, variable.find('='));
  return name.starts_with("AMEM_SIM_") || name.ends_with("SAN_OPTIONS");
}

/// Returns the environment of a process that sees these devices.
std::vector<std::string> environment_for(const std::string& devices) {
  std::vector<std::string> environment(kNcclSettings.begin(), kNcclSettings.end());
  for (char** variable = environ; *variable != nullptr; ++variable)
    if (may_have(*variable)) environment.emplace_back(*variable);
  environment.push_back("CUDA_VISIBLE_DEVICES=" + devices);
  return environment;
}

/// Empty: this process has loaded none.
std::string loaded_driver() {
  void* const library = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return {};
  link_map* map = nullptr;
  const bool found = ::dlinfo(library, RTLD_DI_LINKMAP, &map) == 0;
  const std::string path = found ? map->l_name : "";
  ::dlclose(library);
  return path;
}

/// The process stays a zombie, and its pid is nobody else's.
Status end_of(int process) {
  siginfo_t info{};
  if (::waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(process), &info,
               WEXITED | WNOWAIT | WNOHANG) != 0)
    return errno_status(Code::kAborted, "waitid", errno);
  if (info.si_code != CLD_EXITED && info.si_status == SIGKILL)
    return {Code::kCancelled, "it was killed"};
  return {Code::kAborted, std::string("it has ended: ") +
                              (info.si_code == CLD_EXITED ? "exit status " : "signal ") +
                              std::to_string(info.si_status)};
}

}  // namespace

class ProofPrograms::Target final : public ProofTarget {
 public:
  Target(ProofPrograms& programs, std::uint64_t id) : programs_(programs), id_(id) {}
  ~Target() override { programs_.release(id_); }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  pid_t pid() const override { return programs_.processes_.at(id_).child; }
  void check(Done done) override { programs_.check(id_, std::move(done)); }
  Status end() const override { return programs_.processes_.at(id_).end; }
  const ProofBasis& basis() const override { return programs_.processes_.at(id_).basis; }

 private:
  ProofPrograms& programs_;
  const std::uint64_t id_;
};

ProofPrograms::ProofPrograms(EventLoop& loop, std::string program)
    : loop_(loop),
      program_(program.empty() ? program_beside(kCheckpointProgram) : std::move(program)) {}

ProofPrograms::~ProofPrograms() {
  for (const auto& [id, process] : processes_) ::kill(process.child, SIGKILL);
  const Time until = Clock::now() + kLastEnd;
  for (auto& [id, process] : processes_) {
    stop_hearing(loop_, process);
    if (process.ends != 0) loop_.unwatch(process.ends);
    loop_.cancel(process.timer);
    int exit = 0;
    reap_until(process.child, process.process.get(), exit, until);
  }
}

Result<std::unique_ptr<ProofTarget>> ProofPrograms::start(const VisibleDevices& devices,
                                                          ProofPool pool) {
  std::string visible;
  for (const DeviceUuid& device : devices)
    visible += (visible.empty() ? "" : ",") + to_string(device);
  std::vector<std::string> words = {program_, "target", visible, "--with-parent",
                                    std::to_string(::getpid())};
  if (const std::string driver = loaded_driver(); !driver.empty())
    words.insert(words.end(), {"--driver", driver});
  if (pool.place)
    words.insert(words.end(), {"--pool", std::string(to_string(*pool.place)), "--bytes",
                               std::to_string(pool.bytes)});
  const std::uint64_t id = next_++;
  Process& process = processes_[id];
  process.pool = std::move(pool);
  if (const Status status = open(process, std::move(words), environment_for(visible));
      !status.ok()) {
    processes_.erase(id);
    return status;
  }
  process.writes =
      loop_.watch(process.talk.get(), EPOLLIN, [this, id](std::uint32_t) { heard(id); });
  process.ends =
      loop_.watch(process.process.get(), EPOLLIN, [this, id](std::uint32_t) { ended(id); });
  if (process.writes != 0 && process.ends != 0)
    return std::unique_ptr<ProofTarget>(std::make_unique<Target>(*this, id));
  const Status status = errno_status(Code::kNotFound, "epoll_ctl for " + program_, errno);
  stop_hearing(loop_, process);
  if (process.ends != 0) loop_.unwatch(process.ends);
  end_now(process.child);
  processes_.erase(id);
  return status;
}

Status ProofPrograms::open(Process& process, std::vector<std::string> words,
                           std::vector<std::string> environment) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return errno_status(Code::kNotFound, "socketpair", errno);
  process.talk.reset(ends[0]);
  const Fd its(ends[1]);
  if (::fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0)
    return errno_status(Code::kNotFound, "fcntl", errno);
  const Result<pid_t> child =
      start_program(std::move(words), its.get(), its.get(), std::move(environment));
  if (!child.ok()) return child.status();
  process.child = child.value();
  process.process.reset(static_cast<int>(::syscall(SYS_pidfd_open, process.child, 0)));
  if (process.process) return {};
  const int error = errno;
  end_now(process.child);
  return errno_status(Code::kNotFound, "pidfd_open for " + program_, error);
}

void ProofPrograms::check(std::uint64_t id, ProofTarget::Done done) {
  Process& process = processes_.at(id);
  process.done = std::move(done);
  const int fd = process.pool.fd != nullptr ? process.pool.fd->get() : -1;
  // One that has ended reports that, also one that does not take the message.
  if (process.end.ok())
    (void)send_with(process.talk.get(), kCheck.data(), kCheck.size(), &fd, fd >= 0 ? 1 : 0);
  else
    process.timer = loop_.at(Clock::now(), [this, id] {
      Process& late = processes_.at(id);
      if (const auto report = std::exchange(late.done, nullptr)) report(late.end);
    });
}

void ProofPrograms::heard(std::uint64_t id) {
  char piece[kMostOutput];
  for (int i = 0; i < kReadsAtOnce; ++i) {
    const auto it = processes_.find(id);
    if (it == processes_.end() || it->second.writes == 0) return;
    Process& process = it->second;
    const ssize_t n = ::recv(process.talk.get(), piece, sizeof piece, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) return stop_hearing(loop_, process);
    process.said.append(piece, static_cast<std::size_t>(n));
    std::optional<Status> answer;
    for (std::size_t end = 0; (end = process.said.find('\n')) != std::string::npos;) {
      const std::string line = process.said.substr(0, end);
      process.said.erase(0, end + 1);
      if (auto said = take(process, line)) answer = std::move(said);
    }
    if (process.said.size() > kMostOutput) process.said.clear();
    // It may be released by that.
    if (const auto done = answer ? std::exchange(process.done, nullptr) : nullptr) done(*answer);
  }
}

/// An answer, if it is one.
std::optional<Status> ProofPrograms::take(Process& process, const std::string& line) {
  if (line == target_says::kRight) return Status();
  if (auto failure = failure_of(line)) return failure;
  const auto text = [&line](std::string_view word) -> std::optional<std::string> {
    if (!line.starts_with(word)) return std::nullopt;
    return on_one_line(line.substr(word.size()));
  };
  ProofBasis& basis = process.basis;
  if (auto step = text(target_says::kStep))
    basis.step = std::move(*step);
  else if (auto file = text(target_says::kFile))
    basis.files.push_back(std::move(*file));
  else if (auto version = text(target_says::kNccl))
    basis.nccl = std::move(*version);
  else if (auto why = text(target_says::kNoNccl))
    basis.no_nccl = std::move(*why);
  else
    process.last = on_one_line(line);
  return std::nullopt;
}

void ProofPrograms::ended(std::uint64_t id) {
  heard(id);
  const auto it = processes_.find(id);
  if (it == processes_.end()) return;
  Process& process = it->second;
  if (process.ends != 0) loop_.unwatch(std::exchange(process.ends, 0));
  if (process.released) {
    int exit = 0;
    reap(process.child, exit);
    processes_.erase(it);
    return;
  }
  process.end = end_of(process.process.get());
  if (!process.last.empty())
    process.end = {process.end.code(), process.end.text() + ": " + process.last};
  if (const auto done = std::exchange(process.done, nullptr)) done(Status(process.end));
}

void ProofPrograms::release(std::uint64_t id) {
  const auto it = processes_.find(id);
  Process& process = it->second;
  process.done = nullptr;
  loop_.cancel(process.timer);
  stop_hearing(loop_, process);
  ::kill(process.child, SIGKILL);
  process.released = true;
  process.pool = {};
  if (process.ends != 0) return;
  int exit = 0;
  reap(process.child, exit);
  processes_.erase(it);
}

void ProofPrograms::stop_hearing(EventLoop& loop, Process& process) {
  if (process.writes != 0) loop.unwatch(std::exchange(process.writes, 0));
}

}  // namespace amem
