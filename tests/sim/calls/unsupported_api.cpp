// Calls that programs look for and that this driver, like some real ones, does not support.
//
// Each answers CUDA_ERROR_NOT_SUPPORTED, so that a program takes its fallback path instead of
// failing to load.
#include "tests/sim/entry/api.h"
#include "tests/sim/entry/newer_calls.h"

#define SIM_UNSUPPORTED(name, parameters) SIM_CALL(name, parameters, CUDA_ERROR_NOT_SUPPORTED)

SIM_UNSUPPORTED(cuGetExportTable, (const void**, const CUuuid*))

SIM_UNSUPPORTED(cuMemGetHandleForAddressRange,
                (void*, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long))

SIM_CALL_PTSZ(cuMemBatchDecompressAsync,
              (CUmemDecompressParams*, size_t, unsigned, size_t*, CUstream),
              CUDA_ERROR_NOT_SUPPORTED)

SIM_UNSUPPORTED(cuLogicalEndpointIdReserve, (unsigned*, unsigned))
SIM_UNSUPPORTED(cuLogicalEndpointIdRelease, (unsigned, unsigned))

SIM_UNSUPPORTED(cuIpcGetEventHandle, (CUipcEventHandle*, CUevent))
SIM_UNSUPPORTED(cuIpcOpenEventHandle, (CUevent*, CUipcEventHandle))

SIM_UNSUPPORTED(cuModuleLoad, (CUmodule*, const char*))
SIM_UNSUPPORTED(cuModuleLoadDataEx, (CUmodule*, const void*, unsigned, CUjit_option*, void**))
SIM_UNSUPPORTED(cuModuleLoadFatBinary, (CUmodule*, const void*))
SIM_UNSUPPORTED(cuModuleGetGlobal_v2, (CUdeviceptr*, size_t*, CUmodule, const char*))
SIM_UNSUPPORTED(cuLibraryLoadData, (CUlibrary*, const void*, CUjit_option*, void**, unsigned,
                                    CUlibraryOption*, void**, unsigned))
SIM_UNSUPPORTED(cuLibraryUnload, (CUlibrary))
SIM_UNSUPPORTED(cuLibraryGetKernel, (CUkernel*, CUlibrary, const char*))
