#include "tests/puppet/streams.h"

#include <chrono>
#include <cstdint>
#include <thread>

#include "tests/puppet/check.h"

namespace amem::puppet {
namespace {

CUstream Made(CUstream& stream) {
  if (stream == nullptr) Check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  return stream;
}

void Sleep(void* milliseconds) {
  std::this_thread::sleep_for(
      std::chrono::milliseconds(reinterpret_cast<std::uintptr_t>(milliseconds)));
}

}  // namespace

Streams::~Streams() {
  if (busy_ != nullptr) cuStreamDestroy(busy_);
  if (captured_ != nullptr) cuStreamDestroy(captured_);
}

void Streams::Busy(unsigned milliseconds) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the number is all that the function needs
  auto* const number = reinterpret_cast<void*>(static_cast<std::uintptr_t>(milliseconds));
  Check(cuLaunchHostFunc(Made(busy_), &Sleep, number), "cuLaunchHostFunc");
}

void Streams::BeginCapture() {
  void* begin = nullptr;
  Check(
      cuGetProcAddress("cuStreamBeginCapture", &begin, 10000, CU_GET_PROC_ADDRESS_DEFAULT, nullptr),
      "cuGetProcAddress");
  Check(reinterpret_cast<CUresult (*)(CUstream)>(begin)(Made(captured_)), "cuStreamBeginCapture");
}

void Streams::BeginRecapture() {
  using Begin = CUresult (*)(CUstream, CUstreamCaptureMode, CUgraph, void*, void*);
  void* begin = nullptr;
  Check(cuGetProcAddress("cuStreamBeginRecaptureToGraph", &begin, 13030,
                         CU_GET_PROC_ADDRESS_DEFAULT, nullptr),
        "cuGetProcAddress");
  Check(cuGraphCreate(&again_, 0), "cuGraphCreate");
  Check(reinterpret_cast<Begin>(begin)(Made(captured_), CU_STREAM_CAPTURE_MODE_RELAXED, again_,
                                       nullptr, nullptr),
        "cuStreamBeginRecaptureToGraph");
}

CUresult Streams::EndCapture() {
  CUgraph graph = nullptr;
  const CUresult result = cuStreamEndCapture(captured_, &graph);
  if (result == CUDA_SUCCESS) Check(cuGraphDestroy(graph), "cuGraphDestroy");
  return result;
}

}  // namespace amem::puppet
