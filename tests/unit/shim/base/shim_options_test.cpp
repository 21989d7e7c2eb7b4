#include <gnu/libc-version.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>

#include "shim/base/options.h"
#include "shim/process/modules.h"

namespace amem::shim {
namespace {

std::map<std::string, std::string> environment;
const char* lookup(const char* name) {
  const auto it = environment.find(name);
  return it == environment.end() ? nullptr : it->second.c_str();
}

Options parse(std::map<std::string, std::string> variables, std::size_t complaints_expected = 0,
              const char* library = "libamem_shim.so") {
  environment = std::move(variables);
  std::vector<std::string> complaints;
  Options o = Options::parse(&lookup, complaints, library);
  EXPECT_EQ(complaints.size(), complaints_expected);
  return o;
}

TEST(ShimOptions, Defaults) {
  const Options o = parse({});
  EXPECT_FALSE(o.disabled);
  EXPECT_FALSE(o.required);
  EXPECT_FALSE(o.nvls);
  EXPECT_EQ(o.group, "default");
  EXPECT_EQ(o.modules, std::vector<std::string>{"libnccl"});
  EXPECT_TRUE(o.gate_waits);
  EXPECT_EQ(o.nccl_scratch, NcclScratch::kKeep);
}

TEST(ShimOptions, WhatNeedNotTravelOfNccl) {
  EXPECT_EQ(parse({{"AMEM_NCCL_SCRATCH", "drop"}}).nccl_scratch, NcclScratch::kDrop);
  EXPECT_EQ(parse({{"AMEM_NCCL_SCRATCH", "prove"}}).nccl_scratch, NcclScratch::kProve);
  EXPECT_EQ(parse({{"AMEM_NCCL_SCRATCH", "keep"}}).nccl_scratch, NcclScratch::kKeep);
  EXPECT_EQ(parse({{"AMEM_NCCL_SCRATCH", "dorp"}}, 1).nccl_scratch, NcclScratch::kKeep);
}

TEST(ShimOptions, AMemsVariablesKeepTheirMeaning) {
  EXPECT_TRUE(parse({{"AMEM_ENABLE", "0"}}).disabled);
  EXPECT_FALSE(parse({{"AMEM_ENABLE", "1"}}).disabled);
  EXPECT_EQ(parse({{"AMEM_GROUPID", "100"}}).group, "100");
  EXPECT_EQ(parse({{"AMEM_GROUPID", "100"}, {"AMEM_GROUP", "train"}}).group, "train");
  EXPECT_EQ(parse({{"AMEM_NCCL_OFFLOAD_FREE_TAG", "7"}}).nccl_scratch, NcclScratch::kDrop);
  EXPECT_EQ(
      parse({{"AMEM_NCCL_OFFLOAD_FREE_TAG", "7"}, {"AMEM_NCCL_SCRATCH", "keep"}}).nccl_scratch,
      NcclScratch::kKeep);
}

TEST(ShimOptions, RetiredVariablesWorkWithAWarning) {
  EXPECT_EQ(parse({{"AMEM_SLAB", "0"}}, 1).slab_size, 0U);
  EXPECT_EQ(parse({{"AMEM_SLAB", "2"}}, 1).slab_size, 2U << 20U);
  EXPECT_EQ(parse({{"AMEM_SLAB", "1024"}}, 1).slab_size, 1U << 30U);
  for (const char* wrong : {"1", "1025", "-1", "2M"})
    EXPECT_EQ(parse({{"AMEM_SLAB", wrong}}, 2).slab_size, std::nullopt) << wrong;
  EXPECT_FALSE(parse({{"AMEM_UNMAP_AHEAD", "0"}}, 1).unmap_ahead);
  EXPECT_EQ(parse({{"AMEM_GATE_TIMEOUT", "20"}}, 1).gate_timeout, std::chrono::seconds(20));
  EXPECT_TRUE(parse({{"AMEM_DEEPBIND", "clear"}}, 1).clear_deepbind);
  EXPECT_FALSE(parse({{"AMEM_DEEPBIND", "keep"}}, 1).clear_deepbind);
  EXPECT_FALSE(parse({{"AMEM_DEEPBIND", "1"}}, 2).clear_deepbind);
  environment = {{"AMEM_GATE_TIMEOUT", "20"}};
  std::vector<std::string> complaints;
  Options::parse(&lookup, complaints);
  EXPECT_EQ(complaints.at(0),
            "AMEM_GATE_TIMEOUT is set. The next version will not have this variable: set "
            "AMEM_GATE=30s for 30 seconds");
}

TEST(ShimOptions, WhatTheShimDoesWithout) {
  const Options all = parse({{"AMEM_SHIM_WITHOUT", "slabs,unmap_ahead,deepbind"}});
  EXPECT_EQ(all.slab_size, 0U);
  EXPECT_FALSE(all.unmap_ahead);
  EXPECT_TRUE(all.clear_deepbind);
  const Options one = parse({{"AMEM_SHIM_WITHOUT", "slabs,speed"}}, 1);
  EXPECT_EQ(one.slab_size, 0U);
  EXPECT_TRUE(one.unmap_ahead);
  EXPECT_FALSE(one.clear_deepbind);
  EXPECT_EQ(parse({}).slab_size, std::nullopt);
}

TEST(ShimOptions, TheGateWaitsOrFails) {
  EXPECT_FALSE(parse({{"AMEM_GATE", "error"}}).gate_waits);
  const Options limited = parse({{"AMEM_GATE", "30s"}});
  EXPECT_TRUE(limited.gate_waits);
  EXPECT_EQ(limited.gate_timeout, std::chrono::seconds(30));
  EXPECT_EQ(parse({{"AMEM_GATE", "2m"}}).gate_timeout, std::chrono::seconds(120));
  for (const char* wrong : {"0", "500ms", "never", "30x"}) {
    const Options o = parse({{"AMEM_GATE", wrong}}, 1);
    EXPECT_TRUE(o.gate_waits) << wrong;
    EXPECT_EQ(o.gate_timeout, std::chrono::seconds(0)) << wrong;
  }
}

constexpr const char* kHook = "torch_memory_saver_hook_mode_preload.abi3.so";

TEST(SaverOptions, AProcessUnderTheHooksNameIsAGroupByItselfWithRegions) {
  Options o = parse({}, 0, kHook);
  EXPECT_EQ(o.scope, Scope::kRegions);
  EXPECT_TRUE(o.alone);
  EXPECT_FALSE(o.whole_process);
  o = parse({{"AMEM_GROUP", "train"}, {"AMEM_SCOPE", "nccl"}}, 0, kHook);
  EXPECT_EQ(o.scope, Scope::kNccl) << "what is said goes before what is guessed";
  EXPECT_FALSE(o.alone);
  EXPECT_FALSE(parse({{"AMEM_GROUPID", "7"}}, 0, kHook).alone);
  o = parse({});
  EXPECT_EQ(o.scope, Scope::kNccl);
  EXPECT_FALSE(o.alone);
}

TEST(SaverOptions, AWholeProcess) {
  Options o = parse({{"TMS_INIT_ENABLE", "1"}}, 0, kHook);
  EXPECT_EQ(o.scope, Scope::kHeap);
  EXPECT_TRUE(o.whole_process);
  EXPECT_EQ(o.heap_policy, amem_v1_RegionPolicy_REGION_POLICY_DISCARD);
  o = parse({{"TMS_INIT_ENABLE", "TRUE"}, {"TMS_INIT_ENABLE_CPU_BACKUP", "yes"}}, 0, kHook);
  EXPECT_EQ(o.heap_policy, amem_v1_RegionPolicy_REGION_POLICY_KEEP);
  o = parse({{"TMS_INIT_ENABLE", "1"}, {"TMS_INIT_ENABLE_DISK_BACKUP", "1"}}, 1, kHook);
  EXPECT_EQ(o.heap_policy, amem_v1_RegionPolicy_REGION_POLICY_KEEP) << "nothing is lost";
  o = parse({{"TMS_INIT_ENABLE", "1"}, {"AMEM_SCOPE", "heap"}}, 0, kHook);
  EXPECT_TRUE(o.whole_process);
  EXPECT_EQ(o.heap_policy, amem_v1_RegionPolicy_REGION_POLICY_UNSPECIFIED);
  o = parse({{"TMS_INIT_ENABLE", "1"}});
  EXPECT_EQ(o.scope, Scope::kNccl) << "the real hook is somewhere behind the shim";
  EXPECT_FALSE(o.whole_process);
  EXPECT_EQ(parse({{"TMS_INIT_ENABLE", "maybe"}}, 1, kHook).scope, Scope::kRegions);
}

TEST(SaverOptions, AMarginOfMemory) {
  EXPECT_EQ(parse({{"TMS_MEMORY_MARGIN_BYTES", "1048576"}}, 0, kHook).memory_margin, 1U << 20U);
  EXPECT_EQ(parse({{"TMS_MEMORY_MARGIN_BYTES", "1MiB"}}, 1, kHook).memory_margin, 0U);
  EXPECT_EQ(parse({{"TMS_MEMORY_MARGIN_BYTES", "1048576"}}).memory_margin, 0U);
}

TEST(ShimOptions, MulticastIsAskedFor) { EXPECT_TRUE(parse({{"AMEM_NVLS", "1"}}).nvls); }

TEST(ShimOptions, WhatCannotBeUnderstoodIsSaidAndIgnored) {
  const Options o = parse({{"AMEM_GROUP", "no/slash"},
                           {"AMEM_GATE", "sometimes"},
                           {"AMEM_TIMEOUT", "0"},
                           {"AMEM_LOG", "loud"},
                           {"AMEM_DISABLE", "maybe"}},
                          5);
  EXPECT_EQ(o.group, "default");
  EXPECT_TRUE(o.gate_waits);
  EXPECT_EQ(o.gate_timeout, std::chrono::seconds(0)) << "no limit";
  EXPECT_FALSE(o.disabled);
}

TEST(ShimOptions, Scope) {
  EXPECT_EQ(parse({}).scope, Scope::kNccl);
  for (const Scope scope : {Scope::kNccl, Scope::kRegions, Scope::kHeap})
    EXPECT_EQ(parse({{"AMEM_SCOPE", to_string(scope)}}).scope, scope);
  EXPECT_EQ(parse({{"AMEM_SCOPE", "everything"}}, 1).scope, Scope::kNccl);
}

TEST(ShimOptions, ForHowLongAndWhatThenWithoutABroker) {
  using namespace std::chrono_literals;
  EXPECT_EQ(parse({}).reconnect, 30s);
  EXPECT_EQ(parse({}).orphan, OrphanRule::kWait);
  EXPECT_EQ(parse({{"AMEM_RECONNECT", "0"}}).reconnect, 0s);
  EXPECT_EQ(parse({{"AMEM_RECONNECT", "90"}}).reconnect, 90s);
  EXPECT_EQ(parse({{"AMEM_RECONNECT", "90s"}}).reconnect, 90s);
  EXPECT_EQ(parse({{"AMEM_RECONNECT", "1500ms"}}).reconnect, 1500ms);
  EXPECT_EQ(parse({{"AMEM_RECONNECT", "2m"}}).reconnect, 120s);
  for (const char* wrong : {"soon", "-1", "5 s", "1h", "s", "4294967295"})
    EXPECT_EQ(parse({{"AMEM_RECONNECT", wrong}}, 1).reconnect, 30s) << wrong;
  EXPECT_EQ(parse({{"AMEM_ORPHAN", "wait"}}).orphan, OrphanRule::kWait);
  EXPECT_EQ(parse({{"AMEM_ORPHAN", "exit"}}).orphan, OrphanRule::kExit);
  EXPECT_EQ(parse({{"AMEM_ORPHAN", "restore"}}).orphan, OrphanRule::kRestore);
  EXPECT_EQ(parse({{"AMEM_ORPHAN", "hope"}}, 1).orphan, OrphanRule::kWait);
}

TEST(ShimOptions, Lists) {
  EXPECT_EQ(parse({{"AMEM_MODULES", "libnccl,,libtorch_cuda"}}).modules,
            (std::vector<std::string>{"libnccl", "libtorch_cuda"}));
  EXPECT_EQ(parse({{"AMEM_BYPASS_ALLOWED", "libone,libother.so"}}).bypass_allowed,
            (std::vector<std::string>{"libone", "libother.so"}));
  EXPECT_TRUE(parse({}).bypass_allowed.empty());
}

TEST(ShimOptions, DeepBinding) {}

TEST(ShimModules, TheFileNameDecides) {
  const std::vector<std::string> prefixes = {"libnccl"};
  EXPECT_TRUE(matches_module("/a/b/libnccl.so.2", prefixes));
  EXPECT_TRUE(matches_module("libnccl_workload.so", prefixes));
  EXPECT_FALSE(matches_module("/opt/libnccl/libtorch.so", prefixes));
  // A function that no sanitizer replaces by its own.
  EXPECT_EQ(module_of(reinterpret_cast<const void*>(&::gnu_get_libc_version)).substr(0, 4), "libc");
}

}  // namespace
}  // namespace amem::shim
