// A rank of `amemctl bench`: the program that amemctl becomes under the shim.
#pragma once

#include <cstdint>
#include <string>

namespace amem::ctl {

/// Fills so many bytes of the GPU, says "ready", and answers lines from standard input until its
/// end: "copy": "copied OUT_US IN_US", all bytes copied to the host and back without amem; "check":
/// "same", or "wrong BYTES". What fails is "error TEXT". Returns the exit code.
int bench_rank(int gpu, std::uint64_t bytes);

}  // namespace amem::ctl
