// What the program asks of the driver besides memory of its own to use: pointers' attributes,
// captures, memory that is not brokered, NCCL's calls, and what mistakes give.
#include <dlfcn.h>

#include <array>
#include <atomic>
#include <chrono>
#include <iterator>
#include <thread>
#include <utility>
#include <vector>

#include "tests/workload/base/driver.h"
#include "tests/workload/heap/heap.h"
#include "tests/workload/nccl/nccl_calls.h"
#include "tests/workload/nccl/windows.h"

namespace amem::workload {
namespace {

struct NamedAttribute {
  const char* name;
  CUpointer_attribute attribute;
};
constexpr NamedAttribute kAttributes[] = {
    {"context", CU_POINTER_ATTRIBUTE_CONTEXT},
    {"memory_type", CU_POINTER_ATTRIBUTE_MEMORY_TYPE},
    {"device_pointer", CU_POINTER_ATTRIBUTE_DEVICE_POINTER},
    {"sync_memops", CU_POINTER_ATTRIBUTE_SYNC_MEMOPS},
    {"buffer_id", CU_POINTER_ATTRIBUTE_BUFFER_ID},
    {"is_managed", CU_POINTER_ATTRIBUTE_IS_MANAGED},
    {"device_ordinal", CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL},
    {"ipc", CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE},
    {"range_start", CU_POINTER_ATTRIBUTE_RANGE_START_ADDR},
    {"range_size", CU_POINTER_ATTRIBUTE_RANGE_SIZE},
    {"mapped", CU_POINTER_ATTRIBUTE_MAPPED},
    {"handle_types", CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES},
};

CUstream g_stream = nullptr;  // that is being captured
std::atomic<bool> g_held{false};
std::atomic<std::uint64_t> g_most{0};  // milliseconds
std::vector<CUdeviceptr> g_async;
std::vector<CUdeviceptr> g_managed;
std::vector<CUarray> g_arrays;
std::vector<CUmemoryPool> g_pools;
std::vector<void*> g_host;
std::vector<void*> g_host_of_nccl;
std::vector<std::vector<char>> g_registered;
std::vector<CUmemGenericAllocationHandle> g_shared;

CUdeviceptr AddressAt(const Heap& heap, const Words& words, std::size_t index) {
  return heap.memory.AddressOf(NumberAt(words, index, 1));
}

// ---- pointers ----

/// One by one and all at once, which must agree.
void ReportAttributes(Heap& heap, const Words& words, Answer* answer) {
  const CUdeviceptr address = AddressAt(heap, words, 1) + NumberAt(words, 2, 0);
  std::vector<CUpointer_attribute> attributes;
  std::array<std::uint64_t, std::size(kAttributes)> together{};
  std::vector<void*> places;
  for (std::size_t i = 0; i < std::size(kAttributes); ++i) {
    attributes.push_back(kAttributes[i].attribute);
    places.push_back(&together[i]);
    std::uint64_t value = 0;
    Check(Cuda().cuPointerGetAttribute(&value, kAttributes[i].attribute, address),
          kAttributes[i].name);
    answer->Number(kAttributes[i].name, value);
  }
  Check(Cuda().cuPointerGetAttributes(static_cast<unsigned>(attributes.size()), attributes.data(),
                                      places.data(), address),
        "cuPointerGetAttributes");
  for (std::size_t i = 0; i < std::size(kAttributes); ++i) {
    std::uint64_t value = 0;
    Check(Cuda().cuPointerGetAttribute(&value, kAttributes[i].attribute, address), "again");
    if (value != together[i])
      answer->Fail(std::string("the two calls differ in ") + kAttributes[i].name);
  }
  CUdeviceptr base = 0;
  std::size_t size = 0;
  Check(Cuda().cuMemGetAddressRange(&base, &size, address), "cuMemGetAddressRange");
  answer->Number("base", base);
  answer->Number("size", size);
}

void ReportAccess(Heap& heap, const Words& words, Answer* answer) {
  for (int device = 0; device < heap.memory.devices(); ++device) {
    const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    unsigned long long flags = 0;
    Check(Cuda().cuMemGetAccess(&flags, &location, AddressAt(heap, words, 1)), "cuMemGetAccess");
    answer->Item("access", std::to_string(flags));
  }
}

void SetSyncMemops(Heap& heap, const Words& words, Answer*) {
  const unsigned on = 1;
  Check(Cuda().cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
                                     AddressAt(heap, words, 1)),
        "cuPointerSetAttribute");
}

// ---- mistakes ----

/// With memory of cuMemCreate.
template <class Report>
void ReportMappedMistakes(const Report& report) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  constexpr std::size_t kBytes = std::size_t{2} << 20U;
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr p = 0;
  int fd = -1;
  Check(Cuda().cuMemCreate(&handle, kBytes, &prop, 0), "cuMemCreate");
  Check(Cuda().cuMemAddressReserve(&p, 2 * kBytes, 0, 0, 0), "cuMemAddressReserve");
  Check(Cuda().cuMemMap(p, kBytes, 0, handle, 0), "cuMemMap");
  CUmemGenericAllocationHandle again = 0;
  Check(Cuda().cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(p)),
        "cuMemRetainAllocationHandle");
  Check(Cuda().cuMemRelease(handle), "cuMemRelease");
  report("mapped_retained_properties",
         Cuda().cuMemGetAllocationPropertiesFromHandle(&prop, handle));
  Check(Cuda().cuMemRelease(handle), "cuMemRelease");
  report("mapped_release_twice", Cuda().cuMemRelease(handle));
  report("mapped_map_released", Cuda().cuMemMap(p + kBytes, kBytes, 0, handle, 0));
  report("mapped_export_released", Cuda().cuMemExportToShareableHandle(
                                       &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  report("mapped_properties_released",
         Cuda().cuMemGetAllocationPropertiesFromHandle(&prop, handle));
  report("mapped_free_address", Cuda().cuMemAddressFree(p, 2 * kBytes));
  Check(Cuda().cuMemUnmap(p, kBytes), "cuMemUnmap");
  report("unmapped_free_address", Cuda().cuMemAddressFree(p, 2 * kBytes));
}

void ReportMistakes(Heap& heap, const Words&, Answer* answer) {
  heap.memory.Bind(0);
  const auto report = [&](const std::string& name, CUresult result) {
    answer->Number(name, static_cast<std::uint64_t>(result));
  };
  CUdeviceptr p = 0;
  std::size_t pitch = 0;
  report("alloc_nothing", Cuda().cuMemAlloc(&p, 0));
  report("alloc_too_much", Cuda().cuMemAlloc(&p, std::size_t{1} << 40U));
  report("alloc_everything", Cuda().cuMemAlloc(&p, ~std::size_t{0}));
  report("pitch_element", Cuda().cuMemAllocPitch(&p, &pitch, 100, 2, 3));
  report("pitch_nothing", Cuda().cuMemAllocPitch(&p, &pitch, 0, 2, 4));
  report("free_null", Cuda().cuMemFree(0));
  report("free_unknown", Cuda().cuMemFree(0x1000));
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  for (const auto& [name, bytes] :
       {std::pair<std::string, std::size_t>("create_nothing", 0), {"create_half", 4096}}) {
    CUmemGenericAllocationHandle handle = 0;
    report(name, Cuda().cuMemCreate(&handle, bytes, &properties, 0));
  }
  for (const auto& [kind, bytes] :
       {std::pair<std::string, std::size_t>("small_", 1000), {"large_", std::size_t{3} << 20U}}) {
    Check(Cuda().cuMemAlloc(&p, bytes), "cuMemAlloc");
    report(kind + "free_inside", Cuda().cuMemFree(p + 512));
    report(kind + "unmap", Cuda().cuMemUnmap(p, std::size_t{2} << 20U));
    CUmemGenericAllocationHandle handle = 0;
    report(kind + "retain", Cuda().cuMemRetainAllocationHandle(
                                &handle, reinterpret_cast<void*>(static_cast<std::uintptr_t>(p))));
    report(kind + "free", Cuda().cuMemFree(p));
    report(kind + "free_twice", Cuda().cuMemFree(p));
    unsigned type = 0;
    report(kind + "attribute_of_freed",
           Cuda().cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
  }
  ReportMappedMistakes(report);
  Check(Cuda().cuCtxSetCurrent(nullptr), "cuCtxSetCurrent");
  report("alloc_without_context", Cuda().cuMemAlloc(&p, 100));
  heap.memory.Bind(0);
}

// ---- captures ----

/// On a stream of the command's own. `apart`: begun by a thread of its own, which ends; so only a
/// relaxed one can end.
void BeginCapture(Heap& heap, const Words& words, Answer*) {
  const std::string mode = WordAt(words, 2);
  if (g_stream == nullptr)
    Check(Cuda().cuStreamCreate(&g_stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  const CUstreamCaptureMode chosen = mode == "relaxed"        ? CU_STREAM_CAPTURE_MODE_RELAXED
                                     : mode == "thread_local" ? CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
                                                              : CU_STREAM_CAPTURE_MODE_GLOBAL;
  CUresult begun = CUDA_SUCCESS;
  const auto begin = [&] {
    heap.memory.Bind(0);
    begun = Cuda().cuStreamBeginCapture(g_stream, chosen);
  };
  if (WordAt(words, 3) == "apart")
    std::thread(begin).join();
  else
    begin();
  Check(begun, "cuStreamBeginCapture");
}

void CopyInCapture(Heap& heap, const Words& words, Answer*) {
  static char byte;
  Check(Cuda().cuMemcpyDtoHAsync(&byte, AddressAt(heap, words, 2), 1, g_stream),
        "cuMemcpyDtoHAsync");
}

void EndCapture(Heap&, const Words&, Answer* answer) {
  CUgraph graph = nullptr;
  const CUresult result = Cuda().cuStreamEndCapture(g_stream, &graph);
  answer->Number("result", static_cast<std::uint64_t>(result));
  if (result == CUDA_SUCCESS) Check(Cuda().cuGraphDestroy(graph), "cuGraphDestroy");
}

void DropCapture(Heap&, const Words&, Answer*) {
  Check(Cuda().cuStreamDestroy(g_stream), "cuStreamDestroy");
  g_stream = nullptr;
}

void AllocateInCapture(Heap& heap, const Words& words, Answer* answer) {
  CUdeviceptr p = 0;
  heap.memory.Bind(0);
  const CUresult allocated = Cuda().cuMemAlloc(&p, NumberAt(words, 2, 1000));
  answer->Number("alloc", static_cast<std::uint64_t>(allocated));
  if (allocated != CUDA_SUCCESS) return;
  answer->Number("free", static_cast<std::uint64_t>(Cuda().cuMemFree(p)));
  answer->Number("free_twice", static_cast<std::uint64_t>(Cuda().cuMemFree(p)));
}

// ---- a stream with work ----

/// Of device 0; has nothing to do but what "stream hold" gives it.
CUstream IdleStream(const Heap& heap) {
  static CUstream stream = [&] {
    heap.memory.Bind(0);
    CUstream made = nullptr;
    Check(Cuda().cuStreamCreate(&made, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    return made;
  }();
  return stream;
}

void FreeAsync(Heap& heap, const Words& words, Answer*) {
  const CUstream stream = IdleStream(heap);
  heap.memory.Free(NumberAt(words, 1, 0), &stream);
}

void HoldStream(Heap& heap, const Words& words, Answer*) {
  g_held = true;
  g_most = NumberAt(words, 2, 60'000);
  const auto wait = [](void*) {
    for (std::uint64_t i = 0; g_held && i < g_most; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  Check(Cuda().cuLaunchHostFunc(IdleStream(heap), wait, nullptr), "cuLaunchHostFunc");
}

// ---- what is not brokered ----

void AllocateUnbrokered(Heap& heap, const Words& words, Answer*) {
  const std::string kind = WordAt(words, 1);
  const std::size_t bytes = NumberAt(words, 2, 1U << 20U);
  heap.memory.Bind(0);
  CUdeviceptr p = 0;
  if (kind == "pool") {
    Check(Cuda().cuMemAllocAsync(&p, bytes, nullptr), "cuMemAllocAsync");
    g_async.push_back(p);
  } else if (kind == "own_pool") {
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemoryPool pool = nullptr;
    Check(Cuda().cuMemPoolCreate(&pool, &properties), "cuMemPoolCreate");
    g_pools.push_back(pool);
    Check(Cuda().cuMemAllocFromPoolAsync(&p, bytes, pool, nullptr), "cuMemAllocFromPoolAsync");
    g_async.push_back(p);
  } else if (kind == "managed") {
    Check(Cuda().cuMemAllocManaged(&p, bytes, CU_MEM_ATTACH_GLOBAL), "cuMemAllocManaged");
    g_managed.push_back(p);
  } else if (kind == "array") {
    const CUDA_ARRAY_DESCRIPTOR shape{1024, bytes / 4096, CU_AD_FORMAT_FLOAT, 1};
    CUarray array = nullptr;
    Check(Cuda().cuArrayCreate(&array, &shape), "cuArrayCreate");
    g_arrays.push_back(array);
  } else if (kind == "host") {
    void* memory = nullptr;
    // By turns, as both are asked for.
    Check(g_host.size() % 2 == 0 ? Cuda().cuMemHostAlloc(&memory, bytes, 0)
                                 : Cuda().cuMemAllocHost(&memory, bytes),
          "cuMemHostAlloc");
    g_host.push_back(memory);
  } else if (kind == "nccl_host") {
    g_host_of_nccl.push_back(NcclCalls::AllocHost(bytes));
  } else if (kind == "registered") {
    g_registered.emplace_back(bytes);
    Check(Cuda().cuMemHostRegister(g_registered.back().data(), bytes, 0), "cuMemHostRegister");
  } else if (kind == "shared") {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, {0}};
    CUmemGenericAllocationHandle handle = 0;
    Check(Cuda().cuMemCreate(&handle, bytes, &properties, 0), "cuMemCreate");
    g_shared.push_back(handle);
  } else {
    throw Failure("no such kind: " + kind);
  }
}

void FreeUnbrokered(Heap& heap, const Words&, Answer*) {
  heap.memory.Bind(0);
  for (const CUdeviceptr p : g_async) Check(Cuda().cuMemFreeAsync(p, nullptr), "cuMemFreeAsync");
  Check(Cuda().cuStreamSynchronize(nullptr), "cuStreamSynchronize");
  for (const CUmemoryPool pool : g_pools) Check(Cuda().cuMemPoolDestroy(pool), "cuMemPoolDestroy");
  for (const CUdeviceptr p : g_managed) Check(Cuda().cuMemFree(p), "cuMemFree");
  for (const CUarray array : g_arrays) Check(Cuda().cuArrayDestroy(array), "cuArrayDestroy");
  for (void* p : g_host) Check(Cuda().cuMemFreeHost(p), "cuMemFreeHost");
  for (void* p : g_host_of_nccl) NcclCalls::FreeHost(p);
  for (auto& memory : g_registered)
    Check(Cuda().cuMemHostUnregister(memory.data()), "cuMemHostUnregister");
  for (const auto handle : g_shared) Check(Cuda().cuMemRelease(handle), "cuMemRelease");
  g_async.clear();
  g_host.clear();
  g_host_of_nccl.clear();
  g_registered.clear();
  g_shared.clear();
  g_pools.clear();
  g_managed.clear();
  g_arrays.clear();
}

// ---- contexts, NCCL ----

/// A context of its own with a block in it, destroyed again.
void UseContext(Heap&, const Words& words, Answer* answer) {
  CUcontext context = nullptr;
  Check(Cuda().cuCtxCreate(&context, 0, DeviceAt(words)), "cuCtxCreate");
  CUdeviceptr p = 0;
  Check(Cuda().cuMemAlloc(&p, NumberAt(words, 2, 1)), "cuMemAlloc");
  CUcontext owner = nullptr;
  Check(Cuda().cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, p), "its context");
  if (owner != context) answer->Fail("the block is of another context");
  Check(Cuda().cuCtxDestroy(context), "cuCtxDestroy");
  answer->Number("free", static_cast<std::uint64_t>(Cuda().cuMemFree(p)));
}

/// By NCCL; `begun`: without an address.
template <bool begun>
void AllocateByNccl(Heap& heap, const Words& words, Answer*) {
  const NcclCalls calls(DeviceAt(words));
  heap.memory.Bind(DeviceAt(words));
  Handle handle = 0;
  if (!begun) {
    calls.Alloc(NumberAt(words, 2, 2U << 20U), false, &handle);
    return;
  }
  calls.Granularity(false);
  CreateArguments arguments;
  arguments.location_id = DeviceAt(words);
  Check(NcclCalls::Create(NumberAt(words, 2, 64U << 10U), arguments, &handle), "cuMemCreate");
}

/// As a program that is linked to NCCL calls it, or as one that looks it up in the library.
void RegisterWindow(Heap& heap, const Words& words, Answer*) {
  int device = DeviceAt(words);
  heap.memory.Bind(device);
  auto* call = &ncclCommWindowRegister;
  if (WordAt(words, 2) == "looked-up") {
    Dl_info nccl{};
    dladdr(reinterpret_cast<const void*>(&ncclGetVersion), &nccl);
    void* const library = dlopen(nccl.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) throw Failure(dlerror());
    call = reinterpret_cast<decltype(call)>(dlsym(library, "ncclCommWindowRegister"));
    dlclose(library);
  }
  void* window = nullptr;
  if (call(&device, nullptr, 0, &window, 0) != 0) throw Failure("ncclCommWindowRegister failed");
}

}  // namespace

const Commands<Heap> kCallCommands = {
    {"attributes", ReportAttributes},
    {"sync_memops", SetSyncMemops},
    {"access", ReportAccess},
    {"mistakes", ReportMistakes},
    {"capture begin", BeginCapture},
    {"capture alloc", AllocateInCapture},
    {"capture copy", CopyInCapture},
    {"capture end", EndCapture},
    {"capture drop", DropCapture},
    {"free_async", FreeAsync},
    {"stream hold", HoldStream},
    {"stream go", [](Heap&, const Words&, Answer*) { g_held = false; }},
    {"unbrokered", AllocateUnbrokered},
    {"unbrokered free", FreeUnbrokered},
    {"context", UseContext},
    {"nccl", AllocateByNccl<false>},
    {"nccl_begun", AllocateByNccl<true>},
    {"window", RegisterWindow},
};

}  // namespace amem::workload
