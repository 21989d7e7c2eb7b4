#include "tests/world/simulated_process.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include "tests/world/check.h"
#include "tests/world/outside.h"

namespace amem::world {

int SimulatedProcess::begin() {
  if (!life_) life_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  return life_.get();
}

int SimulatedProcess::connect(int socket, const std::string& path) {
  begin();
  const int error = connect_to(socket, path);
  if (error == 0) outside::connects(pid_, user_, life_.get());
  return error;
}

void SimulatedProcess::end() {
  const std::uint64_t one = 1;
  require(::write(life_.get(), &one, sizeof one) == sizeof one, "a process ends");
  life_.reset();  // the broker has its own
  outside::ends(pid_);
}

}  // namespace amem::world
