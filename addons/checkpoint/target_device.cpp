#include "addons/checkpoint/target_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "addons/checkpoint/end.h"

namespace amem {
namespace {

constexpr std::size_t kPiece = 1 << 20;
constexpr std::size_t kPart = 64 << 10;  // of a thread
constexpr std::size_t kParts = 4;
constexpr unsigned char kSet = 0xa5;  // what the graph writes
constexpr std::chrono::milliseconds kCallAgain{1};

std::uint8_t byte_at(std::size_t i, unsigned seed) {
  return static_cast<std::uint8_t>((i * 2654435761U + seed) >> 13);
}

std::uint8_t byte_of(unsigned round) { return static_cast<std::uint8_t>(0x11 * (round & 0xf)); }

}  // namespace

TargetDevice::TargetDevice(const Driver& driver, CUdevice device, std::string name)
    : driver_(driver), device_(device), name_(std::move(name)) {}

void TargetDevice::make(TargetThreads& threads) {
  did(driver_.cuDevicePrimaryCtxRetain_(&context_, device_), "cuDevicePrimaryCtxRetain");
  use();
  did(driver_.cuStreamCreate_(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  make_memory();
  make_graph();
  make_parts();
  for (std::size_t i = 0; i < kParts; ++i)
    threads.add([this, i](unsigned round) { work(parts_[i], round, i % 2 != 0); });
  std::thread([this] { call_again_and_again(); }).detach();
}

void TargetDevice::check() {
  use();
  std::fill_n(host_ + kPiece, 3 * kPiece, std::uint8_t{0});
  did(driver_.cuGraphLaunch_(launchable_, stream_), "cuGraphLaunch");
  synchronize();
  expect(host_, kPiece, 1, "registered memory of the host");
  if (!std::all_of(host_ + kPiece, host_ + 2 * kPiece,
                   [](std::uint8_t byte) { return byte == kSet; }))
    wrong(name_ + ": what a graph has set");
  expect(host_ + 2 * kPiece, kPiece, 2, "memory of the device");
  expect(host_ + 3 * kPiece, kPiece, 1, "what a graph has copied to the device");
  check_reserved();
  did(wrong_answer_, "cuEventRecord in another thread");
}

void TargetDevice::did(CUresult result, const std::string& what) const {
  if (result != CUDA_SUCCESS) amem::did(driver_, result, name_ + ": " + what);
}

void TargetDevice::expect(const std::uint8_t* bytes, std::size_t count, unsigned seed,
                          const std::string& what) const {
  for (std::size_t i = 0; i < count; ++i)
    if (bytes[i] != byte_at(i, seed)) wrong(name_ + ": " + what);
}

void TargetDevice::make_memory() {
  void* const host = ::mmap(nullptr, 4 * kPiece, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  did_host(host != MAP_FAILED, "mmap");
  host_ = static_cast<std::uint8_t*>(host);
  did(driver_.cuMemHostRegister_(host, 4 * kPiece, CU_MEMHOSTREGISTER_PORTABLE),
      "cuMemHostRegister");
  for (std::size_t i = 0; i < kPiece; ++i) host_[i] = byte_at(i, 1);
  did(driver_.cuMemAlloc_(&memory_, 3 * kPiece), "cuMemAlloc");
  for (std::size_t i = 0; i < kPiece; ++i) host_[kPiece + i] = byte_at(i, 2);
  did(driver_.cuMemcpyHtoDAsync_(memory_ + kPiece, host_ + kPiece, kPiece, stream_),
      "cuMemcpyHtoDAsync");
  synchronize();
  properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties_.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device_}};
  properties_.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  did(driver_.cuMemGetAllocationGranularity_(&unit_, &properties_,
                                             CU_MEM_ALLOC_GRANULARITY_MINIMUM),
      "cuMemGetAllocationGranularity");
  did(driver_.cuMemAddressReserve_(&reserved_, unit_, 0, 0, 0), "cuMemAddressReserve");
}

/// memory_: what the graph sets; known bytes; what it copies to the device and back.
void TargetDevice::make_graph() {
  CUgraph graph = nullptr;
  did(driver_.cuGraphCreate_(&graph, 0), "cuGraphCreate");
  CUDA_MEMSET_NODE_PARAMS set{};
  set.dst = memory_;
  set.value = kSet;
  set.elementSize = 1;
  set.width = kPiece;
  set.height = 1;
  CUgraphNode last = nullptr;
  did(driver_.cuGraphAddMemsetNode_(&last, graph, nullptr, 0, &set, context_),
      "cuGraphAddMemsetNode");
  CUDA_MEMCPY3D copy{};
  copy.WidthInBytes = kPiece;
  copy.Height = copy.Depth = 1;
  const auto add = [&] {
    CUgraphNode node = nullptr;
    did(driver_.cuGraphAddMemcpyNode_(&node, graph, &last, 1, &copy, context_),
        "cuGraphAddMemcpyNode");
    last = node;
  };
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = host_;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = memory_ + 2 * kPiece;
  add();
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  for (std::size_t i = 0; i < 3; ++i) {
    copy.srcDevice = memory_ + i * kPiece;
    copy.dstHost = host_ + (1 + i) * kPiece;
    add();
  }
  did(driver_.cuGraphInstantiateWithFlags_(&launchable_, graph, 0), "cuGraphInstantiateWithFlags");
}

void TargetDevice::make_parts() {
  CUdeviceptr memory = 0;
  void* pinned = nullptr;
  did(driver_.cuMemAlloc_(&memory, kParts * kPart), "cuMemAlloc");
  did(driver_.cuMemHostAlloc_(&pinned, kParts * kPart, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
  parts_.resize(kParts);
  for (std::size_t i = 0; i < kParts; ++i) {
    Part& part = parts_[i];
    part.memory = memory + i * kPart;
    part.pinned = static_cast<std::uint8_t*>(pinned) + i * kPart;
    did(driver_.cuStreamCreate_(&part.stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    for (CUevent* const event : {&part.before, &part.after})
      did(driver_.cuEventCreate_(event, CU_EVENT_DEFAULT), "cuEventCreate");
    did(driver_.cuEventCreate_(&part.done, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC),
        "cuEventCreate");
    did(driver_.cuMemsetD8Async_(part.memory, byte_of(0), kPart, part.stream), "cuMemsetD8Async");
    did(driver_.cuEventRecord_(part.done, part.stream), "cuEventRecord");
    did(driver_.cuStreamSynchronize_(part.stream), "cuStreamSynchronize");
  }
}

/// Its memory has what the round before has written, and its events say that this has ended.
void TargetDevice::work(Part& part, unsigned round, bool by_event) const {
  use();
  did(driver_.cuEventQuery_(part.done), "an event from before");
  did(driver_.cuEventRecord_(part.before, part.stream), "cuEventRecord");
  did(driver_.cuMemcpyDtoHAsync_(part.pinned, part.memory, kPart / 2, part.stream),
      "cuMemcpyDtoHAsync");
  did(driver_.cuMemsetD8Async_(part.memory, byte_of(round), kPart, part.stream), "cuMemsetD8Async");
  did(driver_.cuMemcpyDtoHAsync_(part.pinned + kPart / 2, part.memory, kPart / 2, part.stream),
      "cuMemcpyDtoHAsync");
  did(driver_.cuEventRecord_(part.after, part.stream), "cuEventRecord");
  did(driver_.cuEventRecord_(part.done, part.stream), "cuEventRecord");
  if (by_event)
    did(driver_.cuEventSynchronize_(part.done), "cuEventSynchronize");
  else
    did(driver_.cuStreamSynchronize_(part.stream), "cuStreamSynchronize");
  float ms = 0;
  did(driver_.cuEventElapsedTime_(&ms, part.before, part.after), "cuEventElapsedTime");
  const auto have = [&part](std::size_t from, std::uint8_t byte) {
    return std::all_of(part.pinned + from, part.pinned + from + kPart / 2,
                       [byte](std::uint8_t each) { return each == byte; });
  };
  if (!have(0, byte_of(round - 1)) || !have(kPart / 2, byte_of(round)))
    wrong(name_ + ": the memory of a thread");
}

/// It does not end the process: a restore that loses it must have its answer. The driver's lock
/// holds this call. It does not hold questions about events and streams, and a checkpoint beside
/// one of them ends the process (driver 580): in ranks the shim keeps these from the driver.
void TargetDevice::call_again_and_again() {
  use();
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUresult answer = driver_.cuStreamCreate_(&stream, CU_STREAM_NON_BLOCKING);
  if (answer == CUDA_SUCCESS) answer = driver_.cuEventCreate_(&event, CU_EVENT_DEFAULT);
  while (answer == CUDA_SUCCESS) {
    std::this_thread::sleep_for(kCallAgain);
    answer = driver_.cuEventRecord_(event, stream);
  }
  wrong_answer_ = answer;
}

void TargetDevice::let_reach(CUdeviceptr at, std::size_t bytes) const {
  use();
  CUmemAccessDesc access{};
  access.location = properties_.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  did(driver_.cuMemSetAccess_(at, bytes, &access, 1), "cuMemSetAccess");
}

void TargetDevice::check_reserved() const {
  CUmemGenericAllocationHandle handle = 0;
  did(driver_.cuMemCreate_(&handle, unit_, &properties_, 0), "cuMemCreate");
  did(driver_.cuMemMap_(reserved_, unit_, 0, handle, 0), "mapping at reserved addresses");
  did(driver_.cuMemRelease_(handle), "cuMemRelease");
  let_reach(reserved_, unit_);
  const std::size_t bytes = std::min(unit_, kPiece);
  host_[kPiece] = host_[kPiece + bytes - 1] = 0;
  did(driver_.cuMemsetD8Async_(reserved_, kSet, unit_, stream_), "cuMemsetD8Async");
  did(driver_.cuMemcpyDtoHAsync_(host_ + kPiece, reserved_, bytes, stream_), "cuMemcpyDtoHAsync");
  synchronize();
  if (host_[kPiece] != kSet || host_[kPiece + bytes - 1] != kSet)
    wrong(name_ + ": memory at reserved addresses");
  did(driver_.cuMemUnmap_(reserved_, unit_), "cuMemUnmap");
}

void TargetDevice::check_pool(CUdeviceptr pool) {
  use();
  auto* const at = reinterpret_cast<void*>(pool);
  if (!saved_)
    did(driver_.cuMemcpyDtoHAsync_(at, memory_ + kPiece, kPoolPiece, stream_),
        "saving to the pool");
  saved_ = true;
  did(driver_.cuMemcpyHtoDAsync_(memory_, at, kPoolPiece, stream_), "loading from the pool");
  did(driver_.cuMemcpyDtoHAsync_(host_ + kPiece, memory_, kPoolPiece, stream_),
      "cuMemcpyDtoHAsync");
  synchronize();
  expect(host_ + kPiece, kPoolPiece, 2, "the pool");
}

}  // namespace amem
