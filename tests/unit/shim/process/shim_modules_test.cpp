#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <gtest/gtest.h>
#include <link.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <string>

#include "shim/process/modules.h"

namespace amem::shim {
namespace {

namespace fs = std::filesystem;

/// A function that no sanitizer replaces by its own.
const void* in_c_library() { return reinterpret_cast<const void*>(&::gnu_get_libc_version); }

TEST(ShimModules, EveryAddressHasItsFile) {
  for (const auto& find : {&file_of, &file_of_by_walk}) {
    EXPECT_NE(std::string(find(in_c_library())).find("/libc.so"), std::string::npos);
    EXPECT_STREQ(find(reinterpret_cast<const void*>(&in_c_library)), program_invocation_name);
    const int on_the_stack = 0;
    EXPECT_STREQ(find(&on_the_stack), "");
    EXPECT_STREQ(find(nullptr), "");
  }
  EXPECT_EQ(module_of(nullptr), "");
}

std::future<std::string> answers;
bool answered_in_time = false;

/// As a library's constructor that waits for a thread that allocates, with the loader's lock.
void wait_for_a_thread_that_asks() {
  answers = std::async(std::launch::async, [] {
    return module_of(in_c_library()) + " " + file_of_by_walk(in_c_library());
  });
  answered_in_time = answers.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
}

TEST(ShimModules, WhoAsksDoesNotWaitForWhoLoadsALibrary) {
  ::setenv("AMEM_TEST_WHILE_LOADING",
           std::to_string(reinterpret_cast<std::uintptr_t>(&wait_for_a_thread_that_asks)).c_str(),
           1);
  void* const library = ::dlopen(SLOW_LIBRARY, RTLD_NOW);
  ::unsetenv("AMEM_TEST_WHILE_LOADING");
  ASSERT_NE(library, nullptr) << ::dlerror();
  EXPECT_TRUE(answered_in_time);
  EXPECT_EQ(answers.get().substr(0, 4), "libc");
  ::dlclose(library);
}

/// Loads the file and says as whose an address in it is known.
std::string known_as(const fs::path& file, std::uintptr_t& base) {
  void* const library = ::dlopen(file.c_str(), RTLD_NOW);
  if (library == nullptr) return ::dlerror();
  link_map* map = nullptr;
  ::dlinfo(library, RTLD_DI_LINKMAP, static_cast<void*>(&map));
  base = map->l_addr;
  const std::string name = module_of(map->l_ld);
  EXPECT_EQ(file_of_by_walk(map->l_ld), file.string());
  ::dlclose(library);
  return name;
}

TEST(ShimModules, WhatLiesWhereAnotherLibraryLayIsNotTakenForIt) {
  const fs::path folder = fs::temp_directory_path() / ("amem-modules-" + std::to_string(getpid()));
  fs::create_directory(folder);
  fs::copy_file(SLOW_LIBRARY, folder / "libnccl.so.2");
  fs::copy_file(SLOW_LIBRARY, folder / "libother.so");
  std::uintptr_t first = 0;
  std::uintptr_t second = 1;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(known_as(folder / "libnccl.so.2", first), "libnccl.so.2");
    EXPECT_EQ(known_as(folder / "libother.so", second), "libother.so");
  }
  fs::remove_all(folder);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_EQ(first, second) << "else this test shows less than it says";
#endif
}

}  // namespace
}  // namespace amem::shim
