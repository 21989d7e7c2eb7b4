// A library whose loading does what a test wants: inside the loader's lock.
#include <cstdint>
#include <cstdlib>

namespace {

[[gnu::constructor]] void loaded() {
  if (const char* hook = std::getenv("AMEM_TEST_WHILE_LOADING"))
    reinterpret_cast<void (*)()>(static_cast<std::uintptr_t>(std::strtoull(hook, nullptr, 10)))();
}

}  // namespace
