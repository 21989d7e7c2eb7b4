// What a program reads of the saved bytes of its own memory while that is paused. Plain functions;
// any thread, but not while it holds locks that a phase needs: the service thread does the work.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "common/status.h"

namespace amem::shim {

class Runtime;

/// Copies the bytes that the range had. kNotFound: some of it is on its device. kInvalidArgument:
/// some of it is not brokered. kFailedPrecondition: a pause has dropped some of it, or another rank
/// has saved it. kAborted: another pause began meanwhile.
Status read_backup(Runtime& runtime, CUdeviceptr address, std::uint64_t size, std::byte* out);
/// Where in the pool they are, if in one piece and byte for byte; else nullptr. For reading, until
/// the resume begins: then the place is others'. Errors as of read_backup.
Result<const void*> view_backup(Runtime& runtime, CUdeviceptr address, std::uint64_t size);

}  // namespace amem::shim
