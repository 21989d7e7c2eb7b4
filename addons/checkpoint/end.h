// How amem-checkpoint ends: without exit handlers, because the driver's may take long, or hang.
//
// Any thread of it: the first one that ends it has the last word.
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <string_view>

#include "addons/checkpoint/answer.h"
#include "common/driver.h"
#include "common/status.h"

namespace amem {

/// `text`: the last line on the stream.
[[noreturn]] inline void end(int status, FILE* stream, const std::string& text) {
  std::fprintf(stream, "%s\n", text.c_str());
  std::fflush(stream);
  ::_exit(status);
}

/// This program ends when the thread ends that has started it. `parent`: that process; 0: nobody.
inline void end_with(pid_t parent) {
  if (parent == 0) return;
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::getppid() != parent)
    end(1, stderr, "amem-checkpoint: the program that has started it has ended");
}

// ---- of `amem-checkpoint target`

inline void say(std::string_view word, const std::string& text = {}) {
  std::printf("%s%s\n", std::string(word).c_str(), text.c_str());
  std::fflush(stdout);
}

[[noreturn]] inline void fail(const Status& status) {
  end(status.code() == Code::kUnavailable ? 3 : 1, stdout, failure_line_of(status));
}
inline void did(const Driver& driver, CUresult result, const std::string& what) {
  if (result == CUDA_SUCCESS) return;
  const Status status = driver.error(result, what);
  const bool full = status.code() == Code::kResourceExhausted;
  fail({full ? status.code() : Code::kFailedPrecondition, status.text()});
}
inline void did_host(bool done, const std::string& what) {
  if (!done) fail(errno_status(Code::kResourceExhausted, what, errno));
}
[[noreturn]] inline void wrong(const std::string& what) {
  fail({Code::kDataLoss, what + " has other bytes than before"});
}

}  // namespace amem
