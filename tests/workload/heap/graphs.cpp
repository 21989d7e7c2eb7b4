// One CUDA graph whose nodes copy and set memory of the program's, and the executable graph made of
// it.
#include <algorithm>
#include <string>
#include <vector>

#include "tests/workload/base/driver.h"
#include "tests/workload/heap/heap.h"

namespace amem::workload {
namespace {

constexpr std::size_t kBytes = 4096;

CUDA_MEMSET_NODE_PARAMS SetOf(CUdeviceptr address) {
  CUDA_MEMSET_NODE_PARAMS set{};
  set.dst = address;
  set.elementSize = 1;
  set.width = kBytes;
  set.height = 1;
  return set;
}

class HeapGraph {
 public:
  explicit HeapGraph(const HeapMemory& memory);

  /// One step; `id` is the memory that it is about.
  void Do(const std::string& step, std::uint64_t id);

 private:
  CUDA_MEMCPY3D CopyOf(std::uint64_t id);
  void Begin();
  void Add(const std::string& how, std::uint64_t id);
  void Capture(std::uint64_t id);
  void Wrap();
  void Launch();

  const HeapMemory& memory_;
  CUgraph graph_ = nullptr;
  CUgraphExec exec_ = nullptr;
  CUgraphNode node_ = nullptr;  // the last
  CUdeviceptr copied_ = 0;      // by the node; 0: it is a set
  std::vector<unsigned char> bytes_;
};

HeapGraph::HeapGraph(const HeapMemory& memory) : memory_(memory), bytes_(kBytes) {}

/// To where its bytes can be seen.
CUDA_MEMCPY3D HeapGraph::CopyOf(std::uint64_t id) {
  copied_ = memory_.AddressOf(id);
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = copied_;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = bytes_.data();
  copy.WidthInBytes = kBytes;
  copy.Height = copy.Depth = 1;
  return copy;
}

void HeapGraph::Begin() {
  if (graph_ != nullptr) Check(Cuda().cuGraphDestroy(graph_), "cuGraphDestroy");
  Check(Cuda().cuGraphCreate(&graph_, 0), "cuGraphCreate");
}

void HeapGraph::Add(const std::string& how, std::uint64_t id) {
  if (graph_ == nullptr) Begin();
  if (how == "set") {
    const CUDA_MEMSET_NODE_PARAMS set = SetOf(memory_.AddressOf(id));
    copied_ = 0;
    Check(Cuda().cuGraphAddMemsetNode(&node_, graph_, nullptr, 0, &set, memory_.context(0)),
          "cuGraphAddMemsetNode");
    return;
  }
  const CUDA_MEMCPY3D copy = CopyOf(id);
  if (how == "copy") {
    Check(Cuda().cuGraphAddMemcpyNode(&node_, graph_, nullptr, 0, &copy, memory_.context(0)),
          "cuGraphAddMemcpyNode");
    return;
  }
  CUgraphNodeParams any{};
  any.type = CU_GRAPH_NODE_TYPE_MEMCPY;
  any.memcpy.copyCtx = memory_.context(0);
  any.memcpy.copyParams = copy;
  Check(Cuda().cuGraphAddNode(&node_, graph_, nullptr, nullptr, 0, &any), "cuGraphAddNode");
}

void HeapGraph::Capture(std::uint64_t id) {
  CUstream stream = nullptr;
  Check(Cuda().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  Check(Cuda().cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED),
        "cuStreamBeginCapture");
  copied_ = memory_.AddressOf(id);
  Check(Cuda().cuMemcpyDtoHAsync(bytes_.data(), copied_, kBytes, stream), "cuMemcpyDtoHAsync");
  Check(Cuda().cuStreamEndCapture(stream, &graph_), "cuStreamEndCapture");
  Check(Cuda().cuStreamDestroy(stream), "cuStreamDestroy");
}

/// The graph becomes the child of a new one.
void HeapGraph::Wrap() {
  const CUgraph child = graph_;
  graph_ = nullptr;
  Begin();
  CUgraphNode node = nullptr;
  Check(Cuda().cuGraphAddChildGraphNode(&node, graph_, nullptr, 0, child),
        "cuGraphAddChildGraphNode");
  Check(Cuda().cuGraphDestroy(child), "cuGraphDestroy");
}

void HeapGraph::Launch() {
  std::fill(bytes_.begin(), bytes_.end(), static_cast<unsigned char>(0));
  Check(Cuda().cuGraphLaunch(exec_, nullptr), "cuGraphLaunch");
  Check(Cuda().cuStreamSynchronize(nullptr), "cuStreamSynchronize");
  if (copied_ == 0) return;
  std::vector<unsigned char> expected(kBytes);
  Check(Cuda().cuMemcpyDtoH(expected.data(), copied_, kBytes), "cuMemcpyDtoH");
  if (bytes_ != expected) throw Failure("the graph has copied other bytes than are there");
}

void HeapGraph::Do(const std::string& step, std::uint64_t id) {
  memory_.Bind(0);
  if (step == "new") return Begin();
  if (step == "copy" || step == "set" || step == "node") return Add(step, id);
  if (step == "capture") return Capture(id);
  if (step == "wrap") return Wrap();
  if (step == "launch") return Launch();
  if (step == "make") {
    Check(Cuda().cuGraphInstantiateWithFlags(&exec_, graph_, 0), "cuGraphInstantiateWithFlags");
  } else if (step == "drop") {  // what is made of it stays
    Check(Cuda().cuGraphDestroy(graph_), "cuGraphDestroy");
    graph_ = nullptr;
  } else if (step == "change") {
    const CUDA_MEMCPY3D copy = CopyOf(id);
    Check(Cuda().cuGraphMemcpyNodeSetParams(node_, &copy), "cuGraphMemcpyNodeSetParams");
  } else if (step == "change-made") {
    const CUDA_MEMCPY3D copy = CopyOf(id);
    Check(Cuda().cuGraphExecMemcpyNodeSetParams(exec_, node_, &copy, memory_.context(0)),
          "cuGraphExecMemcpyNodeSetParams");
  } else if (step == "disable") {
    copied_ = 0;
    Check(Cuda().cuGraphNodeSetEnabled(exec_, node_, 0), "cuGraphNodeSetEnabled");
  } else if (step == "update") {
    CUgraphExecUpdateResultInfo info{};
    Check(Cuda().cuGraphExecUpdate(exec_, graph_, &info), "cuGraphExecUpdate");
  } else {
    throw Failure("no such step: " + step);
  }
}

}  // namespace

const Commands<Heap> kGraphCommands = {
    {"graph",
     [](Heap& h, const Words& w, Answer*) {
       static HeapGraph graph(h.memory);
       graph.Do(WordAt(w, 1), NumberAt(w, 2, 0));
     }},
};

}  // namespace amem::workload
