#include <gtest/gtest.h>

#include <cstring>

#include "shim/memory/operands.h"
#include "tests/unit/fixtures/newer_nodes.h"

namespace amem::shim {
namespace {

constexpr CUdeviceptr kA = 0x1000;
constexpr CUdeviceptr kB = 0x9000;
const CUstream kStream = nullptr;
const CUcontext kContext = nullptr;

TEST(OperandsTest, CopiesOfOneRange) {
  const std::size_t bytes = 100;
  EXPECT_EQ(operands_of(kA, kB, bytes, kStream), (Operands{{kA, 100}, {kB, 100}}));
  EXPECT_EQ(operands_of(kA, kContext, kB, kContext, bytes), (Operands{{kA, 100}, {kB, 100}}));
  const CUarray array = nullptr;
  const std::size_t offset = 7;
  EXPECT_EQ(operands_of(array, offset, kA, bytes), (Operands{{kA, 100}}));
  void* const unified = reinterpret_cast<void*>(kB);
  EXPECT_EQ(operands_of(unified, kA, bytes), (Operands{{kB, 100}, {kA, 100}}));
}

TEST(OperandsTest, Sets) {
  const std::size_t n = 10;
  EXPECT_EQ(operands_of(kA, static_cast<unsigned char>(1), n), (Operands{{kA, 10}}));
  EXPECT_EQ(operands_of(kA, static_cast<unsigned short>(1), n), (Operands{{kA, 20}}));
  EXPECT_EQ(operands_of(kA, 1U, n, kStream), (Operands{{kA, 40}}));
  const std::size_t pitch = 512;
  const std::size_t width = 8;
  const std::size_t height = 3;
  EXPECT_EQ(operands_of(kA, pitch, 1U, width, height), (Operands{{kA, 2 * 512 + 32}}));
}

TEST(OperandsTest, CopiesOfRowsAndLayers) {
  CUDA_MEMCPY2D flat{};
  flat.srcMemoryType = CU_MEMORYTYPE_HOST;
  flat.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  flat.dstDevice = kA;
  flat.dstPitch = 256;
  flat.dstY = 2;
  flat.dstXInBytes = 5;
  flat.WidthInBytes = 10;
  flat.Height = 4;
  const CUDA_MEMCPY2D* const plane = &flat;
  EXPECT_EQ(operands_of(plane), (Operands{{kA + 517, 3 * 256 + 10}}));
  CUDA_MEMCPY3D deep{};
  deep.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
  deep.srcDevice = kB;
  deep.srcPitch = 64;
  deep.srcHeight = 8;
  deep.srcZ = 1;
  deep.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  deep.WidthInBytes = 16;
  deep.Height = 2;
  deep.Depth = 3;
  const CUDA_MEMCPY3D* const volume = &deep;
  EXPECT_EQ(operands_of(volume, kStream), (Operands{{kB + 512, (2 * 8 + 1) * 64 + 16}}));
}

TEST(OperandsTest, NodesOfGraphs) {
  CUDA_MEMSET_NODE_PARAMS set{};
  set.dst = kA;
  set.pitch = 512;
  set.elementSize = 4;
  set.width = 8;
  set.height = 3;
  const CUDA_MEMSET_NODE_PARAMS* const filled = &set;
  const CUgraph graph = nullptr;
  const std::size_t dependencies = 2;
  EXPECT_EQ(operands_of(graph, dependencies, filled, kContext), (Operands{{kA, 2 * 512 + 32}}));
  CUgraphNodeParams params{};
  CUgraphNodeParams* const node = &params;
  params.type = CU_GRAPH_NODE_TYPE_KERNEL;
  EXPECT_EQ(operands_of(graph, dependencies, node), Operands{});
  params.type = CU_GRAPH_NODE_TYPE_MEMSET;
  params.memset.dst = kB;
  params.memset.elementSize = 1;
  params.memset.width = 10;
  params.memset.height = 1;
  EXPECT_EQ(operands_of(graph, dependencies, node), (Operands{{kB, 10}}));
  params = {};
  params.type = CU_GRAPH_NODE_TYPE_MEMCPY;
  params.memcpy.copyParams.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  params.memcpy.copyParams.dstDevice = kA;
  params.memcpy.copyParams.WidthInBytes = 6;
  params.memcpy.copyParams.Height = params.memcpy.copyParams.Depth = 1;
  params.memcpy.copyParams.srcMemoryType = CU_MEMORYTYPE_HOST;
  EXPECT_EQ(operands_of(graph, dependencies, node), (Operands{{kA, 6}}));
}

TEST(OperandsTest, Batches) {
  const CUdeviceptr to[] = {kA, kA + 64};
  const CUdeviceptr from[] = {kB, kB + 64};
  const std::size_t sizes[] = {8, 16};
  const std::size_t count = 2;
  EXPECT_EQ(operands_of(&to[0], &from[0], &sizes[0], count),
            (Operands{{kA, 8}, {kA + 64, 16}, {kB, 8}, {kB + 64, 16}}));
  CUDA_MEMCPY3D_BATCH_OP op{};
  op.src.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  op.src.op.ptr.ptr = kA;
  op.src.op.ptr.rowLength = 32;
  op.src.op.ptr.layerHeight = 4;
  op.dst.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
  op.extent = {16, 2, 2};
  const std::size_t one = 1;
  CUDA_MEMCPY3D_BATCH_OP* const operations = &op;
  EXPECT_EQ(operands_of(one, operations, 0ULL, kStream), (Operands{{kA, (4 + 1) * 32 + 16}}));
}

TEST(OperandsTest, CallsOfCuda13AndLater) {
  CUmemcpyAttributes attributes{};
  CUmemcpyAttributes* const given = &attributes;
  const std::size_t bytes = 100;
  EXPECT_EQ(operands_of(kA, kB, bytes, given, kStream), (Operands{{kA, 100}, {kB, 100}}));
  // One operation without a count.
  CUDA_MEMCPY3D_BATCH_OP op{};
  op.src.type = op.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  op.src.op.ptr.ptr = kA;
  op.dst.op.ptr.ptr = kB;
  op.extent = {16, 1, 1};
  CUDA_MEMCPY3D_BATCH_OP* const operation = &op;
  EXPECT_EQ(operands_of(operation, 0ULL, kStream), (Operands{{kA, 16}, {kB, 16}}));
  cuda::FabricCopy copies[2];
  copies[0] = {{cuda::kFabricPointer, kA, {}}, {cuda::kFabricPointer, kB, {}}, 8, 0};
  copies[1] = {{2, 7, {}}, {cuda::kFabricPointer, kB + 64, {}}, 16, 0};  // of a logical endpoint
  cuda::FabricCopy* const list = copies;
  const std::size_t count = 2;
  EXPECT_EQ(operands_of(count, list, 0ULL, kStream), (Operands{{kA, 8}, {kB, 8}, {kB + 64, 16}}));
}

/// As a newer driver says it: the headers' enum has no such value.
TEST(OperandsTest, NodesOfNewerTypes) {
  CUgraphNodeParams params{};
  CUgraphNodeParams* const node = &params;
  CUdeviceptr to[] = {kA, kA + 64};
  CUdeviceptr from[] = {kB, kB + 64};
  std::size_t sizes[] = {8, 16};
  const cuda::CopyBatchNode batch{2, to, from, sizes};
  say_type(&params.type, cuda::kCopyBatch);
  std::memcpy(&params.reserved1, &batch, sizeof batch);
  EXPECT_EQ(operands_of(node), (Operands{{kA, 8}, {kB, 8}, {kA + 64, 16}, {kB + 64, 16}}));
  cuda::FabricCopy copy{{cuda::kFabricPointer, kA, {}}, {cuda::kFabricPointer, kB, {}}, 8, 0};
  const cuda::FabricBatchNode fabric{1, &copy};
  params = {};
  say_type(&params.type, cuda::kFabricCopyBatch);
  std::memcpy(&params.reserved1, &fabric, sizeof fabric);
  EXPECT_EQ(operands_of(node), (Operands{{kA, 8}, {kB, 8}}));
  // What nobody knows may touch anything.
  for (const int type : {15, 16, 17, 19, 99}) {
    params = {};
    say_type(&params.type, type);
    EXPECT_EQ(operands_of(node), Operands{kAnything}) << type;
  }
  for (int type = CU_GRAPH_NODE_TYPE_KERNEL; type <= CU_GRAPH_NODE_TYPE_CONDITIONAL; ++type) {
    if (type == CU_GRAPH_NODE_TYPE_MEMCPY || type == CU_GRAPH_NODE_TYPE_MEMSET) continue;
    params = {};
    say_type(&params.type, type);
    EXPECT_EQ(operands_of(node), Operands{}) << type;
  }
}

struct OfANewerCuda {
  CUdeviceptr memory;
};
template <class Arg>
concept Understood = requires(NamedMemory& m, const Arg& arg) {
  find_memory(m, arg);
};
static_assert(!Understood<OfANewerCuda*> && !Understood<const OfANewerCuda*>,
              "a struct that nobody has looked into does not compile");
static_assert(Understood<const CUDA_MEMCPY2D*> && Understood<CUmemcpyAttributes*> &&
              Understood<CUstream> && Understood<CUgraphNode*> && Understood<const void*> &&
              Understood<std::size_t>);

TEST(OperandsTest, NothingIsNoMemory) {
  const CUDA_MEMCPY2D* const none = nullptr;
  EXPECT_EQ(operands_of(none), Operands{});
  EXPECT_EQ(extent(0, 5, 100), 0U);
  EXPECT_EQ(extent(7, 0, 100), 0U);
}

}  // namespace
}  // namespace amem::shim
