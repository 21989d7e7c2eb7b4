// Checkpoints of this process, which other processes ask for.
#pragma once

namespace sim {

/// If AMEM_SIM_CHECKPOINT is set, a thread answers other processes from here on. Once, in cuInit.
void OfferCheckpoints();

}  // namespace sim
