// Finds which of /dev/nvidia0, /dev/nvidia1, ... this process may open. The driver has opened the
// node of each device that it uses.
//
// Any thread.
#pragma once

#include <string>
#include <vector>

#include "common/fd.h"

namespace amem::shim {

/// A descriptor of each that is open, once; close-on-exec. Where none is seen (somebody has closed
/// or hidden them), those in `dir` that can be opened for reading and writing.
std::vector<Fd> open_device_nodes(const std::string& dir = "/dev");
/// Those in `dir` that can be opened for reading and writing, also of devices that the driver does
/// not use here: memory of a peer may be theirs. Opening one may wake a device that sleeps.
std::vector<Fd> openable_device_nodes(const std::string& dir = "/dev");

}  // namespace amem::shim
