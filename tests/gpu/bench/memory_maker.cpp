#include "tests/gpu/bench/memory_maker.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <vector>

#include "common/descriptors.h"
#include "tests/gpu/driver/control.h"
#include "tests/gpu/driver/libraries.h"

namespace gpu_test {

using Clock = std::chrono::steady_clock;

CUmemAllocationProp device_memory() {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  return properties;
}

Maker::Maker() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) fail("no socket");
  const pid_t child = ::fork();
  if (child < 0) fail("no more processes");
  socket_ = ends[child == 0 ? 1 : 0];
  ::close(ends[child == 0 ? 0 : 1]);
  if (child == 0) {
    serve();
    ::_exit(0);
  }
}

int Maker::create(std::size_t bytes) const {
  send(bytes, -1);
  return receive().second;
}

void Maker::drop() const { send(0, -1); }

void Maker::send(std::size_t bytes, int fd) const {
  if (amem::send_with(socket_, &bytes, sizeof bytes, &fd, fd >= 0 ? 1 : 0) < 0)
    fail("the maker of memory has gone");
}

/// Looks for a while without sleeping, as both ends do with a broker that is asked often.
std::pair<std::size_t, int> Maker::receive() const {
  std::size_t bytes = 0;
  int fd = -1;
  const auto begin = Clock::now();
  amem::Received received;
  do {
    const bool patient = Clock::now() - begin > std::chrono::milliseconds(2);
    received = amem::receive_with(socket_, &bytes, sizeof bytes, patient ? 0 : MSG_DONTWAIT,
                                  [&](amem::Fd passed) { fd = passed.release(); });
  } while (received.bytes < 0 && errno == EAGAIN);
  if (received.bytes <= 0) return {0, -2};
  return {bytes, fd};
}

void Maker::serve() const {
  Cuda cuda;
  if (!cuda.load_all().ok()) fail("no driver");
  cuda.must(cuda.cuInit_(0), "cuInit");
  const CUmemAllocationProp wanted = device_memory();
  std::vector<int> kept;
  for (;;) {
    const auto [bytes, end] = receive();
    if (end == -2) return;
    if (bytes == 0) {
      ::close(kept.back());
      kept.pop_back();
      continue;
    }
    CUmemGenericAllocationHandle made = 0;
    int fd = -1;
    cuda.must(cuda.cuMemCreate_(&made, bytes, &wanted, 0), "cuMemCreate");
    cuda.must(
        cuda.cuMemExportToShareableHandle_(&fd, made, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        "cuMemExportToShareableHandle");
    cuda.must(cuda.cuMemRelease_(made), "cuMemRelease");
    send(bytes, fd);
    kept.push_back(fd);
  }
}

}  // namespace gpu_test
