// amem-workload: plays NCCL on the simulated driver. README.md says how to use it.
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <vector>

#include "tests/workload/base/cuda_table.h"
#include "tests/workload/base/failure.h"
#include "tests/workload/program/commands.h"
#include "tests/workload/program/options.h"
#include "tests/workload/program/rank.h"

namespace {

using amem::workload::Answer;
using amem::workload::Check;
using amem::workload::Commands;
using amem::workload::Cuda;
using amem::workload::Failure;
using amem::workload::Options;
using amem::workload::Rank;

std::vector<std::unique_ptr<Rank>> MakeRanks(const Options& options) {
  Check(Cuda().cuInit(0), "cuInit");
  int devices = 0;
  Check(Cuda().cuDeviceGetCount(&devices), "cuDeviceGetCount");
  if (devices == 0) throw Failure("no device is visible");
  const int first = options.device >= 0 ? options.device : options.rank;
  std::vector<std::unique_ptr<Rank>> ranks;
  ranks.reserve(static_cast<std::size_t>(options.devices_per_process));
  for (int i = 0; i < options.devices_per_process; ++i) {
    ranks.push_back(
        std::make_unique<Rank>(options, options.rank + i, (first + i) % devices, devices));
  }
  return ranks;
}

int Run(const Options& options) {
  std::vector<std::unique_ptr<Rank>> ranks = MakeRanks(options);
  Commands commands(ranks);
  Answer ready = commands.OnEveryRank([](Rank& rank, Answer* answer) {
    rank.BringUp();
    rank.MemoryInfo(answer);
  });
  ready.Text("event", "ready");
  ready.Number("pid", static_cast<std::uint64_t>(getpid()));
  Print(ready);
  if (!ready.ok()) return 1;

  commands.Serve();

  Answer bye;
  if (options.teardown) {
    bye = commands.OnEveryRank([](Rank& rank, Answer* answer) {
      rank.TearDown();
      rank.MemoryInfo(answer);
    });
  }
  bye.Text("event", "exit");
  Print(bye);
  return bye.ok() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Run(amem::workload::ParseOptions(argc, argv));
  } catch (const Failure& failure) {
    Answer answer;
    answer.Fail(failure.what());
    amem::workload::Print(answer);
    return 1;
  }
}
