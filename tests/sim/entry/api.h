// What every exported call has in common: initialisation, fork, faults, exceptions.
//
// The library is compiled with __CUDA_API_VERSION_INTERNAL, so that cuda.h declares each version of
// a call under its own name and the compiler checks our definitions against it.
#pragma once

#include <cuda.h>

#include <new>

#define SIM_API extern "C" __attribute__((visibility("default"))) CUresult

namespace sim {

enum class Need {
  kNothing,  // answers even before cuInit and in a forked child
  kInit,
  kNoGate,  // as kInit, but also while this process is locked for a checkpoint
};

/// A call from its beginning to its end.
class CallScope {
 public:
  /// Waits while the process is locked, and does what faults ask for.
  CallScope(const char* exported_name, Need need);
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  /// Why the call may not go ahead, or CUDA_SUCCESS.
  CUresult refused() const { return refused_; }

 private:
  CUresult Enter(const char* exported_name, Need need);

  bool counts_ = false;  // at the gate
  bool unheld_ = false;  // there as a call that a lock does not hold
  const CUresult refused_;
};

/// Ends cuInit: from here on the process is initialised.
CUresult Initialize();

/// While one lives, calls from this thread are refused with CUDA_ERROR_NOT_PERMITTED: it runs a
/// host function.
class HostFunctionScope {
 public:
  HostFunctionScope();
  ~HostFunctionScope();
  HostFunctionScope(const HostFunctionScope&) = delete;
  HostFunctionScope& operator=(const HostFunctionScope&) = delete;
};

/// Runs the body of an exported call. No exception leaves the library.
template <typename Body>
CUresult Call(const char* exported_name, Need need, const Body& body) noexcept {
  try {
    const CallScope scope(exported_name, need);
    return scope.refused() != CUDA_SUCCESS ? scope.refused() : body();
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

/// What a NULL stream means to a call.
enum class DefaultStream { kLegacy, kPerThread };

struct StreamRef {
  CUstream handle = nullptr;
  DefaultStream default_stream = DefaultStream::kLegacy;
};

}  // namespace sim

// Defines an exported call: SIM_CALL(cuName, (parameters), expression).
#define SIM_CALL(name, parameters, ...)                                         \
  SIM_API name parameters {                                                     \
    using namespace sim;                                                        \
    return Call(#name, Need::kInit, [&]() -> CUresult { return __VA_ARGS__; }); \
  }

// The same for a call that does not wait while this process is locked for a checkpoint.
#define SIM_CALL_NO_GATE(name, parameters, ...)                                   \
  SIM_API name parameters {                                                       \
    using namespace sim;                                                          \
    return Call(#name, Need::kNoGate, [&]() -> CUresult { return __VA_ARGS__; }); \
  }

// The same for a call with a variant for the per-thread default stream; the expression may use
// `kDefault`.
#define SIM_CALL_VARIANT(name, variant, parameters, ...)                        \
  SIM_API name parameters {                                                     \
    using namespace sim;                                                        \
    [[maybe_unused]] constexpr DefaultStream kDefault = DefaultStream::variant; \
    return Call(#name, Need::kInit, [&]() -> CUresult { return __VA_ARGS__; }); \
  }
#define SIM_CALL_PTSZ(name, parameters, ...)               \
  SIM_CALL_VARIANT(name, kLegacy, parameters, __VA_ARGS__) \
  SIM_CALL_VARIANT(name##_ptsz, kPerThread, parameters, __VA_ARGS__)
#define SIM_CALL_PTDS(name, parameters, ...)               \
  SIM_CALL_VARIANT(name, kLegacy, parameters, __VA_ARGS__) \
  SIM_CALL_VARIANT(name##_ptds, kPerThread, parameters, __VA_ARGS__)
