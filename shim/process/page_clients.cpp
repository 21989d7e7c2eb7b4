#include "shim/process/page_clients.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>

#include "shim/base/no_cancel.h"

namespace amem::shim {
namespace {

constexpr const char* kModules[] = {"nvidia_peermem", "nv_peer_mem", "gdrdrv", "nvidia_fs"};
constexpr const char* kLibraries[] = {"/libibverbs", "/libgdrapi", "/libcufile"};

}  // namespace

bool pages_may_be_registered(const char* modules, const char* maps) {
  const NoCancel no_cancel;
  const bool any = std::any_of(std::begin(kModules), std::end(kModules), [&](const char* module) {
    return ::access((std::string(modules) + "/" + module).c_str(), F_OK) == 0;
  });
  if (!any) return false;
  const std::unique_ptr<FILE, int (*)(FILE*)> file(::fopen(maps, "re"), &::fclose);
  if (!file) return true;
  char line[4096];
  while (::fgets(line, sizeof line, file.get()) != nullptr)
    for (const char* library : kLibraries)
      if (std::strstr(line, library) != nullptr) return true;
  return false;
}

bool pages_may_be_registered() { return pages_may_be_registered("/sys/module", "/proc/self/maps"); }

}  // namespace amem::shim
