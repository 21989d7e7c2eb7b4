// Page clients: kernel modules that ask the driver for the physical pages of GPU memory
// (nvidia_p2p_get_pages). Nobody has shown yet that this works for a range over several handles. A
// dma-buf of such a range works.
//
// Takes no lock of the loader's (modules.h says why). Any thread.
#pragma once

namespace amem::shim {

/// Such a module is loaded, and this process has a library that uses it, or that cannot be told.
bool pages_may_be_registered();
/// The same by the kernel's files, as in /sys/module and /proc/self/maps.
bool pages_may_be_registered(const char* modules, const char* maps);

}  // namespace amem::shim
