// The checks of `amemctl doctor` that need nothing but the command and files. Each answers with
// what it has found; nothing: all is well. Plain functions; any thread.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include "client/ctl/diagnosis/finding.h"
#include "client/ctl/diagnosis/program.h"

namespace amem::ctl {

/// The loader preloads nothing into static programs, those of another architecture or C library,
/// and those that gain rights. `user` and `group` are those that run it.
Findings check_program(const CommandProgram& program, uid_t user, gid_t group);

/// LD_PRELOAD names the shim, it can be loaded, and nothing comes before it.
Findings check_preload(const Environment& environment);

/// The variables with those that the shim takes for set where it is torch_memory_saver's hook
/// library.
Environment with_hook_defaults(Environment environment);

/// Variables that turn amem off, or take memory out of its reach.
Findings check_variables(const Environment& environment);

/// RLIMIT_NOFILE and RLIMIT_MEMLOCK.
Findings check_limits(rlim_t open_files, rlim_t locked_memory);

/// `libnccl` is a file, or empty when none was found.
Findings check_nccl(const std::string& libnccl);

}  // namespace amem::ctl
