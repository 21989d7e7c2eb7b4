// Which ELF file a command becomes: through PATH, scripts and `env`, as execvp() and the kernel go.
// Plain functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "addons/tools/diagnosis/elf_file.h"
#include "client/ctl/preload.h"
#include "common/status.h"

namespace amem::ctl {

struct CommandProgram {
  std::string path;
  ElfFacts elf;
  std::vector<std::string> through;  // scripts, and `env`, on the way there
  Environment environment;           // with what `env` changes
};

/// REQUIRES: a command. kNotFound: no such file, also of a script's interpreter. kPermissionDenied:
/// it may not be executed or read. kInvalidArgument: it is not a program.
Result<CommandProgram> find_program(std::vector<std::string> command, Environment environment);

}  // namespace amem::ctl
