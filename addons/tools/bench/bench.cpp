#include "addons/tools/bench/bench.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "addons/tools/bench/measurements.h"
#include "addons/tools/bench/rank_process.h"
#include "client/ctl/exit_code.h"

namespace amem::ctl {
namespace {

using std::chrono::seconds;

/// To start, and to copy or look at all bytes: 0.1 GB/s, and some time for the driver.
RankProcess::Deadline in_time_for(std::uint64_t bytes) {
  return std::chrono::steady_clock::now() + seconds(60) + seconds(bytes / 100'000'000);
}

class Bench {
 public:
  Bench(const Invocation& invocation, const BenchOptions& options)
      : command_(invocation.options),
        options_(options),
        broker_(invocation.broker),
        interrupt_(invocation.interrupt != nullptr ? invocation.interrupt->fd() : -1),
        group_("bench-" + std::to_string(::getpid())) {}

  Status run(const RunContext& context, Measurements& measured) {
    Status status = start(context, measured.gpus);
    measured.bytes = options_.bytes;
    for (int round = 0; status.ok() && round < options_.rounds; ++round) status = once(measured);
    return status;
  }

 private:
  /// Of all ranks, one answer each.
  Result<std::vector<std::string>> all(const std::string& command) {
    for (RankProcess& rank : ranks_)
      if (Status status = rank.say(command); !status.ok()) return status;
    return hear();
  }
  Result<std::vector<std::string>> hear() {
    std::vector<std::string> answers;
    const auto deadline = in_time_for(options_.bytes);
    for (RankProcess& rank : ranks_) {
      Result<std::string> line = rank.hear(deadline, interrupt_);
      if (!line.ok()) return line.status();
      answers.push_back(std::move(line).value());
    }
    return answers;
  }

  Status start(const RunContext& context, int& gpus) {
    const auto status = broker_.status();
    if (!status.ok()) return status.status();
    const int there = status.value().devices_size();
    gpus = options_.gpus > 0 ? options_.gpus : there;
    if (gpus > there || gpus == 0)
      return {Code::kInvalidArgument, "bench requires " + std::to_string(std::max(gpus, 1)) +
                                          " GPUs, but amemd has " + std::to_string(there)};
    CommandLine launch = command_;
    launch.group = group_;
    launch.scope = "heap";
    launch.required = true;
    launch.trace.clear();
    const auto plan = plan_run(launch, context);
    if (!plan.ok()) return plan.status();
    if (!plan.value().warnings.empty())  // ranks would run without amem
      return {Code::kFailedPrecondition, plan.value().warnings.front()};
    std::map<std::string, std::string> environment = context.environment;
    for (const auto& [name, value] : plan.value().environment) environment[name] = value;
    // By its own name, so that ranks are listed as amemctl.
    std::error_code unknown;
    std::string self = std::filesystem::read_symlink("/proc/self/exe", unknown).string();
    if (unknown || ::access(self.c_str(), X_OK) != 0) self = "/proc/self/exe";
    for (int gpu = 0; gpu < gpus; ++gpu) {
      environment["RANK"] = std::to_string(gpu);
      auto rank = RankProcess::start("the rank on GPU " + std::to_string(gpu),
                                     {self, "bench-rank", "--gpu", std::to_string(gpu), "--size",
                                      std::to_string(options_.bytes)},
                                     environment);
      if (!rank.ok()) return rank.status();
      ranks_.push_back(std::move(rank).value());
    }
    return hear().status();
  }

  Status once(Measurements& measured) {
    const auto copied = all("copy");
    if (!copied.ok()) return copied.status();
    std::uint64_t out = 0;
    std::uint64_t in = 0;
    for (const std::string& line : copied.value()) {
      std::istringstream words(line);
      std::string word;
      std::uint64_t one_out = 0;
      std::uint64_t one_in = 0;
      words >> word >> one_out >> one_in;
      if (word != "copied" || !words)
        return {Code::kInternal, "a rank printed an unexpected line: \"" + line + "\""};
      out = std::max(out, one_out);
      in = std::max(in, one_in);
    }
    measured.copy_out_us.push_back(out);
    measured.copy_in_us.push_back(in);
    Status status = operate(true, measured.pause_us);
    if (status.ok()) status = operate(false, measured.resume_us);
    if (!status.ok()) return status;
    const auto looked = all("check");
    if (!looked.ok()) return looked.status();
    for (const std::string& line : looked.value())
      if (line != "same")
        return {Code::kDataLoss, "the resume did not restore the same bytes: " + line +
                                     ". Keep amemd's log, and run no group on this node"};
    return {};
  }

  Status operate(bool pause, std::vector<std::uint64_t>& times) {
    const client::OnProgress note = [&](const v1::Progress& progress) {
      if (progress.done()) times.push_back(progress.elapsed_us());
      return true;
    };
    const auto timeout =
        command_.timeout ? static_cast<std::uint32_t>(command_.timeout->count()) : 0U;
    return pause ? broker_.pause({group_}, {}, timeout, note)
                 : broker_.resume({group_}, {}, timeout, note);
  }

  const CommandLine& command_;
  const BenchOptions& options_;
  client::ControlClient& broker_;
  int interrupt_;
  std::string group_;
  std::vector<RankProcess> ranks_;
};

}  // namespace

int bench(const Invocation& s, const BenchOptions& options, const RunContext& context) {
  ::signal(SIGPIPE, SIG_IGN);  // a rank that has ended is an error, not our end
  Measurements measured;
  Status status;
  {
    Bench bench(s, options);
    status = bench.run(context, measured);
  }
  if (s.interrupted()) return kExitInterrupted;
  if (!status.ok()) return s.end(status);
  s.console.out << (s.options.json ? measurements_json(measured) : measurements_view(measured));
  return kExitOk;
}

}  // namespace amem::ctl
