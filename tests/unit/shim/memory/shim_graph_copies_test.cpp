// What is known of executable graphs, on a driver of this test's whose nodes all set memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "shim/memory/graph_copies.h"
#include "tests/unit/fixtures/newer_nodes.h"

namespace amem::shim {
namespace {

using Addresses = std::vector<CUdeviceptr>;

std::map<CUgraph, std::vector<CUgraphNode>> graphs;
std::map<CUgraphNode, CUdeviceptr> sets;

template <class Handle>
Handle handle(std::uintptr_t number) {
  return reinterpret_cast<Handle>(number);
}

/// As a newer driver does: the headers' enum has no such value.
class ShimGraphCopies : public testing::Test {
 protected:
  ShimGraphCopies() {
    driver.cuGraphGetNodes_ = [](CUgraph graph, CUgraphNode* nodes, std::size_t* count) {
      const auto& all = graphs.at(graph);
      if (nodes != nullptr) std::copy(all.begin(), all.end(), nodes);
      *count = all.size();
      return CUDA_SUCCESS;
    };
    driver.cuGraphNodeGetType_ = [](CUgraphNode, CUgraphNodeType* type) {
      *type = CU_GRAPH_NODE_TYPE_MEMSET;
      return CUDA_SUCCESS;
    };
    driver.cuGraphMemsetNodeGetParams_ = [](CUgraphNode node, CUDA_MEMSET_NODE_PARAMS* params) {
      *params = {};
      params->dst = sets.at(node);
      params->elementSize = 1;
      params->width = params->height = 1;
      return CUDA_SUCCESS;
    };
    // Two graphs of two nodes each.
    graphs = {{first, {node(1), node(2)}}, {second, {node(3), node(4)}}};
    sets = {{node(1), 0x1000}, {node(2), 0x2000}, {node(3), 0x3000}, {node(4), 0x4000}};
  }
  static CUgraphNode node(std::uintptr_t number) { return handle<CUgraphNode>(number); }
  static Operands at(CUdeviceptr address) { return {{address, 1}}; }
  Addresses named() {
    Addresses addresses;
    for (const Operand& operand : copies.of(exec)) addresses.push_back(operand.address);
    std::sort(addresses.begin(), addresses.end());
    return addresses;
  }

  const CUgraph first = handle<CUgraph>(11);
  const CUgraph second = handle<CUgraph>(12);
  const CUgraphExec exec = handle<CUgraphExec>(21);
  Driver driver;
  GraphCopies copies{driver};
};

TEST_F(ShimGraphCopies, AnUpdatedOneNamesWhatItsNewGraphNames) {
  copies.made(exec, first);
  EXPECT_EQ(named(), (Addresses{0x1000, 0x2000}));
  copies.updated(exec, second);
  EXPECT_EQ(named(), (Addresses{0x3000, 0x4000}));
}

TEST_F(ShimGraphCopies, OneThatIsUpdatedFromItsOwnGraphIsKnownNodeByNode) {
  copies.made(exec, first);
  copies.enabled(exec, node(2), false);
  sets[node(1)] = 0x5000;
  copies.updated(exec, first);
  EXPECT_EQ(named(), Addresses{0x5000}) << "what is disabled stays so";
  copies.changed(exec, node(1), at(0x6000));
  copies.enabled(exec, node(2), true);
  EXPECT_EQ(named(), (Addresses{0x2000, 0x6000}));
}

TEST_F(ShimGraphCopies, WhatCannotBeToldOfAnUpdatedOneIsForgotten) {
  copies.made(exec, first);
  copies.updated(exec, second);
  copies.changed(exec, node(1), at(0x6000));  // by its own graph's node: 3 or 4?
  EXPECT_EQ(named(), Addresses());
  copies.updated(exec, second);
  EXPECT_EQ(named(), (Addresses{0x3000, 0x4000})) << "known again";

  copies.made(exec, first);
  copies.enabled(exec, node(1), false);
  copies.updated(exec, second);  // 3 or 4 is disabled
  EXPECT_EQ(named(), Addresses());
}

/// A launch waits for all that is paused then, rather than to copy into what is not there.
TEST_F(ShimGraphCopies, ANodeOfAnUnknownTypeMayTouchAnything) {
  driver.cuGraphNodeGetType_ = [](CUgraphNode, CUgraphNodeType* type) {
    say_type(type, 17);
    return CUDA_SUCCESS;
  };
  copies.made(exec, first);
  EXPECT_EQ(copies.of(exec), (Operands{kAnything, kAnything})) << "the driver tells nothing";
  driver.cuGraphNodeGetParams_ = [](CUgraphNode, CUgraphNodeParams* params) {
    say_type(&params->type, 17);
    return CUDA_SUCCESS;
  };
  copies.made(exec, first);
  EXPECT_EQ(copies.of(exec), (Operands{kAnything, kAnything}));
}

TEST_F(ShimGraphCopies, BatchesOfCopiesAreReadWhereTheDriverTellsThem) {
  driver.cuGraphNodeGetType_ = [](CUgraphNode, CUgraphNodeType* type) {
    say_type(type, cuda::kCopyBatch);
    return CUDA_SUCCESS;
  };
  static CUdeviceptr to = 0x7000;
  static CUdeviceptr from = 0x8000;
  static std::size_t size = 1;
  driver.cuGraphNodeGetParams_ = [](CUgraphNode, CUgraphNodeParams* params) {
    say_type(&params->type, cuda::kCopyBatch);
    const cuda::CopyBatchNode batch{1, &to, &from, &size};
    std::memcpy(&params->reserved1, &batch, sizeof batch);
    return CUDA_SUCCESS;
  };
  copies.made(exec, first);
  EXPECT_EQ(named(), (Addresses{0x7000, 0x7000, 0x8000, 0x8000}));
}

TEST_F(ShimGraphCopies, ANodeThatNamesNothingChangesNothing) {
  copies.made(exec, first);
  copies.changed(exec, node(9), {});  // a kernel's
  EXPECT_EQ(named(), (Addresses{0x1000, 0x2000}));
}

}  // namespace
}  // namespace amem::shim
