// The kernels of shim/kernels/sparse.cu as the driver takes them: PTX text, embedded by the build.
#pragma once

namespace amem::shim {

extern const char kSparsePtx[];

}  // namespace amem::shim
