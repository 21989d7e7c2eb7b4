#include "daemon/control/grpc_log.h"

#include <grpc/support/log.h>
#include <grpcpp/version_info.h>

#include <mutex>
#include <string>

namespace amem {
namespace {

/// gRPC's function has no argument of ours. Null: nobody writes.
struct Writer {
  std::mutex mutex;
  EventLoop* loop = nullptr;
  LogLimit* limit = nullptr;
};

Writer& writer() {
  static auto* const it = new Writer;  // threads of gRPC's may outlive main()
  return *it;
}

// Newer ones write by Abseil, to standard error.
#if GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR < 65
void write(gpr_log_func_args* line) {
  Writer& to = writer();
  const std::lock_guard lock(to.mutex);
  if (to.loop == nullptr) return;
  const bool error = line->severity == GPR_LOG_SEVERITY_ERROR;
  to.loop->post([text = std::string(line->message), error] {
    Writer& now = writer();
    LogLimit* limit = nullptr;
    {
      const std::lock_guard inner(now.mutex);
      limit = now.limit;
    }
    if (limit == nullptr) return;  // it goes on this thread
    if (error)
      limit->warn("gRPC: {}", text);
    else
      limit->info("gRPC: {}", text);
  });
}
void install(bool ours) { gpr_set_log_function(ours ? &write : nullptr); }
#else
void install(bool /*ours*/) {}
#endif

}  // namespace

GrpcLog::GrpcLog(EventLoop& loop) : limit_(loop, "lines of gRPC") {
  {
    const std::lock_guard lock(writer().mutex);
    writer().loop = &loop;
    writer().limit = &limit_;
  }
  install(true);
}

GrpcLog::~GrpcLog() {
  install(false);
  const std::lock_guard lock(writer().mutex);
  writer().loop = nullptr;
  writer().limit = nullptr;
}

}  // namespace amem
