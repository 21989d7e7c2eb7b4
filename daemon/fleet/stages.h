// Stages as brokers say them to each other. Pure.
#pragma once

#include "amem/v1/fleet.pb.h"
#include "daemon/phases/stage.h"

namespace amem {

inline Stage stage_of(const v1::FleetStage& told) { return told.out() ? Stage::kOut : Stage::kIn; }
inline void put(Stage stage, v1::FleetStage& told) { told.set_out(stage == Stage::kOut); }

}  // namespace amem
