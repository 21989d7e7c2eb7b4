#include "tests/gpu/nccl/cycle.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "tests/gpu/nccl/broker_view.h"

namespace gpu_test {
namespace {

using Clock = std::chrono::steady_clock;

std::uint32_t microseconds_since(Clock::time_point begin) {
  return static_cast<std::uint32_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin).count());
}

std::string mib(std::uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

class Run {
 public:
  Run(Crew& crew, const Options& options, const PauseCalls& calls, const SuspendCalls& suspend)
      : crew_(crew),
        options_(options),
        calls_(calls),
        suspend_(suspend),
        pause_(choose()),
        checks_(options.memory_checks && !options.bench && !peer()) {}

  void all() {
    for (Rank& rank : crew_.ranks()) std::srand(static_cast<unsigned>(rank.index) + 1);
    crew_.open_devices();
    const bool pauses = pause_ != Pause::kNone && options_.loop_seconds <= 0;
    if (pauses && checks_) measure_baselines();
    note_memory(&MemoryFigures::context_only);
    connect();
    crew_.verify_all(0);
    note_memory(&MemoryFigures::running);
    time_collectives(0);
    if (options_.loop_seconds > 0) {
      loop();
    } else {
      for (int k = 1; k <= options_.cycles; ++k) cycle(k, pauses);
    }
    crew_.destroy_comms();
    if (pauses && checks_ && crew_.leads()) expect_nothing_allocated();
    doing("done");
  }

 private:
  Pause choose() const {
    if (options_.pause == Pause::kInside && (calls_.pause == nullptr || calls_.resume == nullptr))
      fail("pauses from inside asked for, but there is no ncclPause: is the shim preloaded?");
    if (options_.pause == Pause::kSuspend &&
        (suspend_.suspend == nullptr || suspend_.resume == nullptr)) {
      std::fprintf(stderr, "this NCCL has no ncclCommSuspend (2.29.7 or newer has)\n");
      ::_exit(77);  // skipped
    }
    if (options_.pause != Pause::kAuto) return options_.pause;
    return calls_.pause != nullptr ? Pause::kInside : Pause::kNone;
  }

  void connect() {
    const auto begin = Clock::now();
    crew_.create_comms();
    for (Rank& rank : crew_.ranks()) rank.slot->comm_init_us = microseconds_since(begin);
    if (!options_.bench) return;
    crew_.verify_first();
    for (Rank& rank : crew_.ranks()) rank.slot->startup_us = microseconds_since(begin);
  }

  /// Not a pause of amem's: it has nothing to do with the broker.
  bool peer() const { return pause_ == Pause::kSuspend || pause_ == Pause::kRecreate; }

  void time_collectives(int k) {
    if (!options_.time_collectives) return;
    for (std::size_t i = 0; i < kTimed.size(); ++i) {
      if (kTimed[i].bytes > options_.max_bytes || (kTimed[i].captured && !options_.capture))
        continue;
      const double us = crew_.time(kTimed[i]);
      for (Rank& rank : crew_.ranks()) rank.slot->timed_us[static_cast<std::size_t>(k)][i] = us;
    }
  }

  /// For the figures of a bench alone.
  void note_memory(std::uint64_t MemoryFigures::*what) {
    if (!options_.bench) return;
    crew_.barrier();
    for (Rank& rank : crew_.ranks()) rank.slot->memory.*what = crew_.device_memory_used(rank);
    crew_.barrier();
  }

  // What the device holds without communicators: before any existed, and after some came and went.
  // The second counts what stays in a context for good: NCCL's kernels are loaded when they first
  // run.
  void measure_baselines() {
    doing("measuring contexts");
    crew_.barrier();
    for (Rank& rank : crew_.ranks())
      rank.slot->memory.context_only = crew_.device_memory_used(rank);
    crew_.barrier();
    crew_.create_comms();
    for (std::uint64_t round = 0; round < kTypes; ++round) crew_.verify_all(1000 + round);
    crew_.destroy_comms();
    doing("measuring contexts with loaded kernels");
    if (crew_.leads()) expect_nothing_allocated();
    crew_.barrier();
    for (Rank& rank : crew_.ranks())
      rank.slot->memory.after_destroy = crew_.device_memory_used(rank);
    crew_.barrier();
  }

  /// The shim keeps what is freed for a moment.
  void expect_nothing_allocated() {
    const auto until = Clock::now() + std::chrono::seconds(5);
    while (true) {
      const auto view = view_broker(options_.group);
      if (!view.ok()) fail(view.status().text());
      if (view.value().allocated == 0) return;
      if (Clock::now() > until)
        fail("all communicators are destroyed, yet the broker holds " +
             mib(view.value().allocated) + " for group " + options_.group);
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }

  void cycle(int k, bool pauses) {
    for (Rank& rank : crew_.ranks()) rank.slot->cycle.store(k);
    if (pauses) {
      measure_running();
      pause(k);
      check_paused();
      std::this_thread::sleep_for(std::chrono::milliseconds(options_.paused_ms));
      resume(k);
    }
    crew_.verify_all(static_cast<std::uint64_t>(k));
    time_collectives(k);
  }

  void measure_running() {
    doing("measuring before the pause");
    crew_.barrier();
    note_memory(&MemoryFigures::running);
    if (!checks_) return;
    BrokerView view;
    if (auto seen = view_broker(options_.group); seen.ok())
      view = std::move(seen).value();
    else
      fail(seen.status().text());
    for (Rank& rank : crew_.ranks()) {
      MemoryFigures& memory = rank.slot->memory;
      memory.running = crew_.device_memory_used(rank);
      memory.brokered_running = view.group_resident[rank.uuid];
      if (memory.brokered_running == 0)
        fail("the broker holds nothing of GPU " + std::to_string(rank.index) + " (" + rank.uuid +
             ") for group " + options_.group + ": is the shim in use?");
    }
    crew_.barrier();
  }

  // Which crews ask: each process; of a process with several threads the first, or all when told
  // so.
  bool asks() const {
    return options_.mode == Mode::kProcess || crew_.leads() || options_.pause_all_threads;
  }

  void pause(int k) {
    doing("before the pause");
    crew_.barrier();
    doing("pausing");
    const auto begin = Clock::now();
    if (pause_ == Pause::kSuspend) {
      crew_.suspend_comms(suspend_);
    } else if (pause_ == Pause::kRecreate) {
      crew_.destroy_comms();
    } else if (pause_ == Pause::kOutside) {
      if (crew_.leads()) operate_or_fail("pause");
    } else if (asks()) {
      call_twice(by_handle(k) ? calls_.pause_by_handle : calls_.pause, "ncclPause", k);
    }
    record(begin, &RankSlot::pause_us, k);
    crew_.barrier();
  }

  void resume(int k) {
    doing("before the resume");
    crew_.barrier();
    doing("resuming");
    const auto begin = Clock::now();
    if (pause_ == Pause::kSuspend) {
      crew_.resume_comms(suspend_);
    } else if (pause_ == Pause::kRecreate) {
      crew_.create_comms();
      crew_.verify_first();  // NCCL connects when it first communicates
    } else if (pause_ == Pause::kOutside) {
      if (crew_.leads()) operate_or_fail("resume");
    } else if (asks()) {
      call_twice(by_handle(k) ? calls_.resume_by_handle : calls_.resume, "ncclResume", k);
    }
    record(begin, &RankSlot::resume_us, k);
    crew_.barrier();
  }

  void record(Clock::time_point begin, std::array<std::uint32_t, kMaxCycles> RankSlot::*times,
              int k) {
    const bool took_part = pause_ == Pause::kOutside ? crew_.leads() : asks();
    if (took_part)
      (crew_.ranks()[0].slot->*times)[static_cast<std::size_t>(k - 1)] = microseconds_since(begin);
  }

  // Every second cycle goes the way of a program that looks the calls up in NCCL itself.
  bool by_handle(int k) const { return k % 2 == 0; }

  // In the third cycle each call is made twice: the second must do nothing and succeed.
  void call_twice(PauseCalls::Call call, const char* name, int k) {
    if (call == nullptr) fail(std::string(name) + " is not found through NCCL's own handle");
    for (int i = 0; i < (k == 3 ? 2 : 1); ++i)
      if (const ncclResult_t result = call(nullptr); result != ncclSuccess)
        fail(std::string(name) + " returned " + std::to_string(result) +
             (i > 0 ? " when called again" : ""));
  }

  void operate_or_fail(const char* verb) {
    if (const auto status = operate(verb, options_.group); !status.ok()) fail(status.text());
  }

  void check_paused() {
    note_memory(&MemoryFigures::paused_max);
    if (!checks_) return;
    doing("measuring while paused");
    if (crew_.leads()) {
      const auto view = view_broker(options_.group);
      if (!view.ok()) fail(view.status().text());
      const BrokerView& v = view.value();
      if (v.state != "GROUP_STATE_PAUSED") fail("paused, but the broker says " + v.state);
      if (v.resident != 0) fail("paused, but " + mib(v.resident) + " are resident");
    }
    const std::uint64_t tolerance = static_cast<std::uint64_t>(options_.tolerance_mib) << 20;
    for (Rank& rank : crew_.ranks()) {
      MemoryFigures& memory = rank.slot->memory;
      const std::uint64_t used = crew_.device_memory_used(rank);
      const std::uint64_t freed = memory.running > used ? memory.running - used : 0;
      memory.paused_min = std::min(memory.paused_min, used);
      memory.paused_max = std::max(memory.paused_max, used);
      memory.freed_min = std::min(memory.freed_min, freed);
      const std::string where = "GPU " + std::to_string(rank.index) + ": ";
      if (used > memory.after_destroy + tolerance)
        fail(where + mib(used) + " in use while paused, " + mib(memory.after_destroy) +
             " without communicators (" + mib(memory.context_only) + " before the first)");
      if (freed + tolerance < memory.brokered_running ||
          freed > memory.brokered_running + tolerance)
        fail(where + "the driver says that the pause freed " + mib(freed) +
             ", the broker that it was " + mib(memory.brokered_running));
    }
    crew_.barrier();
  }

  void loop() {
    const auto end = Clock::now() + std::chrono::duration<double>(options_.loop_seconds);
    std::uint64_t round = 1;
    do crew_.burst(round++);
    while (!crew_.agree_to_stop(crew_.leads() && (Clock::now() > end || told_to_stop())));
    crew_.verify_all(round);
  }

  bool told_to_stop() const {
    return !options_.stop_file.empty() && ::access(options_.stop_file.c_str(), F_OK) == 0;
  }

  Crew& crew_;
  const Options& options_;
  const PauseCalls& calls_;
  const SuspendCalls& suspend_;
  const Pause pause_;
  const bool checks_;  // of what broker and driver say of the memory
};

}  // namespace

void run_crew(Crew& crew, const Options& options, const PauseCalls& calls,
              const SuspendCalls& suspend) {
  Run(crew, options, calls, suspend).all();
}

}  // namespace gpu_test
