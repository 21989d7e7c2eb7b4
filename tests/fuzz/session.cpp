// What ranks send: sessions, packets with descriptors, operations under way. Input: a script.
#include "tests/fuzz/world.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  amem::fuzz::play_whole(amem::fuzz::read_script(data, size));
  return 0;
}
