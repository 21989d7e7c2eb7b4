// amem-workload: plays NCCL on the simulated driver, and with "heap" a program without NCCL.
// manual.md says how to use it.
#include <unistd.h>

#include <functional>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/workload/base/commands.h"
#include "tests/workload/base/driver.h"
#include "tests/workload/heap/heap.h"
#include "tests/workload/program/options.h"
#include "tests/workload/program/process.h"
#include "tests/workload/program/rank.h"

namespace amem::workload {
namespace {

using Ranks = std::vector<std::unique_ptr<Rank>>;

Ranks MakeRanks(const Options& options) {
  Check(Cuda().cuInit(0), "cuInit");
  int devices = 0;
  Check(Cuda().cuDeviceGetCount(&devices), "cuDeviceGetCount");
  if (devices == 0) throw Failure("no device is visible");
  const int first = options.device >= 0 ? options.device : options.rank;
  Ranks ranks;
  ranks.reserve(static_cast<std::size_t>(options.devices_per_process));
  for (int i = 0; i < options.devices_per_process; ++i) {
    ranks.push_back(
        std::make_unique<Rank>(options, options.rank + i, (first + i) % devices, devices));
  }
  return ranks;
}

/// Runs `action` for each rank, at the same time, each in a thread that has its device current.
/// Failures become the answer's error.
Answer OnEveryRank(const Ranks& ranks, const std::function<void(Rank&, Answer*)>& action) {
  std::vector<Answer> answers(ranks.size());
  const auto run = [&](std::size_t i) {
    FillIn(&answers[i], [&](Answer* answer) {
      ranks[i]->Bind();
      action(*ranks[i], answer);
    });
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < ranks.size(); ++i) threads.emplace_back(run, i);
  run(0);
  for (std::thread& thread : threads) thread.join();

  Answer all;
  for (const Answer& answer : answers) all.Merge(answer);
  return all;
}

void Capture(Rank& rank, const Words& words, Answer*) {
  const bool begin = WordAt(words, 1) == "begin";
  const bool end = WordAt(words, 1) == "end";
  if (!end) rank.BeginCapture(NumberAt(words, begin ? 2 : 1, 1));
  if (!begin) rank.EndCapture();
}

const Commands<Rank> kRankCommands = {
    {"step",
     [](Rank& rank, const Words& words, Answer* answer) {
       rank.Step(NumberAt(words, 1, 1));
       rank.Report(answer);
     }},
    {"loop on", [](Rank& rank, const Words&, Answer*) { rank.StartLoop(); }},
    {"loop status", [](Rank& rank, const Words&, Answer* answer) { rank.Report(answer); }},
    {"loop off",
     [](Rank& rank, const Words&, Answer* answer) {
       rank.StopLoop();
       rank.Report(answer);
     }},
    {"capture", Capture},
    {"graph",
     [](Rank& rank, const Words& words, Answer* answer) {
       rank.LaunchGraph(NumberAt(words, 1, 1));
       rank.Report(answer);
     }},
    {"verify", [](Rank& rank, const Words&, Answer* answer) { rank.Verify(answer); }},
    {"checksum", [](Rank& rank, const Words&, Answer* answer) { rank.Checksum(answer); }},
    {"addresses", [](Rank& rank, const Words&, Answer* answer) { rank.Addresses(answer); }},
    {"meminfo", [](Rank& rank, const Words&, Answer* answer) { rank.MemoryInfo(answer); }},
    {"rewrite", [](Rank& rank, const Words&, Answer*) { rank.Rewrite(); }},
    {"alloc",
     [](Rank& rank, const Words& words, Answer* answer) {
       answer->Item("ids", std::to_string(rank.Allocate(NumberAt(words, 1, 1))));
     }},
    {"free",
     [](Rank& rank, const Words& words, Answer*) { rank.FreePlain(NumberAt(words, 1, 0)); }},
    {"corrupt", [](Rank& rank, const Words& words,
                   Answer*) { rank.Corrupt(NumberAt(words, 1, 1), NumberAt(words, 2, 0)); }},
    {"import",
     [](Rank& rank, const Words& words, Answer*) {
       rank.ImportForeign(WordAt(words, 1),
                          {static_cast<int>(NumberAt(words, 2, 0)), NumberAt(words, 3, 1)});
     }},
    {"teardown", [](Rank& rank, const Words&, Answer*) { rank.TearDown(); }},
};

int Run(const Options& options) {
  const Ranks ranks = MakeRanks(options);
  Answer ready = OnEveryRank(ranks, [](Rank& rank, Answer* answer) {
    rank.BringUp();
    rank.MemoryInfo(answer);
  });
  ready.Text("event", "ready");
  ready.Number("pid", static_cast<std::uint64_t>(getpid()));
  Print(ready);
  if (!ready.ok()) return 1;

  Serve([&](const Words& words, Answer* answer) {
    const std::string& name = words.front();
    if (name.starts_with("nccl")) return CallPreloaded(name, answer);
    if (name == "fork") return RunChild(WordAt(words, 1) == "exec", answer);
    answer->Merge(OnEveryRank(
        ranks, [&](Rank& rank, Answer* each) { Obey(kRankCommands, rank, words, each); }));
  });

  Answer bye;
  if (options.teardown) {
    bye = OnEveryRank(ranks, [](Rank& rank, Answer* answer) {
      rank.TearDown();
      rank.MemoryInfo(answer);
    });
  }
  bye.Text("event", "exit");
  Print(bye);
  return bye.ok() ? 0 : 1;
}

}  // namespace
}  // namespace amem::workload

int main(int argc, char** argv) {
  using namespace amem::workload;
  int status = 1;
  Answer answer;
  FillIn(&answer, [&](Answer*) {
    status =
        argc > 1 && std::string_view(argv[1]) == "heap" ? RunHeap() : Run(ParseOptions(argc, argv));
  });
  if (!answer.ok()) Print(answer);
  return status;
}
