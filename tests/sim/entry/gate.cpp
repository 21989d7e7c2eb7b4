#include "tests/sim/entry/gate.h"

#include <signal.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

namespace sim {
namespace {

enum class State { kOpen, kShut, kBroken };

struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  State state = State::kOpen;
  unsigned inside = 0;  // calls
  unsigned unheld = 0;  // others
};

std::atomic<bool> g_built{false};
thread_local bool t_inside = false;

Gate& TheGate() {
  static auto* const gate = new Gate();
  return *gate;
}

void Set(State state) {
  Gate& gate = TheGate();
  const std::lock_guard<std::mutex> lock(gate.mutex);
  gate.state = state;
  gate.changed.notify_all();
}

void EndProcess() {
  signal(SIGSEGV, SIG_DFL);
  raise(SIGSEGV);
}

}  // namespace

void BuildGate() { g_built.store(true, std::memory_order_release); }

CUresult PassGate(bool* counts) {
  *counts = false;
  if (t_inside || !g_built.load(std::memory_order_acquire)) return CUDA_SUCCESS;
  Gate& gate = TheGate();
  std::unique_lock<std::mutex> lock(gate.mutex);
  gate.changed.wait(lock, [&] { return gate.state != State::kShut; });
  if (gate.state == State::kBroken) return CUDA_ERROR_UNKNOWN;
  ++gate.inside;
  *counts = t_inside = true;
  return CUDA_SUCCESS;
}

void LeaveGate() {
  t_inside = false;
  Gate& gate = TheGate();
  const std::lock_guard<std::mutex> lock(gate.mutex);
  if (--gate.inside == 0) gate.changed.notify_all();
}

CUresult PassUnheld(bool* counts) {
  *counts = false;
  if (t_inside || !g_built.load(std::memory_order_acquire)) return CUDA_SUCCESS;
  Gate& gate = TheGate();
  const std::lock_guard<std::mutex> lock(gate.mutex);
  if (gate.state == State::kBroken) return CUDA_ERROR_UNKNOWN;
  if (gate.state == State::kShut) EndProcess();
  ++gate.unheld;
  *counts = true;
  return CUDA_SUCCESS;
}

void LeaveUnheld() {
  Gate& gate = TheGate();
  const std::lock_guard<std::mutex> lock(gate.mutex);
  --gate.unheld;
}

void EndBesideUnheld() {
  Gate& gate = TheGate();
  const std::lock_guard<std::mutex> lock(gate.mutex);
  if (gate.unheld > 0) EndProcess();
}

bool ShutGate(unsigned milliseconds) {
  Gate& gate = TheGate();
  std::unique_lock<std::mutex> lock(gate.mutex);
  gate.state = State::kShut;
  const auto empty = [&] { return gate.inside == 0; };
  if (milliseconds == 0) {
    gate.changed.wait(lock, empty);
  } else if (!gate.changed.wait_for(lock, std::chrono::milliseconds(milliseconds), empty)) {
    gate.state = State::kOpen;
    gate.changed.notify_all();
    return false;
  }
  return true;
}

void OpenGate() { Set(State::kOpen); }

void BreakGate() { Set(State::kBroken); }

}  // namespace sim
