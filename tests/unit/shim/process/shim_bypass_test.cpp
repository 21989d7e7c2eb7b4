#include <dlfcn.h>
#include <elf.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "shim/process/bypass.h"

namespace amem::shim {
namespace {

using namespace std::chrono_literals;

/// An object's tables as a loader would have them; its slots lie in `slots`.
struct Tables {
  static constexpr char kNames[] = "\0dlsym\0cuInit\0cuOwn\0malloc\0libcuda.so.1";
  static constexpr unsigned kDlsym = 1, kCuInit = 7, kCuOwn = 14, kMalloc = 20, kNeeded = 27;

  std::array<ElfW(Sym), 5> symbols{};
  std::array<void*, 6> slots{};
  std::array<ElfW(Rela), 4> relocations{};
  std::array<ElfW(Rela), 2> calls{};
  std::vector<ElfW(Dyn)> dynamic;

  ElfW(Rela) relocation(std::size_t slot, unsigned symbol, unsigned type, long addend = 0) {
    return {reinterpret_cast<ElfW(Addr)>(&slots.at(slot)), ELF64_R_INFO(ElfW(Xword){symbol}, type),
            addend};
  }
  void add(ElfW(Sxword) tag, const void* address) {
    dynamic.push_back({tag, {reinterpret_cast<ElfW(Addr)>(address)}});
  }
  void add(ElfW(Sxword) tag, ElfW(Xword) value) { dynamic.push_back({tag, {value}}); }

  LoadedObject object() {
    symbols[1].st_name = kDlsym;
    symbols[2].st_name = kCuInit;
    symbols[3].st_name = kCuOwn;
    symbols[3].st_shndx = 9;  // the object has it itself
    symbols[4].st_name = kMalloc;
    // The first names no symbol, whatever its number.
    relocations = {relocation(0, 1, R_X86_64_RELATIVE), relocation(1, 2, R_X86_64_GLOB_DAT),
                   relocation(2, 1, R_X86_64_64), relocation(3, 1, R_X86_64_64, 8)};
    calls = {relocation(4, 1, R_X86_64_JUMP_SLOT), relocation(5, 3, R_X86_64_JUMP_SLOT)};
    dynamic.clear();
    add(DT_NEEDED, ElfW(Xword){kNeeded});
    add(DT_SYMTAB, symbols.data());
    add(DT_STRTAB, kNames);
    add(DT_RELA, relocations.data());
    add(DT_RELASZ, sizeof relocations);
    add(DT_RELACOUNT, ElfW(Xword){1});
    add(DT_JMPREL, calls.data());
    add(DT_PLTRELSZ, sizeof calls);
    add(DT_NULL, ElfW(Xword){0});
    LoadedObject object;
    object.dynamic = dynamic.data();
    return object;
  }
};

bool any(const char* /*symbol*/) { return true; }

TEST(ShimReferences, AreTheSlotsOfWhatAnObjectDoesNotHaveItself) {
  Tables tables;
  const std::vector<Reference> found = references(tables.object(), &any);
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].symbol, "cuInit");
  EXPECT_EQ(found[0].slot, &tables.slots[1]);
  EXPECT_EQ(found[1].symbol, "dlsym");
  EXPECT_EQ(found[1].slot, &tables.slots[2]) << "a pointer in its data";
  EXPECT_EQ(found[2].slot, &tables.slots[4]) << "the slot of a call";
}

TEST(ShimReferences, OnlyTheWantedOnes) {
  Tables tables;
  const auto wanted = [](const char* symbol) { return std::strcmp(symbol, "cuInit") == 0; };
  EXPECT_EQ(references(tables.object(), wanted).size(), 1U);
  EXPECT_TRUE(references(LoadedObject{}, &any).empty()) << "without tables";
}

TEST(ShimReferences, WhatAnObjectNeedsAndWhatItSays) {
  Tables tables;
  LoadedObject object = tables.object();
  EXPECT_TRUE(needs_library(object, "libcuda.so"));
  EXPECT_FALSE(needs_library(object, "libcudart.so"));
  EXPECT_FALSE(has_text(object, "libcuda.so")) << "no constants";
  const auto begin = reinterpret_cast<std::uintptr_t>(Tables::kNames);
  object.constants = {{begin, begin + Tables::kNeeded}, {begin, begin + sizeof Tables::kNames}};
  EXPECT_TRUE(has_text(object, "libcuda.so"));
  object.constants.pop_back();
  EXPECT_FALSE(has_text(object, "libcuda.so")) << "it lies behind them";
}

class ShimBypass : public testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "sanitizers refuse RTLD_DEEPBIND";
#endif
  }
  void* load(const char* path, int mode) {
    void* const library = ::dlopen(path, mode | RTLD_LOCAL | RTLD_DEEPBIND);
    EXPECT_NE(library, nullptr) << ::dlerror();
    return library;
  }
  std::vector<std::string> look() {
    std::vector<std::string> libraries;
    for (const Bypass::Finding& finding : bypass.look()) {
      EXPECT_EQ(finding.symbol, "dlsym");
      libraries.push_back(finding.library);
    }
    return libraries;
  }
  std::vector<std::string> allowed;
  Bypass bypass{allowed};
};

TEST_F(ShimBypass, IsALibraryThatLooksTheDriverUp) {
  EXPECT_EQ(look(), std::vector<std::string>{});
  for (const int mode : {RTLD_NOW, RTLD_LAZY}) {
    void* const library = load(DRIVER_LOOKUPS, mode);
    EXPECT_EQ(look(), std::vector<std::string>{DRIVER_LOOKUPS});
    EXPECT_EQ(look(), std::vector<std::string>{DRIVER_LOOKUPS}) << "also when nothing has changed";
    ::dlclose(library);
    EXPECT_EQ(look(), std::vector<std::string>{});
  }
}

TEST_F(ShimBypass, IsNoLibraryThatLooksOtherThingsUp) {
  void* const library = load(OTHER_LOOKUPS, RTLD_NOW);
  EXPECT_EQ(look(), std::vector<std::string>{});
  ::dlclose(library);
}

TEST_F(ShimBypass, ACallThatIsBoundLaterIsFoundThen) {
  void* const library = load(DRIVER_LOOKUPS, RTLD_LAZY);
  const auto find = reinterpret_cast<void* (*)(const char*)>(::dlsym(library, "find_something"));
  ASSERT_NE(find, nullptr);
  find("cuInit");
  EXPECT_EQ(look(), std::vector<std::string>{DRIVER_LOOKUPS});
  ::dlclose(library);
}

std::function<void()> look_meanwhile;
std::future<void> looked;
bool looked_in_time = false;

/// As a library's constructor that waits at the gate, with the loader's lock.
void wait_for_a_look() {
  looked = std::async(std::launch::async, look_meanwhile);
  looked_in_time = looked.wait_for(10s) == std::future_status::ready;
}

TEST_F(ShimBypass, ALookDoesNotWaitForALibraryThatIsBeingLoaded) {
  look();
  void* const library = load(DRIVER_LOOKUPS, RTLD_LAZY);
  look_meanwhile = [this] {
    for (int i = 0; i < 3; ++i)
      EXPECT_EQ(look(), std::vector<std::string>{}) << "who has bound its dlsym?";
  };
  ::setenv("AMEM_TEST_WHILE_LOADING",
           std::to_string(reinterpret_cast<std::uintptr_t>(&wait_for_a_look)).c_str(), 1);
  void* const slow = ::dlopen(SLOW_LIBRARY, RTLD_NOW);
  ::unsetenv("AMEM_TEST_WHILE_LOADING");
  ASSERT_NE(slow, nullptr) << ::dlerror();
  looked.get();
  EXPECT_TRUE(looked_in_time) << "it has waited for the loader's lock";
  const auto deadline = std::chrono::steady_clock::now() + 10s;
  std::vector<std::string> found;
  while ((found = look()).empty() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(1ms);
  EXPECT_EQ(found, std::vector<std::string>{DRIVER_LOOKUPS});
  ::dlclose(slow);
  ::dlclose(library);
}

TEST_F(ShimBypass, NotWhatIsAllowed) {
  void* const library = load(DRIVER_LOOKUPS, RTLD_NOW);
  allowed = {"libother", "libdriver_look"};
  EXPECT_EQ(look(), std::vector<std::string>{});
  ::dlclose(library);
}

}  // namespace
}  // namespace amem::shim
