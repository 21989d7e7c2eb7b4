#include "shim/process/bypass.h"

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <iterator>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "shim/process/modules.h"
#include "shim/process/symbols.h"
#include "shim/process/unknown_calls.h"

// The linker's name for where the shim itself begins.
extern "C" __attribute__((visibility("hidden"))) const ElfW(Ehdr) __ehdr_start;

namespace amem::shim {
namespace {

/// Also without a version: some programs load it so, and the loader keeps that name.
constexpr const char* kDriver = "libcuda.so";

/// For a thread that binds. It needs a moment, unless somebody loads a library meanwhile.
constexpr std::chrono::milliseconds kBindWait{200};

/// Prefixes of the names of files that may reach the driver past the shim.
constexpr const char* kHarmless[] = {
    // The C library and the loader, whose dlsym it is.
    "libc.so.", "libdl.so.", "libpthread.so.", "ld-linux",
    // The driver, and what it loads for itself: they work for calls that have passed the gate.
    kDriver, "libcudadebugger.so", "libnvidia-",
    // Tools that the driver loads and calls: CUPTI, Nsight Systems, Nsight Compute, Compute
    // Sanitizer. What they give the device concerns memory of their own.
    "libcupti.so", "libnvperf_", "libcuinj64.so", "libaccinj64.so", "libToolsInjection",
    "libcuda-injection.so", "libInterceptorInjection", "libTreeLauncher", "libsanitizer-"};

/// Returns whether a library has what one has that looks the driver up.
bool signs_of_lookups(const LoadedObject& object) {
  return has_text(object, "cuGetProcAddress") || has_text(object, kDriver) ||
         needs_library(object, kDriver);
}

/// The shim's own tables. Not by asking the loader, which may take its lock.
link_map own_map() {
  link_map own{};
  own.l_addr = reinterpret_cast<ElfW(Addr)>(&__ehdr_start);
  own.l_ld = _DYNAMIC;
  return own;
}

bool is_dlsym(std::string_view symbol) { return symbol == "dlsym"; }

/// A driver call that libraries should not be linked to: nothing of the shim's is before it.
bool is_unknown(const char* symbol) {
  return like_driver_call(symbol) && !UnknownCalls::get().may_be_linked(symbol);
}

bool matters(const char* symbol) {
  return is_dlsym(symbol) ||
         (like_driver_call(symbol) &&
          (exported_function(own_map(), symbol) != nullptr || is_unknown(symbol)));
}

/// A dlsym that goes past the shim's.
bool is_c_librarys(const Reference& reference, const void* value) {
  return is_dlsym(reference.symbol) && value == reinterpret_cast<void*>(real_dlsym());
}

std::uintptr_t number(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

/// A dlsym that was never called, and the library that has it.
struct Unbound {
  std::string path;
  ElfW(Addr) base = 0;
  void* const* slot = nullptr;
};

/// Waits for the loader's lock, however long somebody holds it.
void bind_call(const Unbound& unbound) {
  const char* path = unbound.path.empty() ? nullptr : unbound.path.c_str();
  void* const handle = ::dlopen(path, RTLD_LAZY | RTLD_NOLOAD);  // it stays loaded now
  if (handle == nullptr) return;
  const link_map* map = nullptr;
  if (::dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&map)) == 0 &&
      map->l_addr == unbound.base) {
    // As the library itself would call it.
    const auto call = reinterpret_cast<Dlsym>(__atomic_load_n(unbound.slot, __ATOMIC_ACQUIRE));
    call(RTLD_DEFAULT, "dlsym");
  }
  ::dlclose(handle);
}

}  // namespace

struct Bypass::Binding {
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;
};

bool Bypass::allowed(const LoadedObject& object) const {
  return object.contains(number(&__ehdr_start)) ||
         std::any_of(std::begin(kHarmless), std::end(kHarmless),
                     [&](const char* name) { return matches_module(object.path.c_str(), name); }) ||
         matches_module(object.path.c_str(), allowed_);
}

/// REQUIRES: the object is loaded, and stays so meanwhile.
void Bypass::read(Object& object) const {
  object.values.clear();
  for (const Reference& reference : object.references) {
    void* const value = __atomic_load_n(reference.slot, __ATOMIC_ACQUIRE);
    object.values.push_back(value);
    // Only now: the text of a large library is long.
    if (is_c_librarys(reference, value) && !object.looks_driver_up)
      object.looks_driver_up = signs_of_lookups(object.loaded);
  }
}

/// Called for each object, with the lock that keeps them loaded.
int Bypass::visit(dl_phdr_info* info, std::size_t /*size*/, void* data) {
  auto& self = *static_cast<Bypass*>(data);
  if (!self.all_) {
    if (self.complete_ && info->dlpi_adds == self.adds_ && info->dlpi_subs == self.subs_) {
      for (Object& object : self.objects_) self.read(object);
      return 1;
    }
    self.all_ = true;
    self.complete_ = false;
    self.adds_ = info->dlpi_adds;
    self.subs_ = info->dlpi_subs;
    self.objects_.clear();
    self.libcuda_.clear();
    self.drivers_.clear();
    self.given_.clear();
  }
  Object object;
  object.loaded = loaded_object(*info);
  if (matches_module(object.loaded.path.c_str(), kDriver)) {
    link_map& tables = self.drivers_.emplace_back();
    tables.l_addr = object.loaded.base;
    tables.l_ld = const_cast<ElfW(Dyn)*>(object.loaded.dynamic);
    self.libcuda_.insert(self.libcuda_.end(), object.loaded.mapped.begin(),
                         object.loaded.mapped.end());
  }
  if (self.allowed(object.loaded)) return 0;
  object.references = references(object.loaded, &matters);
  if (object.references.empty()) return 0;
  self.read(object);
  self.objects_.push_back(std::move(object));
  return 0;
}

/// Has each dlsym bound that is not yet. True: done. The thread may outlast this call and the
/// object, so it has copies of all that it needs. A child of fork needs none.
bool Bypass::bind_calls() {
  if (binding_ != nullptr) {
    std::lock_guard lock(binding_->mutex);
    if (!binding_->ended) return false;  // another one would wait for the same lock
  }
  std::vector<Unbound> unbound;
  std::set<void* const*> given = given_;
  for (const Object& object : objects_) {
    for (std::size_t i = 0; i < object.references.size(); ++i) {
      const Reference& reference = object.references[i];
      if (is_dlsym(reference.symbol) && object.loaded.contains(number(object.values[i])) &&
          given.insert(reference.slot).second)
        unbound.push_back({object.loaded.path, object.loaded.base, reference.slot});
    }
  }
  if (unbound.empty()) return false;
  const auto binding = std::make_shared<Binding>();
  // It inherits this thread's signal mask.
  std::thread([binding, unbound = std::move(unbound)] {
    pthread_setname_np(pthread_self(), "amem-bind");
    for (const Unbound& call : unbound) bind_call(call);
    std::lock_guard lock(binding->mutex);
    binding->ended = true;
    binding->changed.notify_all();
  }).detach();
  binding_ = binding;
  given_ = std::move(given);
  std::unique_lock lock(binding->mutex);
  return binding->changed.wait_for(lock, kBindWait, [&] { return binding->ended; });
}

bool Bypass::in_driver(const void* code) const {
  return std::any_of(libcuda_.begin(), libcuda_.end(),
                     [code](const MappedRange& range) { return range.contains(number(code)); });
}

/// The call is libcuda's now, or would be when it is first made.
bool Bypass::leads_to_driver(const Object& object, const Reference& reference,
                             const void* value) const {
  if (in_driver(value)) return true;
  return object.loaded.contains(number(value)) &&
         std::any_of(drivers_.begin(), drivers_.end(), [&](const link_map& driver) {
           return exported_function(driver, reference.symbol.c_str()) != nullptr;
         });
}

std::vector<Bypass::Finding> Bypass::look() {
  // So that it reads its list before a lock of the loader's is held.
  UnknownCalls::get().may_be_linked("cuNoDriverHasThisCall");
  const auto walk = [this] {
    all_ = false;
    ::dl_iterate_phdr(&visit, this);
    complete_ = true;
  };
  walk();
  if (bind_calls()) walk();
  std::vector<Finding> findings;
  for (const Object& object : objects_) {
    for (std::size_t i = 0; i < object.references.size(); ++i) {
      const Reference& reference = object.references[i];
      const void* value = object.values[i];
      const bool unknown = is_unknown(reference.symbol.c_str());
      const bool past = is_dlsym(reference.symbol)
                            ? is_c_librarys(reference, value) && object.looks_driver_up.value()
                        : unknown ? leads_to_driver(object, reference, value)
                                  : in_driver(value);
      if (!past) continue;
      findings.push_back({object.loaded.path, reference.symbol, unknown});
      if (!unknown) break;  // one is enough; unknown ones must be signed off one by one
    }
  }
  return findings;
}

}  // namespace amem::shim
