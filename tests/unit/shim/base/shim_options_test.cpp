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

Options parse(std::map<std::string, std::string> variables, std::size_t complaints_expected = 0) {
  environment = std::move(variables);
  std::vector<std::string> complaints;
  Options o = Options::parse(&lookup, complaints);
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
}

TEST(ShimOptions, AMemsVariablesKeepTheirMeaning) {
  EXPECT_TRUE(parse({{"AMEM_ENABLE", "0"}}).disabled);
  EXPECT_FALSE(parse({{"AMEM_ENABLE", "1"}}).disabled);
  EXPECT_EQ(parse({{"AMEM_GROUPID", "100"}}).group, "100");
  EXPECT_EQ(parse({{"AMEM_GROUPID", "100"}, {"AMEM_GROUP", "train"}}).group, "train");
  EXPECT_TRUE(parse({{"AMEM_NCCL_OFFLOAD_FREE_TAG", "7"}}).offload_free_tag_set);
}

TEST(ShimOptions, MulticastIsAskedFor) { EXPECT_TRUE(parse({{"AMEM_NVLS", "1"}}).nvls); }

TEST(ShimOptions, WhatCannotBeUnderstoodIsSaidAndIgnored) {
  const Options o = parse({{"AMEM_GROUP", "no/slash"},
                           {"AMEM_GATE", "sometimes"},
                           {"AMEM_GATE_TIMEOUT", "10x"},
                           {"AMEM_TIMEOUT", "0"},
                           {"AMEM_LOG", "loud"},
                           {"AMEM_DISABLE", "maybe"}},
                          6);
  EXPECT_EQ(o.group, "default");
  EXPECT_TRUE(o.gate_waits);
  EXPECT_EQ(o.gate_timeout, std::chrono::seconds(3600));
  EXPECT_FALSE(o.disabled);
}

TEST(ShimOptions, Scope) {
  EXPECT_EQ(parse({}).scope, Scope::kNccl);
  for (const Scope scope : {Scope::kNccl, Scope::kRegions, Scope::kHeap})
    EXPECT_EQ(parse({{"AMEM_SCOPE", to_string(scope)}}).scope, scope);
  EXPECT_EQ(parse({{"AMEM_SCOPE", "everything"}}, 1).scope, Scope::kNccl);
}

TEST(ShimOptions, Lists) {
  EXPECT_EQ(parse({{"AMEM_MODULES", "libnccl,,libtorch_cuda"}}).modules,
            (std::vector<std::string>{"libnccl", "libtorch_cuda"}));
}

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
