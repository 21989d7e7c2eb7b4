#include "common/status.h"

#include <cstring>

namespace amem {

Status errno_status(Code code, std::string what, int error_number) {
  char buffer[128];
  what += ": ";
  what += strerror_r(error_number, buffer, sizeof buffer);  // the GNU variant returns the text
  return {code, std::move(what)};
}

}  // namespace amem
