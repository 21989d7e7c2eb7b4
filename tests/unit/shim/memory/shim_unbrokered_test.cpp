#include <gtest/gtest.h>

#include "shim/memory/unbrokered_memory.h"

namespace amem::shim {
namespace {

using Kind = UnbrokeredMemory::Kind;
using Amounts = std::vector<UnbrokeredAmount>;

CUcontext context(std::uintptr_t number) { return reinterpret_cast<CUcontext>(number); }

TEST(ShimUnbrokered, SumsByKindAndDevice) {
  UnbrokeredMemory u;
  EXPECT_EQ(u.amounts(), Amounts{});
  u.add(Kind::kDevice, 0x1000, 100, 0, context(1));
  u.add(Kind::kDevice, 0x2000, 50, 0, context(1));
  u.add(Kind::kDevice, 0x3000, 7, 1, context(2));
  u.add(Kind::kManaged, 0x4000, 9, 0, context(1));
  u.add(Kind::kArray, 0x1000, 3, 0, context(1));
  EXPECT_EQ(
      u.amounts(),
      (Amounts{
          {"array", 0, 3, 1}, {"device", 0, 150, 2}, {"device", 1, 7, 1}, {"managed", 0, 9, 1}}));
  EXPECT_TRUE(u.remove(Kind::kDevice, 0x1000));
  EXPECT_FALSE(u.remove(Kind::kDevice, 0x1000));
  u.context_gone(context(2));
  EXPECT_EQ(u.amounts(), (Amounts{{"array", 0, 3, 1}, {"device", 0, 50, 1}, {"managed", 0, 9, 1}}));
}

TEST(ShimUnbrokered, AHandlesMemoryLivesAsLongAsAHandleOrAMapping) {
  UnbrokeredMemory u;
  const Amounts there = {{"vmm", 1, 64, 1}};
  u.created(5, 64, 1);
  u.referenced(5);
  u.released(5);
  EXPECT_EQ(u.amounts(), there);
  u.mapped(5, 0x10000);
  u.mapped(5, 0x20000);
  u.released(5);
  EXPECT_EQ(u.amounts(), there);
  u.unmapped(0x10000, 0x1000);
  EXPECT_EQ(u.amounts(), there);
  u.unmapped(0, 0x100000);
  EXPECT_EQ(u.amounts(), Amounts{});
  u.released(5);
  u.mapped(6, 0x10000);
  EXPECT_EQ(u.amounts(), Amounts{});
}

TEST(ShimUnbrokered, AHandleThatTheDriverGaveOutAgain) {
  UnbrokeredMemory u;
  u.created(5, 64, 1);
  u.mapped(5, 0x10000);
  u.created(5, 32, 0);  // by another thread, before the first one's unmap was heard of
  u.unmapped(0x10000, 0x1000);
  EXPECT_EQ(u.amounts(), (Amounts{{"vmm", 0, 32, 1}}));
  u.created(6, 64, 1);
  u.mapped(6, 0x20000);
  u.created(6, 64, 1);
  u.released(6);
  u.unmapped(0x20000, 0x1000);
  EXPECT_EQ(u.amounts(), (Amounts{{"vmm", 0, 32, 1}}));
}

TEST(ShimUnbrokered, OtherProcessesMemoryIsForeignAndNobodysAmount) {
  UnbrokeredMemory u;
  u.created(5, 64, 1);
  EXPECT_EQ(u.foreign(), 0U);
  u.imported(6);
  u.mapped(6, 0x10000);
  u.released(6);
  u.add(Kind::kOpened, 0x20000, 0, 0, context(1));
  EXPECT_EQ(u.foreign(), 2U);
  EXPECT_EQ(u.amounts(), (Amounts{{"vmm", 1, 64, 1}}));
  u.unmapped(0x10000, 0x1000);
  EXPECT_EQ(u.foreign(), 1U);
  u.context_gone(context(1));
  EXPECT_EQ(u.foreign(), 0U);
  u.imported(7);
  u.imported(7);  // the driver counts them too
  u.released(7);
  EXPECT_EQ(u.foreign(), 1U);
  u.released(7);
  EXPECT_EQ(u.foreign(), 0U);
}

TEST(ShimUnbrokered, RemembersPools) {
  UnbrokeredMemory u;
  const auto pool = reinterpret_cast<CUmemoryPool>(std::uintptr_t{8});
  u.pool_created(pool, {1, 500, true});
  const auto there = [&] {
    std::map<CUmemoryPool, int> pools;
    u.each_pool([&](CUmemoryPool each, int device) { pools[each] = device; });
    return pools;
  };
  EXPECT_EQ(there(), (std::map<CUmemoryPool, int>{{pool, 1}}));
  EXPECT_EQ(u.pool(pool)->most, 500U);
  EXPECT_TRUE(u.pool(pool)->plain);
  EXPECT_EQ(u.pool_goes(pool)->device, 1);
  EXPECT_FALSE(u.pool_goes(pool));
  EXPECT_FALSE(u.pool(pool));
  EXPECT_TRUE(there().empty());
  u.pool_created(pool, {1});
  u.device_reset(0);
  EXPECT_EQ(there().size(), 1U);
  u.device_reset(1);
  EXPECT_TRUE(there().empty());
}

}  // namespace
}  // namespace amem::shim
