// On its device it has what a rank keeps through a deep pause: a context, memory with known bytes,
// an executable graph, registered memory of the host, reserved addresses, and its view of the
// pool. For each line on standard input it launches the graph, looks at every byte, and writes
// "right", or "failed CODE TEXT" and ends. CODE is a Code: kDataLoss: there are other bytes.
#include "daemon/checkpoint/target.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <string>

#include "common/descriptors.h"
#include "common/driver.h"
#include "common/fd.h"
#include "common/place.h"
#include "common/protocol.h"
#include "common/status.h"
#include "daemon/checkpoint/answer.h"
#include "daemon/checkpoint/end.h"

namespace amem {
namespace {

constexpr std::size_t kPiece = 1 << 20;
constexpr unsigned char kSet = 0xa5;  // what the graph writes

struct TargetArguments {
  std::string device;
  std::string pool;
  std::uint64_t bytes = kPiece;  // of the pool
  bool with_parent = false;
};

[[noreturn]] void fail(const Status& status) {
  end(status.code() == Code::kUnavailable ? 3 : 1, stdout, failure_line_of(status));
}

unsigned char byte_at(std::size_t i, unsigned seed) {
  return static_cast<unsigned char>((i * 2654435761U + seed) >> 13);
}

class Target {
 public:
  explicit Target(const TargetArguments& arguments)
      : arguments_(arguments), place_(place_named(arguments.pool)) {}

  void make() {
    if (const Status status = driver_.load(); !status.ok()) fail(status);
    for (const auto& [name, there] :
         {std::pair{"cuMemAlloc", driver_.cuMemAlloc_ != nullptr},
          {"cuGraphCreate", driver_.cuGraphCreate_ != nullptr},
          {"cuGraphAddMemcpyNode", driver_.cuGraphAddMemcpyNode_ != nullptr},
          {"cuGraphAddMemsetNode", driver_.cuGraphAddMemsetNode_ != nullptr},
          {"cuGraphInstantiateWithFlags", driver_.cuGraphInstantiateWithFlags_ != nullptr},
          {"cuGraphLaunch", driver_.cuGraphLaunch_ != nullptr}})
      if (!there) fail({Code::kUnavailable, std::string("the CUDA driver lacks ") + name});
    did(driver_.cuInit_(0), "cuInit");
    const CUdevice device = find_device();
    CUcontext context = nullptr;
    did(driver_.cuDevicePrimaryCtxRetain_(&context, device), "cuDevicePrimaryCtxRetain");
    did(driver_.cuCtxSetCurrent_(context), "cuCtxSetCurrent");
    did(driver_.cuStreamCreate_(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    make_memory(device);
    make_graph(context);
    make_pool();
  }

  void check(Fd pool) {
    std::fill_n(host_ + kPiece, 3 * kPiece, std::uint8_t{0});
    did(driver_.cuGraphLaunch_(launchable_, stream_), "cuGraphLaunch");
    synchronize();
    expect(host_, 1, "registered memory of the host");
    for (std::size_t i = 0; i < kPiece; ++i)
      if (host_[kPiece + i] != kSet) wrong("what a graph has set");
    expect(host_ + 2 * kPiece, 2, "memory of the device");
    expect(host_ + 3 * kPiece, 1, "what a graph has copied to the device");
    check_reserved();
    check_pool(std::move(pool));
  }

 private:
  void did(CUresult result, const std::string& what) const {
    if (result == CUDA_SUCCESS) return;
    const Status status = driver_.error(result, what);
    const bool full = status.code() == Code::kResourceExhausted;
    fail({full ? status.code() : Code::kFailedPrecondition, status.text()});
  }
  static void did_host(bool done, const std::string& what) {
    if (!done) fail(errno_status(Code::kResourceExhausted, what, errno));
  }
  [[noreturn]] static void wrong(const std::string& what) {
    fail({Code::kDataLoss, what + " has other bytes than before"});
  }
  static void expect(const std::uint8_t* bytes, unsigned seed, const std::string& what) {
    for (std::size_t i = 0; i < kPiece; ++i)
      if (bytes[i] != byte_at(i, seed)) wrong(what);
  }
  void synchronize() const { did(driver_.cuStreamSynchronize_(stream_), "cuStreamSynchronize"); }

  CUdevice find_device() const {
    int count = 0;
    did(driver_.cuDeviceGetCount_(&count), "cuDeviceGetCount");
    for (int ordinal = 0; ordinal < count; ++ordinal) {
      CUdevice device = 0;
      CUuuid uuid{};
      did(driver_.cuDeviceGet_(&device, ordinal), "cuDeviceGet");
      did(driver_.cuDeviceGetUuid_(&uuid, device), "cuDeviceGetUuid");
      if (arguments_.device == std::to_string(ordinal) ||
          arguments_.device == to_string(make_uuid(uuid.bytes)))
        return device;
    }
    fail({Code::kNotFound, "there is no device " + arguments_.device});
  }

  void make_memory(CUdevice device) {
    void* const host = ::mmap(nullptr, 4 * kPiece, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    did_host(host != MAP_FAILED, "mmap");
    host_ = static_cast<std::uint8_t*>(host);
    did(driver_.cuMemHostRegister_(host, 4 * kPiece, CU_MEMHOSTREGISTER_PORTABLE),
        "cuMemHostRegister");
    for (std::size_t i = 0; i < kPiece; ++i) host_[i] = byte_at(i, 1);
    did(driver_.cuMemAlloc_(&memory_, 3 * kPiece), "cuMemAlloc");
    for (std::size_t i = 0; i < kPiece; ++i) host_[kPiece + i] = byte_at(i, 2);
    did(driver_.cuMemcpyHtoDAsync_(memory_ + kPiece, host_ + kPiece, kPiece, stream_),
        "cuMemcpyHtoDAsync");
    synchronize();
    properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties_.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    properties_.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    did(driver_.cuMemGetAllocationGranularity_(&unit_, &properties_,
                                               CU_MEM_ALLOC_GRANULARITY_MINIMUM),
        "cuMemGetAllocationGranularity");
    did(driver_.cuMemAddressReserve_(&reserved_, unit_, 0, 0, 0), "cuMemAddressReserve");
  }

  /// memory_: what the graph sets; known bytes; what it copies to the device and back.
  void make_graph(CUcontext context) {
    CUgraph graph = nullptr;
    did(driver_.cuGraphCreate_(&graph, 0), "cuGraphCreate");
    CUDA_MEMSET_NODE_PARAMS set{};
    set.dst = memory_;
    set.value = kSet;
    set.elementSize = 1;
    set.width = kPiece;
    set.height = 1;
    CUgraphNode last = nullptr;
    did(driver_.cuGraphAddMemsetNode_(&last, graph, nullptr, 0, &set, context),
        "cuGraphAddMemsetNode");
    CUDA_MEMCPY3D copy{};
    copy.WidthInBytes = kPiece;
    copy.Height = copy.Depth = 1;
    const auto add = [&] {
      CUgraphNode node = nullptr;
      did(driver_.cuGraphAddMemcpyNode_(&node, graph, &last, 1, &copy, context),
          "cuGraphAddMemcpyNode");
      last = node;
    };
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = host_;
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice = memory_ + 2 * kPiece;
    add();
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    for (std::size_t i = 0; i < 3; ++i) {
      copy.srcDevice = memory_ + i * kPiece;
      copy.dstHost = host_ + (1 + i) * kPiece;
      add();
    }
    did(driver_.cuGraphInstantiateWithFlags_(&launchable_, graph, 0),
        "cuGraphInstantiateWithFlags");
  }

  void make_pool() {
    if (place_ == Place::kHostNuma)
      did(driver_.cuMemAddressReserve_(&pool_, arguments_.bytes, 0, 0, 0), "cuMemAddressReserve");
    if (place_ != Place::kMemfd) return;
    const Fd file(::memfd_create("amem-proof", MFD_CLOEXEC));
    did_host(file && ::ftruncate(file.get(), kPiece) == 0, "memfd_create");
    void* const at = ::mmap(nullptr, kPiece, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    did_host(at != MAP_FAILED, "mmap");
    pool_ = reinterpret_cast<CUdeviceptr>(at);
    did(driver_.cuMemHostRegister_(at, kPiece, CU_MEMHOSTREGISTER_PORTABLE), "cuMemHostRegister");
  }

  void allow(CUdeviceptr at, std::size_t bytes) const {
    CUmemAccessDesc access{};
    access.location = properties_.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    did(driver_.cuMemSetAccess_(at, bytes, &access, 1), "cuMemSetAccess");
  }

  /// As after a resume: memory is mapped again at the addresses that were kept.
  void check_reserved() const {
    CUmemGenericAllocationHandle handle = 0;
    did(driver_.cuMemCreate_(&handle, unit_, &properties_, 0), "cuMemCreate");
    did(driver_.cuMemMap_(reserved_, unit_, 0, handle, 0), "cuMemMap");
    did(driver_.cuMemRelease_(handle), "cuMemRelease");
    allow(reserved_, unit_);
    const std::size_t bytes = std::min(unit_, kPiece);
    host_[kPiece] = host_[kPiece + bytes - 1] = 0;
    did(driver_.cuMemsetD8Async_(reserved_, kSet, unit_, stream_), "cuMemsetD8Async");
    did(driver_.cuMemcpyDtoHAsync_(host_ + kPiece, reserved_, bytes, stream_), "cuMemcpyDtoHAsync");
    synchronize();
    if (host_[kPiece] != kSet || host_[kPiece + bytes - 1] != kSet)
      wrong("memory at reserved addresses");
    did(driver_.cuMemUnmap_(reserved_, unit_), "cuMemUnmap");
  }

  void check_pool(Fd pool) {
    if (!place_) return;
    if (place_ == Place::kHostNuma) map_pool(std::move(pool));
    // Copied as ranks save and load.
    auto* const at = reinterpret_cast<void*>(pool_);
    if (!saved_)
      did(driver_.cuMemcpyDtoHAsync_(at, memory_ + kPiece, kPiece, stream_), "saving to the pool");
    saved_ = true;
    did(driver_.cuMemcpyHtoDAsync_(memory_, at, kPiece, stream_), "loading from the pool");
    did(driver_.cuMemcpyDtoHAsync_(host_ + kPiece, memory_, kPiece, stream_), "cuMemcpyDtoHAsync");
    synchronize();
    expect(host_ + kPiece, 2, "the pool");
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
    allow(pool_, arguments_.bytes);
  }

  const TargetArguments arguments_;
  const std::optional<Place> place_;
  Driver driver_;
  CUstream stream_ = nullptr;
  std::uint8_t* host_ = nullptr;  // registered: known bytes, and three pieces that are written
  CUdeviceptr memory_ = 0;
  CUgraphExec launchable_ = nullptr;
  CUmemAllocationProp properties_{};
  std::size_t unit_ = 0;
  CUdeviceptr reserved_ = 0;
  CUdeviceptr pool_ = 0;
  bool saved_ = false;  // there are bytes in the pool
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

void say(const char* word) {
  std::puts(word);
  std::fflush(stdout);
}

}  // namespace

int run_target(int argc, char** argv) {
  TargetArguments arguments;
  CLI::App app("a process that is checkpointed to prove that it can be", "amem-checkpoint target");
  app.add_option("DEVICE", arguments.device, "its number or UUID")->required();
  app.add_option("--pool", arguments.pool, "host_numa or memfd. Default: no pool");
  app.add_option("--bytes", arguments.bytes,
                 "of the pool's memory, whose descriptor comes with each line (host_numa)");
  app.add_flag("--with-parent", arguments.with_parent,
               "end when the program ends that has started this one");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (arguments.with_parent && (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::getppid() == 1))
    end(1, stderr, "amem-checkpoint: the program that has started it has ended");
  Target target(arguments);
  target.make();
  say("ready");
  for (Fd pool; next_line(pool);) {
    target.check(std::move(pool));
    say("right");
  }
  ::_exit(0);
}

}  // namespace amem
