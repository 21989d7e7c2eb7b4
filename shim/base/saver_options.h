// What torch_memory_saver's launchers say: the name under which they preload the shim, and their
// variables (TMS_*). Plain functions; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shim/base/options.h"

namespace amem::shim {

/// A file of this name is preloaded as that package's hook library.
bool is_saver_hook(std::string_view library);

/// Fills in what the AMEM_* variables, which have been read, leave open. `library`: the file name
/// of the shim in this process.
void read_saver_options(Options::Getenv getenv, std::string_view library, Options& options,
                        std::vector<std::string>& complaints);

}  // namespace amem::shim
