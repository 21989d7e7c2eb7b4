// What a pause and a resume cost in the broker itself: a real amemd whose driver is numbers
// (number_driver.cpp), with ranks that only answer (light_ranks.h). For each number of ranks and of
// allocations of each rank: the CPU time of the broker's thread by phase, per allocation, and the
// time of the whole operation. Every other allocation is held by a second rank too.
//
//   amem_control_bench --ranks 1,4,16,64 --allocations 10,100,500,2000 --json FILE
//   amem_control_bench --check-us 2 --check-growth 2   status 1 when a phase costs more per
//       allocation than this at the largest size, or that many times what it costs at the smaller
//       ones (of at least 1000 allocations)
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/bench/broker_process.h"
#include "tests/bench/light_ranks.h"
#include "tests/bench/samples.h"

namespace amem::bench {
namespace {

constexpr std::uint64_t kAllocation =
    64ULL << 10;  // bytes; the driver's granularity, a chunk of the pool
constexpr std::uint64_t kPoolUnit = 2ULL << 20;  // its size must be a multiple of it
constexpr double kBigEnough =
    1000;  // allocations; below that, what an operation costs by itself shows

struct Options {
  std::vector<int> ranks = {1, 4, 16, 64};
  std::vector<int> allocations = {10, 100, 500, 2000};
  int cycles = 5;
  std::string json;
  std::string amemd = AMEMD;
  std::string driver = NUMBER_DRIVER;
  double check_us = 0;
  double check_growth = 0;
};

/// Of one operation at one size.
struct Cost {
  Samples wall_ms;
  Samples broker_ms;
  std::map<std::string, Samples> phases;  // µs of broker time per allocation
};

struct Point {
  int ranks = 0;
  int allocations = 0;  // of each rank
  std::uint64_t total = 0;
  std::uint64_t holds = 0;
  std::uint64_t rss = 0;  // bytes
  Cost pause;
  Cost resume;
};

void note(const v1::Progress& done, std::uint64_t allocations, Cost& cost) {
  double broker = 0;
  for (const v1::PhaseTime& phase : done.times()) {
    broker += static_cast<double>(phase.broker_us());
    cost.phases[phase.phase()].add(static_cast<double>(phase.broker_us()) /
                                   static_cast<double>(allocations));
  }
  cost.broker_ms.add(broker / 1000);
  cost.wall_ms.add(static_cast<double>(done.elapsed_us()) / 1000);
}

/// One cycle more than asked for: the first one is not counted.
Status cycle(client::ControlClient& broker, const std::string& group, int cycles, Point& point) {
  for (int i = 0; i <= cycles; ++i) {
    for (Cost* cost : {&point.pause, &point.resume}) {
      const client::OnProgress on_progress = [&](const v1::Progress& progress) {
        if (progress.done() && i > 0) note(progress, point.total, *cost);
        return true;
      };
      const Status status = cost == &point.pause ? broker.pause({group}, {}, 0, on_progress)
                                                 : broker.resume({group}, {}, 0, on_progress);
      if (!status.ok()) return status;
    }
  }
  const Result<v1::NodeStatus> status = broker.status();
  if (!status.ok()) return status.status();
  point.rss = status.value().rss_bytes();
  return {};
}

Status measure(const Options& options, Point& point) {
  const std::uint64_t total =
      static_cast<std::uint64_t>(point.ranks) * static_cast<std::uint64_t>(point.allocations);
  BrokerProcess process;
  const std::uint64_t pool = (total * kAllocation / kPoolUnit + 1) * kPoolUnit;
  if (Status s = process.start(options.amemd, options.driver, pool); !s.ok()) return s;
  LightRanks ranks;
  LightRanks::Shape shape;
  shape.socket = process.directory() + "/session.sock";
  shape.group = "bench";
  shape.ranks = point.ranks;
  shape.allocations = point.allocations;
  shape.size = kAllocation;
  const Result<v1::NodeStatus> status = process.broker().status();
  if (!status.ok()) return status.status();
  for (int i = 0; i < status.value().devices_size(); ++i) {
    // The bench's driver: the bytes of a device's UUID are its number, counted from 1.
    DeviceUuid uuid;
    uuid.bytes.fill(static_cast<std::uint8_t>(i + 1));
    shape.devices.push_back(uuid);
  }
  if (Status s = ranks.set_up(shape); !s.ok()) return s;
  point.total = ranks.allocations();
  point.holds = ranks.holds();

  Status answered;
  std::thread answering([&] { answered = ranks.answer(); });
  Status cycled = cycle(process.broker(), shape.group, options.cycles, point);
  ranks.stop();
  answering.join();
  return cycled.ok() ? answered : cycled;
}

/// The phase that costs most per allocation.
double dearest(const Cost& cost) {
  double most = 0;
  for (const auto& [phase, samples] : cost.phases) most = std::max(most, samples.median());
  return most;
}

std::string json(const Cost& cost) {
  std::string phases;
  for (const auto& [phase, samples] : cost.phases)
    phases += (phases.empty() ? "" : ",") + ("\"" + phase + "\":") + samples.json();
  return "{\"wall_ms\":" + cost.wall_ms.json() + ",\"broker_ms\":" + cost.broker_ms.json() +
         ",\"us_per_allocation\":{" + phases + "}}";
}

std::string json(const Point& p) {
  return "{\"ranks\":" + std::to_string(p.ranks) +
         ",\"allocations_per_rank\":" + std::to_string(p.allocations) +
         ",\"allocations\":" + std::to_string(p.total) + ",\"holds\":" + std::to_string(p.holds) +
         ",\"broker_rss_bytes\":" + std::to_string(p.rss) + ",\"pause\":" + json(p.pause) +
         ",\"resume\":" + json(p.resume) + "}";
}

void print(const Point& p) {
  for (const auto& [name, cost] : {std::pair("pause", &p.pause), std::pair("resume", &p.resume)}) {
    std::printf("%3d x %4d  %-6s  %9.2f ms, broker %9.2f ms; us per allocation:", p.ranks,
                p.allocations, name, cost->wall_ms.median(), cost->broker_ms.median());
    for (const auto& [phase, samples] : cost->phases)
      std::printf(" %s %.2f", phase.c_str(), samples.median());
    std::printf("\n");
  }
  std::fflush(stdout);
}

/// The largest size against the limits.
bool check(const Options& options, const std::vector<Point>& points) {
  const Point* largest = nullptr;
  for (const Point& p : points)
    if (largest == nullptr || p.total > largest->total) largest = &p;
  if (largest == nullptr) return true;
  bool good = true;
  for (const bool pause : {true, false}) {
    const auto cost_of = [pause](const Point& p) { return dearest(pause ? p.pause : p.resume); };
    const double at_largest = cost_of(*largest);
    const char* name = pause ? "pause" : "resume";
    if (options.check_us > 0 && at_largest > options.check_us) {
      std::printf("%s, %d x %d: %.2f us per allocation in one phase, the limit is %.2f\n", name,
                  largest->ranks, largest->allocations, at_largest, options.check_us);
      good = false;
    }
    for (const Point& p : points) {
      const bool counts = static_cast<double>(p.total) >= kBigEnough && p.total < largest->total;
      if (options.check_growth <= 0 || !counts) continue;
      if (at_largest <= options.check_growth * cost_of(p)) continue;
      std::printf("%s: %.2f us per allocation at %d x %d, but %.2f at %d x %d: not linear\n", name,
                  cost_of(p), p.ranks, p.allocations, at_largest, largest->ranks,
                  largest->allocations);
      good = false;
    }
  }
  return good;
}

int run(const Options& options) {
  std::vector<Point> points;
  for (const int ranks : options.ranks) {
    for (const int allocations : options.allocations) {
      Point point;
      point.ranks = ranks;
      point.allocations = allocations;
      if (Status s = measure(options, point); !s.ok()) {
        std::fprintf(stderr, "%d ranks with %d allocations: %s\n", ranks, allocations,
                     s.text().c_str());
        return 1;
      }
      print(point);
      points.push_back(std::move(point));
    }
  }
  if (!options.json.empty()) {
    std::ofstream file(options.json);
    file << "[";
    for (std::size_t i = 0; i < points.size(); ++i)
      file << (i > 0 ? ",\n " : "") << json(points[i]);
    file << "]\n";
    if (!file.flush()) {
      std::fprintf(stderr, "cannot write %s\n", options.json.c_str());
      return 1;
    }
  }
  return check(options, points) ? 0 : 1;
}

}  // namespace
}  // namespace amem::bench

int main(int argc, char** argv) {
  amem::bench::Options options;
  CLI::App app("What pause and resume cost in the broker itself, by ranks and allocations");
  app.add_option("--ranks", options.ranks, "Numbers of ranks")->delimiter(',');
  app.add_option("--allocations", options.allocations, "Numbers of allocations of each rank")
      ->delimiter(',');
  app.add_option("--cycles", options.cycles, "Counted pauses and resumes of each size");
  app.add_option("--json", options.json, "Where the results go");
  app.add_option("--amemd", options.amemd, "The broker's program");
  app.add_option("--driver", options.driver, "The library of number_driver.cpp");
  app.add_option("--check-us", options.check_us, "Most µs per allocation in one phase");
  app.add_option("--check-growth", options.check_growth, "How much more that may be than at less");
  CLI11_PARSE(app, argc, argv);
  return amem::bench::run(options);
}
