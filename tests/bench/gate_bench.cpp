// What the launch gate costs: a call of cuLaunchKernel's 11 arguments through the shim's wrapper,
// against the same call without it. The driver is a function that does nothing, so the difference
// is the gate and the extra call.
//
//   amem_gate_bench                        Google Benchmark's table and options
//   amem_gate_bench --check-limit-ns=10    status 1 when a launch costs more than so much more
//   through the gate
#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <thread>

#include "shim/calls/driver_calls.h"
#include "shim/gate/gate.h"
#include "shim/runtime/runtime.h"

namespace {

using Launch = CUresult (*)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            unsigned, CUstream, void**, void**);

[[gnu::noinline]] CUresult do_nothing(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                                      unsigned, unsigned shared_bytes, CUstream, void**, void**) {
  benchmark::DoNotOptimize(shared_bytes);
  return CUDA_SUCCESS;
}

/// The shim's wrapper of cuLaunchKernel over do_nothing; null when the shim has none.
Launch gated() {
  static amem::shim::Gate gate;
  static const Launch wrapper = []() -> Launch {
    const amem::shim::Call* row = amem::shim::find_call("cuLaunchKernel", 4000, false);
    if (row == nullptr) return nullptr;
    gate.prepare({});
    amem::shim::the_gate = &gate;
    row->real->store(reinterpret_cast<void*>(&do_nothing));
    return reinterpret_cast<Launch>(row->wrapper);
  }();
  return wrapper;
}

// Through a pointer that the compiler cannot see through, as callers have it from cuGetProcAddress.
void call(Launch launch) {
  benchmark::DoNotOptimize(launch);
  benchmark::DoNotOptimize(launch(nullptr, 1, 1, 1, 256, 1, 1, 0, nullptr, nullptr, nullptr));
}

void direct(benchmark::State& state) {
  for (auto _ : state) call(&do_nothing);
}
BENCHMARK(direct)->Name("launch/direct");

void through_gate(benchmark::State& state) {
  const Launch launch = gated();
  for (auto _ : state) call(launch);
}
BENCHMARK(through_gate)->Name("launch/gate")->ThreadRange(1, 4)->UseRealTime();

/// The same while somebody looks for work, a hundred times as often as the shim does for a group
/// that takes turns.
void with_reports(benchmark::State& state) {
  const Launch launch = gated();
  std::atomic<bool> ends{false};
  std::thread reports([&] {
    while (!ends) {
      benchmark::DoNotOptimize(amem::shim::the_gate->take_worked());
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  for (auto _ : state) call(launch);
  ends = true;
  reports.join();
}
BENCHMARK(with_reports)->Name("launch/gate_with_reports");

double nanoseconds_per_call(Launch launch) {
  constexpr int kCalls = 200'000;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) call(launch);
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
  return took.count() / kCalls;
}

// The fastest of many short rounds, taken in turns: what a busy machine adds falls on both and
// drops out.
int check(double limit) {
  double plain = std::numeric_limits<double>::max();
  double through = plain;
  for (int round = 0; round < 100; ++round) {
    plain = std::min(plain, nanoseconds_per_call(&do_nothing));
    through = std::min(through, nanoseconds_per_call(gated()));
  }
  std::printf(
      "a call: %.2f ns; through the gate: %.2f ns; the gate costs %.2f ns, the limit is %.0f\n",
      plain, through, through - plain, limit);
  return through - plain <= limit ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (gated() == nullptr) {
    std::fprintf(stderr, "the shim has no wrapper for cuLaunchKernel\n");
    return 1;
  }
  constexpr std::string_view kCheck = "--check-limit-ns=";
  if (argc == 2 && std::string_view(argv[1]).starts_with(kCheck))
    return check(std::strtod(argv[1] + kCheck.size(), nullptr));
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
