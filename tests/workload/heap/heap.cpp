#include "tests/workload/heap/heap.h"

#include <unistd.h>

#include <memory>
#include <utility>

#include "tests/workload/base/driver.h"

namespace amem::workload {
namespace {

void Peer(Heap& heap, const Words& words, Answer*) {
  // Both ways, as frameworks do.
  for (const auto& [from, to] : {std::pair(0, 1), std::pair(1, 0)}) {
    heap.memory.Bind(from);
    const CUcontext peer = heap.memory.context(to);
    if (WordAt(words, 1) == "on")
      Check(Cuda().cuCtxEnablePeerAccess(peer, 0), "cuCtxEnablePeerAccess");
    else
      Check(Cuda().cuCtxDisablePeerAccess(peer), "cuCtxDisablePeerAccess");
  }
}

void Reset(Heap& heap, const Words& words, Answer*) {
  Check(Cuda().cuDevicePrimaryCtxReset(DeviceAt(words)), "cuDevicePrimaryCtxReset");
  heap.memory.Forget(DeviceAt(words));
  CUcontext context = nullptr;
  Check(Cuda().cuDevicePrimaryCtxRetain(&context, DeviceAt(words)), "cuDevicePrimaryCtxRetain");
}

void Background(Heap& heap, const Words& words, Answer* answer) {
  const std::string what = WordAt(words, 1);
  if (what == "on")
    heap.background.Start([memory = std::shared_ptr<HeapMemory>()]() mutable {
      if (memory == nullptr) memory = std::make_shared<HeapMemory>();  // binds the thread
      memory->Churn(0, 20);
    });
  if (what == "off") heap.background.Stop();
  answer->Number("rounds", heap.background.Count());
}

const Commands<Heap> kMemoryCommands = {
    {"alloc",
     [](Heap& h, const Words& w, Answer* a) {
       a->Number("id", h.memory.Allocate(DeviceAt(w), NumberAt(w, 2, 1), NumberAt(w, 3, 1)));
     }},
    {"pitch",
     [](Heap& h, const Words& w, Answer* a) {
       a->Number("id", h.memory.AllocatePitched(DeviceAt(w), NumberAt(w, 2, 1), NumberAt(w, 3, 1)));
     }},
    {"free",
     [](Heap& h, const Words& w, Answer*) {
       for (std::uint64_t i = 0; i < NumberAt(w, 2, 1); ++i) h.memory.Free(NumberAt(w, 1, 0) + i);
     }},
    {"churn",
     [](Heap& h, const Words& w, Answer*) { h.memory.Churn(DeviceAt(w), NumberAt(w, 2, 100)); }},
    {"expand",
     [](Heap& h, const Words& w, Answer*) {
       h.memory.Expand(DeviceAt(w), NumberAt(w, 2, 2U << 20U), NumberAt(w, 3, 1));
     }},
    {"shuffle", [](Heap& h, const Words&, Answer*) { h.memory.Shuffle(); }},
    {"drop",
     [](Heap& h, const Words& w, Answer*) { h.memory.DropSegments(WordAt(w, 1) == "unseen"); }},
    {"zero", [](Heap& h, const Words& w, Answer*) { h.memory.ExpectZero(WordAt(w, 1)); }},
    {"rewrite", [](Heap& h, const Words&, Answer*) { h.memory.Rewrite(); }},
    {"verify",
     [](Heap& h, const Words& w, Answer* a) {
       h.memory.Verify({w.begin() + 1, w.end()}, a);
     }},
    {"list", [](Heap& h, const Words&, Answer* a) { h.memory.List(a); }},
    {"peer", Peer},
    {"reset", Reset},
    {"nccl_block",
     [](Heap& h, const Words& w, Answer* a) {
       a->Number("id", h.memory.Allocate(DeviceAt(w), NumberAt(w, 2, 1), NumberAt(w, 3, 1), true));
     }},
    {"background", Background},
};

}  // namespace

int RunHeap() {
  Heap heap;
  Commands<Heap> all;
  for (const auto* each :
       {&kCallCommands, &kFifoCommands, &kGraphCommands, &kMemoryCommands, &kShimCommands})
    all.insert(each->begin(), each->end());
  Answer ready;
  ready.Text("event", "ready");
  ready.Number("pid", static_cast<std::uint64_t>(getpid()));
  Print(ready);
  if (Serve([&](const Words& words, Answer* answer) { Obey(all, heap, words, answer); }))
    Print(Answer());
  return 0;
}

}  // namespace amem::workload
