#include "shim/nic/nic_calls.h"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "shim/base/log.h"
#include "shim/nic/file_calls.h"
#include "shim/nic/registrations.h"
#include "shim/runtime/runtime.h"

namespace amem::shim {
namespace {

// ---- what becomes of each call; of the libraries' types only what is read is known here ----

constexpr int kOnDemand = 1 << 6;           // IBV_ACCESS_ON_DEMAND
constexpr int kChangeTranslation = 1 << 0;  // IBV_REREG_MR_CHANGE_TRANSLATION
constexpr int kOldIsValid = -1;             // IBV_REREG_MR_ERR_INPUT

std::uint64_t number(const void* address) { return reinterpret_cast<std::uint64_t>(address); }

/// `real`: makes the call and gives the memory region, or nullptr.
template <class Call>
void* register_region(const char* name, const void* address, std::size_t size, const Call& real) {
  Registering registering(name, amem_v1_PinReason_PIN_REASON_NIC, number(address), size);
  if (registering.error() != 0) {
    errno = registering.error();
    return nullptr;
  }
  void* const region = real();
  if (region != nullptr) registering.commit({region, 0});
  return region;
}

/// `real`: makes the call; 0: the region is gone, and its place may be another one's at once.
template <class Call>
int deregister_region(const void* region, const Call& real) {
  Registrations::All all = Registrations::get().take({region, 0});
  const int result = real();
  if (result == 0)
    unpin(all);
  else
    Registrations::get().add({region, 0}, std::move(all));
  return result;
}

using RegMr = void* (*)(void*, void*, std::size_t, int);
void* answer_ibv_reg_mr(RegMr real, void* pd, void* address, std::size_t size, int access) {
  const auto call = [&] { return real(pd, address, size, access); };
  // Paging on demand remembers no address; it may be of the whole address space.
  if ((access & kOnDemand) != 0) return call();
  return register_region("ibv_reg_mr", address, size, call);
}

using RegMrIova = void* (*)(void*, void*, std::size_t, std::uint64_t, int);
void* answer_ibv_reg_mr_iova(RegMrIova real, void* pd, void* address, std::size_t size,
                             std::uint64_t iova, int access) {
  const auto call = [&] { return real(pd, address, size, iova, access); };
  if ((access & kOnDemand) != 0) return call();
  return register_region("ibv_reg_mr_iova", address, size, call);
}

using RegMrIova2 = void* (*)(void*, void*, std::size_t, std::uint64_t, unsigned);
void* answer_ibv_reg_mr_iova2(RegMrIova2 real, void* pd, void* address, std::size_t size,
                              std::uint64_t iova, unsigned access) {
  const auto call = [&] { return real(pd, address, size, iova, access); };
  if ((access & kOnDemand) != 0) return call();
  return register_region("ibv_reg_mr_iova2", address, size, call);
}

/// The beginning of struct ibv_mr_init_attr.
struct MrInit {
  std::size_t size;
  int access;
  std::uint64_t given;  // which of the others count
  std::uint64_t iova;
  void* address;
};
constexpr std::uint64_t kAddressGiven = 1 << 1;  // IBV_REG_MR_MASK_ADDR

void* answer_ibv_reg_mr_ex(void* (*real)(void*, MrInit*), void* pd, MrInit* in) {
  const auto call = [&] { return real(pd, in); };
  if (in == nullptr || (in->given & kAddressGiven) == 0 || (in->access & kOnDemand) != 0)
    return call();
  return register_region("ibv_reg_mr_ex", in->address, in->size, call);
}

// The memory of a dma-buf was pinned, for good, when the dma-buf was made: the descriptor alone
// keeps it where it is, whether or not it is registered.
using RegDmaBuf = void* (*)(void*, std::uint64_t, std::size_t, std::uint64_t, int, int);
void* answer_ibv_reg_dmabuf_mr(RegDmaBuf real, void* pd, std::uint64_t offset, std::size_t size,
                               std::uint64_t iova, int fd, int access) {
  return real(pd, offset, size, iova, fd, access);
}

using Mlx5RegDmaBuf = void* (*)(void*, std::uint64_t, std::size_t, std::uint64_t, int, int, int);
void* answer_mlx5dv_reg_dmabuf_mr(Mlx5RegDmaBuf real, void* pd, std::uint64_t offset,
                                  std::size_t size, std::uint64_t iova, int fd, int access,
                                  int mlx5_access) {
  return real(pd, offset, size, iova, fd, access, mlx5_access);
}

using ReregMr = int (*)(void*, int, void*, void*, std::size_t, int);
int answer_ibv_rereg_mr(ReregMr real, void* region, int flags, void* pd, void* address,
                        std::size_t size, int access) {
  const auto call = [&] { return real(region, flags, pd, address, size, access); };
  if ((flags & kChangeTranslation) == 0) return call();
  Registering registering("ibv_rereg_mr", amem_v1_PinReason_PIN_REASON_NIC, number(address), size);
  if (registering.error() != 0) {
    errno = registering.error();
    return kOldIsValid;
  }
  const int result = call();
  if (result == 0) unpin(Registrations::get().take({region, 0}));
  // After other failures nobody knows which of the two the NIC has: both stay.
  if (result != kOldIsValid) registering.commit({region, 0});
  return result;
}

int answer_ibv_dereg_mr(int (*real)(void*), void* region) {
  return deregister_region(region, [&] { return real(region); });
}

using UmemReg = void* (*)(void*, void*, std::size_t, std::uint32_t);
void* answer_mlx5dv_devx_umem_reg(UmemReg real, void* context, void* address, std::size_t size,
                                  std::uint32_t access) {
  return register_region("mlx5dv_devx_umem_reg", address, size,
                         [&] { return real(context, address, size, access); });
}

/// The beginning of struct mlx5dv_devx_umem_in.
struct UmemIn {
  void* address;
  std::size_t size;
};
void* answer_mlx5dv_devx_umem_reg_ex(void* (*real)(void*, UmemIn*), void* context, UmemIn* in) {
  const UmemIn range = in != nullptr ? *in : UmemIn{nullptr, 0};
  return register_region("mlx5dv_devx_umem_reg_ex", range.address, range.size,
                         [&] { return real(context, in); });
}

int answer_mlx5dv_devx_umem_dereg(int (*real)(void*), void* umem) {
  return deregister_region(umem, [&] { return real(umem); });
}

/// GDRCopy's handle of a buffer, which it passes by value.
struct GdrHandle {
  unsigned long number;
};

template <class Call>
int pin_buffer(const char* name, const void* gdr, unsigned long address, std::size_t size,
               const GdrHandle* handle, const Call& real) {
  Registering registering(name, amem_v1_PinReason_PIN_REASON_GDRCOPY, address, size);
  if (registering.error() != 0) return registering.error();
  const int result = real();
  if (result == 0 && handle != nullptr) registering.commit({gdr, handle->number});
  return result;
}

using GdrPin = int (*)(void*, unsigned long, std::size_t, std::uint64_t, std::uint32_t, GdrHandle*);
int answer_gdr_pin_buffer(GdrPin real, void* gdr, unsigned long address, std::size_t size,
                          std::uint64_t token, std::uint32_t va_space, GdrHandle* handle) {
  return pin_buffer("gdr_pin_buffer", gdr, address, size, handle,
                    [&] { return real(gdr, address, size, token, va_space, handle); });
}

using GdrPin2 = int (*)(void*, unsigned long, std::size_t, std::uint32_t, GdrHandle*);
int answer_gdr_pin_buffer_v2(GdrPin2 real, void* gdr, unsigned long address, std::size_t size,
                             std::uint32_t flags, GdrHandle* handle) {
  return pin_buffer("gdr_pin_buffer_v2", gdr, address, size, handle,
                    [&] { return real(gdr, address, size, flags, handle); });
}

int answer_gdr_unpin_buffer(int (*real)(void*, GdrHandle), void* gdr, GdrHandle handle) {
  const Registrations::Key key{gdr, handle.number};
  Registrations::All all = Registrations::get().take(key);
  const int result = real(gdr, handle);
  if (result == 0)
    unpin(all);
  else
    Registrations::get().add(key, std::move(all));
  return result;
}

/// Unpins what is still pinned through it.
int answer_gdr_close(int (*real)(void*), void* gdr) {
  auto taken = Registrations::get().take_all(gdr);
  const int result = real(gdr);
  for (auto& [key, all] : taken)
    if (result == 0)
      unpin(all);
    else
      Registrations::get().add(key, std::move(all));
  return result;
}

// ---- wrappers ----

/// Libraries of one name in a process at a time, at most.
constexpr std::size_t kSlots = 8;

std::atomic<void*> slots[kNicRows][kSlots];

template <class R>
R no_library() {
  errno = ENOSYS;
  if constexpr (std::is_same_v<R, FileError>)
    return kNoFileLibrary;
  else if constexpr (std::is_same_v<R, ssize_t>)
    return -1;
  else if constexpr (std::is_pointer_v<R>)
    return nullptr;
  else if constexpr (!std::is_void_v<R>)
    return ENOSYS;
}

template <NicRow row, auto answer>
struct Entry;

template <NicRow row, class R, class... Args, R (*answer)(R (*)(Args...), Args...)>
struct Entry<row, answer> {
  using Real = R (*)(Args...);

  template <std::size_t slot>
  static R wrapper(Args... args) {
    return answer(reinterpret_cast<Real>(slots[row][slot].load(std::memory_order_relaxed)),
                  args...);
  }

  template <std::size_t... slot>
  static constexpr std::array<R (*)(Args...), kSlots> wrappers(std::index_sequence<slot...>) {
    return {&wrapper<slot>...};
  }
  static void* wrapper_of(std::size_t slot) {
    static constexpr auto kAll = wrappers(std::make_index_sequence<kSlots>());
    return reinterpret_cast<void*>(kAll[slot]);
  }

  static R linked(Args... args) {
    auto* const real =
        reinterpret_cast<Real>(linked_nic_function(row, __builtin_return_address(0)));
    return real != nullptr ? answer(real, args...) : no_library<R>();
  }
};

const NicCall kNicCalls[] = {
#define LINKED(symbol, library, version) {#symbol, library, version},
#define EXPORTED(symbol, library) {#symbol, library, nullptr},
#define LOOKED_UP(symbol) {#symbol, nullptr, nullptr},
#include "shim/nic/nic_calls.inc"
};

void* (*const kWrapperOf[])(std::size_t) = {
#define LINKED(symbol, library, version) &Entry<kNic_##symbol, &answer_##symbol>::wrapper_of,
#define EXPORTED(symbol, library) &Entry<kNic_##symbol, &answer_##symbol>::wrapper_of,
#define LOOKED_UP(symbol) &Entry<kNic_##symbol, &answer_##symbol>::wrapper_of,
#include "shim/nic/nic_calls.inc"
};

/// The library of this function has been unloaded: whoever calls it still would call nothing. Where
/// another one lies in its place by now it is not seen.
bool is_gone(const void* function) {
  Dl_info found;
  return ::dladdr(function, &found) == 0;
}

void* look_up(void* handle, const char* name, const char* version) {
  return version != nullptr ? real_dlvsym()(handle, name, version) : real_dlsym()(handle, name);
}

}  // namespace

const NicCall& nic_call(NicRow row) { return kNicCalls[row]; }

NicRow find_nic_call(const char* symbol) {
  for (int row = 0; row < kNicRows; ++row)
    if (std::strcmp(kNicCalls[row].symbol, symbol) == 0) return static_cast<NicRow>(row);
  return kNicRows;
}

namespace {

/// The slot that has this function, or may from now on: one that is empty, or else the one that has
/// `gone` still. kSlots: there is none.
std::size_t take_slot(NicRow row, void* real, void* gone) {
  // Without a lock: a child of fork could find it taken. Slots fill from the front, and none
  // becomes empty again.
  auto& all = slots[row];
  const auto take = [&](void* from) {
    std::size_t slot = 0;
    for (void* there = from; slot < kSlots; there = from, ++slot)
      if (all[slot].compare_exchange_strong(there, real) || there == real) break;
    return slot;
  };
  const std::size_t slot = take(nullptr);
  return slot == kSlots && gone != nullptr ? take(gone) : slot;
}

}  // namespace

void* nic_wrapper(NicRow row, void* real) {
  std::size_t slot = take_slot(row, real, nullptr);
  for (std::size_t i = 0; slot == kSlots && i < kSlots; ++i)
    if (void* there = slots[row][i].load(); is_gone(there)) slot = take_slot(row, real, there);
  if (slot < kSlots) return kWrapperOf[row](slot);
  log_error(std::string(kNicCalls[row].symbol) + ": more than " + std::to_string(kSlots) +
            " libraries have it. amem does not see what the last of them registers, and a pause "
            "would free it");
  return real;
}

SymbolAnswer find_nic_symbol(void* handle, const char* name, const char* version,
                             const void* caller) {
  const NicRow row = find_nic_call(name);
  if (row == kNicRows) return {};
  // Who comes behind us is called by us, and so was noticed.
  if (handle == RTLD_NEXT && !precedes_us(caller)) return {};
  void* found = look_up(handle, name, version);
  // A lookup in the whole process may find our export first, whether or not there is a library.
  const bool ours = is_nic_export(found);
  if (ours) found = look_up(RTLD_NEXT, name, version);
  if (found == nullptr && handle == RTLD_DEFAULT) found = symbol_for(caller, name, version);
  if (is_nic_export(found)) found = nullptr;  // of a caller that is the program itself
  // Asked once more, so that dlerror says why.
  if (found == nullptr) return {ours ? look_up(RTLD_NEXT, name, version) : nullptr, ours};
  ::dlerror();  // hides what was not found on the way from the program
  if (Runtime::disabled()) return {found, true};
  trace("dlsym %s", name);
  return {nic_wrapper(row, found), true};
}

void* linked_nic_function(NicRow row, const void* caller) {
  const auto& [symbol, library, version] = nic_call(row);
  // The library of a module that was loaded with RTLD_LOCAL is known only in the module's own
  // scope.
  void* found = symbol_for(caller, symbol, version);
  if (found != nullptr && !is_nic_export(found)) return found;
  found = look_up(RTLD_NEXT, symbol, version);
  if (found != nullptr) return found;
  void* const loaded = ::dlopen(library, RTLD_NOW | RTLD_NOLOAD);
  if (loaded == nullptr) return nullptr;
  found = look_up(loaded, symbol, version);
  ::dlclose(loaded);
  return found;
}

}  // namespace amem::shim

// What each export jumps to; by row.
extern "C" __attribute__((visibility("hidden"), used)) void* const amem_nic_targets[] = {
#define EXPORTED(symbol, library) \
  reinterpret_cast<void*>(        \
      &amem::shim::Entry<amem::shim::kNic_##symbol, &amem::shim::answer_##symbol>::linked),
#define LINKED(symbol, library, version) EXPORTED(symbol, library)
#include "shim/nic/nic_calls.inc"
};

// The exports. A jump, so that the return address is the program's. Where the library has versions
// only under the one that programs are linked to, and not as the default one: lookups without a
// version, and weak references of programs that are not linked to the library, find nothing.
asm(R"(
    .set amem_nic_row, 0
    .macro amem_nic_jump symbol
    .pushsection amem_nic, "ax", @progbits
    .balign 16
    .globl amem_nic_\symbol
    .type amem_nic_\symbol, @function
amem_nic_\symbol:
    .cfi_startproc
    endbr64
    jmp *(amem_nic_targets + 8 * amem_nic_row)(%rip)
    .cfi_endproc
    .size amem_nic_\symbol, .-amem_nic_\symbol
    .popsection
    .set amem_nic_row, amem_nic_row + 1
    .endm
    .macro amem_nic symbol version
    amem_nic_jump \symbol
    .symver amem_nic_\symbol, \symbol@\version, remove
    .endm
    .macro amem_nic_unversioned symbol
    amem_nic_jump \symbol
    .globl \symbol
    .type \symbol, @function
    .set \symbol, amem_nic_\symbol
    .endm
)");
#define LINKED(symbol, library, version) asm("amem_nic " #symbol " " version);
#define EXPORTED(symbol, library) asm("amem_nic_unversioned " #symbol);
#include "shim/nic/nic_calls.inc"

// The linker's names for the bounds of the section that the jumps lie in.
extern "C" __attribute__((visibility("hidden"))) const char __start_amem_nic[];
extern "C" __attribute__((visibility("hidden"))) const char __stop_amem_nic[];

bool amem::shim::is_nic_export(const void* code) {
  return code >= __start_amem_nic && code < __stop_amem_nic;
}
