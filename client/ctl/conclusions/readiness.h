// Whether a group takes requests now, as `amemctl ready` answers it. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "amem/v1/broker.pb.h"

namespace amem::ctl {

struct Readiness {
  bool ready = false;  // it runs, with all ranks that it had
  std::string text;    // for people
  std::string json;    // an object on a line
};

/// Of a group that is there, so its processes are alive. `unix_ms`: now.
Readiness readiness(const v1::GroupInfo& group, std::uint64_t unix_ms);

}  // namespace amem::ctl
