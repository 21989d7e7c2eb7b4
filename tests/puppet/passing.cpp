#include "tests/puppet/passing.h"

#include <sys/socket.h>
#include <unistd.h>

#include <chrono>

#include "tests/puppet/check.h"
#include "tests/workload/base/failure.h"
#include "tests/workload/base/unix_socket.h"

namespace amem::puppet {
namespace {

constexpr const char* kSocket = "puppet.sock";
constexpr std::chrono::seconds kPatience{20};

}  // namespace

std::thread Offer(CUmemGenericAllocationHandle handle, const std::string& directory) {
  int exported = -1;
  Check(
      cuMemExportToShareableHandle(&exported, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      "cuMemExportToShareableHandle");
  ::unlink((directory + "/" + kSocket).c_str());  // of an offer before
  return std::thread([object = Fd(exported), listener = workload::ListenAt(directory, kSocket)] {
    const Fd peer(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const char byte = 0;
    if (peer) workload::SendPacket(peer.get(), &byte, 1, object.get());
  });
}

CUmemGenericAllocationHandle Take(const std::string& directory) {
  const auto deadline = workload::Clock::now() + kPatience;
  const Fd socket = workload::ConnectTo(directory, kSocket, deadline);
  char byte = 0;
  Fd object;
  if (!workload::ReceivePacket(socket.get(), &byte, 1, &object, &deadline) || !object) {
    throw workload::Failure("nobody offers anything");
  }
  CUmemGenericAllocationHandle handle = 0;
  void* const descriptor = reinterpret_cast<void*>(static_cast<std::intptr_t>(object.get()));
  Check(
      cuMemImportFromShareableHandle(&handle, descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      "cuMemImportFromShareableHandle");
  return handle;
}

}  // namespace amem::puppet
