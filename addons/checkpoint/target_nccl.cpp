#include "addons/checkpoint/target_nccl.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>

#include "addons/checkpoint/answer.h"
#include "addons/checkpoint/end.h"

namespace amem {
namespace {

constexpr char kLibrary[] = "libnccl.so.2";
/// Where the loader looks up libraries: with another one there may be an NCCL.
constexpr char kLoaderCache[] = "/etc/ld.so.cache";
constexpr std::size_t kBytes = 1 << 20;
// A device with less free memory than both of these is full.
constexpr std::size_t kNcclNeeds = 512 << 20;
constexpr std::size_t kPartOfDevice = 16;
// nccl.h; none of it has ever changed.
constexpr int kSuccess = 0;
constexpr int kUint8 = 1;
constexpr int kSum = 0;

std::uint8_t byte_at(std::size_t i, std::size_t device) {
  return static_cast<std::uint8_t>(i * 7 + device * 31 + 1);
}

/// 22703: 2.27.3; 2708: 2.7.8.
std::string version_text(int version) {
  const int major = version < 10000 ? 1000 : 10000;
  return std::to_string(version / major) + "." + std::to_string(version % major / 100) + "." +
         std::to_string(version % 100);
}

std::string dl_error() {
  const char* const why = ::dlerror();
  return why != nullptr ? why : std::string(kLibrary) + " is not usable";
}

}  // namespace

void TargetNccl::make() {
  say(target_says::kStep, "loading NCCL");
  if (const std::string why = load(); !why.empty()) {
    say(target_says::kFile, kLoaderCache);
    return say(target_says::kNoNccl, why);
  }
  std::vector<Comm> comms(devices_.size());
  std::vector<int> ordinals;
  for (const auto& device : devices_) ordinals.push_back(device->device());
  say(target_says::kStep, "making an NCCL communicator");
  const int result =
      calls_.init_all(comms.data(), static_cast<int>(ordinals.size()), ordinals.data());
  int version = 0;
  calls_.version(&version);
  if (result != kSuccess) {
    const std::string why =
        "NCCL " + version_text(version) + ": ncclCommInitAll: " + calls_.error(result);
    if (full()) fail({Code::kResourceExhausted, why + ". A device is full"});
    return say(target_says::kNoNccl, why);
  }
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    Part part;
    part.comm = comms[i];
    devices_[i]->use();
    for (CUdeviceptr* const memory : {&part.from, &part.to})
      amem::did(driver_, driver_.cuMemAlloc_(memory, kBytes), "cuMemAlloc for NCCL");
    parts_.push_back(part);
  }
  void* host = nullptr;
  amem::did(driver_, driver_.cuMemHostAlloc_(&host, kBytes, CU_MEMHOSTALLOC_PORTABLE),
            "cuMemHostAlloc for NCCL");
  host_ = static_cast<std::uint8_t*>(host);
  say(target_says::kNccl, version_text(version));
}

void TargetNccl::check() {
  if (parts_.empty()) return;
  say(target_says::kStep, "an all-reduce of NCCL");
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    devices_[i]->use();
    for (std::size_t at = 0; at < kBytes; ++at) host_[at] = byte_at(at, i);
    const CUstream stream = devices_[i]->stream();
    amem::did(driver_, driver_.cuMemcpyHtoDAsync_(parts_[i].from, host_, kBytes, stream),
              "cuMemcpyHtoDAsync");
    amem::did(driver_, driver_.cuMemsetD8Async_(parts_[i].to, 0, kBytes, stream),
              "cuMemsetD8Async");
    devices_[i]->synchronize();
  }
  did(calls_.group_start(), "ncclGroupStart");
  for (std::size_t i = 0; i < parts_.size(); ++i)
    did(calls_.all_reduce(reinterpret_cast<const void*>(parts_[i].from),
                          reinterpret_cast<void*>(parts_[i].to), kBytes, kUint8, kSum,
                          parts_[i].comm, devices_[i]->stream()),
        "ncclAllReduce");
  did(calls_.group_end(), "ncclGroupEnd");
  for (const auto& device : devices_) {
    device->use();
    device->synchronize();
  }
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    devices_[i]->use();
    amem::did(driver_,
              driver_.cuMemcpyDtoHAsync_(host_, parts_[i].to, kBytes, devices_[i]->stream()),
              "cuMemcpyDtoHAsync");
    devices_[i]->synchronize();
    for (std::size_t at = 0; at < kBytes; ++at) {
      std::uint8_t sum = 0;
      for (std::size_t each = 0; each < parts_.size(); ++each)
        sum = static_cast<std::uint8_t>(sum + byte_at(at, each));
      if (host_[at] != sum)
        fail({Code::kDataLoss, devices_[i]->name() + ": an all-reduce of NCCL gives other bytes"});
    }
  }
}

std::string TargetNccl::load() {
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return dl_error();
  const auto find = [library](auto& call, const char* name) {
    void* const found = ::dlsym(library, name);
    call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(found);
    return found != nullptr;
  };
  if (!find(calls_.version, "ncclGetVersion") || !find(calls_.init_all, "ncclCommInitAll") ||
      !find(calls_.all_reduce, "ncclAllReduce") || !find(calls_.group_start, "ncclGroupStart") ||
      !find(calls_.group_end, "ncclGroupEnd") || !find(calls_.error, "ncclGetErrorString"))
    return dl_error();
  Dl_info info{};
  if (::dladdr(reinterpret_cast<void*>(calls_.all_reduce), &info) != 0)
    say(target_says::kFile, info.dli_fname);
  return {};
}

/// NCCL says no more than that a call of CUDA has failed.
bool TargetNccl::full() const {
  return std::any_of(devices_.begin(), devices_.end(), [this](const auto& device) {
    std::size_t free = 0;
    std::size_t total = 0;
    device->use();
    return driver_.cuMemGetInfo_(&free, &total) == CUDA_SUCCESS &&
           free < std::min(kNcclNeeds, total / kPartOfDevice);
  });
}

void TargetNccl::did(int result, const std::string& what) const {
  if (result != kSuccess)
    fail({Code::kFailedPrecondition, "NCCL: " + what + ": " + calls_.error(result)});
}

}  // namespace amem
