// The simulated driver: devices, physical memory across processes, NVML, entry points. Of all its
// tests: main().
#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>

#include "tests/unit/fixtures/sim_child.h"
#include "tests/unit/fixtures/sim_memory.h"

namespace {

using namespace sim_test;

std::string UuidText(CUdevice device) {
  CUuuid uuid;
  EXPECT_EQ(cuDeviceGetUuid(&uuid, device), CUDA_SUCCESS);
  char text[64];
  const auto* b = reinterpret_cast<const unsigned char*>(uuid.bytes);
  snprintf(text, sizeof text,
           "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
           b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
           b[15]);
  return text;
}

// ---- devices

const RegisterRole kVisible("visible", [] {
  ROLE_CHECK(cuInit(0) == CUDA_SUCCESS);
  int count = 0;
  ROLE_CHECK(cuDeviceGetCount(&count) == CUDA_SUCCESS && count == 2);
  // Device 0 here is GPU 1 of the node.
  ROLE_CHECK(UuidText(0) == getenv("EXPECT_FIRST"));
  const CUmemAllocationProp prop = Prop(0);
  CUmemGenericAllocationHandle handle = 0;
  ROLE_CHECK(cuMemCreate(&handle, kUnit, &prop, 0) == CUDA_SUCCESS);
  ROLE_CHECK(nvmlInit_v2() == NVML_SUCCESS && Used(0) == 0 && Used(1) == kUnit);
  return 0;
});

const RegisterRole kNoDevice("no-device", [] { return cuInit(0) == CUDA_ERROR_NO_DEVICE ? 0 : 1; });

TEST_F(SimDriver, VisibleDevicesReorderFilterAndAcceptUuids) {
  const std::string second = UuidText(1);
  EXPECT_NE(UuidText(0), second);
  for (const std::string& list : {std::string("1,0"), second + ",0,7,1"}) {
    EXPECT_EQ(RunRole("visible", {{"CUDA_VISIBLE_DEVICES", list}, {"EXPECT_FIRST", second}}), 0)
        << list;
  }
  EXPECT_EQ(RunRole("no-device", {{"CUDA_VISIBLE_DEVICES", ""}}), 0);
  EXPECT_EQ(RunRole("no-device", {{"CUDA_VISIBLE_DEVICES", "0,0"}}), 0);
  EXPECT_EQ(RunRole("no-device", {{"AMEM_SIM_DEVICES", "0"}}), 0);
}

TEST_F(SimDriver, NvmlKnowsTheSameDevices) {
  for (int i = 0; i < 2; ++i) {
    nvmlDevice_t device = nullptr;
    ASSERT_EQ(nvmlDeviceGetHandleByUUID(UuidText(i).c_str(), &device), NVML_SUCCESS);
    unsigned index = 9;
    EXPECT_EQ(nvmlDeviceGetIndex(device, &index), NVML_SUCCESS);
    EXPECT_EQ(index, static_cast<unsigned>(i));
    nvmlMemory_v2_t memory = {};
    EXPECT_EQ(nvmlDeviceGetMemoryInfo_v2(device, &memory), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    memory.version = nvmlMemory_v2;
    EXPECT_EQ(nvmlDeviceGetMemoryInfo_v2(device, &memory), NVML_SUCCESS);
    EXPECT_EQ(memory.total, kCapacity);
  }
  nvmlDevice_t device = nullptr;
  EXPECT_EQ(nvmlDeviceGetHandleByUUID("GPU-none", &device), NVML_ERROR_NOT_FOUND);
}

TEST_F(SimDriver, ContextsOccupyMemoryWhileTheyLive) {
  size_t free = 0;
  size_t total = 0;
  EXPECT_EQ(cuMemGetInfo(&free, &total), CUDA_ERROR_INVALID_CONTEXT);
  CUdeviceptr ptr = 0;
  EXPECT_EQ(cuMemAlloc(&ptr, 100), CUDA_ERROR_INVALID_CONTEXT);

  CUcontext context = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  EXPECT_EQ(Used(1), kContext);
  EXPECT_EQ(cuMemGetInfo(&free, &total), CUDA_SUCCESS);
  EXPECT_EQ(free, kCapacity - kContext);
  EXPECT_EQ(total, kCapacity);

  ASSERT_EQ(cuMemAlloc(&ptr, 5000), CUDA_SUCCESS);
  EXPECT_EQ(Used(1), kContext + 8192);
  CUdeviceptr base = 0;
  size_t size = 0;
  EXPECT_EQ(cuMemGetAddressRange(&base, &size, ptr + 4999), CUDA_SUCCESS);
  EXPECT_EQ(base, ptr);
  EXPECT_EQ(size, 5000U);
  unsigned type = 0;
  EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr), CUDA_SUCCESS);
  EXPECT_EQ(type, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
  int ordinal = -1;
  EXPECT_EQ(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr),
            CUDA_SUCCESS);
  EXPECT_EQ(ordinal, 1);
  EXPECT_EQ(cuMemFree(ptr + 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree(ptr), CUDA_SUCCESS);
  EXPECT_EQ(Used(1), kContext);

  // What is left goes with the context.
  ASSERT_EQ(cuMemAlloc(&ptr, 5000), CUDA_SUCCESS);
  EXPECT_EQ(cuDevicePrimaryCtxRelease(1), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc(&ptr, 100), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
}

// ---- physical memory

TEST_F(SimDriver, CreateRefusesWhatTheRealOneRefuses) {
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp prop = Prop();
  EXPECT_EQ(cuMemCreate(&handle, kUnit + 4096, &prop, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemCreate(&handle, 0, &prop, 0), CUDA_ERROR_INVALID_VALUE);
  prop = Prop(2);
  EXPECT_EQ(cuMemCreate(&handle, kUnit, &prop, 0), CUDA_ERROR_INVALID_DEVICE);
  prop = Prop(0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC);
  EXPECT_EQ(cuMemCreate(&handle, kUnit, &prop, 0), CUDA_ERROR_NOT_PERMITTED);
  prop = Prop(0, CU_MEM_HANDLE_TYPE_NONE);
  ASSERT_EQ(cuMemCreate(&handle, kUnit, &prop, 0), CUDA_SUCCESS);
  int fd = -1;
  EXPECT_EQ(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(SimDriver, MemoryLivesAsLongAsAnyReference) {
  const CUmemGenericAllocationHandle handle = Create();
  EXPECT_EQ(Used(), kUnit);
  const int fd = Export(handle);
  EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(Used(), kUnit) << "the exported descriptor keeps it";
  CUmemGenericAllocationHandle imported = 0;
  ASSERT_EQ(Import(&imported, fd), CUDA_SUCCESS);
  close(fd);
  EXPECT_EQ(Used(), kUnit) << "the importer's handle keeps it";
  const CUdeviceptr base = Reserve(kUnit);
  ASSERT_EQ(cuMemMap(base, kUnit, 0, imported, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(imported), CUDA_SUCCESS);
  EXPECT_EQ(Used(), kUnit) << "the mapping keeps it";
  EXPECT_EQ(cuMemUnmap(base, kUnit), CUDA_SUCCESS);
  EXPECT_EQ(Used(), 0U);
  EXPECT_EQ(cuMemAddressFree(base, kUnit), CUDA_SUCCESS);
}

TEST_F(SimDriver, ImportedHandlesDiffer) {
  CUmemAllocationProp prop = Prop();
  prop.allocFlags.gpuDirectRDMACapable = 1;
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cuMemCreate(&handle, kUnit, &prop, 0), CUDA_SUCCESS);
  const int fd = Export(handle);
  CUmemGenericAllocationHandle imported = 0;
  ASSERT_EQ(Import(&imported, fd), CUDA_SUCCESS);
  EXPECT_EQ(cuMemGetAllocationPropertiesFromHandle(&prop, handle), CUDA_SUCCESS);
  EXPECT_EQ(prop.requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  EXPECT_EQ(cuMemGetAllocationPropertiesFromHandle(&prop, imported), CUDA_SUCCESS);
  EXPECT_EQ(prop.requestedHandleTypes, CU_MEM_HANDLE_TYPE_NONE);
  EXPECT_EQ(prop.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(prop.location.id, 0);
  EXPECT_EQ(prop.allocFlags.gpuDirectRDMACapable, 1);
  int again = -1;
  EXPECT_EQ(
      cuMemExportToShareableHandle(&again, imported, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      CUDA_ERROR_INVALID_VALUE);
  close(fd);
  cuMemRelease(handle);
  cuMemRelease(imported);
}

TEST_F(SimDriver, ImportRefusesForeignDescriptors) {
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(Import(&handle, -1), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(Import(&handle, 0), CUDA_ERROR_UNKNOWN);
  for (const char* name : {"ticket", "amem-sim:0000000000000000:gpu0:2097152:0"}) {
    const int fd = memfd_create(name, MFD_CLOEXEC);
    EXPECT_EQ(Import(&handle, fd), CUDA_ERROR_UNKNOWN) << name;
    close(fd);
  }
}

// Imports what it is sent, keeps it as it is told, then waits.
const RegisterRole kHold("hold", [] {
  ROLE_CHECK(cuInit(0) == CUDA_SUCCESS);
  int fd = -1;
  const char how = sim_test::ReceiveByte(kChildSocket, &fd);
  CUmemGenericAllocationHandle handle = 0;
  ROLE_CHECK(Import(&handle, fd) == CUDA_SUCCESS);
  close(fd);
  const CUdeviceptr base = Reserve(kUnit);
  ROLE_CHECK(cuMemMap(base, kUnit, 0, handle, 0) == CUDA_SUCCESS);
  ROLE_CHECK(Grant(base, kUnit) == CUDA_SUCCESS);
  ROLE_CHECK(Bytes(base)[kUnit - 1] == 42);
  Bytes(base)[0] = 43;
  if (how == 'm') ROLE_CHECK(cuMemRelease(handle) == CUDA_SUCCESS);
  if (how == 'h') ROLE_CHECK(cuMemUnmap(base, kUnit) == CUDA_SUCCESS);
  sim_test::SendByte(kChildSocket, 'k');
  sim_test::ReceiveByte(kChildSocket);
  return 0;
});

TEST_F(SimDriver, AnotherProcessKeepsMemoryUntilItEnds) {
  for (const char how : {'m', 'h'}) {
    const CUmemGenericAllocationHandle handle = Create();
    const CUdeviceptr base = Reserve(kUnit);
    ASSERT_EQ(cuMemMap(base, kUnit, 0, handle, 0), CUDA_SUCCESS);
    ASSERT_EQ(Grant(base, kUnit), CUDA_SUCCESS);
    EXPECT_EQ(Bytes(base)[kUnit - 1], 0) << "new memory is zero";
    Bytes(base)[kUnit - 1] = 42;
    Child child("hold");
    const int fd = Export(handle);
    child.Send(how, fd);
    close(fd);
    ASSERT_EQ(child.Receive(), 'k');
    EXPECT_EQ(Bytes(base)[0], 43) << "one memory, two processes";
    EXPECT_EQ(cuMemUnmap(base, kUnit), CUDA_SUCCESS);
    EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAddressFree(base, kUnit), CUDA_SUCCESS);
    EXPECT_EQ(Used(), kUnit) << "held by the child: " << how;
    child.Kill();
    EXPECT_EQ(Used(), 0U);
  }
}

const RegisterRole kCreate("create", [] {
  ROLE_CHECK(cuInit(0) == CUDA_SUCCESS);
  const CUmemGenericAllocationHandle handle = Create();
  const CUdeviceptr base = Reserve(kUnit);
  ROLE_CHECK(cuMemMap(base, kUnit, 0, handle, 0) == CUDA_SUCCESS);
  ROLE_CHECK(Grant(base, kUnit) == CUDA_SUCCESS);
  Bytes(base)[kUnit - 1] = 42;
  const int fd = Export(handle);
  sim_test::SendByte(kChildSocket, 'k', fd);
  sim_test::ReceiveByte(kChildSocket);
  return 0;
});

/// A program that knows nothing of the driver, and has this descriptor; what it has of it now.
class DescriptorHolder {
 public:
  explicit DescriptorHolder(int fd) : pid_(fork()) {
    if (pid_ == 0) {
      dup2(fd, STDIN_FILENO);  // without close-on-exec
      execl("/bin/sleep", "sleep", "600", nullptr);
      _exit(127);
    }
    pidfd_ = amem::Fd(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  }
  ~DescriptorHolder() { Kill(); }
  DescriptorHolder(const DescriptorHolder&) = delete;
  DescriptorHolder& operator=(const DescriptorHolder&) = delete;

  /// Whether it is that program by now, with none of this one's descriptors.
  bool Runs() const {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() < until) {
      const std::string maps = "/proc/" + std::to_string(pid_) + "/maps";
      std::ifstream file(maps);
      std::stringstream text;
      text << file.rdbuf();
      if (text.str().find("sleep") != std::string::npos)
        return text.str().find("libcuda") == std::string::npos;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return false;
  }
  int TakeBack() const {
    return static_cast<int>(syscall(SYS_pidfd_getfd, pidfd_.get(), STDIN_FILENO, 0));
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_;
  amem::Fd pidfd_;
};

TEST_F(SimDriver, ADescriptorKeepsMemoryInAProgramThatNeverLoadedTheDriver) {
  Child creator("create");
  int fd = -1;
  ASSERT_EQ(creator.Receive(&fd), 'k');
  DescriptorHolder holder(fd);
  close(fd);
  ASSERT_TRUE(holder.Runs());
  creator.Kill();
  EXPECT_EQ(Used(), kUnit) << "its creator is dead, and nobody has it mapped";
  const CUmemAllocationProp prop = Prop();
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cuMemCreate(&handle, kCapacity, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);

  fd = holder.TakeBack();
  ASSERT_GE(fd, 0) << strerror(errno);
  holder.Kill();
  ASSERT_EQ(Import(&handle, fd), CUDA_SUCCESS);
  close(fd);
  const CUdeviceptr base = Reserve(kUnit);
  ASSERT_EQ(cuMemMap(base, kUnit, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(Used(), kUnit) << "the mapping alone has it now";
  ASSERT_EQ(Grant(base, kUnit), CUDA_SUCCESS);
  EXPECT_EQ(Bytes(base)[kUnit - 1], 42) << "the same bytes";
  EXPECT_EQ(cuMemUnmap(base, kUnit), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAddressFree(base, kUnit), CUDA_SUCCESS);
  EXPECT_EQ(Used(), 0U);
}

TEST_F(SimDriver, MemoryGoesWithTheLastProgramThatHasItsDescriptor) {
  Child creator("create");
  int fd = -1;
  ASSERT_EQ(creator.Receive(&fd), 'k');
  DescriptorHolder holder(fd);
  close(fd);
  ASSERT_TRUE(holder.Runs());
  creator.Kill();
  EXPECT_EQ(Used(), kUnit);
  holder.Kill();
  EXPECT_EQ(Used(), 0U);
}

const RegisterRole kFill("fill", [] {
  ROLE_CHECK(cuInit(0) == CUDA_SUCCESS);
  Create(kCapacity - kUnit);
  sim_test::SendByte(kChildSocket, 'k');
  sim_test::ReceiveByte(kChildSocket);
  return 0;
});

TEST_F(SimDriver, CapacityIsSharedByAllProcessesAndComesBack) {
  Child child("fill");
  ASSERT_EQ(child.Receive(), 'k');
  const CUmemGenericAllocationHandle last = Create();
  const CUmemAllocationProp prop = Prop();
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cuMemCreate(&handle, kUnit, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
  const CUmemGenericAllocationHandle other = Create(kUnit, 1);  // the other device has space
  child.Kill();
  EXPECT_EQ(cuMemCreate(&handle, kCapacity - kUnit, &prop, 0), CUDA_SUCCESS);
  for (const auto h : {last, other, handle}) EXPECT_EQ(cuMemRelease(h), CUDA_SUCCESS);
}

TEST_F(SimDriver, HostMemoryIsNotChargedToADevice) {
  CUmemAllocationProp prop = Prop();
  prop.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, {0}};
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cuMemCreate(&handle, 2 * kCapacity, &prop, 0), CUDA_SUCCESS);
  EXPECT_EQ(Used(0) + Used(1), 0U);
  const int fd = Export(handle);
  CUmemGenericAllocationHandle imported = 0;
  ASSERT_EQ(Import(&imported, fd), CUDA_SUCCESS);
  close(fd);
  const CUdeviceptr base = Reserve(2 * kCapacity);
  ASSERT_EQ(cuMemMap(base, 2 * kCapacity, 0, imported, 0), CUDA_SUCCESS);
  const CUmemAccessDesc access[2] = {
      {{CU_MEM_LOCATION_TYPE_DEVICE, {0}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
      {{CU_MEM_LOCATION_TYPE_HOST_NUMA, {0}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
  EXPECT_EQ(cuMemSetAccess(base, 2 * kCapacity, access, 2), CUDA_SUCCESS);
  Bytes(base)[2 * kCapacity - 1] = 1;
  EXPECT_EQ(cuMemUnmap(base, 2 * kCapacity), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAddressFree(base, 2 * kCapacity), CUDA_SUCCESS);
  cuMemRelease(handle);
  cuMemRelease(imported);
}

TEST_F(SimDriver, ForkedChildHasNoDriverAndNoMemory) {
  const CUmemGenericAllocationHandle handle = Create();
  const CUdeviceptr base = Reserve(kUnit);
  ASSERT_EQ(cuMemMap(base, kUnit, 0, handle, 0), CUDA_SUCCESS);
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    close(ends[0]);
    int count = 0;
    const bool refused = cuInit(0) == CUDA_ERROR_NOT_INITIALIZED &&
                         cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED &&
                         cuCtxSynchronize() == CUDA_ERROR_NOT_INITIALIZED &&
                         cuMemUnmap(base, kUnit) == CUDA_ERROR_NOT_INITIALIZED;
    sim_test::SendByte(ends[1], refused ? 'k' : 'x');
    sim_test::ReceiveByte(ends[1]);
    _exit(0);
  }
  close(ends[1]);
  EXPECT_EQ(sim_test::ReceiveByte(ends[0]), 'k');
  EXPECT_EQ(cuMemUnmap(base, kUnit), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(Used(), 0U) << "while the child lives";
  close(ends[0]);
  waitpid(pid, nullptr, 0);
  EXPECT_EQ(cuMemAddressFree(base, kUnit), CUDA_SUCCESS);
}

// ---- entry points

TEST_F(SimDriver, GetProcAddressFindsVersionsAndVariants) {
  void* cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(cuda, nullptr);
  struct Case {
    const char* name;
    int version;
    cuuint64_t flags;
    const char* symbol;
  };
  const Case cases[] = {
      {"cuMemAlloc", 3020, 0, "cuMemAlloc_v2"},
      {"cuMemCreate", 10020, 0, "cuMemCreate"},
      {"cuMemRetainAllocationHandle", 11000, 0, "cuMemRetainAllocationHandle"},
      {"cuGetProcAddress", 13000, 0, "cuGetProcAddress_v2"},
      {"cuGetProcAddress", 11030, 0, "cuGetProcAddress"},
      {"cuLaunchKernel", 12000, 0, "cuLaunchKernel"},
      {"cuLaunchKernel", 12000, 2, "cuLaunchKernel_ptsz"},
      {"cuMemcpyHtoD", 12000, 2, "cuMemcpyHtoD_v2_ptds"},
      {"cuMemcpyHtoDAsync", 12000, 1, "cuMemcpyHtoDAsync_v2"},
      {"cuStreamGetCaptureInfo", 11030, 0, "cuStreamGetCaptureInfo_v2"},
      {"cuStreamGetCaptureInfo", 12030, 0, "cuStreamGetCaptureInfo_v3"},
      {"cuCtxSynchronize", 12000, 0, "cuCtxSynchronize"},
      {"cuMemRelease", 12000, 2, "cuMemRelease"},
  };
  for (const Case& c : cases) {
    void* found = nullptr;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    EXPECT_EQ(cuGetProcAddress(c.name, &found, c.version, c.flags, &status), CUDA_SUCCESS);
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SUCCESS);
    EXPECT_NE(found, nullptr);
    EXPECT_EQ(found, dlsym(cuda, c.symbol)) << c.symbol;
  }
  void* found = nullptr;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
  cuGetProcAddress("cuMemCreate", &found, 9000, 0, &status);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  cuGetProcAddress("cuNoSuchCall", &found, 13000, 0, &status);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  EXPECT_EQ(found, nullptr);
  EXPECT_EQ(cuGetProcAddress("cuInit", &found, 99000, 0, &status), CUDA_ERROR_INVALID_VALUE);
  dlclose(cuda);
}

const RegisterRole kVersion("version", [] {
  int version = 0;
  ROLE_CHECK(cuDriverGetVersion(&version) == CUDA_SUCCESS);
  ROLE_CHECK(std::to_string(version) == getenv("EXPECT_VERSION"));
  ROLE_CHECK(cuInit(0) == CUDA_SUCCESS);
  void* const cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  struct Case {
    int since;
    const char* name;
    const char* symbol;
  };
  for (const Case& each :
       {Case{12080, "cuStreamGetDevice", "cuStreamGetDevice"},
        Case{12080, "cuCheckpointProcessLock", "cuCheckpointProcessLock"},
        Case{13000, "cuCtxSynchronize", "cuCtxSynchronize_v2"},
        Case{13010, "cuMulticastBindMem", "cuMulticastBindMem_v2"},
        Case{13020, "cuMemcpyWithAttributesAsync", "cuMemcpyWithAttributesAsync_ptsz"},
        Case{13040, "cuGraphAddNode", "cuGraphAddNode_v3"},
        Case{13050, "cuFabricCpyBatchAsync", "cuFabricCpyBatchAsync"},
        Case{14000, "cuTeleportAsync", "cuTeleportAsync"}}) {
    dlerror();
    void* const exported = dlsym(cuda, each.symbol);
    const bool there = version >= each.since;
    ROLE_CHECK((exported != nullptr) == there && (dlerror() == nullptr) == there);
    void* found = nullptr;
    const bool per_thread = std::string(each.symbol).ends_with("_ptsz");
    cuGetProcAddress(each.name, &found, version, per_thread ? 2 : 0, nullptr);
    ROLE_CHECK((found != nullptr && found == exported) == there);
  }
  // Older versions of the same calls stay.
  for (const char* symbol : {"cuCtxSynchronize", "cuMulticastBindMem", "cuGraphAddNode_v2"})
    ROLE_CHECK(dlsym(cuda, symbol) != nullptr);
  int value = 0;
  const auto attribute = [&](int number) {
    return cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(number), 0);
  };
  ROLE_CHECK((attribute(143) == CUDA_SUCCESS) == (version >= 12080));
  ROLE_CHECK((attribute(153) == CUDA_SUCCESS) == (version >= 13030));
  return 0;
});

TEST_F(SimDriver, VersionsDecideWhichCallsThereAre) {
  for (const auto& [text, number] : std::map<std::string, std::string>{{"12.4", "12040"},
                                                                       {"12.9", "12090"},
                                                                       {"13.0", "13000"},
                                                                       {"", "13010"},
                                                                       {"13.2", "13020"},
                                                                       {"13.3", "13030"},
                                                                       {"13.5", "13050"},
                                                                       {"14.0", "14000"}}) {
    EXPECT_EQ(RunRole("version", {{"AMEM_SIM_DRIVER", text}, {"EXPECT_VERSION", number}}), 0)
        << text;
  }
  EXPECT_NE(RunRole("version", {{"AMEM_SIM_DRIVER", "13.6"}, {"EXPECT_VERSION", "13060"}}), 0);
}

// 2 MiB take 40 ms to make.
const RegisterRole kDriverTimes("driver_times", [] {
  CUdevice devices[2] = {};
  CUcontext contexts[2] = {};
  ROLE_CHECK(cuInit(0) == CUDA_SUCCESS);
  for (int i = 0; i < 2; ++i) {
    ROLE_CHECK(cuDeviceGet(&devices[i], i) == CUDA_SUCCESS);
    ROLE_CHECK(cuDevicePrimaryCtxRetain(&contexts[i], devices[i]) == CUDA_SUCCESS);
  }
  const auto began = std::chrono::steady_clock::now();
  const auto took = [&] { return std::chrono::steady_clock::now() - began; };
  const auto make = [&](int i) {
    CUdeviceptr p = 0;
    return cuCtxSetCurrent(contexts[i]) == CUDA_SUCCESS &&
           cuMemAlloc(&p, 2 << 20) == CUDA_SUCCESS && cuMemFree(p) == CUDA_SUCCESS;
  };
  bool made = false;
  std::thread other([&] { made = make(1); });
  const bool well = make(0);
  other.join();
  ROLE_CHECK(well && made && took() >= std::chrono::milliseconds(2 * (40 + 5)));
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 1};
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr place = 0;
  ROLE_CHECK(cuMemCreate(&handle, 2 << 20, &prop, 0) == CUDA_SUCCESS);
  ROLE_CHECK(cuMemAddressReserve(&place, 2 << 20, 0, 0, 0) == CUDA_SUCCESS);
  ROLE_CHECK(cuMemMap(place, 2 << 20, 0, handle, 0) == CUDA_SUCCESS);
  ROLE_CHECK(cuMemUnmap(place, 2 << 20) == CUDA_SUCCESS);
  ROLE_CHECK(took() >= std::chrono::milliseconds(2 * (40 + 5) + 40 + 30 + 20));
  return 0;
});

TEST_F(SimDriver, CallsForMemoryTakeTheirTimesOneAfterTheOther) {
  const auto run = [](const char* times) {
    return RunRole("driver_times", {{"AMEM_SIM_DRIVER_TIMES", times}});
  };
  EXPECT_EQ(run("20000+10240,30000,20000+0,5000"), 0);
  for (const char* wrong : {"1,2,3", "1,2,3,4,5", "1,2,3,x", "1,2,3,-4", "1+,2,3,4"})
    EXPECT_NE(run(wrong), 0) << wrong;
}

TEST_F(SimDriver, ErrorsHaveNames) {
  const char* text = nullptr;
  EXPECT_EQ(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "out of memory");
  EXPECT_EQ(cuGetErrorName(static_cast<CUresult>(998), &text), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && strcmp(argv[1], "--role") == 0) return sim_test::Roles().at(argv[2])();
  // A node of our own, gone afterwards.
  char dir[] = "/tmp/amem-sim-test-XXXXXX";
  if (mkdtemp(dir) == nullptr) return 1;
  setenv("AMEM_SIM_DIR", dir, 1);
  setenv("AMEM_SIM_DEVICES", "2", 1);
  setenv("AMEM_SIM_MEMORY", "64MiB", 1);
  setenv("AMEM_SIM_CONTEXT_BYTES", "1MiB", 1);
  for (const char* name :
       {"AMEM_SIM_GRANULARITY", "AMEM_SIM_BANDWIDTH", "AMEM_SIM_FAULTS", "AMEM_SIM_FAULT_FILE",
        "AMEM_SIM_CHECKPOINT", "AMEM_SIM_DRIVER_TIMES", "CUDA_VISIBLE_DEVICES"}) {
    unsetenv(name);
  }
  testing::InitGoogleTest(&argc, argv);
  if (cuInit(0) != CUDA_SUCCESS || nvmlInit_v2() != NVML_SUCCESS) return 1;
  const int result = RUN_ALL_TESTS();
  std::filesystem::remove_all(dir);
  return result;
}
