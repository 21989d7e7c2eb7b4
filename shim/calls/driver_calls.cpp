#include "shim/calls/driver_calls.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "shim/gate/deep_calls.h"
#include "shim/memory/operands.h"
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
  return symbol.starts_with("cuGraphAdd") || symbol.starts_with("cuGraphNodeSetParams") ||
         symbol.ends_with("NodeSetParams");
}

/// Gives no work and changes nothing.
constexpr bool only_asks(std::string_view symbol) {
  return symbol.starts_with("cuMemGetLocationInfo");
}

/// Returns where a call's work goes, from its arguments. A call that names no stream goes to the
/// default one. The legacy one's work begins when all others' has ended.
template <class Struct>
constexpr bool kNamesNoStream = false;
template <>
constexpr bool kNamesNoStream<CUDA_MEMCPY2D> = true;
template <>
constexpr bool kNamesNoStream<CUDA_MEMCPY3D> = true;
template <>
constexpr bool kNamesNoStream<CUDA_MEMCPY3D_PEER> = true;
template <>
constexpr bool kNamesNoStream<CUDA_MEMCPY3D_BATCH_OP> = true;
template <>
constexpr bool kNamesNoStream<CUDA_MEMSET_NODE_PARAMS> = true;
template <>
constexpr bool kNamesNoStream<CUgraphNodeParams> = true;
template <>
constexpr bool kNamesNoStream<CUgraphEdgeData> = true;
template <>
constexpr bool kNamesNoStream<CUmemcpyAttributes> = true;
template <>
constexpr bool kNamesNoStream<CUmemDecompressParams> = true;
template <>
constexpr bool kNamesNoStream<CUmemLocation> = true;
template <>
constexpr bool kNamesNoStream<CUstreamBatchMemOpParams> = true;
template <>
constexpr bool kNamesNoStream<cuda::FabricCopy> = true;

template <class Arg>
void look_at(Gate::Submission&, const Arg&) {}
/// As of memory (shim/memory/operands.h): a struct that nothing here knows does not compile.
template <AddressOfStruct Arg>
requires(!kNamesNoStream<std::remove_cv_t<std::remove_pointer_t<Arg>>>) void look_at(
    Gate::Submission&, const Arg&) = delete;
void look_at(Gate::Submission& submission, CUstream stream) {
  if (stream != nullptr) submission.stream = stream;
}
void look_at(Gate::Submission& submission, const CUlaunchConfig* config) {
  if (config != nullptr) look_at(submission, config->hStream);
}
/// Looks at the first of launches on several devices.
void look_at(Gate::Submission& submission, CUDA_LAUNCH_PARAMS* launches) {
  if (launches != nullptr) look_at(submission, launches->hStream);
}

/// Rows that take no stream, or stream 0, for the calling thread's own are per-thread ones.
template <CallRow row, class... Args>
Gate::Submission submission_of(const Args&... args) {
  if constexpr (builds_graph(kSymbols[row])) return {false, nullptr, kSymbols[row]};
  constexpr bool kPerThread = is_per_thread(kSymbols[row]);
  Gate::Submission submission{true, kPerThread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY,
                              kSymbols[row]};
  (look_at(submission, args), ...);
  return submission;
}

/// Copies and sets say which memory they touch, also as nodes of graphs. Of kernels nobody can know
/// it.
constexpr bool names_memory(std::string_view symbol) {
  return symbol.starts_with("cuMemcpy") || symbol.starts_with("cuMemset") ||
         symbol.starts_with("cuFabricCpy") || symbol.starts_with("cuGraphLaunch") ||
         builds_graph(symbol);
}

/// The memory; of a launch what the graph's nodes name.
template <class... Args>
Operands named_by(const Args&... args) {
  return operands_of(args...);
}
template <>
Operands named_by(const CUgraphExec& exec, const CUstream& /*stream*/) {
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
          kSymbols[row], [&] { return submission_of<row>(args...); },
          [&] { return named_by(args...); },
          [&] { return explained(kSymbols[row], real<row>()(args...)); });
    } else if constexpr (only_asks(kSymbols[row])) {
      const PassToAsk pass(*the_gate,
                           the_gate->enter_to_ask([&] { return submission_of<row>(args...); }));
      if (pass.result() != CUDA_SUCCESS) return pass.result();
      return explained(kSymbols[row], real<row>()(args...));
    } else {
      const Pass pass(*the_gate, the_gate->enter([&] { return submission_of<row>(args...); }));
      if (pass.result() != CUDA_SUCCESS) return pass.result();
      // The first launch of a kernel may load it.
      return explained(kSymbols[row], Runtime::ask_driver([&] { return real<row>()(args...); }));
    }
  }
};

// ---- calls that ask whether work has ended, or wait for it: each goes on to the driver ----

constexpr bool waits(std::string_view symbol) {
  return symbol.find("Synchronize") != std::string_view::npos;
}

/// Memory of pools leaves with the program's waits.
void synchronised(CUresult r) {
  if (!MemoryPools::surplus() || r != CUDA_SUCCESS) [[likely]]
    return;
  if (Heap* heap = Runtime::get().heap(); heap != nullptr) heap->pools().synchronised();
}

template <CallRow row, class Function = typename Signature<row>::Function>
struct Watched;

template <CallRow row, class... Args>
struct Watched<row, CUresult (*)(Args...)> {
  static CUresult call(Args... args) {
    constexpr bool kOfEvent = std::string_view(kSymbols[row]).starts_with("cuEvent");
    for (;;) {
      std::optional<CUresult> answer;
      {
        const Gate::Watch watch(*the_gate);
        if (!DeepCalls::away()) [[likely]]
          answer = explained(kSymbols[row], real<row>()(args...));
      }
      if (answer) [[likely]] {
        if constexpr (waits(kSymbols[row])) synchronised(*answer);
        return *answer;
      }
      if (const auto r = DeepCalls::get().ended(kOfEvent); r.has_value()) return *r;
      if (const CUresult r = DeepCalls::get().await_end(); r != CUDA_SUCCESS) return r;
    }
  }
};

// ---- calls that only free or destroy: in a deep pause they are noted ----

template <CallRow row, class... Args>
CUresult to_driver(Args... args) {
  return real<row>()(args...);
}

/// Returns whether it may come after calls that the program makes later. Those that go to the
/// driver reach it as soon as it makes calls again, before what was noted. Only what amem answers
/// waits at the gate.
template <CallRow row, class... Args>
bool may_be_noted(const Args&... /*args*/) {
  return true;
}
template <>
bool may_be_noted<kRow_cuMemUnmap>(const CUdeviceptr& address, const std::size_t& size) {
  return Runtime::get().memory().mappings.brokered(address, size);
}
template <>
bool may_be_noted<kRow_cuIpcCloseMemHandle>(const CUdeviceptr& address) {
  return Runtime::get().ipc().opened(address);
}
template <>
bool may_be_noted<kRow_cuMulticastUnbind>(const CUmemGenericAllocationHandle& object,
                                          const CUdevice& /*device*/, const std::size_t& /*at*/,
                                          const std::size_t& /*size*/) {
  return Runtime::get().memory().multicast.tracked(object);
}

template <class Arg>
std::uint64_t word_of(Arg arg) {
  if constexpr (std::is_pointer_v<Arg>)
    return reinterpret_cast<std::uint64_t>(arg);
  else
    return static_cast<std::uint64_t>(arg);
}
template <class Arg>
Arg from_word(std::uint64_t word) {
  if constexpr (std::is_pointer_v<Arg>)
    return reinterpret_cast<Arg>(word);
  else
    return static_cast<Arg>(word);
}

template <CallRow row, auto answer, class Function = typename Signature<row>::Function>
struct Frees;

template <CallRow row, auto answer, class... Args>
struct Frees<row, answer, CUresult (*)(Args...)> {
  static_assert(sizeof...(Args) <= DeepCalls::kMostWords);
  static CUresult call(Args... args) {
    if (DeepCalls::on()) [[unlikely]]
      if (may_be_noted<row>(args...) &&
          DeepCalls::get().note({kSymbols[row], &make, {word_of(args)...}}))
        return CUDA_SUCCESS;
    return answer(args...);
  }
  static CUresult make(const DeepCalls::Words& words) {
    return [&]<std::size_t... i>(std::index_sequence<i...>) {
      return answer(from_word<Args>(words[i])...);
    }
    (std::index_sequence_for<Args...>());
  }
};

template <CallRow row, class Function = typename Signature<row>::Function>
struct Destroys;

template <CallRow row, class... Args>
struct Destroys<row, CUresult (*)(Args...)> : Frees<row, &to_driver<row, Args...>> {};

// ---- calls that give a device something to do, but not work for the gate ----

template <CallRow row, class Function = typename Signature<row>::Function>
struct Delayed;

template <CallRow row, class... Args>
struct Delayed<row, CUresult (*)(Args...)> {
  static CUresult call(Args... args) {
    const DeepCalls::Delayed delayed;
    if (delayed.result() != CUDA_SUCCESS) return delayed.result();
    return real<row>()(args...);
  }
};

// ---- calls for which the driver takes memory of its own ----

template <CallRow row, class Function = typename Signature<row>::Function>
struct Retried;

template <CallRow row, class... Args>
struct Retried<row, CUresult (*)(Args...)> {
  static CUresult call(Args... args) {
    return Runtime::ask_driver([&] { return real<row>()(args...); });
  }
};

const Call kCalls[] = {
#define GATED(api, version, type, symbol)                                        \
  {#api, version, #symbol, reinterpret_cast<void*>(&Gated<kRow_##symbol>::call), \
   &real_functions[kRow_##symbol]},
#define WATCHED(api, version, type, symbol)                                        \
  {#api, version, #symbol, reinterpret_cast<void*>(&Watched<kRow_##symbol>::call), \
   &real_functions[kRow_##symbol]},
#define RETRIED(api, version, type, symbol)                                        \
  {#api, version, #symbol, reinterpret_cast<void*>(&Retried<kRow_##symbol>::call), \
   &real_functions[kRow_##symbol]},
#define FREES(api, version, type, symbol)                                                          \
  {#api, version, #symbol, reinterpret_cast<void*>(&Frees<kRow_##symbol, &answer_##symbol>::call), \
   &real_functions[kRow_##symbol]},
#define DESTROYS(api, version, type, symbol)                                        \
  {#api, version, #symbol, reinterpret_cast<void*>(&Destroys<kRow_##symbol>::call), \
   &real_functions[kRow_##symbol]},
#define DELAYED(api, version, type, symbol)                                        \
  {#api, version, #symbol, reinterpret_cast<void*>(&Delayed<kRow_##symbol>::call), \
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

// ---- the names of all rows, for calls that have none ----

/// As cuGetProcAddress names a symbol: without _v2, and without _ptsz or _ptds.
constexpr std::string_view base_of(std::string_view symbol) {
  if (is_per_thread(symbol)) symbol.remove_suffix(5);
  const std::size_t end = symbol.size();
  const bool versioned = end > 3 && symbol.substr(end - 3, 2) == "_v" && symbol[end - 1] >= '2' &&
                         symbol[end - 1] <= '9';
  return versioned ? symbol.substr(0, end - 3) : symbol;
}

/// The names of a row, or of several: "cuA, cuB".
constexpr std::string_view kKnownLists[] = {
#define WRAPPED(api, version, type, symbol) #symbol,
#define PASSED(reason, ...) #__VA_ARGS__,
#define UNSUPPORTED(meaning, ...) #__VA_ARGS__,
#include "shim/calls/driver_calls.inc"
};
constexpr std::string_view kHiddenLists[] = {
#define HIDDEN(reason, ...) #__VA_ARGS__,
#include "shim/calls/driver_calls.inc"
};

template <std::size_t n, class Each>
constexpr void each_symbol(const std::string_view (&lists)[n], const Each& each) {
  for (std::string_view list : lists) {
    while (!list.empty()) {
      const std::size_t end = std::min(list.find(','), list.size());
      each(list.substr(0, end));
      list.remove_prefix(end);
      list.remove_prefix(std::min(list.find_first_not_of(", "), list.size()));
    }
  }
}

/// Symbols and what cuGetProcAddress calls them, sorted.
template <const auto& lists>
consteval auto names_of() {
  constexpr std::size_t kCount = [] {
    std::size_t n = 0;
    each_symbol(lists, [&](std::string_view) { n += 2; });
    return n;
  }();
  std::array<std::string_view, kCount> names;
  std::size_t n = 0;
  each_symbol(lists, [&](std::string_view symbol) {
    names[n++] = symbol;
    names[n++] = base_of(symbol);
  });
  std::sort(names.begin(), names.end());
  return names;
}
constexpr auto kKnownNames = names_of<kKnownLists>();
constexpr auto kHiddenNames = names_of<kHiddenLists>();

template <class Names>
bool has(const Names& names, std::string_view name) {
  return std::binary_search(names.begin(), names.end(), name);
}

/// AMEM_FORGET_CALLS=cuA,cuB: their rows count as missing, as on a driver that is newer than the
/// table. For tests: a release has no such variable.
bool forgotten([[maybe_unused]] std::string_view name) {
#ifdef AMEM_FAULT_POINTS
  static const char* const list = std::getenv("AMEM_FORGET_CALLS");
  if (list == nullptr) return false;
  const std::string_view all[] = {list};
  bool found = false;
  each_symbol(all, [&](std::string_view call) { found = found || call == base_of(name); });
  return found;
#else
  return false;
#endif
}

}  // namespace

Knowledge knowledge_of(std::string_view name) {
  if (forgotten(name)) return Knowledge::kUnknown;
  if (has(kHiddenNames, name)) return Knowledge::kHidden;
  return has(kKnownNames, name) ? Knowledge::kKnown : Knowledge::kUnknown;
}

const char* symbol_of(CallRow row) { return kSymbols[row]; }

bool Call::per_thread() const { return is_per_thread(symbol); }

const Call* find_symbol(const char* symbol) {
  if (forgotten(symbol)) return nullptr;
  for (const Call& call : kCalls)
    if (std::strcmp(call.symbol, symbol) == 0) return &call;
  return nullptr;
}

const Call* find_call(const char* api, int version, bool per_thread) {
  if (forgotten(api)) return nullptr;
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
