// RetiredLlmd: starts amem-llm-d while the retired setting llm_d.enabled is true. The version that
// drops llm_d.* drops this file, and its lines in main.cpp.
//
// For the main thread, which is the loop's: amem-llm-d ends with the thread that has started it,
// however that ends. The program that follows in an upgrade is the same thread, so the destructor
// ends amem-llm-d, too.
#pragma once

#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "common/fd.h"
#include "common/protocol.h"
#include "daemon/base/child.h"
#include "daemon/base/event_loop.h"
#include "daemon/base/own_program.h"
#include "daemon/settings/config.h"

namespace amem {

class RetiredLlmd {
 public:
  /// Once control.sock is there. The loop outlives this object. Whatever goes wrong is logged, and
  /// amemd serves on.
  RetiredLlmd(EventLoop& loop, const Config& config) : loop_(loop) {
    if (config.llm_d) start(config);
  }
  RetiredLlmd(const RetiredLlmd&) = delete;
  RetiredLlmd& operator=(const RetiredLlmd&) = delete;
  ~RetiredLlmd() {
    if (watch_ != 0) loop_.unwatch(watch_);
    if (child_ == 0) return;
    ::kill(child_, SIGTERM);
    int exit = 0;
    if (!process_ || !reap_until(child_, process_.get(), exit, Clock::now() + kLongestEnd))
      end_now(child_);
  }

 private:
  static constexpr Duration kLongestEnd = std::chrono::seconds(2);

  void start(const Config& config) {
    const std::string program = program_beside("amem-llm-d");
    if (::access(program.c_str(), X_OK) != 0)
      return spdlog::error(
          "llm_d.enabled: nobody answers llm-d, because there is no {}. Install amem-llm-d and "
          "start it, and remove this setting",
          program);
    // Containers have the runtime directory. Root in one is nobody's operator then
    // (docs/security.md), and would be by this socket.
    const bool hidden = config.isolation == Isolation::kCgroup;
    std::vector<std::string> places;
    if (!hidden) places.push_back("unix:" + config.runtime_dir + "/llm-d.sock");
    if (!config.llm_d_listen.empty()) places.push_back(config.llm_d_listen);
    if (places.empty())
      return spdlog::error(
          "llm_d.enabled: nobody answers llm-d, because isolation.by is cgroup, and root in a "
          "container could open a socket in {}. Run amem-llm-d with --listen unix:PATH in a folder "
          "that no job sees, and remove this setting",
          config.runtime_dir);
    std::vector<std::string> words = {program, "--with-parent", std::to_string(::getpid()),
                                      "--socket",
                                      config.runtime_dir + "/" + std::string(kControlSocket)};
    for (const std::string& place : places) words.insert(words.end(), {"--listen", place});
    if (config.llm_d_deep) words.emplace_back("--deep");
    const Result<pid_t> child = start_program(std::move(words), -1, STDERR_FILENO);
    if (!child.ok())
      return spdlog::error("llm_d.enabled: nobody answers llm-d: {}. Start amem-llm-d yourself",
                           child.status().text());
    child_ = child.value();
    process_ = Fd(static_cast<int>(::syscall(SYS_pidfd_open, child_, 0)));
    if (process_) watch_ = loop_.watch(process_.get(), EPOLLIN, [this](std::uint32_t) { ended(); });
    spdlog::warn(
        "llm_d.enabled: amemd has started amem-llm-d (pid {}), which answers llm-d on {}. "
        "control.sock does not answer llm-d any more",
        child_, places.size() == 1 ? places.front() : places.front() + " and " + places.back());
  }

  void ended() {
    int exit = 0;
    if (!reap(child_, exit)) return;
    loop_.unwatch(std::exchange(watch_, 0));
    child_ = 0;
    spdlog::error(
        "llm_d.enabled: nobody answers llm-d: amem-llm-d has ended with {}. amemd's standard error "
        "has its reason. Start amem-llm-d yourself, and remove this setting",
        describe_exit(exit));
  }

  EventLoop& loop_;
  pid_t child_ = 0;  // 0: none
  Fd process_;
  EventLoop::WatchId watch_ = 0;
};

}  // namespace amem
