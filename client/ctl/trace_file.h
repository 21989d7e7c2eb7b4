// TraceFile: where `--trace` of an operation goes. One thread.
#pragma once

#include <cerrno>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "client/ctl/add_on.h"
#include "common/status.h"

namespace amem::ctl {

/// Where a trace goes; opened before what it is of begins, so that a bad name stops nothing
/// halfway.
class TraceFile {
 public:
  /// An empty path: none.
  explicit TraceFile(std::string path) : path_(std::move(path)) {}

  Status open() {
    if (path_.empty()) return {};
    if (Result<std::string> none = chrome_trace({}); !none.ok()) return none.status();
    errno = 0;
    file_.open(path_, std::ios::trunc);
    return file_ ? Status() : trouble("opening");
  }
  explicit operator bool() const { return !path_.empty(); }
  Status write(const std::vector<NodeHistory>& nodes) {
    const Result<std::string> trace = chrome_trace(nodes);
    if (!trace.ok()) return trace.status();
    errno = 0;
    file_ << trace.value();
    file_.close();
    return file_ ? Status() : trouble("writing");
  }

 private:
  Status trouble(const std::string& what) const {
    return errno_status(Code::kUnknown, what + " the trace " + path_, errno);
  }

  std::string path_;
  std::ofstream file_;
};

}  // namespace amem::ctl
