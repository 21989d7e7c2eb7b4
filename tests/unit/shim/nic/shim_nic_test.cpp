#include <dlfcn.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <set>
#include <string>
#include <vector>

#include "shim/nic/nic_calls.h"
#include "shim/process/symbols.h"
#include "tests/unit/fixtures/standstill.h"

namespace amem::shim {
namespace {

using Dereg = int (*)(void*);

template <int answer>
int library(void*) {
  return answer;
}

void* address(Dereg function) { return reinterpret_cast<void*>(function); }

TEST(ShimNic, EachLibrarysFunctionHasAWrapperOfItsOwn) {
  const std::vector<Dereg> libraries = {&library<11>, &library<12>, &library<13>, &library<14>,
                                        &library<15>, &library<16>, &library<17>, &library<18>};
  std::set<void*> wrappers;
  int expected = 11;
  for (const Dereg real : libraries) {
    void* const wrapper = nic_wrapper(kNic_ibv_dereg_mr, address(real));
    EXPECT_NE(wrapper, address(real));
    EXPECT_EQ(nic_wrapper(kNic_ibv_dereg_mr, address(real)), wrapper);
    EXPECT_EQ(reinterpret_cast<Dereg>(wrapper)(nullptr), expected++);
    wrappers.insert(wrapper);
  }
  EXPECT_EQ(wrappers.size(), libraries.size());
  EXPECT_EQ(nic_wrapper(kNic_ibv_dereg_mr, address(&library<19>)), address(&library<19>))
      << "one more than anybody has";
}

TEST(ShimNic, AWrapperOfALibraryThatIsGoneIsAnotherOnes) {
  // Addresses at which no library is, as after dlclose.
  std::set<void*> wrappers;
  for (std::uintptr_t gone = 1; gone <= 8; ++gone)
    wrappers.insert(nic_wrapper(kNic_gdr_close, reinterpret_cast<void*>(gone)));
  EXPECT_EQ(wrappers.size(), 8U);
  std::set<void*> later;
  for (const Dereg real : {&library<21>, &library<22>}) {
    void* const wrapper = nic_wrapper(kNic_gdr_close, address(real));
    EXPECT_TRUE(wrappers.contains(wrapper));
    EXPECT_EQ(reinterpret_cast<Dereg>(wrapper)(nullptr), real(nullptr));
    EXPECT_EQ(nic_wrapper(kNic_gdr_close, address(real)), wrapper);
    later.insert(wrapper);
  }
  EXPECT_EQ(later.size(), 2U) << "each has one of its own";
}

// Of the test below.
std::promise<void> loading;
sim_test::Standstill asking;
void* known_to_loader = nullptr;

/// Whoever loads a library has the loader's lock, and looks something up.
void look_up_while_loading() {
  loading.set_value();
  EXPECT_TRUE(asking.Await()) << "the other one asks the loader";
  known_to_loader = nic_wrapper(kNic_ibv_reg_mr, address(&library<31>));
}

TEST(ShimNic, WhoAsksTheLoaderHoldsUpNobodyWhoLoads) {
  for (const Dereg real : {&library<31>, &library<32>, &library<33>, &library<34>, &library<35>,
                           &library<36>, &library<37>, &library<38>})
    nic_wrapper(kNic_ibv_reg_mr, address(real));
  ::setenv("AMEM_TEST_WHILE_LOADING",
           std::to_string(reinterpret_cast<std::uintptr_t>(&look_up_while_loading)).c_str(), 1);
  auto loads = std::async(std::launch::async, [] { return ::dlopen(SLOW_LIBRARY, RTLD_NOW); });
  auto asks = std::async(std::launch::async, [] {
    loading.get_future().wait();
    asking.Here();
    return nic_wrapper(kNic_ibv_reg_mr, address(&library<39>));
  });
  if (loads.wait_for(std::chrono::seconds(40)) != std::future_status::ready) {
    std::fprintf(stderr, "who loads a library waits for who asks the loader, for good\n");
    std::abort();  // neither thread can be joined
  }
  EXPECT_NE(loads.get(), nullptr) << ::dlerror();
  ::unsetenv("AMEM_TEST_WHILE_LOADING");
  EXPECT_NE(known_to_loader, address(&library<31>)) << "it has a wrapper";
  EXPECT_EQ(asks.get(), address(&library<39>)) << "none of the others is gone";
}

TEST(ShimNic, NamesAreFoundWhole) {
  EXPECT_EQ(find_nic_call("ibv_reg_mr"), kNic_ibv_reg_mr);
  EXPECT_EQ(find_nic_call("ibv_reg_mr_iova2"), kNic_ibv_reg_mr_iova2);
  EXPECT_EQ(find_nic_call("ibv_reg"), kNicRows);
  EXPECT_EQ(find_nic_call("ibv_open_device"), kNicRows);
  for (int row = 0; row < kNicRows; ++row)
    EXPECT_TRUE(may_be_nic_call(nic_call(static_cast<NicRow>(row)).symbol));
  for (const char* other : {"", "i", "ib", "malloc", "cuInit", "ncclPause"})
    EXPECT_FALSE(may_be_nic_call(other)) << other;
}

TEST(ShimNic, WithoutTheLibraryALookupIsTheCLibrarys) {
  for (const char* version : {static_cast<const char*>(nullptr), "IBVERBS_1.1"}) {
    const SymbolAnswer answer =
        find_nic_symbol(RTLD_DEFAULT, "ibv_reg_mr", version, __builtin_return_address(0));
    EXPECT_EQ(answer.address, nullptr);
    EXPECT_FALSE(answer.ours);
  }
}

TEST(ShimNic, TheCLibrarysFunctionsAreFoundInItsTables) {
  void* const library = ::dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr);
  EXPECT_EQ(c_library_symbol("getpid"), real_dlsym()(library, "getpid"));
  EXPECT_EQ(c_library_symbol("dlvsym"), reinterpret_cast<void*>(real_dlvsym()));
  EXPECT_NE(real_dlvsym()(library, "memcpy", "GLIBC_2.14"), nullptr);
  EXPECT_EQ(c_library_symbol("no_such_function"), nullptr);
  ::dlclose(library);
}

}  // namespace
}  // namespace amem::shim
