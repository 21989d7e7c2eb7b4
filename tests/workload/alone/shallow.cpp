// amem-shallow KIB: calls of the driver and of the shim on a thread whose stack has so many KiB in
// all, as threads of programs with many of them may. Prints a line for each call: its name, its
// result, and how many bytes of the stack it took. The first one is also the process's first
// brokered call.
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr std::size_t kBytes = std::size_t{4} << 20;
constexpr unsigned char kPaint = 0xa5;
constexpr std::size_t kOwnFrame = 512;  // of Measure(), which must not paint itself

struct Measured {
  const char* name;
  int result;
  std::size_t stack;
};

struct Thread {
  CUcontext context;
  CUdevice device;
  const unsigned char* lowest = nullptr;
  std::vector<Measured> calls = {};  // has its space before the thread begins
};

template <class Call>
[[gnu::noinline]] void Measure(Thread& thread, const char* name, const Call& call) {
  auto* const here = static_cast<unsigned char*>(__builtin_frame_address(0)) - kOwnFrame;
  for (volatile unsigned char* at = const_cast<unsigned char*>(thread.lowest); at < here; ++at)
    *at = kPaint;
  const int result = call();
  const unsigned char* deepest = thread.lowest;
  while (deepest < here && *const_cast<const volatile unsigned char*>(deepest) == kPaint) ++deepest;
  thread.calls.push_back({name, result, static_cast<std::size_t>(here - deepest)});
}

#define MEASURE(name, ...) \
  Measure(thread, #name, [&] { return static_cast<int>(name(__VA_ARGS__)); })

void UseMemory(Thread& thread) {
  CUdeviceptr address = 0;
  std::size_t free = 0, total = 0;
  MEASURE(cuMemAlloc, &address, kBytes);
  MEASURE(cuMemFree, address);
  MEASURE(cuMemGetInfo, &free, &total);  // settles what was freed
  MEASURE(cuMemAlloc, &address, kBytes);
  MEASURE(cuMemFree, address);
}

void UseHandles(Thread& thread) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {thread.device}};
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, {thread.device}},
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle made = 0, imported = 0;
  CUdeviceptr address = 0;
  int fd = -1;
  MEASURE(cuMemCreate, &made, kBytes, &prop, 0);
  MEASURE(cuMemExportToShareableHandle, &fd, made, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  MEASURE(cuMemImportFromShareableHandle, &imported,
          reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  close(fd);
  MEASURE(cuMemAddressReserve, &address, kBytes, 0, 0, 0);
  MEASURE(cuMemMap, address, kBytes, 0, imported, 0);
  MEASURE(cuMemSetAccess, address, kBytes, &access, 1);
  MEASURE(cuMemRelease, made);
  MEASURE(cuMemRelease, imported);
  MEASURE(cuMemUnmap, address, kBytes);
  MEASURE(cuMemAddressFree, address, kBytes);
}

/// A call that the shim exports to programs. REQUIRES: it is in the process.
template <class... Args>
auto OfShim(const char* name) {
  return reinterpret_cast<int (*)(Args...)>(dlsym(RTLD_DEFAULT, name));
}

void UseShim(Thread& thread) {
  using Request = const char* const*;
  const auto amem_shim_pause =
      OfShim<Request, std::size_t, std::uint32_t, char*, std::size_t>("amem_shim_pause");
  if (amem_shim_pause == nullptr) return;
  const auto amem_shim_resume =
      OfShim<Request, std::size_t, std::uint32_t, char*, std::size_t>("amem_shim_resume");
  const auto amem_shim_set_policy =
      OfShim<const char*, int, char*, std::size_t>("amem_shim_set_policy");
  const auto amem_shim_backup_read =
      OfShim<std::uint64_t, std::uint64_t, void*, char*, std::size_t>("amem_shim_backup_read");
  const auto amem_shim_stats = [] {
    return OfShim<char*, std::size_t>("amem_shim_stats")(nullptr, 0) > 0 ? 0 : -1;
  };
  static char error[512];
  static char byte = 0;
  CUdeviceptr address = 0;
  MEASURE(cuMemAlloc, &address, kBytes);
  MEASURE(amem_shim_set_policy, "heap", 1, error, sizeof error);
  MEASURE(amem_shim_stats);
  MEASURE(amem_shim_pause, nullptr, 0, 0, error, sizeof error);
  MEASURE(amem_shim_backup_read, address, 1, &byte, error, sizeof error);
  MEASURE(amem_shim_resume, nullptr, 0, 0, error, sizeof error);
  MEASURE(cuMemFree, address);
}

void* Run(void* argument) {
  Thread& thread = *static_cast<Thread*>(argument);
  pthread_attr_t attributes;
  void* lowest = nullptr;
  std::size_t bytes = 0;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, &lowest, &bytes);
  pthread_attr_destroy(&attributes);
  thread.lowest = static_cast<const unsigned char*>(lowest);
  cuCtxSetCurrent(thread.context);
  UseMemory(thread);
  UseHandles(thread);
  UseShim(thread);
  return nullptr;
}

}  // namespace

int main(int count, char** words) {
  const std::size_t kib = count > 1 ? std::strtoull(words[1], nullptr, 10) : 0;
  Thread thread{};
  if (cuInit(0) != CUDA_SUCCESS || cuDeviceGet(&thread.device, 0) != CUDA_SUCCESS ||
      cuDevicePrimaryCtxRetain(&thread.context, thread.device) != CUDA_SUCCESS)
    return 1;
  thread.calls.reserve(64);
  pthread_attr_t attributes;
  pthread_t started{};
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kib * 1024);
  if (pthread_create(&started, &attributes, &Run, &thread) != 0) return 2;
  pthread_join(started, nullptr);
  for (const Measured& call : thread.calls)
    std::printf("%s\t%d\t%zu\n", call.name, call.result, call.stack);
  return 0;
}
