#include "tests/gpu/driver/control.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <new>

namespace gpu_test {
namespace {

thread_local RankSlot* current = nullptr;
thread_local int current_rank = -1;

}  // namespace

Control* Control::create() {
  void* memory =
      ::mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : new (memory) Control;
}

void Control::barrier(int parties) {
  const std::uint32_t generation = generation_.load();
  if (arrived_.fetch_add(1) + 1 == parties) {
    arrived_.store(0);
    generation_.fetch_add(1);
    return;
  }
  while (generation_.load() == generation) ::usleep(20);
}

void set_current(RankSlot* slot, int rank) {
  current = slot;
  current_rank = rank;
}

void doing(const char* literal, int comm) {
  if (current == nullptr) return;
  current->doing.store(literal, std::memory_order_relaxed);
  current->comm.store(comm, std::memory_order_relaxed);
  current->beats.fetch_add(1, std::memory_order_relaxed);
}

void fail(const std::string& text) {
  if (current != nullptr)
    std::fprintf(stderr, "FAILED rank %d, cycle %d, communicator %d, %s: %s\n", current_rank,
                 current->cycle.load(), current->comm.load(), current->doing.load(), text.c_str());
  else
    std::fprintf(stderr, "FAILED %s\n", text.c_str());
  std::fflush(nullptr);
  ::_exit(1);
}

int in_child(const std::function<int()>& work) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(work());
  int ended = 0;
  if (child < 0 || ::waitpid(child, &ended, 0) != child || !WIFEXITED(ended)) return -1;
  return WEXITSTATUS(ended);
}

}  // namespace gpu_test
