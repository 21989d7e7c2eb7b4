#include "tests/sim/memory/checkpoint.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <vector>

#include "tests/sim/memory/address_space.h"
#include "tests/sim/memory/copy.h"
#include "tests/sim/memory/multicast.h"
#include "tests/sim/memory/physical.h"
#include "tests/sim/node/usage.h"

namespace sim {
namespace {

std::vector<Physical*> DeviceMemory() {
  std::vector<Physical*> found = Physical::All();
  std::erase_if(found, [](const Physical* memory) { return memory->device() == kHostMemory; });
  return found;
}

void DropAll(const std::vector<Physical*>& memory) {
  const std::lock_guard<std::mutex> lock(MemoryMutex());
  TakeOffDeviceMemory();
  for (Physical* const each : memory) each->Drop();
}

}  // namespace

bool HoldsSharedMemory() {
  const std::vector<Physical*> all = Physical::All();
  return MulticastObject::Any() ||
         std::any_of(all.begin(), all.end(), [](const Physical* each) { return each->imported(); });
}

bool MappedHiddenMemory() {
  const std::lock_guard<std::mutex> lock(MemoryMutex());
  return HasMappedHiddenMemory();
}

CUresult GiveBackDeviceMemory() {
  const std::vector<Physical*> memory = DeviceMemory();
  try {
    for (Physical* const each : memory) {
      each->Save();
      PassLink(each->device(), true, each->bytes());
    }
  } catch (const std::bad_alloc&) {
    for (Physical* const each : memory) each->ForgetSaved();
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  DropAll(memory);
  return CUDA_SUCCESS;
}

CUresult TakeDeviceMemoryAgain() {
  const std::vector<Physical*> memory = DeviceMemory();
  CUresult result = CUDA_SUCCESS;
  for (Physical* const each : memory) {
    result = each->Remake();
    if (result != CUDA_SUCCESS) break;
    PassLink(each->device(), false, each->bytes());
  }
  if (result == CUDA_SUCCESS) {
    const std::lock_guard<std::mutex> lock(MemoryMutex());
    result = PutBackDeviceMemory();
  }
  if (result != CUDA_SUCCESS) {
    DropAll(memory);
    return result;
  }
  for (Physical* const each : memory) each->ForgetSaved();
  return CUDA_SUCCESS;
}

}  // namespace sim
