// Orders: ways to make device memory that are NCCL's or could be, each checked as it goes along.
//
// Throws when a call fails that must not, or memory does not hold what was written. The calling
// thread has a context.
#pragma once

#include <cuda.h>

#include <string>

#include "tests/workload/base/answer.h"

namespace amem::puppet {

/// By name, with sizes that are no multiple of the driver's granularity.
///   remembered       the granularity is asked for once, for three buffers
///   twice            a buffer is mapped once more, as ranks in threads do; `same_address`
///   elsewhere        a buffer is mapped where its maker chose, in a larger reservation
///   exported-first   a buffer is exported before it has an address
///   in-between       two buffers are created before the first has an address
///   twice-late       a piece of a slab is mapped once more when nothing is packed any more
///   freed-and-imported a buffer is exported, freed and imported; `result` of the import
///   shared-and-freed a buffer is exported and freed, then another one made; `same_address`
///   reused           a buffer that is full of ones is freed, and the next is asked to be zero
void RunOrder(CUdevice device, const std::string& name, workload::Answer* answer);

}  // namespace amem::puppet
