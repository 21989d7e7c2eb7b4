// On each of its devices it has what a rank keeps through a deep pause (target_device.h), its view
// of the pool, and a communicator of the node's NCCL. For each line on standard input it uses all
// of it, looks at every byte, and writes "right", or "failed CODE TEXT" and ends. CODE is a Code:
// kDataLoss: there are other bytes. In between it says what it does and uses (answer.h).
#include "addons/checkpoint/target.h"

#include <dlfcn.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "addons/checkpoint/answer.h"
#include "addons/checkpoint/arguments.h"
#include "addons/checkpoint/end.h"
#include "addons/checkpoint/target_device.h"
#include "addons/checkpoint/target_nccl.h"
#include "addons/checkpoint/target_threads.h"
#include "common/descriptors.h"
#include "common/driver.h"
#include "common/fd.h"
#include "common/place.h"
#include "common/protocol.h"
#include "common/status.h"

namespace amem {
namespace {

struct TargetArguments {
  std::string devices;
  std::string driver;
  std::string pool;
  std::uint64_t bytes = 2 << 20;  // of the pool
  pid_t parent = 0;
};

class Target {
 public:
  explicit Target(const TargetArguments& arguments)
      : arguments_(arguments), place_(place_named(arguments.pool)) {}

  void make() {
    say(target_says::kStep, "loading the driver");
    load();
    say(target_says::kStep, "cuInit");
    const CUresult result = driver_.cuInit_(0);
    if (result == CUDA_ERROR_NO_DEVICE) sees_others("none");
    did(result, "cuInit");
    find_devices();
    for (const auto& device : devices_) {
      say(target_says::kStep, "making what it has on " + device->name());
      device->make(threads_);
    }
    nccl_.make();
    say(target_says::kStep, "making its view of the pool");
    make_pool();
    wait_for_nothing();
  }

  void check(Fd pool) {
    say(target_says::kStep, "using what it has on its devices");
    for (const auto& device : devices_) device->check();
    threads_.work();
    check_pool(std::move(pool));
    nccl_.check();
  }

 private:
  void did(CUresult result, const std::string& what) const { amem::did(driver_, result, what); }

  [[noreturn]] void sees_others(const std::string& seen) const {
    fail({Code::kNotFound, "it was to see device " + arguments_.devices + ", but sees " + seen});
  }

  /// The driver that is named, or what the loader finds. Whoever asks for it by its name later gets
  /// the same.
  void load() {
    if (!arguments_.driver.empty() &&
        ::dlopen(arguments_.driver.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
      const char* const why = ::dlerror();
      fail({Code::kUnavailable, why != nullptr ? why : arguments_.driver});
    }
    if (const Status status = driver_.load(); !status.ok()) fail(status);
    for (const auto& [name, there] :
         {std::pair{"cuMemAlloc", driver_.cuMemAlloc_ != nullptr},
          {"cuMemGetInfo", driver_.cuMemGetInfo_ != nullptr},
          {"cuEventElapsedTime", driver_.cuEventElapsedTime_ != nullptr},
          {"cuGraphCreate", driver_.cuGraphCreate_ != nullptr},
          {"cuGraphAddMemcpyNode", driver_.cuGraphAddMemcpyNode_ != nullptr},
          {"cuGraphAddMemsetNode", driver_.cuGraphAddMemsetNode_ != nullptr},
          {"cuGraphInstantiateWithFlags", driver_.cuGraphInstantiateWithFlags_ != nullptr},
          {"cuGraphLaunch", driver_.cuGraphLaunch_ != nullptr}})
      if (!there) fail({Code::kUnavailable, std::string("the CUDA driver lacks ") + name});
    Dl_info info{};
    if (::dladdr(reinterpret_cast<void*>(driver_.cuInit_), &info) != 0)
      say(target_says::kFile, info.dli_fname);
  }

  void find_devices() {
    int count = 0;
    did(driver_.cuDeviceGetCount_(&count), "cuDeviceGetCount");
    std::string seen;
    for (int ordinal = 0; ordinal < count; ++ordinal) {
      CUdevice device = 0;
      CUuuid uuid{};
      did(driver_.cuDeviceGet_(&device, ordinal), "cuDeviceGet");
      did(driver_.cuDeviceGetUuid_(&uuid, device), "cuDeviceGetUuid");
      const std::string name = to_string(make_uuid(uuid.bytes));
      seen += (seen.empty() ? "" : ",") + name;
      devices_.push_back(std::make_unique<TargetDevice>(driver_, device, name));
    }
    if (!arguments_.devices.empty() && arguments_.devices != seen) sees_others(seen);
  }

  void make_pool() {
    if (!place_) return;
    if (arguments_.bytes < devices_.size() * TargetDevice::kPoolPiece)
      fail({Code::kInternal,
            "--bytes is too small for " + std::to_string(devices_.size()) + " devices"});
    if (place_ == Place::kHostNuma)
      did(driver_.cuMemAddressReserve_(&pool_, arguments_.bytes, 0, 0, 0), "cuMemAddressReserve");
    if (place_ != Place::kMemfd) return;
    const Fd file(::memfd_create("amem-proof", MFD_CLOEXEC));
    did_host(file && ::ftruncate(file.get(), static_cast<off_t>(arguments_.bytes)) == 0,
             "memfd_create");
    void* const at =
        ::mmap(nullptr, arguments_.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    did_host(at != MAP_FAILED, "mmap");
    pool_ = reinterpret_cast<CUdeviceptr>(at);
    did(driver_.cuMemHostRegister_(at, arguments_.bytes, CU_MEMHOSTREGISTER_PORTABLE),
        "cuMemHostRegister");
  }

  void check_pool(Fd pool) {
    if (place_ != Place::kHostNuma && place_ != Place::kMemfd) return;
    if (place_ == Place::kHostNuma) map_pool(std::move(pool));
    for (std::size_t i = 0; i < devices_.size(); ++i)
      devices_[i]->check_pool(pool_ + i * TargetDevice::kPoolPiece);
    if (place_ == Place::kHostNuma)
      did(driver_.cuMemUnmap_(pool_, arguments_.bytes), "unmapping the pool");
  }

  /// It is unmapped again before a checkpoint, which imported memory does not outlive.
  void map_pool(Fd pool) const {
    CUmemGenericAllocationHandle handle = 0;
    did(driver_.cuMemImportFromShareableHandle_(
            &handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(pool.get())),
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        "importing the pool");
    pool.reset();
    did(driver_.cuMemMap_(pool_, arguments_.bytes, 0, handle, 0), "mapping the pool");
    did(driver_.cuMemRelease_(handle), "cuMemRelease");
    for (const auto& device : devices_) device->let_reach(pool_, arguments_.bytes);
  }

  /// A thread that waits in the kernel, as a server's does.
  static void wait_for_nothing() {
    std::thread([] {
      while (true) ::poll(nullptr, 0, -1);
    }).detach();
  }

  const TargetArguments arguments_;
  const std::optional<Place> place_;
  Driver driver_;
  TargetThreads threads_;
  TargetNccl::Devices devices_;  // by their ordinals
  TargetNccl nccl_{driver_, devices_};
  CUdeviceptr pool_ = 0;
};

/// Whether there is another line. `pool`: the descriptor that came with it.
bool next_line(Fd& pool) {
  static bool socket = true;
  for (char byte = 0; byte != '\n';) {
    ssize_t got = -1;
    if (socket)
      got = receive_with(STDIN_FILENO, &byte, 1, 0, [&](Fd fd) { pool = std::move(fd); }).bytes;
    if (socket && got < 0 && errno == ENOTSOCK) socket = false;
    if (!socket) do
        got = ::read(STDIN_FILENO, &byte, 1);
      while (got < 0 && errno == EINTR);
    if (got <= 0) return false;
  }
  return true;
}

}  // namespace

int run_target(int argc, char** argv) {
  TargetArguments arguments;
  CLI::App app(
      "a process that is checkpointed to prove that it can be. It uses all devices that "
      "CUDA_VISIBLE_DEVICES shows",
      "amem-checkpoint target");
  app.add_option("DEVICES", arguments.devices,
                 "their UUIDs, in order and with commas: it fails if it sees others");
  app.add_option("--driver", arguments.driver, "the file. Default: the libcuda.so.1 that is found");
  app.add_option("--pool", arguments.pool, "host_numa or memfd. Default: no pool");
  app.add_option("--bytes", arguments.bytes,
                 "of the pool's memory, whose descriptor comes with each line (host_numa)");
  add_parent(app, arguments.parent);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  end_with(arguments.parent);
  auto* const target = new Target(arguments);  // its threads use it to the end
  target->make();
  say(target_says::kStep, "waiting for a line");
  for (Fd pool; next_line(pool);) {
    target->check(std::move(pool));
    say(target_says::kRight);
  }
  ::_exit(0);
}

}  // namespace amem
