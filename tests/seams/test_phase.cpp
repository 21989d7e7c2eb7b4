// The phase for tests: AMEM_TEST_PHASE=1 in amemd's environment puts it at the end of each pause,
// and of each resume that is rolled back. Every rank is asked for it and answers.
#include <cstdlib>
#include <string_view>

#include "daemon/phases/phases.h"

namespace amem {

bool test_phase() {
  static const bool on = [] {
    const char* const value = std::getenv("AMEM_TEST_PHASE");
    return value != nullptr && value == std::string_view("1");
  }();
  return on;
}

}  // namespace amem
