// The simulated driver: graphs made node by node, and what is changed in them.
#include "tests/unit/fixtures/sim_streams.h"

namespace {

using namespace sim_test;

class SimGraphs : public SimStreams {
 protected:
  void SetUp() override {
    SimStreams::SetUp();
    ASSERT_EQ(cuCtxGetCurrent(&context_), CUDA_SUCCESS);
    ASSERT_EQ(cuGraphCreate(&graph_, 0), CUDA_SUCCESS);
  }

  static CUDA_MEMSET_NODE_PARAMS SetOf(CUdeviceptr to, unsigned value) {
    CUDA_MEMSET_NODE_PARAMS set{};
    set.dst = to;
    set.value = value;
    set.elementSize = 1;
    set.width = 4;
    set.height = 1;
    return set;
  }
  CUDA_MEMCPY3D CopyToHost(CUdeviceptr from) {
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = from;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = &host_;
    copy.WidthInBytes = sizeof host_;
    copy.Height = copy.Depth = 1;
    return copy;
  }
  unsigned Launched(CUgraphExec exec) {
    EXPECT_EQ(cuGraphLaunch(exec, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_SUCCESS);
    return host_;
  }

  CUcontext context_ = nullptr;
  CUgraph graph_ = nullptr;
  unsigned host_ = 0;
};

TEST_F(SimGraphs, NodesRunInTheirOrderAndSayWhatTheyDo) {
  const CUDA_MEMSET_NODE_PARAMS set = SetOf(log_, 7);
  const CUDA_MEMCPY3D copy = CopyToHost(log_);
  CUgraphNode first = nullptr;
  CUgraphNode second = nullptr;
  ASSERT_EQ(cuGraphAddMemsetNode(&first, graph_, nullptr, 0, &set, context_), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphAddMemcpyNode(&second, graph_, &first, 1, &copy, context_), CUDA_SUCCESS);
  CUgraphNodeType type{};
  EXPECT_EQ(cuGraphNodeGetType(second, &type), CUDA_SUCCESS);
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_MEMCPY);
  CUDA_MEMCPY3D told{};
  EXPECT_EQ(cuGraphMemcpyNodeGetParams(second, &told), CUDA_SUCCESS);
  EXPECT_EQ(told.srcDevice, log_);
  EXPECT_EQ(cuGraphMemcpyNodeGetParams(first, &told), CUDA_ERROR_INVALID_VALUE);
  CUDA_MEMSET_NODE_PARAMS told_set{};
  EXPECT_EQ(cuGraphMemsetNodeGetParams(first, &told_set), CUDA_SUCCESS);
  EXPECT_EQ(told_set.value, 7U);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuGraphInstantiate(&exec, graph_, 0), CUDA_SUCCESS);
  EXPECT_EQ(Launched(exec), 0x07070707U);

  const CUDA_MEMSET_NODE_PARAMS other = SetOf(log_, 9);
  EXPECT_EQ(cuGraphMemsetNodeSetParams(first, &other), CUDA_SUCCESS);
  EXPECT_EQ(Launched(exec), 0x07070707U) << "it was made of the graph as that was";
  EXPECT_EQ(cuGraphExecMemsetNodeSetParams(exec, first, &other, context_), CUDA_SUCCESS);
  EXPECT_EQ(Launched(exec), 0x09090909U);
  EXPECT_EQ(cuGraphNodeSetEnabled(exec, second, 0), CUDA_SUCCESS);
  host_ = 1;
  EXPECT_EQ(Launched(exec), 1U);
}

TEST_F(SimGraphs, AGraphMayBeANodeOfAnother) {
  const CUDA_MEMSET_NODE_PARAMS set = SetOf(log_, 5);
  CUgraphNode node = nullptr;
  ASSERT_EQ(cuGraphAddMemsetNode(&node, graph_, nullptr, 0, &set, context_), CUDA_SUCCESS);
  CUgraph outer = nullptr;
  ASSERT_EQ(cuGraphCreate(&outer, 0), CUDA_SUCCESS);
  CUgraphNode child = nullptr;
  ASSERT_EQ(cuGraphAddChildGraphNode(&child, outer, nullptr, 0, graph_), CUDA_SUCCESS);
  CUgraph inner = nullptr;
  ASSERT_EQ(cuGraphChildGraphNodeGetGraph(child, &inner), CUDA_SUCCESS);
  CUgraphNode found = nullptr;
  size_t count = 1;
  ASSERT_EQ(cuGraphGetNodes(inner, &found, &count), CUDA_SUCCESS);
  EXPECT_NE(found, node) << "a copy of the graph";
  CUDA_MEMSET_NODE_PARAMS told{};
  EXPECT_EQ(cuGraphMemsetNodeGetParams(found, &told), CUDA_SUCCESS);
  EXPECT_EQ(told.dst, log_);
}

TEST_F(SimGraphs, AnUpdateNeedsAGraphOfTheSameShape) {
  CUDA_MEMSET_NODE_PARAMS set = SetOf(log_, 5);
  const CUDA_MEMCPY3D copy = CopyToHost(log_);
  CUgraphNode node = nullptr;
  ASSERT_EQ(cuGraphAddMemcpyNode(&node, graph_, nullptr, 0, &copy, context_), CUDA_SUCCESS);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuGraphInstantiate(&exec, graph_, 0), CUDA_SUCCESS);
  CUgraph other = nullptr;
  ASSERT_EQ(cuGraphCreate(&other, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphAddMemsetNode(&node, other, nullptr, 0, &set, context_), CUDA_SUCCESS);
  CUgraphExecUpdateResultInfo info{};
  EXPECT_EQ(cuGraphExecUpdate(exec, other, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
  EXPECT_EQ(cuGraphExecUpdate(exec, graph_, &info), CUDA_SUCCESS);
}

TEST_F(SimGraphs, ANodeNeedsMemory) {
  CUgraphNode node = nullptr;
  CUdeviceptr reserved = 0;
  ASSERT_EQ(cuMemAddressReserve(&reserved, 2 * kMiB, 0, 0, 0), CUDA_SUCCESS);
  const CUDA_MEMCPY3D copy = CopyToHost(reserved);
  EXPECT_EQ(cuGraphAddMemcpyNode(&node, graph_, nullptr, 0, &copy, context_),
            CUDA_ERROR_INVALID_VALUE);
  const CUDA_MEMSET_NODE_PARAMS none = SetOf(reserved, 1);
  EXPECT_EQ(cuGraphAddMemsetNode(&node, graph_, nullptr, 0, &none, context_),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressFree(reserved, 2 * kMiB), CUDA_SUCCESS);
}

}  // namespace
