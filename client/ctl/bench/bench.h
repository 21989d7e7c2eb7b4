// `amemctl bench`: pauses and resumes a made-up group on this node, beside plain copies of as many
// bytes.
#pragma once

#include <cstdint>

#include "client/core/control_client.h"
#include "client/ctl/command_line.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/output.h"
#include "client/ctl/run.h"

namespace amem::ctl {

/// A rank for each GPU, in a group of its own that is gone afterwards, however this ends. Every
/// byte is looked at after each resume. Gives the exit code.
int bench(const CommandLine& options, const RunContext& context, client::ControlClient& broker,
          Console& console, const Interrupt* interrupt);

/// A rank of it: the program that amemctl becomes under the shim. Fills so many bytes of the GPU,
/// says "ready", and answers lines from standard input until its end: "copy": "copied OUT_US
/// IN_US", all bytes copied to the host and back without amem; "check": "same", or "wrong BYTES".
/// What fails is "error TEXT". Returns the exit code.
int bench_rank(int gpu, std::uint64_t bytes);

}  // namespace amem::ctl
