#include "tests/workload/program/network.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tests/workload/base/failure.h"

namespace amem::workload {

Network::Network(const std::string& rendezvous, int ranks, unsigned communicators) : ranks_(ranks) {
  const std::size_t bytes =
      std::size_t{communicators} * static_cast<unsigned>(ranks) * sizeof(CommunicatorBuffer);
  const std::string path = rendezvous + "/network";
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  void* memory = MAP_FAILED;
  if (fd >= 0 && ::ftruncate(fd, static_cast<off_t>(bytes)) == 0)
    memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (memory == MAP_FAILED) throw Failure("mapping " + path + ": " + std::strerror(error));
  buffers_ = static_cast<CommunicatorBuffer*>(memory);
}

}  // namespace amem::workload
