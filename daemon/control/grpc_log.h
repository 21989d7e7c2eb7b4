// GrpcLog: writes gRPC's own messages to amemd's log, such as that a stranger's certificate was
// refused, which no call reports.
//
// One at a time. Lines come from any thread, and are written by the loop's.
#pragma once

#include "daemon/base/event_loop.h"
#include "daemon/base/log_limit.h"

namespace amem {

class GrpcLog {
 public:
  /// From here on. Outlives all of gRPC's objects of this process that could write; `loop` outlives
  /// this.
  explicit GrpcLog(EventLoop& loop);
  ~GrpcLog();
  GrpcLog(const GrpcLog&) = delete;
  GrpcLog& operator=(const GrpcLog&) = delete;

 private:
  LogLimit limit_;  // strangers can cause lines at will
};

}  // namespace amem
