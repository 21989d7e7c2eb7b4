#include "addons/tools/diagnosis/nccl_library.h"

#include <glob.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

namespace amem::ctl {
namespace {

constexpr std::string_view kName = "libnccl.so.2";
constexpr std::string_view kMark = "NCCL version ";  // of the line that NCCL_DEBUG=VERSION shows

/// The first file of a pattern; empty: none.
std::string first_match(const std::string& pattern) {
  glob_t found{};
  std::string path;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0 && found.gl_pathc > 0)
    path = found.gl_pathv[0];
  ::globfree(&found);
  return path;
}

/// The library in one of the directories, which are apart by colons; empty: in none.
std::string first_in(const std::string& directories, const std::string& origin) {
  std::istringstream list(directories);
  for (std::string dir; std::getline(list, dir, ':');) {
    for (const std::string_view name : {"$ORIGIN", "${ORIGIN}"})
      if (dir.starts_with(name)) dir.replace(0, name.size(), origin);
    const std::string path = dir + "/" + std::string(kName);
    if (!dir.empty() && ::access(path.c_str(), R_OK) == 0) return path;
  }
  return {};
}

}  // namespace

std::string find_nccl(const std::string& program, const std::string& runpath,
                      const Environment& environment) {
  const std::string name = "/" + std::string(kName);
  const std::filesystem::path file = std::filesystem::path(program).lexically_normal();
  for (const std::string& directories : {value_in(environment, "LD_LIBRARY_PATH"), runpath})
    if (std::string path = first_in(directories, file.parent_path().string()); !path.empty())
      return path;
  const std::string prefix = file.parent_path().parent_path().string();
  const std::string wheel = "/lib/python3*/site-packages/nvidia/nccl/lib" + name;
  const std::string own = value_in(environment, "HOME") + "/.local";
  for (const std::string& pattern :
       {prefix + wheel, prefix + "/lib" + name, own + wheel, "/usr/lib/x86_64-linux-gnu" + name,
        "/usr/lib64" + name, "/usr/local/lib" + name}) {
    if (std::string path = first_match(pattern); !path.empty()) return path;
  }
  return {};
}

std::optional<NcclVersion> nccl_version(const std::string& library) {
  std::ifstream file(library, std::ios::binary);
  constexpr std::size_t kOverlap = 32;  // the mark and a version, across the end of a part
  std::string part;
  std::string more(std::size_t{1} << 20U, '\0');
  while (file) {
    file.read(more.data(), static_cast<std::streamsize>(more.size()));
    part.append(more, 0, static_cast<std::size_t>(file.gcount()));
    for (std::size_t at = 0; (at = part.find(kMark, at)) != std::string::npos; at += kMark.size()) {
      NcclVersion version;
      const std::string text = part.substr(at + kMark.size(), kOverlap);
      if (std::sscanf(text.c_str(), "%4d.%4d.", &version.major, &version.minor) == 2)
        return version;
    }
    if (part.size() > kOverlap) part.erase(0, part.size() - kOverlap);
  }
  return std::nullopt;
}

}  // namespace amem::ctl
