// A libcuda.so.1 whose memory is numbers, for measuring the broker alone.
//
// Creating, exporting and freeing memory costs nothing here, in the driver and in the kernel, and
// needs no descriptor: exporting hands out numbers from kFirstNumber on, which no descriptor can
// have. Preloaded into amemd, this library also answers the C library's close, fcntl and sendmsg
// for such numbers; over a socket goes a descriptor of /dev/null in their place. So a broker can
// hold more allocations than this machine lets a process have descriptors, and all time that it
// takes is its own. Nothing can be mapped, and no other process can use this driver.
#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iterator>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kFirstNumber = 1 << 28;
constexpr int kDevices = 8;
constexpr std::size_t kDeviceMemory = std::size_t{1} << 40;
constexpr std::size_t kGranularity = std::size_t{64} << 10;

std::atomic<int> next_number{kFirstNumber};
std::atomic<std::uint64_t> next_handle{1};

template <class Function>
Function next_in_line(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

CUresult init(unsigned) { return CUDA_SUCCESS; }
CUresult error_name(CUresult, const char** text) {
  *text = "error of the bench's driver";
  return CUDA_SUCCESS;
}
CUresult device_count(int* count) {
  *count = kDevices;
  return CUDA_SUCCESS;
}
CUresult device_get(CUdevice* device, int ordinal) {
  *device = ordinal;
  return ordinal < kDevices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult device_uuid(CUuuid* uuid, CUdevice device) {
  std::memset(uuid, device + 1, sizeof *uuid);
  return CUDA_SUCCESS;
}
CUresult device_name(char* name, int length, CUdevice) {
  std::snprintf(name, static_cast<std::size_t>(length), "a device of numbers");
  return CUDA_SUCCESS;
}
CUresult device_memory(std::size_t* bytes, CUdevice) {
  *bytes = kDeviceMemory;
  return CUDA_SUCCESS;
}
CUresult device_attribute(int* value, CUdevice_attribute attribute, CUdevice) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED ? 1 : 0;
  return CUDA_SUCCESS;
}
CUresult granularity(std::size_t* bytes, const CUmemAllocationProp*,
                     CUmemAllocationGranularity_flags) {
  *bytes = kGranularity;
  return CUDA_SUCCESS;
}
CUresult create(CUmemGenericAllocationHandle* handle, std::size_t, const CUmemAllocationProp*,
                unsigned long long) {
  *handle = next_handle++;
  return CUDA_SUCCESS;
}
CUresult export_handle(void* out, CUmemGenericAllocationHandle, CUmemAllocationHandleType,
                       unsigned long long) {
  *static_cast<int*>(out) = next_number++;
  return CUDA_SUCCESS;
}
CUresult release(CUmemGenericAllocationHandle) { return CUDA_SUCCESS; }
CUresult not_there() { return CUDA_ERROR_NOT_SUPPORTED; }

struct Entry {
  const char* name;
  void* function;
};
const Entry kEntries[] = {
    {"cuInit", reinterpret_cast<void*>(&init)},
    {"cuGetErrorName", reinterpret_cast<void*>(&error_name)},
    {"cuDeviceGetCount", reinterpret_cast<void*>(&device_count)},
    {"cuDeviceGet", reinterpret_cast<void*>(&device_get)},
    {"cuDeviceGetUuid", reinterpret_cast<void*>(&device_uuid)},
    {"cuDeviceGetName", reinterpret_cast<void*>(&device_name)},
    {"cuDeviceTotalMem", reinterpret_cast<void*>(&device_memory)},
    {"cuDeviceGetAttribute", reinterpret_cast<void*>(&device_attribute)},
    {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(&granularity)},
    {"cuMemCreate", reinterpret_cast<void*>(&create)},
    {"cuMemExportToShareableHandle", reinterpret_cast<void*>(&export_handle)},
    {"cuMemRelease", reinterpret_cast<void*>(&release)},
};

int real_descriptor() {
  static const int fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  return fd;
}

}  // namespace

EXPORTED CUresult cuGetProcAddress_v2(const char* name, void** function, int, cuuint64_t,
                                      CUdriverProcAddressQueryResult* found) {
  *function = reinterpret_cast<void*>(&not_there);
  for (const Entry& entry : kEntries)
    if (std::strcmp(entry.name, name) == 0) *function = entry.function;
  if (found != nullptr) *found = CU_GET_PROC_ADDRESS_SUCCESS;
  return CUDA_SUCCESS;
}

EXPORTED int close(int fd) {
  static const auto next = next_in_line<int (*)(int)>("close");
  return fd >= kFirstNumber ? 0 : next(fd);
}

EXPORTED int fcntl64(int fd, int command, ...) {
  static const auto next = next_in_line<int (*)(int, int, void*)>("fcntl64");
  va_list arguments;
  va_start(arguments, command);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  return fd >= kFirstNumber ? 0 : next(fd, command, argument);
}

EXPORTED int fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  return fcntl64(fd, command, argument);
}

EXPORTED ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  static const auto next = next_in_line<ssize_t (*)(int, const msghdr*, int)>("sendmsg");
  // The caller's buffer of descriptors: its numbers are replaced while the call lasts.
  cmsghdr* control = CMSG_FIRSTHDR(message);
  if (control == nullptr || control->cmsg_type != SCM_RIGHTS) return next(socket, message, flags);
  int numbers[256];
  const std::size_t bytes = control->cmsg_len - CMSG_LEN(0);
  if (bytes > sizeof numbers) return next(socket, message, flags);
  std::memcpy(numbers, CMSG_DATA(control), bytes);
  int real[256];
  for (std::size_t i = 0; i < bytes / sizeof(int); ++i)
    real[i] = numbers[i] >= kFirstNumber ? real_descriptor() : numbers[i];
  std::memcpy(CMSG_DATA(control), real, bytes);
  const ssize_t sent = next(socket, message, flags);
  std::memcpy(CMSG_DATA(control), numbers, bytes);
  return sent;
}
