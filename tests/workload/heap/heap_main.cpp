// amem-heap: a program without NCCL whose whole device memory is brokered. README.md says how to
// use it.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <thread>
#include <vector>

#include "tests/workload/base/cuda_table.h"
#include "tests/workload/base/failure.h"
#include "tests/workload/heap/heap_calls.h"
#include "tests/workload/heap/heap_fifos.h"
#include "tests/workload/heap/heap_graphs.h"
#include "tests/workload/heap/heap_memory.h"
#include "tests/workload/nccl/nccl_calls.h"

namespace amem::workload {
namespace {

using Words = std::vector<std::string>;

std::uint64_t NumberAt(const Words& words, std::size_t index, std::uint64_t otherwise) {
  return index < words.size() ? std::stoull(words[index], nullptr, 0) : otherwise;
}

std::string WordAt(const Words& words, std::size_t index) {
  return index < words.size() ? words[index] : std::string();
}

int DeviceAt(const Words& words) { return static_cast<int>(NumberAt(words, 1, 0)); }

/// Allocates, writes, checks and frees in a thread of its own, until it is told to stop.
class Background {
 public:
  ~Background() { Stop(); }
  void Start() {
    if (thread_.joinable()) throw Failure("it runs already");
    thread_ = std::thread([this] {
      try {
        HeapMemory memory;
        while (!stop_) {
          memory.Churn(0, 20);
          ++rounds_;
        }
      } catch (const Failure& failure) {
        error_ = failure.what();
      }
    });
  }
  std::uint64_t Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    stop_ = false;
    if (!error_.empty()) throw Failure("in the background: " + error_);
    return rounds_;
  }
  std::uint64_t rounds() const { return rounds_; }

 private:
  std::thread thread_;
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> rounds_{0};
  std::string error_;
};

struct Program {
  HeapMemory memory;
  HeapGraph graph{memory};
  HeapFifos fifos;
  Background background;
  std::map<std::uint64_t, CUdeviceptr> of_nccl;
};

void Region(Program& program, const Words& words, Answer*) {
  if (WordAt(words, 1) == "begin") {
    BeginRegion(WordAt(words, 2), static_cast<int>(NumberAt(words, 3, 0)));
    program.memory.SetTag(WordAt(words, 2));
  } else {
    EndRegion();
    program.memory.SetTag("");
  }
}

void Peer(Program& program, const Words& words, Answer*) {
  // Both ways, as frameworks do.
  for (const auto& [from, to] : {std::pair(0, 1), std::pair(1, 0)}) {
    program.memory.Bind(from);
    const CUcontext peer = program.memory.context(to);
    if (WordAt(words, 1) == "on")
      Check(Cuda().cuCtxEnablePeerAccess(peer, 0), "cuCtxEnablePeerAccess");
    else
      Check(Cuda().cuCtxDisablePeerAccess(peer), "cuCtxDisablePeerAccess");
  }
}

void Reset(Program& program, const Words& words, Answer*) {
  Check(Cuda().cuDevicePrimaryCtxReset(DeviceAt(words)), "cuDevicePrimaryCtxReset");
  program.memory.Forget(DeviceAt(words));
  CUcontext context = nullptr;
  Check(Cuda().cuDevicePrimaryCtxRetain(&context, DeviceAt(words)), "cuDevicePrimaryCtxRetain");
}

using Command = void (*)(Program& program, const Words& words, Answer* answer);

const std::map<std::string, Command> kCommands = {
    {"alloc",
     [](Program& p, const Words& w, Answer* a) {
       a->Number("id", p.memory.Allocate(DeviceAt(w), NumberAt(w, 2, 1), NumberAt(w, 3, 1)));
     }},
    {"pitch",
     [](Program& p, const Words& w, Answer* a) {
       a->Number("id", p.memory.AllocatePitched(DeviceAt(w), NumberAt(w, 2, 1), NumberAt(w, 3, 1)));
     }},
    {"free",
     [](Program& p, const Words& w, Answer*) {
       for (std::uint64_t i = 0; i < NumberAt(w, 2, 1); ++i) p.memory.Free(NumberAt(w, 1, 0) + i);
     }},
    {"free_async", [](Program& p, const Words& w,
                      Answer*) { p.memory.FreeAsync(NumberAt(w, 1, 0), IdleStream(p.memory)); }},
    {"stream",
     [](Program& p, const Words& w, Answer*) {
       if (WordAt(w, 1) == "hold") return HoldStream(p.memory, NumberAt(w, 2, 60'000));
       ReleaseStream();
     }},
    {"churn",
     [](Program& p, const Words& w, Answer*) { p.memory.Churn(DeviceAt(w), NumberAt(w, 2, 100)); }},
    {"expand",
     [](Program& p, const Words& w, Answer*) {
       p.memory.Expand(DeviceAt(w), NumberAt(w, 2, 2U << 20U), NumberAt(w, 3, 1));
     }},
    {"shuffle", [](Program& p, const Words&, Answer*) { p.memory.Shuffle(); }},
    {"drop",
     [](Program& p, const Words& w, Answer*) { p.memory.DropSegments(WordAt(w, 1) == "unseen"); }},
    {"region", Region},
    {"zero", [](Program& p, const Words& w, Answer*) { p.memory.ExpectZero(WordAt(w, 1)); }},
    {"rewrite", [](Program& p, const Words&, Answer*) { p.memory.Rewrite(); }},
    {"verify",
     [](Program& p, const Words& w, Answer* a) {
       p.memory.Verify({w.begin() + 1, w.end()}, a);
     }},
    {"list", [](Program& p, const Words&, Answer* a) { p.memory.List(a); }},
    {"attributes",
     [](Program& p, const Words& w, Answer* a) {
       ReportAttributes(p.memory, NumberAt(w, 1, 1), NumberAt(w, 2, 0), a);
     }},
    {"sync_memops",
     [](Program& p, const Words& w, Answer*) { SetSyncMemops(p.memory, NumberAt(w, 1, 1)); }},
    {"access",
     [](Program& p, const Words& w, Answer* a) { ReportAccess(p.memory, NumberAt(w, 1, 1), a); }},
    {"peer", Peer},
    {"mistakes", [](Program& p, const Words&, Answer* a) { ReportMistakes(p.memory, a); }},
    {"context",
     [](Program&, const Words& w, Answer* a) { UseContext(DeviceAt(w), NumberAt(w, 2, 1), a); }},
    {"reset", Reset},
    {"capture",
     [](Program& p, const Words& w, Answer* a) {
       p.memory.Bind(0);
       if (WordAt(w, 1) == "end") return EndCapture(a);
       if (WordAt(w, 1) == "begin")
         return BeginCapture(p.memory, WordAt(w, 2), WordAt(w, 3) == "apart");
       if (WordAt(w, 1) == "copy") return CopyInCapture(p.memory, NumberAt(w, 2, 1));
       if (WordAt(w, 1) == "drop") return DropCapture();
       AllocateInCapture(NumberAt(w, 2, 1000), a);
     }},
    {"graph",
     [](Program& p, const Words& w, Answer*) { p.graph.Do(WordAt(w, 1), NumberAt(w, 2, 0)); }},
    {"unbrokered",
     [](Program& p, const Words& w, Answer*) {
       if (WordAt(w, 1) == "begin") return BeginUnbrokered();
       if (WordAt(w, 1) == "end") return EndUnbrokered();
       p.memory.Bind(0);
       if (WordAt(w, 1) == "free") return FreeUnbrokered();
       AllocateUnbrokered(WordAt(w, 1), NumberAt(w, 2, 1U << 20U));
     }},
    {"saver",
     [](Program&, const Words& w, Answer*) {
       if (WordAt(w, 1) == "margin") return SetMemoryMargin(NumberAt(w, 2, 0));
       CallSaver("tms_" + WordAt(w, 1), WordAt(w, 2));
     }},
    {"nccl",
     [](Program& p, const Words& w, Answer*) {
       const NcclCalls calls(DeviceAt(w));
       p.memory.Bind(DeviceAt(w));
       Handle handle = 0;
       p.of_nccl.emplace(p.of_nccl.size(), calls.Alloc(NumberAt(w, 2, 2U << 20U), false, &handle));
     }},
    {"nccl_begun",
     [](Program& p, const Words& w, Answer*) {
       NcclCalls calls(DeviceAt(w));
       p.memory.Bind(DeviceAt(w));
       calls.Granularity(false);
       CreateArguments arguments;
       arguments.location_id = DeviceAt(w);
       arguments.handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
       Handle handle = 0;
       Check(calls.Create(NumberAt(w, 2, 64U << 10U), arguments, &handle), "cuMemCreate");
     }},
    {"window",
     [](Program& p, const Words& w, Answer*) {
       p.memory.Bind(DeviceAt(w));
       RegisterWindow(DeviceAt(w), WordAt(w, 2) == "looked-up");
     }},
    {"fifo",
     [](Program& p, const Words& w, Answer*) {
       p.memory.Bind(DeviceAt(w));
       const std::string& ahead = WordAt(w, 2);
       p.fifos.Make(DeviceAt(w), ahead == "none" ? "" : ahead, NumberAt(w, 3, 1));
     }},
    {"fifos", [](Program& p, const Words&, Answer* a) { p.fifos.Report(a); }},
    {"nccl_block",
     [](Program& p, const Words& w, Answer* a) {
       a->Number("id", p.memory.Allocate(DeviceAt(w), NumberAt(w, 2, 1), NumberAt(w, 3, 1), true));
     }},
    {"background",
     [](Program& p, const Words& w, Answer* a) {
       if (WordAt(w, 1) == "on") return p.background.Start();
       a->Number("rounds", WordAt(w, 1) == "off" ? p.background.Stop() : p.background.rounds());
     }},
    {"stats", [](Program&, const Words&, Answer* a) { ReportStats(a); }},
    {"pause", [](Program&, const Words& w,
                 Answer*) { CallShim("amem_shim_pause", Words(w.begin() + 1, w.end())); }},
    {"policy", [](Program&, const Words& w,
                  Answer*) { SetPolicy(WordAt(w, 1), static_cast<int>(NumberAt(w, 2, 0))); }},
    {"resume", [](Program&, const Words& w,
                  Answer*) { CallShim("amem_shim_resume", Words(w.begin() + 1, w.end())); }},
};

void Print(const Answer& answer) {
  std::printf("%s\n", answer.Json().c_str());
  std::fflush(stdout);
}

int Run() {
  Program program;
  Answer ready;
  ready.Text("event", "ready");
  ready.Number("pid", static_cast<std::uint64_t>(getpid()));
  Print(ready);
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream text(line);
    Words words;
    for (std::string word; text >> word;) words.push_back(word);
    if (words.empty()) continue;
    Answer answer;
    if (words.front() == "exit") {
      Print(answer);
      return 0;
    }
    const auto command = kCommands.find(words.front());
    try {
      if (command == kCommands.end()) throw Failure("no such command: " + words.front());
      command->second(program, words, &answer);
    } catch (const std::exception& failure) {
      answer.Fail(failure.what());
    }
    Print(answer);
  }
  return 0;
}

}  // namespace
}  // namespace amem::workload

int main() {
  try {
    return amem::workload::Run();
  } catch (const amem::workload::Failure& failure) {
    std::fprintf(stderr, "amem-heap: %s\n", failure.what());
    return 1;
  }
}
