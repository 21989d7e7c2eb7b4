// FleetService: what other nodes' brokers ask of this one (proto/amem/v1/fleet.proto).
//
// gRPC's threads; each call hands its work to the loop.
#pragma once

#include <utility>

#include "amem/v1/fleet.grpc.pb.h"
#include "daemon/base/event_loop.h"
#include "daemon/control/call.h"
#include "daemon/fleet/fleet.h"

namespace amem {

class FleetService final : public v1::Fleet::CallbackService {
 public:
  /// Fleet and loop outlive this object.
  FleetService(Fleet& fleet, EventLoop& loop, Calls calls)
      : fleet_(fleet), loop_(loop), calls_(std::move(calls)) {}

  grpc::ServerBidiReactor<v1::FleetCommands, v1::FleetReports>* Take(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* GetStanding(grpc::CallbackServerContext* context,
                                        const v1::FleetStandingRequest* request,
                                        v1::FleetStanding* response) override;

 private:
  Fleet& fleet_;
  EventLoop& loop_;
  const Calls calls_;
};

}  // namespace amem
