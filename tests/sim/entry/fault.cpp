#include "tests/sim/entry/fault.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/sim/entry/proc_address.h"
#include "tests/sim/node/node.h"

namespace sim {
namespace {

struct Rule {
  enum class Action { kError, kDelay, kHold, kKill };

  std::string name;
  uint64_t first = 1;
  uint64_t last = UINT64_MAX;
  Action action = Action::kError;
  int value = CUDA_ERROR_UNKNOWN;  // the error, milliseconds of a delay, seconds of a hold
  uint64_t calls = 0;
};

[[noreturn]] void BadRule(const std::string& rule, const std::string& why) {
  Die("bad fault '" + rule + "': " + why +
      " (expected name:nth[:action]; nth: 5, 5+ or *; action: error number, delay=MS, hold, "
      "hold=SECONDS, kill)");
}

std::optional<int> Number(const std::string& text) {
  if (text.empty() || text.size() > 9) return std::nullopt;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
  }
  return std::stoi(text);
}

/// Of the shim (shim/process/fault_points.h).
bool IsFaultPoint(const std::string& name) {
  constexpr const char* kPoints[] = {"freePasses",   "freeDone",      "releaseBegins",
                                     "releaseDone",  "mapDone",       "loadBegins",
                                     "blocksHashed", "changesQueued", "unmappedAhead"};
  return std::find(std::begin(kPoints), std::end(kPoints), name) != std::end(kPoints);
}

Rule ParseRule(const std::string& text) {
  Rule rule;
  const size_t colon = text.find(':');
  if (colon == std::string::npos) BadRule(text, "no nth");
  rule.name = text.substr(0, colon);
  if (!IsExportedName(rule.name) && !IsFaultPoint(rule.name)) BadRule(text, "no such call");

  const size_t second = text.find(':', colon + 1);
  std::string nth =
      text.substr(colon + 1, second == std::string::npos ? second : second - colon - 1);
  if (nth != "*") {
    const bool onward = !nth.empty() && nth.back() == '+';
    if (onward) nth.pop_back();
    const std::optional<int> n = Number(nth);
    if (!n || *n == 0) BadRule(text, "bad nth");
    rule.first = static_cast<uint64_t>(*n);
    if (!onward) rule.last = rule.first;
  }
  if (second == std::string::npos) return rule;

  std::string action = text.substr(second + 1);
  if (action == "kill") {
    rule.action = Rule::Action::kKill;
    return rule;
  }
  if (action == "hold") action += "=60";
  for (const auto& [word, with_value] :
       {std::pair{"delay=", Rule::Action::kDelay}, std::pair{"hold=", Rule::Action::kHold}}) {
    if (action.rfind(word, 0) != 0) continue;
    rule.action = with_value;
    action.erase(0, std::string(word).size());
    break;
  }
  const std::optional<int> value = Number(action);
  const bool error = rule.action == Rule::Action::kError;
  if (!value || (error && (*value == 0 || *value > CUDA_ERROR_UNKNOWN))) {
    BadRule(text, "bad action");
  }
  rule.value = *value;
  return rule;
}

std::vector<Rule> ParseRules(const std::string& text) {
  std::vector<Rule> rules;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find_first_of(";\n", begin), text.size());
    const std::string rule = text.substr(begin, end - begin);
    const size_t first = rule.find_first_not_of(" \t");
    const size_t last = rule.find_last_not_of(" \t");
    if (first != std::string::npos)
      rules.push_back(ParseRule(rule.substr(first, last - first + 1)));
    begin = end + 1;
  }
  return rules;
}

class Faults {
 public:
  Faults() {
    if (const char* text = getenv("AMEM_SIM_FAULTS")) env_rules_ = ParseRules(text);
    if (const char* path = getenv("AMEM_SIM_FAULT_FILE")) path_ = path;
  }

  bool armed() const { return !env_rules_.empty() || !path_.empty(); }

  CUresult Check(const std::string& name) {
    const std::string base = BaseName(name);
    std::optional<Rule> hit;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!path_.empty()) Reload();
      // Every matching rule counts, the first that is due acts.
      for (std::vector<Rule>* rules : {&env_rules_, &file_rules_}) {
        for (Rule& rule : *rules) {
          if (rule.name != name && rule.name != base) continue;
          ++rule.calls;
          if (!hit && rule.calls >= rule.first && rule.calls <= rule.last) hit = rule;
        }
      }
    }
    if (!hit) return CUDA_SUCCESS;
    switch (hit->action) {
      case Rule::Action::kKill:
        kill(getpid(), SIGKILL);
        for (;;) pause();
      case Rule::Action::kHold:
        Hold(*hit);
        return CUDA_SUCCESS;
      case Rule::Action::kDelay:
        std::this_thread::sleep_for(std::chrono::milliseconds(hit->value));
        return CUDA_SUCCESS;
      case Rule::Action::kError:
        return static_cast<CUresult>(hit->value);
    }
    return CUDA_SUCCESS;
  }

 private:
  /// Until the rule has left the file, or for as long as it says. Meanwhile a file says which
  /// thread is held.
  void Hold(const Rule& rule) {
    if (path_.empty()) return;
    const std::string mark = path_ + ".held." + std::to_string(::syscall(SYS_gettid));
    close(open(mark.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(rule.value);
    const auto is_held = [&] {
      const std::lock_guard<std::mutex> lock(mutex_);
      Reload();
      return std::any_of(file_rules_.begin(), file_rules_.end(), [&](const Rule& r) {
        return r.name == rule.name && r.action == Rule::Action::kHold;
      });
    };
    while (is_held() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    unlink(mark.c_str());
  }

  void Reload() {
    struct stat now = {};
    const bool exists = stat(path_.c_str(), &now) == 0;
    if (!exists) {
      file_rules_.clear();
      stamp_.reset();
      return;
    }
    const Stamp stamp{now.st_mtim.tv_sec, now.st_mtim.tv_nsec, now.st_ino, now.st_size};
    if (stamp_ == stamp) return;
    stamp_ = stamp;
    std::string text;
    const int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    char buffer[4096];
    for (ssize_t n; (n = read(fd, buffer, sizeof buffer)) > 0;) {
      text.append(buffer, static_cast<size_t>(n));
    }
    close(fd);
    file_rules_ = ParseRules(text);
  }

  struct Stamp {
    time_t seconds;
    long nanoseconds;
    ino_t inode;
    off_t size;
    bool operator==(const Stamp&) const = default;
  };

  std::mutex mutex_;
  std::vector<Rule> env_rules_;
  std::vector<Rule> file_rules_;
  std::string path_;
  std::optional<Stamp> stamp_;
};

}  // namespace

CUresult CheckFaults(const char* exported_name) {
  static Faults* const faults = new Faults();
  return faults->armed() ? faults->Check(exported_name) : CUDA_SUCCESS;
}

}  // namespace sim
