// Which calls the library exports, by name and version.
#pragma once

#include <string>

namespace sim {

constexpr int kDriverVersion = 13010;

/// The name as cuGetProcAddress knows it: without _v2 and without _ptsz or _ptds.
std::string BaseName(const std::string& exported_name);

/// Whether some exported call has this exact name or base name.
bool IsExportedName(const std::string& name);

}  // namespace sim
