// amem-checkpoint target: a throwaway process that uses CUDA, to be checkpointed and restored.
#pragma once

namespace amem {

/// `argv[0]` is "target". Returns the exit status of wrong usage, or ends the process.
int run_target(int argc, char** argv);

}  // namespace amem
