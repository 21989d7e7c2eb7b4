// What an amem_client is.
#pragma once

#include <amem/amem.h>

#include "client/core/control_client.h"

struct amem_client {
  amem::client::ControlClient broker;
};
