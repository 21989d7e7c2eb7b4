// Kernel launches. Simulated kernels come from amemSimFunctionCreate, or stand for those of a
// module (module_api.cpp).
#include <cstring>
#include <memory>
#include <unordered_map>
#include <vector>

#include "tests/sim/entry/api.h"
#include "tests/sim/sim.h"
#include "tests/sim/work/function.h"
#include "tests/sim/work/stream.h"

namespace sim {
namespace {

std::unordered_map<CUfunction, Function>& Functions() {
  static auto* const functions = new std::unordered_map<CUfunction, Function>();
  return *functions;
}

// The values of one launch's parameters, copied at the launch: the caller's may be gone when the
// kernel runs.
class Arguments {
 public:
  Arguments(const Function& function, void** values) : run_(function.run) {
    constexpr size_t kAlignment = alignof(std::max_align_t);
    size_t total = 0;
    std::vector<size_t> offsets;
    for (const size_t bytes : function.parameter_bytes) {
      offsets.push_back(total);
      total += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    }
    bytes_.resize(total);
    for (size_t i = 0; i < offsets.size(); ++i) {
      memcpy(bytes_.data() + offsets[i], values[i], function.parameter_bytes[i]);
      pointers_.push_back(bytes_.data() + offsets[i]);
    }
  }
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  // A kernel may change its parameters, and a graph runs it again: so each run gets pointers to a
  // fresh copy.
  CUresult Run(const Grid& grid) const {
    std::vector<unsigned char> bytes = bytes_;
    std::vector<void*> pointers;
    for (const unsigned char* const p : pointers_) {
      pointers.push_back(bytes.data() + (p - bytes_.data()));
    }
    return run_(grid, pointers.data());
  }

 private:
  const std::function<CUresult(const Grid&, void**)> run_;
  std::vector<unsigned char> bytes_;
  std::vector<const unsigned char*> pointers_;
};

CUresult Launch(StreamRef ref, CUfunction handle, const unsigned (&dimensions)[6], void** values,
                void** extra) {
  for (const unsigned dimension : dimensions) {
    if (dimension == 0) return CUDA_ERROR_INVALID_VALUE;
  }
  const Lock lock = LockDriver();
  const auto it = Functions().find(handle);
  if (it == Functions().end()) return CUDA_ERROR_INVALID_HANDLE;
  const Function& function = it->second;
  // Packed parameters need the kernel's own layout, which a host function does not have.
  if (extra != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  if (values == nullptr && !function.parameter_bytes.empty()) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Stream> stream;
  const CUresult result = FindStream(ref, &stream);
  if (result != CUDA_SUCCESS) return result;
  auto arguments = std::make_shared<const Arguments>(function, values);
  const Grid grid{stream->context().physical,
                  {dimensions[0], dimensions[1], dimensions[2]},
                  {dimensions[3], dimensions[4], dimensions[5]}};
  return Submit(stream,
                {CU_GRAPH_NODE_TYPE_KERNEL, [arguments, grid] { return arguments->Run(grid); }},
                nullptr);
}

CUresult LaunchEx(const CUlaunchConfig* config, DefaultStream default_stream, CUfunction function,
                  void** values, void** extra) {
  if (config == nullptr || (config->numAttrs > 0 && config->attrs == nullptr)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    // Ignored, these would leave an event that somebody waits for unrecorded. The others are hints.
    const CUlaunchAttributeID id = config->attrs[i].id;
    if (id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT ||
        id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT) {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
  }
  return Launch({config->hStream, default_stream}, function,
                {config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                 config->blockDimY, config->blockDimZ},
                values, extra);
}

CUresult CreateFunction(CUfunction* out, amemSimKernel kernel, unsigned count,
                        const size_t* parameter_bytes) {
  if (out == nullptr || kernel == nullptr || (count > 0 && parameter_bytes == nullptr)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Lock lock = LockDriver();
  Function function;
  function.run = [kernel](const Grid&, void** values) {
    kernel(values);
    return CUDA_SUCCESS;
  };
  function.parameter_bytes.assign(parameter_bytes, parameter_bytes + count);
  *out = AddFunction(std::move(function));
  return CUDA_SUCCESS;
}

}  // namespace

CUfunction AddFunction(Function function) {
  const auto handle = reinterpret_cast<CUfunction>(0x3c000000 + 16 * (Functions().size() + 1));
  Functions()[handle] = std::move(function);
  return handle;
}

}  // namespace sim

SIM_API amemSimFunctionCreate(CUfunction* function, amemSimKernel kernel, unsigned param_count,
                              const size_t* param_bytes) {
  return sim::Call("amemSimFunctionCreate", sim::Need::kInit,
                   [&] { return sim::CreateFunction(function, kernel, param_count, param_bytes); });
}

SIM_CALL_PTSZ(cuLaunchKernel,
              (CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
               unsigned bz, unsigned, CUstream stream, void** values, void** extra),
              Launch({stream, kDefault}, function, {gx, gy, gz, bx, by, bz}, values, extra))
SIM_CALL_PTSZ(cuLaunchCooperativeKernel,
              (CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
               unsigned bz, unsigned, CUstream stream, void** values),
              Launch({stream, kDefault}, function, {gx, gy, gz, bx, by, bz}, values, nullptr))
SIM_CALL_PTSZ(cuLaunchKernelEx,
              (const CUlaunchConfig* config, CUfunction function, void** values, void** extra),
              LaunchEx(config, kDefault, function, values, extra))
