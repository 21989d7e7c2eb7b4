// shim/calls/driver_calls.inc: which row a lookup gets, and what is known of names that have none.
// tests/newest compares the table with CUDA's headers.
#include <gtest/gtest.h>

#include "shim/calls/driver_calls.h"

namespace amem::shim {
namespace {

TEST(ShimDriverCalls, TheRowIsTheOneThatTheDriverWouldChoose) {
  EXPECT_EQ(find_call("cuMemcpyBatchAsync", 12080, false)->version, 12080);
  EXPECT_EQ(find_call("cuMemcpyBatchAsync", 12090, false)->version, 12080);
  EXPECT_EQ(find_call("cuMemcpyBatchAsync", 13000, false)->version, 13000);
  EXPECT_STREQ(find_call("cuMemcpyHtoD", 13000, true)->symbol, "cuMemcpyHtoD_v2_ptds");
  EXPECT_STREQ(find_call("cuMemcpyHtoD", 13000, false)->symbol, "cuMemcpyHtoD_v2");
  EXPECT_STREQ(find_call("cuMemCreate", 13000, true)->symbol, "cuMemCreate");
  EXPECT_EQ(find_call("cuMemCreate", 10000, false), nullptr);
  EXPECT_STREQ(find_call("cuMemAlloc", 13000, true)->symbol, "cuMemAlloc_v2");
  EXPECT_STREQ(find_call("cuGraphInstantiate", 11080, false)->symbol, "cuGraphInstantiate_v2");
  EXPECT_STREQ(find_call("cuGraphInstantiate", 12000, false)->symbol,
               "cuGraphInstantiateWithFlags");
  EXPECT_EQ(find_call("cuMemAlloc", 2000, false), nullptr);
  EXPECT_EQ(find_call("cuEventCreate", 13000, false), nullptr);
}

/// Their parameters differ, so that a mix-up would be read as garbage.
TEST(ShimDriverCalls, CallsThatGotAnotherSignatureHaveARowForEach) {
  EXPECT_STREQ(find_call("cuMulticastBindMem", 13000, false)->symbol, "cuMulticastBindMem");
  EXPECT_STREQ(find_call("cuMulticastBindMem", 13010, false)->symbol, "cuMulticastBindMem_v2");
  EXPECT_STREQ(find_call("cuMulticastBindAddr", 13050, false)->symbol, "cuMulticastBindAddr_v2");
  EXPECT_STREQ(find_call("cuGraphAddNode", 13030, false)->symbol, "cuGraphAddNode_v2");
  EXPECT_STREQ(find_call("cuGraphAddNode", 13040, false)->symbol, "cuGraphAddNode_v3");
  EXPECT_STREQ(find_call("cuGraphNodeSetParams", 13040, false)->symbol, "cuGraphNodeSetParams_v2");
  EXPECT_STREQ(find_call("cuMemcpyWithAttributesAsync", 13050, true)->symbol,
               "cuMemcpyWithAttributesAsync_ptsz");
  EXPECT_EQ(find_call("cuMemcpyWithAttributesAsync", 13010, true), nullptr);
}

TEST(ShimDriverCalls, TheNamesOfAllRowsAreKnown) {
  for (const char* name :
       {"cuLaunchKernel", "cuMemcpyHtoD", "cuMemcpyHtoD_v2_ptds", "cuEventQuery", "cuLinkComplete",
        "cuGLInit", "cuTensorMapSetAllocationClass", "cuGraphNodeGetParams"})
    EXPECT_EQ(knowledge_of(name), Knowledge::kKnown) << name;
  for (const char* name :
       {"cuLogicalEndpointCreate", "cuLogicalEndpointBindMem", "cuDeviceGetCliqueInfo"})
    EXPECT_EQ(knowledge_of(name), Knowledge::kHidden) << name;
  for (const char* name : {"cuTeleportAsync", "cuLaunchKerne", "cuLaunchKernelX", "cu", "",
                           "cuMemcpyHtoD_v9", "cuGLInit_v2"})
    EXPECT_EQ(knowledge_of(name), Knowledge::kUnknown) << name;
}

}  // namespace
}  // namespace amem::shim
