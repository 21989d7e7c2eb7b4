// ControlServer: the control API (proto/amem/v1/broker.proto) on control.sock, with gRPC health and
// reflection.
//
// Calls arrive on gRPC's threads; each posts its work to the loop and answers from there. No thread
// waits for an operation. A caller that goes away stops nothing.
//
// start() and shut(): any one thread, not the loop's for shut(), because calls under way need the
// loop to end.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "common/status.h"

namespace grpc {
class Server;
}

namespace amem {

class Broker;
class ControlService;
class EventLoop;

class ControlServer {
 public:
  /// Both outlive this object.
  ControlServer(Broker& broker, EventLoop& loop);
  ~ControlServer();

  /// Creates the socket file, replacing one that nobody listens on.
  /// REQUIRES: the caller holds the runtime directory's lock.
  Status start(const std::string& path, mode_t mode);
  /// Takes no more calls and returns when those under way have ended; the loop must be running, and
  /// the broker must have been shut.
  void shut();

 private:
  std::unique_ptr<ControlService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::string path_;
};

}  // namespace amem
