// What an error of the driver says about the work of a context: whether it has ended. Plain
// functions.
#pragma once

#include <cuda.h>

namespace amem::shim {

/// The context that gave this does no more work: a fault has ended it, or the driver or the device
/// is gone. After any other error its work may still run.
bool ends_context(CUresult result);

/// The same of an error that came from making a context current: its handle may also name nothing.
bool context_is_gone(CUresult result);

}  // namespace amem::shim
