// A rank of `amemctl bench`, as a process that answers by lines. One thread has it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "common/fd.h"
#include "common/status.h"

namespace amem::ctl {

class RankProcess {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  /// `name`: in errors. Standard error is this process's.
  static Result<RankProcess> start(std::string name, const std::vector<std::string>& command,
                                   const std::map<std::string, std::string>& environment);
  RankProcess(RankProcess&&) noexcept;
  RankProcess& operator=(RankProcess&&) = delete;
  /// Ends it at once; a broker then frees what it had.
  ~RankProcess();

  Status say(const std::string& line);
  /// Its next line. kDeadlineExceeded; kAborted: it has ended; kInternal: an "error TEXT" of its
  /// own. kCancelled: `interrupt`, a descriptor or -1, has become readable.
  Result<std::string> hear(Deadline deadline, int interrupt);

 private:
  RankProcess(std::string name, pid_t pid, Fd to, Fd from)
      : name_(std::move(name)), pid_(pid), to_(std::move(to)), from_(std::move(from)) {}

  std::string name_;
  pid_t pid_;
  Fd to_;
  Fd from_;
  std::string heard_;  // what has come behind the last line
};

}  // namespace amem::ctl
