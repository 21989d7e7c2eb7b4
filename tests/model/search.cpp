#include "tests/model/search.h"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <span>
#include <utility>

#include "tests/model/explorer/circles.h"
#include "tests/model/guide.h"
#include "tests/model/node_world.h"
#include "tests/world/check.h"
#include "tests/world/ground.h"

namespace amem::model {
namespace {

constexpr int kLongestPlay = 20;  // CPU seconds

/// Hashes of states, in memory that processes share. Of ten million states two share one with a
/// chance of three in a million.
class Known {
 public:
  explicit Known(std::uint64_t most) : size_(std::bit_ceil(2 * most)), most_(most) {
    void* const memory = ::mmap(nullptr, bytes(), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    world::require(memory != MAP_FAILED, "there is memory for what is known");
    all_ = static_cast<std::uint64_t*>(memory);
  }
  ~Known() { ::munmap(all_, bytes()); }
  Known(const Known&) = delete;

  bool is_new(std::uint64_t state) {
    if (state == 0) state = 1;
    for (std::uint64_t at = state;; ++at) {
      std::uint64_t there = 0;
      if (std::atomic_ref(all_[at % size_]).compare_exchange_strong(there, state)) {
        std::atomic_ref(all_[size_]).fetch_add(1);
        return true;
      }
      if (there == state) return false;
    }
  }
  bool is_full() const { return std::atomic_ref(all_[size_]).load() > most_; }

 private:
  std::uint64_t bytes() const { return (size_ + 1) * sizeof(std::uint64_t); }

  const std::uint64_t size_;
  const std::uint64_t most_;
  std::uint64_t* all_ = nullptr;  // and how many there are
};

/// What a play has found.
struct Play {
  std::uint64_t states = 0;
  std::string broken;
  std::vector<std::uint8_t> way;
  std::vector<Way> others;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> by_itself;
};

// ---- a play that never ends, or ends the process ------------------------------------------------

const Guide* playing = nullptr;
std::string playing_in;

void say_where(int signal) {
  const std::string text =
      "  broken: " +
      std::string(signal == SIGVTALRM ? "a play comes to an end" : "nothing ends the process") +
      "\n  again: " + playing_in + text_of(playing->taken()) + "\n";
  [[maybe_unused]] const auto written = ::write(STDOUT_FILENO, text.data(), text.size());
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

void watch(const Guide* guide) {
  playing = guide;
  itimerval limit{};
  limit.it_value.tv_sec = guide != nullptr ? kLongestPlay : 0;
  ::setitimer(ITIMER_VIRTUAL, &limit, nullptr);
  for (const int each : {SIGABRT, SIGSEGV, SIGVTALRM})
    ::signal(each, guide != nullptr ? say_where : SIG_DFL);
}

std::string again(const Scenario& scenario, int faults) {
  return "explore " + std::string(scenario.name) + " --faults " + std::to_string(faults) +
         " --replay ";
}

class Player {
 public:
  Player(const Scenario& scenario, int faults, Known& known, std::optional<std::uint64_t> wanted)
      : scenario_(scenario), faults_(faults), known_(known), wanted_(wanted) {
    playing_in = again(scenario, faults);
  }

  Play play(Way way) {
    Play play;
    std::vector<std::uint8_t> found;
    Guide* in = nullptr;
    Guide guide(std::move(way), [&](std::uint64_t state) {
      if (state == wanted_) found = in->taken();
      return known_.is_new(state);
    });
    in = &guide;
    watch(&guide);
    play.broken = NodeWorld(scenario_, faults_, guide, false).play();
    watch(nullptr);
    if (known_.is_full()) play.broken = "the world is larger than its bound";
    play.states = guide.states();
    play.way = guide.taken();
    if (!found.empty()) {
      play.broken = kInACircle;
      play.way = found;
    }
    play.others = guide.others();
    for (const Guide::Edge& edge : guide.edges())
      if (edge.by_itself) play.by_itself.emplace_back(edge.from, edge.to);
    return play;
  }

 private:
  const Scenario& scenario_;
  const int faults_;
  Known& known_;
  const std::optional<std::uint64_t> wanted_;
};

// ---- between processes --------------------------------------------------------------------------

/// Bytes of one play, or of one way, in their order.
class Parcel {
 public:
  Parcel() = default;
  explicit Parcel(std::string bytes) : bytes_(std::move(bytes)) {}
  template <class Number>
  void put(Number number) {
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
  template <class Number>
  Number take() {
    Number number;
    std::memcpy(&number, bytes_.data() + at_, sizeof number);
    at_ += sizeof number;
    return number;
  }
  void put_all(std::span<const std::uint8_t> all) {
    put(static_cast<std::uint32_t>(all.size()));
    bytes_.append(reinterpret_cast<const char*>(all.data()), all.size());
  }
  std::vector<std::uint8_t> take_all() {
    std::vector<std::uint8_t> all(take<std::uint32_t>());
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(at_), all.size(), all.begin());
    at_ += all.size();
    return all;
  }

  bool send(int socket) const {
    const std::uint64_t size = bytes_.size();
    return ::write(socket, &size, sizeof size) == sizeof size && write_all(socket);
  }
  /// Empty: the other end has gone.
  static std::optional<Parcel> receive(int socket) {
    std::uint64_t size = 0;
    if (::recv(socket, &size, sizeof size, MSG_WAITALL) != sizeof size) return std::nullopt;
    std::string bytes(size, '\0');
    if (::recv(socket, bytes.data(), size, MSG_WAITALL) != static_cast<ssize_t>(size))
      return std::nullopt;
    return Parcel(std::move(bytes));
  }

 private:
  bool write_all(int socket) const {
    for (std::size_t done = 0; done < bytes_.size();) {
      const ssize_t more = ::write(socket, bytes_.data() + done, bytes_.size() - done);
      if (more <= 0) return false;
      done += static_cast<std::size_t>(more);
    }
    return true;
  }

  std::string bytes_;
  std::size_t at_ = 0;
};

void put(Parcel& parcel, const Way& way) {
  parcel.put_all(way.choices);
  parcel.put(way.faults);
  parcel.put(way.from);
  parcel.put(way.from_at);
}

Way take_way(Parcel& parcel) {
  Way way;
  way.choices = parcel.take_all();
  way.faults = parcel.take<std::uint8_t>();
  way.from = parcel.take<std::uint64_t>();
  way.from_at = parcel.take<std::uint16_t>();
  return way;
}

Parcel pack(const Play& play) {
  Parcel parcel;
  parcel.put(play.states);
  parcel.put_all({reinterpret_cast<const std::uint8_t*>(play.broken.data()), play.broken.size()});
  parcel.put_all(play.way);
  parcel.put(play.others.size());
  for (const Way& way : play.others) put(parcel, way);
  parcel.put(play.by_itself.size());
  for (const auto& [from, to] : play.by_itself) {
    parcel.put(from);
    parcel.put(to);
  }
  return parcel;
}

Play unpack(Parcel& parcel) {
  Play play;
  play.states = parcel.take<std::uint64_t>();
  const std::vector<std::uint8_t> broken = parcel.take_all();
  play.broken.assign(broken.begin(), broken.end());
  play.way = parcel.take_all();
  play.others.resize(parcel.take<std::size_t>());
  for (Way& way : play.others) way = take_way(parcel);
  play.by_itself.resize(parcel.take<std::size_t>());
  for (auto& [from, to] : play.by_itself) {
    from = parcel.take<std::uint64_t>();
    to = parcel.take<std::uint64_t>();
  }
  return play;
}

// ---- the search ---------------------------------------------------------------------------------

class Search {
 public:
  Search(const Scenario& scenario, int faults, const SearchLimits& limits,
         std::optional<std::uint64_t> wanted)
      : scenario_(scenario),
        faults_(faults),
        limits_(limits),
        wanted_(wanted),
        known_(limits.most_states) {}

  Searched run() {
    add({});
    if (limits_.jobs == 1)
      alone();
    else
      in_jobs();
    if (found_.broken.empty()) look_for_circles();
    return std::move(found_);
  }

 private:
  void add(Way way) { open_[{way.faults, way.choices.size()}].push_back(std::move(way)); }
  bool has_open() const { return !open_.empty() && found_.broken.empty(); }
  Way next() {
    const auto first = open_.begin();
    Way way = std::move(first->second.back());
    first->second.pop_back();
    if (first->second.empty()) open_.erase(first);
    return way;
  }

  void took(Play play) {
    ++found_.plays;
    found_.states += play.states;
    for (Way& way : play.others) add(std::move(way));
    by_itself_.insert(by_itself_.end(), play.by_itself.begin(), play.by_itself.end());
    if (play.broken.empty() || !found_.broken.empty()) return;
    found_.broken = play.broken;
    found_.way = play.way;
  }

  void alone() {
    Player player(scenario_, faults_, known_, wanted_);
    while (has_open()) took(player.play(next()));
  }

  void in_jobs() {
    struct Job {
      pid_t pid;
      int socket;
      bool plays;
    };
    std::vector<Job> jobs;
    while (jobs.size() < limits_.jobs) {
      int ends[2];
      world::require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "a socket");
      std::fflush(stdout);
      const pid_t pid = ::fork();
      world::require(pid >= 0, "a process is made");
      if (pid == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        ::close(ends[0]);
        for (const Job& job : jobs) ::close(job.socket);
        Player player(scenario_, faults_, known_, wanted_);
        while (std::optional<Parcel> asked = Parcel::receive(ends[1]))
          if (!pack(player.play(take_way(*asked))).send(ends[1])) break;
        std::exit(0);
      }
      ::close(ends[1]);
      jobs.push_back({pid, ends[0], false});
    }
    for (;;) {
      for (Job& job : jobs) {
        if (job.plays || !has_open()) continue;
        Parcel parcel;
        put(parcel, next());
        job.plays = parcel.send(job.socket);
      }
      std::vector<pollfd> waiting;
      for (const Job& job : jobs) waiting.push_back({job.plays ? job.socket : -1, POLLIN, 0});
      if (std::none_of(jobs.begin(), jobs.end(), [](const Job& job) { return job.plays; })) break;
      ::poll(waiting.data(), waiting.size(), -1);
      for (std::size_t i = 0; i < jobs.size(); ++i) {
        if (!jobs[i].plays || waiting[i].revents == 0) continue;
        std::optional<Parcel> played = Parcel::receive(jobs[i].socket);
        jobs[i].plays = false;
        if (played)
          took(unpack(*played));
        else
          ended(jobs[i].pid);
      }
    }
    for (const Job& job : jobs) {
      ::close(job.socket);
      ::waitpid(job.pid, nullptr, 0);
    }
  }

  void ended(pid_t job) {
    int status = 0;
    ::waitpid(job, &status, 0);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU) ::raise(SIGXCPU);  // its limit is ours
    found_.broken = "nothing ends the process";  // which has said where
  }

  void look_for_circles() {
    std::vector<std::uint64_t> all;
    for (const auto& [from, to] : by_itself_) {
      all.push_back(from);
      all.push_back(to);
    }
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    const auto number = [&](std::uint64_t state) {
      return static_cast<Number>(std::lower_bound(all.begin(), all.end(), state) - all.begin());
    };
    std::vector<std::pair<Number, Number>> ways;
    for (const auto& [from, to] : by_itself_) ways.emplace_back(number(from), number(to));
    const Onward onward = go_onward(all.size(), ways);
    found_.longest = onward.longest;
    if (!onward.in_a_circle) return;
    const Searched to_it = Search(scenario_, faults_, limits_, all[*onward.in_a_circle]).run();
    found_.broken = kInACircle;
    found_.way = to_it.way;
  }

  const Scenario& scenario_;
  const int faults_;
  const SearchLimits limits_;
  const std::optional<std::uint64_t> wanted_;
  Known known_;
  std::map<std::pair<std::uint8_t, std::size_t>, std::vector<Way>> open_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> by_itself_;
  Searched found_;
};

}  // namespace

Searched search(const Scenario& scenario, int faults, const SearchLimits& limits) {
  return Search(scenario, faults, limits, std::nullopt).run();
}

std::string replay(const Scenario& scenario, int faults, const std::vector<std::uint8_t>& way) {
  Way given;
  given.choices = way;
  Guide guide(given, {});
  playing_in = again(scenario, faults);
  watch(&guide);
  std::string broken = NodeWorld(scenario, faults, guide, true).play();
  watch(nullptr);
  return broken;
}

std::string text_of(const std::vector<std::uint8_t>& way) {
  std::string text;
  for (const std::uint8_t choice : way) text += (text.empty() ? "" : ",") + std::to_string(choice);
  return text;
}

}  // namespace amem::model
