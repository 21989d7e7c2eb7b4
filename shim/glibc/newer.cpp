// Functions of the C library that are newer than the oldest one that the shim runs with, or that
// musl lacks (README.md). libstdc++, libgcc and the shim call them by these names. They are hidden:
// the process's other libraries keep the C library's.
//
// Some make the system call that the C library makes. The others ask the process's C library first,
// which does better where it has them.
#undef _FORTIFY_SOURCE  // this file's own calls are plain
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "shim/process/symbols.h"

/// Under a name of its own, because the headers may declare the C library's in several ways.
#define AMEM_NEWER(type, name, parameters)                \
  extern "C" type newer_##name parameters __asm__(#name); \
  extern "C" type newer_##name parameters

/// libstdc++ uses atomic instructions, as in a process with several threads.
extern "C" {
extern char newer_libc_single_threaded __asm__("__libc_single_threaded");
char newer_libc_single_threaded = 0;
}

AMEM_NEWER(int, stat, (const char* path, struct stat* facts)) {
  return static_cast<int>(::syscall(SYS_stat, path, facts));
}

AMEM_NEWER(int, fstat, (int fd, struct stat* facts)) {
  return static_cast<int>(::syscall(SYS_fstat, fd, facts));
}

AMEM_NEWER(int, memfd_create, (const char* name, unsigned flags)) {
  return static_cast<int>(::syscall(SYS_memfd_create, name, flags));
}

AMEM_NEWER(ssize_t, getrandom, (void* buffer, std::size_t size, unsigned flags)) {
  return ::syscall(SYS_getrandom, buffer, size, flags);
}

AMEM_NEWER(int, getentropy, (void* buffer, std::size_t size)) {
  constexpr std::size_t kMost = 256;  // so much comes whole
  if (size > kMost) {
    errno = EIO;
    return -1;
  }
  long got = -1;
  do got = ::syscall(SYS_getrandom, buffer, size, 0);
  while (got < 0 && errno == EINTR);
  return got == static_cast<long>(size) ? 0 : -1;
}

// With C23, which g++ asks for, the headers of glibc 2.38 call these functions so.
#define AMEM_C23(type, name)                                                    \
  extern "C" type older_##name(const char*, char**, int) __asm__(#name);        \
  AMEM_NEWER(type, __isoc23_##name, (const char* text, char** end, int base)) { \
    return older_##name(text, end, base);                                       \
  }
AMEM_C23(long, strtol)
AMEM_C23(long long, strtoll)
AMEM_C23(unsigned long, strtoul)
AMEM_C23(unsigned long long, strtoull)

// With _FORTIFY_SOURCE the headers call these. musl does not have them.
AMEM_NEWER(int, __vsnprintf_chk,
           (char* text, std::size_t size, int /*flag*/, std::size_t room, const char* format,
            std::va_list arguments)) {
  if (size > room) std::abort();
  return std::vsnprintf(text, size, format, arguments);
}

AMEM_NEWER(int, __snprintf_chk,
           (char* text, std::size_t size, int flag, std::size_t room, const char* format, ...)) {
  std::va_list arguments;
  va_start(arguments, format);
  const int length = newer___vsnprintf_chk(text, size, flag, room, format, arguments);
  va_end(arguments);
  return length;
}

/// glibc has it in a static library, which refers to __register_atfork. musl has no such name.
extern "C" int __register_atfork(void (*)(), void (*)(), void (*)(), void*) __attribute__((weak));
extern "C" __attribute__((visibility("hidden"))) void* __dso_handle;
AMEM_NEWER(int, pthread_atfork, (void (*prepare)(), void (*parent)(), void (*child)())) {
  if (&__register_atfork == nullptr) return ENOTSUP;
  return __register_atfork(prepare, parent, child, __dso_handle);
}

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

timespec time_of(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return now;
}

/// In nanoseconds; negative: it is over.
std::int64_t left_until(const timespec& end, clockid_t clock) {
  const timespec now = time_of(clock);
  return (end.tv_sec - now.tv_sec) * kSecond + (end.tv_nsec - now.tv_nsec);
}

}  // namespace

/// Where the C library has none (before 2.30) it waits by the wall clock, a second at most: then a
/// change of that clock delays nobody for longer. After that second it returns as if somebody had
/// woken the thread, which therefore looks at its condition and waits again.
AMEM_NEWER(int, pthread_cond_clockwait,
           (pthread_cond_t * condition, pthread_mutex_t* mutex, clockid_t clock,
            const timespec* end)) {
  static const auto real = reinterpret_cast<decltype(&newer_pthread_cond_clockwait)>(
      amem::shim::c_library_symbol("pthread_cond_clockwait"));
  if (real != nullptr) return real(condition, mutex, clock, end);
  const std::int64_t left = left_until(*end, clock);
  if (left <= 0) return ETIMEDOUT;
  timespec wall = time_of(CLOCK_REALTIME);
  wall.tv_nsec += left < kSecond ? left : kSecond;
  wall.tv_sec += wall.tv_nsec / kSecond;
  wall.tv_nsec %= kSecond;
  const int r = ::pthread_cond_timedwait(condition, mutex, &wall);
  return r == ETIMEDOUT && left_until(*end, clock) > 0 ? 0 : r;
}

namespace {

using amem::shim::FoundObject;

struct Search {
  std::uintptr_t code;
  FoundObject* found;
};

int look_in(dl_phdr_info* object, std::size_t /*size*/, void* data) {
  const auto& search = *static_cast<Search*>(data);
  FoundObject facts;
  bool contains = false;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    const std::uintptr_t begin = object->dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_GNU_EH_FRAME) facts.eh_frame = reinterpret_cast<void*>(begin);
    if (segment.p_type != PT_LOAD || search.code - begin >= segment.p_memsz) continue;
    contains = true;
    facts.begin = reinterpret_cast<void*>(begin);
    facts.end = reinterpret_cast<void*>(begin + segment.p_memsz);
  }
  if (!contains || facts.eh_frame == nullptr) return 0;
  *search.found = facts;
  return 1;
}

}  // namespace

/// libgcc asks it for the frames of the code that an exception passes.
AMEM_NEWER(int, _dl_find_object, (void* code, FoundObject* found)) {
  if (const amem::shim::FindObject real = amem::shim::find_object(); real != nullptr)
    return real(code, found);
  Search search{reinterpret_cast<std::uintptr_t>(code), found};
  return ::dl_iterate_phdr(&look_in, &search) != 0 ? 0 : -1;
}
