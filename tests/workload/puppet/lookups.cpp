// In which ways programs find the driver's calls, those among them that our headers do not have,
// and libraries that are loaded at run time.
#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>

#include "tests/workload/base/driver.h"
#include "tests/workload/puppet/puppet.h"

namespace amem::workload {
namespace {

using GetProcAddress = CUresult (*)(const char*, void**, int, cuuint64_t,
                                    CUdriverProcAddressQueryResult*);

void* Driver() {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) throw Failure(dlerror());
  return driver;
}

void* AskProcAddress(GetProcAddress get, const std::string& name, int version, Answer* answer) {
  void* found = nullptr;
  CUdriverProcAddressQueryResult status{};
  const CUresult result = get(name.c_str(), &found, version, CU_GET_PROC_ADDRESS_DEFAULT, &status);
  answer->Number("result", static_cast<std::uint64_t>(result));
  answer->Number("status", static_cast<std::uint64_t>(status));
  return found;
}

void* Find(const std::string& name, const std::string& way, int version, Answer* answer) {
  dlerror();
  if (way == "dlsym") {
    void* const found = dlsym(Driver(), name.c_str());
    const char* const error = dlerror();
    answer->Text("error", error != nullptr ? error : "");
    return found;
  }
  if (way == "v1") {
    using Older = CUresult (*)(const char*, void**, int, cuuint64_t);
    const auto get = reinterpret_cast<Older>(dlsym(Driver(), "cuGetProcAddress"));
    void* found = nullptr;
    answer->Number("result", static_cast<std::uint64_t>(
                                 get(name.c_str(), &found, version, CU_GET_PROC_ADDRESS_DEFAULT)));
    return found;
  }
  if (way == "v2") return AskProcAddress(&cuGetProcAddress_v2, name, version, answer);
  if (way == "v2-by-dlsym") {
    void* const get = dlsym(Driver(), "cuGetProcAddress_v2");
    return AskProcAddress(reinterpret_cast<GetProcAddress>(get), name, version, answer);
  }
  void* const library = dlopen(way.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) throw Failure("not loaded: " + way);
  void* const found = dlsym(library, "puppet_copies");
  dlclose(library);
  return found;
}

void SayLibrary(const void* function, Answer* answer) {
  Dl_info info{};
  if (dladdr(function, &info) == 0) throw Failure("nobody's function");
  answer->Text("library", info.dli_fname);
}

/// Libraries by their files, as dlopen gave them.
std::map<std::string, void*>& Loaded() {
  static auto* const loaded = new std::map<std::string, void*>;
  return *loaded;
}

void Load(Puppet&, const Words& words, Answer*) {
  const auto has = [&](const char* word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  const int mode = (has("lazy") ? RTLD_LAZY : RTLD_NOW) | (has("deep") ? RTLD_DEEPBIND : 0);
  void* const library = dlopen(Word(words, 1).c_str(), mode | RTLD_LOCAL);
  if (library == nullptr) throw Failure(dlerror());
  Loaded()[words[1]] = library;
}

void Unload(Puppet&, const Words& words, Answer*) {
  if (dlclose(Loaded().at(Word(words, 1))) != 0) throw Failure(dlerror());
}

void CallLoaded(Puppet&, const Words& words, Answer* answer) {
  void* const found = dlsym(Loaded().at(Word(words, 1)), Word(words, 2).c_str());
  if (found == nullptr) throw Failure(dlerror());
  answer->Number("result", static_cast<std::uint64_t>(reinterpret_cast<int (*)()>(found)()));
}

void LookUpElsewhere(Puppet&, const Words& words, Answer* answer) {
  void* library = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
  if (library == nullptr) throw Failure(dlerror());
  SayLibrary(dlsym(library, Word(words, 1).c_str()), answer);
}

}  // namespace

void* FindCall(const std::string& name, const std::string& way, int version, Answer* answer) {
  void* const found = Find(name, way, version, answer);
  answer->Number("found", found != nullptr ? 1 : 0);
  return found;
}

void* FindVersion(const char* name, int version) {
  void* found = nullptr;
  Check(cuGetProcAddress(name, &found, version, CU_GET_PROC_ADDRESS_DEFAULT, nullptr), name);
  if (found == nullptr) throw Failure(std::string("there is no ") + name);
  return found;
}

const Commands<Puppet> kLookupCommands = {
    {"find",
     [](Puppet&, const Words& w, Answer* a) {
       FindCall(Word(w, 1), Word(w, 2), static_cast<int>(Number(w, 3)), a);
     }},
    {"lookup",
     [](Puppet&, const Words& w, Answer* a) {
       SayLibrary(FindVersion(Word(w, 1).c_str(), static_cast<int>(Number(w, 2))), a);
     }},
    {"lookup-name", [](Puppet&, const Words& w,
                       Answer* a) { SayLibrary(dlsym(RTLD_DEFAULT, Word(w, 1).c_str()), a); }},
    {"lookup-elsewhere", LookUpElsewhere},
    {"load", Load},
    {"unload", Unload},
    {"call", CallLoaded},
};

}  // namespace amem::workload
