#include <gtest/gtest.h>

#include <cstdint>

#include "shim/blocks/pointer_attributes.h"

namespace amem::shim {
namespace {

const Heap::Block kBlock{0x7000'0000, 1000, 1,    reinterpret_cast<CUcontext>(std::uintptr_t{9}),
                         77,          true, true, nullptr};

/// The attribute of an address in the block; the bytes beside a smaller answer are zero.
std::uint64_t attribute(CUpointer_attribute attribute) {
  std::uint64_t value = 0;
  EXPECT_EQ(pointer_attribute(kBlock, 3, kBlock.address + 10, attribute, &value), CUDA_SUCCESS);
  return value;
}

TEST(ShimPointer, AnswersAsForMemoryOfCuMemAlloc) {
  EXPECT_EQ(attribute(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR), kBlock.address);
  EXPECT_EQ(attribute(CU_POINTER_ATTRIBUTE_RANGE_SIZE), kBlock.size);
  EXPECT_EQ(attribute(CU_POINTER_ATTRIBUTE_DEVICE_POINTER), kBlock.address + 10);
  EXPECT_EQ(attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE), std::uint64_t{CU_MEMORYTYPE_DEVICE});
  EXPECT_EQ(attribute(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL), 1U);
  EXPECT_EQ(attribute(CU_POINTER_ATTRIBUTE_CONTEXT), 9U);
  EXPECT_EQ(attribute(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE), 1U);
  EXPECT_EQ(attribute(CU_POINTER_ATTRIBUTE_MAPPED), 1U);
  EXPECT_EQ(attribute(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES), 0U);
  EXPECT_EQ(attribute(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS), 1U);
  EXPECT_EQ(attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID), 77U);
  EXPECT_EQ(attribute(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS), 3U);
  EXPECT_EQ(attribute(CU_POINTER_ATTRIBUTE_IS_MANAGED), 0U);
}

TEST(ShimPointer, ABlockOfAPoolNamesIt) {
  Heap::Block block = kBlock;
  block.pool = reinterpret_cast<CUmemoryPool>(std::uintptr_t{5});
  std::uint64_t value = 0;
  const auto ask = [&](CUpointer_attribute attribute) {
    value = 0;
    EXPECT_EQ(pointer_attribute(block, 3, block.address, attribute, &value), CUDA_SUCCESS);
    return value;
  };
  EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE), 5U);
  EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE), 0U);
  EXPECT_EQ(attribute(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE), 0U);
}

TEST(ShimPointer, WhatNoTableKnowsIsTheDrivers) {
  std::uint64_t value = 0;
  EXPECT_EQ(pointer_attribute(kBlock, 3, kBlock.address, CU_POINTER_ATTRIBUTE_P2P_TOKENS, &value),
            std::nullopt);
  const auto newer = static_cast<CUpointer_attribute>(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE + 10);
  EXPECT_EQ(pointer_attribute(kBlock, 3, kBlock.address, newer, &value), std::nullopt);
  EXPECT_FALSE(no_pointer_attribute(CU_POINTER_ATTRIBUTE_P2P_TOKENS, &value));
}

TEST(ShimPointer, NothingToSay) {
  std::uint64_t value = 55;
  EXPECT_EQ(pointer_attribute(kBlock, 3, kBlock.address, CU_POINTER_ATTRIBUTE_HOST_POINTER, &value),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_TRUE(no_pointer_attribute(CU_POINTER_ATTRIBUTE_HOST_POINTER, &value));
  EXPECT_EQ(value, 0U);
  int device = 0;
  EXPECT_TRUE(no_pointer_attribute(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, &device));
  EXPECT_EQ(device, CU_DEVICE_INVALID);
}

}  // namespace
}  // namespace amem::shim
