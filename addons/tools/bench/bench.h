// `amemctl bench`: pauses and resumes a made-up group on this node, beside plain copies of as many
// bytes.
#pragma once

#include <cstdint>

#include "client/ctl/invocation.h"
#include "client/ctl/run.h"

namespace amem::ctl {

struct BenchOptions {
  std::uint64_t bytes = 4ULL << 30;  // of each GPU
  int gpus = 0;                      // 0: all
  int rounds = 5;
};

/// A rank for each GPU, in a group of its own that is gone afterwards, however this ends. Every
/// byte is looked at after each resume. Returns the exit code.
int bench(const Invocation& invocation, const BenchOptions& options, const RunContext& context);

/// A rank of it: the program that amemctl becomes under the shim. Fills so many bytes of the GPU,
/// says "ready", and answers lines from standard input until its end: "copy": "copied OUT_US
/// IN_US", all bytes copied to the host and back without amem; "check": "same", or "wrong BYTES".
/// What fails is "error TEXT". Returns the exit code.
int bench_rank(int gpu, std::uint64_t bytes);

}  // namespace amem::ctl
