// A kernel that does nothing: what is left of a launch's time is the host's and the device's own.
#pragma once

namespace gpu_test {

// The oldest PTX that today's drivers take: it runs on any GPU.
inline constexpr const char* kEmptyKernel =
    ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry empty() { ret; }\n";
inline constexpr const char* kEmptyKernelName = "empty";

}  // namespace gpu_test
