#include "tests/bench/broker_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace amem::bench {
namespace {

using std::chrono::steady_clock;
constexpr auto kStart = std::chrono::seconds(60);
constexpr auto kEnd = std::chrono::seconds(20);
constexpr auto kLook = std::chrono::milliseconds(20);

}  // namespace

BrokerProcess::~BrokerProcess() {
  broker_.reset();
  if (pid_ > 0) {
    ::kill(pid_, SIGTERM);
    const auto until = steady_clock::now() + kEnd;
    while (::waitpid(pid_, nullptr, WNOHANG) == 0) {
      if (steady_clock::now() > until) ::kill(pid_, SIGKILL);
      std::this_thread::sleep_for(kLook);
    }
  }
  std::error_code ignored;
  if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
}

Status BrokerProcess::start(const std::string& amemd, const std::string& preload,
                            std::uint64_t pool) {
  // Not TMPDIR: a socket's path must be short.
  std::string directory = "/tmp/amem-bench-XXXXXX";
  if (::mkdtemp(directory.data()) == nullptr)
    return errno_status(Code::kInternal, "a directory in /tmp", errno);
  directory_ = directory;
  std::vector<std::string> arguments = {amemd,         "--runtime-dir",      directory_,
                                        "--pool-size", std::to_string(pool), "--pool-chunk",
                                        "64KiB",       "--log-level",        "info"};
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const std::string log = directory_ + "/log";
  pid_ = ::fork();
  if (pid_ < 0) return errno_status(Code::kInternal, "fork", errno);
  if (pid_ == 0) {
    const int fd = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ::dup2(fd, 1);
    ::dup2(fd, 2);
    if (!preload.empty()) ::setenv("LD_PRELOAD", preload.c_str(), 1);
    ::execv(amemd.c_str(), argv.data());
    ::_exit(127);
  }
  broker_ = std::make_unique<client::ControlClient>(directory_ + "/control.sock");
  return await_pool(pool);
}

Status BrokerProcess::await_pool(std::uint64_t pool) {
  const auto until = steady_clock::now() + kStart;
  for (;;) {
    if (::waitpid(pid_, nullptr, WNOHANG) != 0) {
      pid_ = 0;
      return {Code::kUnavailable, "amemd has ended: " + log()};
    }
    const Result<v1::NodeStatus> status = broker_->status();
    if (status.ok()) {
      if (status.value().pool().ready_bytes() >= pool) return {};
      if (!status.value().pool().error().empty())
        return {Code::kResourceExhausted, "the pool: " + status.value().pool().error()};
    }
    if (steady_clock::now() > until)
      return {Code::kDeadlineExceeded, "amemd was not ready in time: " + log()};
    std::this_thread::sleep_for(kLook);
  }
}

std::string BrokerProcess::log() const {
  std::ifstream file(directory_ + "/log");
  std::stringstream text;
  text << file.rdbuf();
  const std::string all = text.str();
  return all.size() > 2000 ? all.substr(all.size() - 2000) : all;
}

}  // namespace amem::bench
