#include "shim/calls/driver_calls.h"

#include <cstring>
#include <string_view>

#include "shim/memory/stretches.h"
#include "shim/runtime/await_memory.h"
#include "shim/runtime/notices.h"
#include "shim/runtime/runtime.h"

namespace amem::shim {

std::atomic<void*> real_functions[kRows];

namespace {

constexpr bool is_per_thread(std::string_view symbol) {
  return symbol.ends_with("_ptsz") || symbol.ends_with("_ptds");
}

constexpr const char* kSymbols[] = {
#define WRAPPED(api, version, type, symbol) #symbol,
#include "shim/calls/driver_calls.inc"
};

// ---- calls that give the device work: each passes the gate and goes on to the driver ----

/// Builds a graph, or changes one: no work begins.
constexpr bool builds_graph(std::string_view symbol) {
  return symbol.starts_with("cuGraphAdd") || symbol.ends_with("NodeSetParams");
}

/// Where a call's work goes, from its arguments. What names no stream goes to the default one. The
/// legacy one's begins when that of all others has ended.
template <class Arg>
void look_at(Gate::Work&, const Arg&) {}
void look_at(Gate::Work& work, CUstream stream) {
  if (stream != nullptr) work.stream = stream;
}
void look_at(Gate::Work& work, const CUlaunchConfig* config) {
  if (config != nullptr) look_at(work, config->hStream);
}

/// Rows that take no stream, or stream 0, for the calling thread's own are per-thread ones.
template <CallRow row, class... Args>
Gate::Work work_of(const Args&... args) {
  if constexpr (builds_graph(kSymbols[row])) return {false, nullptr, kSymbols[row]};
  constexpr bool kPerThread = is_per_thread(kSymbols[row]);
  Gate::Work work{true, kPerThread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY, kSymbols[row]};
  (look_at(work, args), ...);
  return work;
}

/// Copies and sets say which memory they touch, also as nodes of graphs. Of kernels nobody can know
/// it.
constexpr bool names_memory(std::string_view symbol) {
  return symbol.starts_with("cuMemcpy") || symbol.starts_with("cuMemset") ||
         symbol.starts_with("cuGraphLaunch") || builds_graph(symbol);
}

/// The memory; of a launch what the graph's nodes name.
template <class... Args>
Stretches named_by(const Args&... args) {
  return stretches_of(args...);
}
template <>
Stretches named_by(const CUgraphExec& exec, const CUstream& /*stream*/) {
  return Runtime::get().memory().graphs.of(exec);
}

template <CallRow row, class Function = typename Signature<row>::Function>
struct Gated;

template <CallRow row, class... Args>
struct Gated<row, CUresult (*)(Args...)> {
  // Not noexcept: a thread that is cancelled inside the driver is unwound through this.
  static CUresult call(Args... args) {
    if constexpr (names_memory(kSymbols[row])) {
      return with_memory(
          kSymbols[row], [&] { return the_gate->enter([&] { return work_of<row>(args...); }); },
          [&] { return named_by(args...); },
          [&] { return explained(kSymbols[row], real<row>()(args...)); });
    } else {
      const Pass pass(*the_gate, the_gate->enter([&] { return work_of<row>(args...); }));
      if (pass.result() != CUDA_SUCCESS) return pass.result();
      return explained(kSymbols[row], real<row>()(args...));
    }
  }
};

// ---- calls that wait for the device: each goes on to the driver ----

template <CallRow row, class Function = typename Signature<row>::Function>
struct Watched;

template <CallRow row, class... Args>
struct Watched<row, CUresult (*)(Args...)> {
  static CUresult call(Args... args) { return explained(kSymbols[row], real<row>()(args...)); }
};

// ---- calls that change what pools hold ----

/// How much a call allocates; nothing of those that do not.
template <class... Args>
void note_allocated(const char* /*symbol*/, const Args&... /*args*/) {}
template <class... Rest>
void note_allocated(const char* symbol, CUdeviceptr* const& /*address*/, const std::size_t& bytes,
                    const Rest&... /*rest*/) {
  stays(symbol, bytes);
}

template <CallRow row, class Function = typename Signature<row>::Function>
struct Pooled;

template <CallRow row, class... Args>
struct Pooled<row, CUresult (*)(Args...)> {
  static CUresult call(Args... args) {
    const CUresult r = real<row>()(args...);
    if (r == CUDA_SUCCESS) note_allocated(kSymbols[row], args...);
    Runtime::get().report().changed();
    return r;
  }
};

const Call kCalls[] = {
#define GATED(api, version, type, symbol)                                        \
  {#api, version, #symbol, reinterpret_cast<void*>(&Gated<kRow_##symbol>::call), \
   &real_functions[kRow_##symbol]},
#define WATCHED(api, version, type, symbol)                                        \
  {#api, version, #symbol, reinterpret_cast<void*>(&Watched<kRow_##symbol>::call), \
   &real_functions[kRow_##symbol]},
#define POOLED(api, version, type, symbol)                                        \
  {#api, version, #symbol, reinterpret_cast<void*>(&Pooled<kRow_##symbol>::call), \
   &real_functions[kRow_##symbol]},
#define WRAPPED(api, version, type, symbol)                           \
  {#api, version, #symbol, reinterpret_cast<void*>(&answer_##symbol), \
   &real_functions[kRow_##symbol]},
#include "shim/calls/driver_calls.inc"
#define WRAPPED(...)
#define RENAMED(api, version, symbol)                                 \
  {#api, version, #symbol, reinterpret_cast<void*>(&answer_##symbol), \
   &real_functions[kRow_##symbol]},
#include "shim/calls/driver_calls.inc"
};

}  // namespace

const char* symbol_of(CallRow row) { return kSymbols[row]; }

bool Call::per_thread() const { return is_per_thread(symbol); }

const Call* find_symbol(const char* symbol) {
  for (const Call& call : kCalls)
    if (std::strcmp(call.symbol, symbol) == 0) return &call;
  return nullptr;
}

const Call* find_call(const char* api, int version, bool per_thread) {
  const Call* best = nullptr;
  const Call* best_shared = nullptr;  // for calls that know no per-thread variant
  for (const Call& call : kCalls) {
    if (call.version > version || std::strcmp(call.api, api) != 0) continue;
    const Call*& slot = call.per_thread() ? best : best_shared;
    if (slot == nullptr || call.version > slot->version) slot = &call;
  }
  return per_thread && best != nullptr ? best : best_shared;
}

}  // namespace amem::shim
