// ControlServer: the control API (proto/amem/v1/broker.proto) on control.sock, and by option on TCP
// with mutual TLS, with gRPC health and reflection.
//
// Calls arrive on gRPC's threads; each posts its work to the loop and answers from there. No thread
// waits for an operation. A caller that goes away stops nothing.
//
// start() and shut(): any one thread, not the loop's for shut(), because calls under way need the
// loop to end. close(): the loop's.
#pragma once

#include <memory>
#include <string>

#include "common/status.h"
#include "daemon/base/clock.h"
#include "daemon/control/entrance.h"
#include "daemon/control/grpc_log.h"
#include "daemon/phases/phases.h"

namespace grpc {
class Server;
}

namespace amem {

class Broker;
class ControlService;
class EventLoop;
class Fleet;
class FleetService;
class GrpcNodeLinks;
class Upgrades;

/// Where and how the control API is served, and who may use it.
struct ControlSettings {
  SocketFile socket;
  Isolation isolation = Isolation::kUid;
  AccessRules access;
  std::string listen;   // "host:port" for TCP; empty: none
  std::string tls_dir;  // ca.crt, tls.crt and tls.key, for TCP
  Deadlines deadlines;  // of this node's phases
};

class ControlServer {
 public:
  /// All outlive this object. Without `upgrades` amemd cannot be replaced.
  ControlServer(Broker& broker, EventLoop& loop, Upgrades* upgrades = nullptr);
  /// REQUIRES: the loop has ended, or start() has failed.
  ~ControlServer();

  /// Creates the socket file, replacing one that nobody listens on.
  /// REQUIRES: the caller holds the runtime directory's lock; the loop does not run yet.
  Status start(const ControlSettings& settings);
  /// Returns what an end would call off, of this node's groups or of an operation that it leads,
  /// for people; empty: nothing. The loop's thread.
  std::string under_way() const;
  /// Takes no more connections, and removes the socket file. The loop's thread.
  void close();
  /// Takes no more calls and returns when those under way have ended; the loop must be running, and
  /// the broker must have been shut, and close() called.
  void shut();

 private:
  Broker& broker_;
  EventLoop& loop_;
  GrpcLog log_;
  Callers callers_;
  // To other nodes; made by start().
  std::unique_ptr<GrpcNodeLinks> links_;
  std::unique_ptr<Fleet> fleet_;
  std::unique_ptr<FleetService> fleet_service_;
  std::unique_ptr<ControlService> service_;
  std::unique_ptr<grpc::Server> server_;         // of operators
  std::unique_ptr<grpc::Server> others_server_;  // where a connection may have less under way
  std::unique_ptr<Entrance> entrance_;
};

}  // namespace amem
