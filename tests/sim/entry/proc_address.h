// Which calls the library exports, by name and version of the driver.
#pragma once

#include <string>

namespace sim {

/// AMEM_SIM_DRIVER, as cuDriverGetVersion says it: 13010. Any thread.
int DriverVersion();

/// The version of a driver that there is not: 13.5's calls, and some that are made up.
constexpr int kMadeUpVersion = 14000;

/// How many device attributes a driver of this version knows.
int AttributesOf(int version);

/// The name as cuGetProcAddress knows it: without _v2 and without _ptsz or _ptds.
std::string BaseName(const std::string& exported_name);

/// Whether some exported call has this exact name or base name.
bool IsExportedName(const std::string& name);

}  // namespace sim
