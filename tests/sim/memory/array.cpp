#include "tests/sim/memory/array.h"

#include <map>
#include <utility>

namespace sim {
namespace {

struct Array {
  std::shared_ptr<Physical> memory;
  CUcontext context = nullptr;
};

std::map<uint64_t, Array>& Arrays() {
  static auto* const arrays = new std::map<uint64_t, Array>();
  return *arrays;
}

}  // namespace

uint64_t AddArray(std::shared_ptr<Physical> memory, CUcontext context) {
  static uint64_t last_handle = 0x7a000000;
  last_handle += 16;
  Arrays().emplace(last_handle, Array{std::move(memory), context});
  return last_handle;
}

bool RemoveArray(uint64_t handle) { return Arrays().erase(handle) != 0; }

void RemoveArraysOf(CUcontext context) {
  std::erase_if(Arrays(), [&](const auto& each) { return each.second.context == context; });
}

}  // namespace sim
