#include "tests/gpu/nccl/supervisor.h"

#include <dirent.h>
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace gpu_test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr useconds_t kPeriodUs = 50'000;

// backtrace() is no async-signal-safe call; it is only asked for when the process hangs and is
// about to be killed.
void dump_stack(int) {
  void* frames[64];
  const int n = ::backtrace(frames, 64);
  ::backtrace_symbols_fd(frames, n, STDERR_FILENO);
}

std::vector<int> threads_of(pid_t process) {
  std::vector<int> threads;
  DIR* directory = ::opendir(("/proc/" + std::to_string(process) + "/task").c_str());
  if (directory == nullptr) return threads;
  while (const dirent* entry = ::readdir(directory))
    if (const int thread = std::atoi(entry->d_name); thread > 0) threads.push_back(thread);
  ::closedir(directory);
  return threads;
}

std::string thread_name(pid_t process, int thread) {
  char name[32] = "?";
  const std::string path =
      "/proc/" + std::to_string(process) + "/task/" + std::to_string(thread) + "/comm";
  if (std::FILE* file = std::fopen(path.c_str(), "r"); file != nullptr) {
    if (std::fgets(name, sizeof name, file) != nullptr) name[std::strcspn(name, "\n")] = '\0';
    std::fclose(file);
  }
  return name;
}

void print_stacks(pid_t process) {
  for (const int thread : threads_of(process)) {
    std::fprintf(stderr, "-- process %d, thread %d (%s)\n", process, thread,
                 thread_name(process, thread).c_str());
    if (::syscall(SYS_tgkill, process, thread, SIGUSR1) == 0) ::usleep(20'000);
  }
}

void print_states(const Control& control, int ranks) {
  for (int r = 0; r < ranks; ++r) {
    const RankSlot& slot = control.ranks[static_cast<std::size_t>(r)];
    std::fprintf(stderr, "  rank %d: cycle %d, communicator %d, %s, %llu iterations\n", r,
                 slot.cycle.load(), slot.comm.load(), slot.doing.load(),
                 static_cast<unsigned long long>(slot.iterations.load()));
  }
}

class Progress {
 public:
  explicit Progress(const std::string& path)
      : file_(path.empty() ? -1 : ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644)) {}
  ~Progress() {
    if (file_ >= 0) ::close(file_);
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void write(const Control& control, int ranks) const {
    if (file_ < 0) return;
    std::uint64_t lowest = UINT64_MAX;
    for (int r = 0; r < ranks; ++r)
      lowest = std::min(lowest, control.ranks[static_cast<std::size_t>(r)].iterations.load());
    char line[32];
    // One write of one length: a reader never sees half a number.
    const int n =
        std::snprintf(line, sizeof line, "%20llu\n", static_cast<unsigned long long>(lowest));
    if (::pwrite(file_, line, static_cast<std::size_t>(n), 0) != n) std::perror("progress file");
  }

 private:
  int file_;
};

int code_of(int ended) { return WIFEXITED(ended) ? WEXITSTATUS(ended) : 128 + WTERMSIG(ended); }

}  // namespace

void install_stack_dumper() {
  void* frame[1];
  ::backtrace(frame, 1);  // loads what it needs now, not inside the handler
  struct sigaction action {};
  action.sa_handler = dump_stack;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGUSR1, &action, nullptr);
}

int supervise(const std::vector<pid_t>& processes, const Control& control, int ranks,
              int watchdog_seconds, const std::string& progress) {
  const Progress file(progress);
  std::vector<pid_t> left = processes;
  std::vector<std::uint64_t> beats(static_cast<std::size_t>(ranks));
  std::vector<Clock::time_point> moved(beats.size(), Clock::now());
  int result = 0;
  while (!left.empty() && result == 0) {
    ::usleep(kPeriodUs);
    file.write(control, ranks);
    for (auto it = left.begin(); it != left.end();) {
      int ended = 0;
      if (::waitpid(*it, &ended, WNOHANG) != *it) {
        ++it;
        continue;
      }
      it = left.erase(it);
      if (result == 0) result = code_of(ended);
      if (ended != 0 && WIFSIGNALED(ended)) {
        std::fprintf(stderr, "FAILED a rank was killed by signal %d\n", WTERMSIG(ended));
        print_states(control, ranks);
      }
    }
    // A rank that is merely waiting for a stuck one is just as still: all are printed.
    bool still = false;
    for (std::size_t r = 0; r < beats.size(); ++r) {
      const std::uint64_t now = control.ranks[r].beats.load();
      if (now != beats[r]) moved[r] = Clock::now();
      beats[r] = now;
      still = still || Clock::now() - moved[r] > std::chrono::seconds(watchdog_seconds);
    }
    if (still && !left.empty() && result == 0) {
      std::fprintf(stderr, "FAILED hung: no progress for %d s\n", watchdog_seconds);
      print_states(control, ranks);
      for (const pid_t process : left) print_stacks(process);
      result = kHung;
    }
  }
  for (const pid_t process : left) {
    ::kill(process, SIGKILL);
    ::waitpid(process, nullptr, 0);
  }
  file.write(control, ranks);
  return result;
}

}  // namespace gpu_test
