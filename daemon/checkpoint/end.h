// How amem-checkpoint ends: without exit handlers, because the driver's may take long, or hang.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <string>

namespace amem {

/// `text`: the last line on the stream.
[[noreturn]] inline void end(int status, FILE* stream, const std::string& text) {
  std::fprintf(stream, "%s\n", text.c_str());
  std::fflush(stream);
  ::_exit(status);
}

}  // namespace amem
