// The checks of the host: its kernel, that no MPS stands between processes and GPUs,
// and the CUDA driver.
#include <cuda.h>
#include <sys/utsname.h>

#include <charconv>
#include <filesystem>
#include <future>
#include <memory>
#include <thread>

#include "addons/tools/diagnosis/checks.h"
#include "common/driver.h"
#include "common/protocol.h"

namespace amem::ctl {
namespace {

using Version = std::pair<int, int>;

constexpr Version kKernel{5, 3};  // pidfd_open

/// The first two numbers of "6.1.0-18-amd64"; zeros where there are none.
Version version_of(const std::string& text) {
  Version version{0, 0};
  const char* const end = text.data() + text.size();
  const auto major = std::from_chars(text.data(), end, version.first);
  if (major.ec == std::errc() && major.ptr != end && *major.ptr == '.')
    std::from_chars(major.ptr + 1, end, version.second);
  return version;
}

bool has(const Driver& driver, CUdevice device, CUdevice_attribute what) {
  int value = 0;
  return driver.cuDeviceGetAttribute_(&value, what, device) == CUDA_SUCCESS && value != 0;
}

DriverFacts::Gpu gpu_of(const Driver& driver, CUdevice device) {
  DriverFacts::Gpu gpu;
  CUuuid uuid{};
  char name[128] = "";
  if (driver.cuDeviceGetUuid_(&uuid, device) == CUDA_SUCCESS)
    gpu.uuid = to_string(make_uuid(uuid.bytes));
  if (driver.cuDeviceGetName_(name, sizeof name, device) == CUDA_SUCCESS) gpu.name = name;
  gpu.cumem = has(driver, device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) &&
              has(driver, device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
  gpu.host_memory =
      has(driver, device, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
  gpu.multicast = has(driver, device, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED);
  int major = 0;
  int minor = 0;
  if (driver.cuDeviceGetAttribute_(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) ==
          CUDA_SUCCESS &&
      driver.cuDeviceGetAttribute_(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device) ==
          CUDA_SUCCESS)
    gpu.generation = major * 10 + minor;
  return gpu;
}

DriverFacts look() {
  using Trouble = DriverFacts::Trouble;
  DriverFacts facts;
  Driver driver;
  if (const Status loaded = driver.load(); !loaded.ok()) {
    facts.trouble = Trouble::kMissing;
    facts.error = loaded.text();
    return facts;
  }
  const auto failed = [&](CUresult result) {
    if (result == CUDA_SUCCESS) return false;
    facts.trouble = Trouble::kInit;
    facts.result = static_cast<int>(result);
    facts.error = driver.name(result);
    return true;
  };
  if (driver.cuDriverGetVersion_ != nullptr) driver.cuDriverGetVersion_(&facts.version);
  int count = 0;
  if (failed(driver.cuInit_(0)) || failed(driver.cuDeviceGetCount_(&count))) return facts;
  std::vector<CUdevice> devices;
  for (int i = 0; i < count; ++i) {
    CUdevice device = 0;
    if (failed(driver.cuDeviceGet_(&device, i))) return facts;
    devices.push_back(device);
    facts.gpus.push_back(gpu_of(driver, device));
  }
  if (driver.cuDeviceCanAccessPeer_ == nullptr) return facts;
  for (std::size_t a = 0; a < devices.size(); ++a) {
    for (std::size_t b = a + 1; b < devices.size(); ++b) {
      int can = 0;
      if (driver.cuDeviceCanAccessPeer_(&can, devices[a], devices[b]) != CUDA_SUCCESS || can == 0)
        facts.strangers.emplace_back(facts.gpus[a].uuid, facts.gpus[b].uuid);
    }
  }
  return facts;
}

std::string remedy_of_init(int result) {
  switch (result) {
    case CUDA_ERROR_NO_DEVICE:
      return "check that CUDA_VISIBLE_DEVICES does not exclude all GPUs, that `nvidia-smi` lists "
             "some, and that the container has them (`--gpus all`)";
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
      return "the kernel's driver and libcuda.so.1 have different versions. Restart the node after "
             "an upgrade, and remove libcuda's compatibility package from a container";
    case CUDA_ERROR_SYSTEM_NOT_READY:
      return "start nvidia-fabricmanager, which GPUs behind NVSwitch require";
    case CUDA_ERROR_OPERATING_SYSTEM:
      return "this user must be able to open /dev/nvidiactl, /dev/nvidia-uvm and /dev/nvidiaN";
    default:
      return "`nvidia-smi` and the kernel's log (`dmesg | grep NVRM`) say more";
  }
}

/// The API of driver 525, from which on amem is built to work; and the oldest that it is tested
/// with, in part on the simulated driver.
constexpr int kOldest = 12000;
constexpr int kOldestTested = 12040;
constexpr int kGenerationThatRan = 90;  // H100, H200

std::string dotted(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

/// Checks what docs/getting-started.md requires, and whether amem was tested with it.
void check_requirements(const DriverFacts& facts, Findings* findings) {
  if (facts.version != 0 && facts.version < kOldestTested)
    findings->push_back({facts.version < kOldest, "driver-version",
                         "the driver supports CUDA up to " + dotted(facts.version),
                         facts.version < kOldest ? "amem requires driver 525 or newer"
                                                 : "amem has been tested with CUDA 12.4 and newer",
                         "install a newer driver"});
  for (const DriverFacts::Gpu& gpu : facts.gpus) {
    if (gpu.generation != 0 && gpu.generation != kGenerationThatRan)
      findings->push_back({false, "gpu-generation",
                           gpu.name + " " + gpu.uuid + " has compute capability " +
                               std::to_string(gpu.generation / 10) + "." +
                               std::to_string(gpu.generation % 10),
                           "amem has run on 9.0 (H100, H200) only",
                           "run its tests on this node first: share/amem/gpu-tests/run.sh"});
    if (gpu.name.find(" MIG ") != std::string::npos)
      findings->push_back({false, "mig", gpu.name + " " + gpu.uuid + " is a MIG instance",
                           "amem has never run on one",
                           "use whole GPUs, or run amem's tests on this node first: "
                           "share/amem/gpu-tests/run.sh"});
  }
}

}  // namespace

HostFacts look_at_host(const Environment& environment) {
  HostFacts facts;
  utsname name{};
  if (::uname(&name) == 0) facts.kernel = name.release;
  std::string pipe = value_in(environment, "CUDA_MPS_PIPE_DIRECTORY");
  pipe = (pipe.empty() ? "/tmp/nvidia-mps" : pipe) + "/control";
  std::error_code error;
  if (std::filesystem::exists(pipe, error)) facts.mps_pipe = pipe;
  return facts;
}

Findings check_host(const HostFacts& facts) {
  Findings findings;
  if (version_of(facts.kernel) < kKernel)
    findings.push_back({false, "kernel", "the kernel is " + facts.kernel,
                        "without pidfd_open, amemd considers a process as ended when its session "
                        "ends, even if it continues to run with memory of its group",
                        "use Linux 5.3 or newer; docs/security.md describes the consequences"});
  if (!facts.mps_pipe.empty())
    findings.push_back(
        {false, "mps", "an MPS daemon serves " + facts.mps_pipe,
         "amem has never run with CUDA's Multi-Process Service",
         "stop it (`echo quit | nvidia-cuda-mps-control`), unless you want to try that"});
  return findings;
}

DriverFacts look_at_driver(std::chrono::milliseconds timeout) {
  const auto promise = std::make_shared<std::promise<DriverFacts>>();
  std::future<DriverFacts> facts = promise->get_future();
  std::thread([promise] { promise->set_value(look()); }).detach();
  if (facts.wait_for(timeout) == std::future_status::ready) return facts.get();
  DriverFacts hangs;
  hangs.trouble = DriverFacts::Trouble::kHangs;
  hangs.error = "no answer within " + std::to_string(timeout.count()) + " ms";
  return hangs;
}

Findings check_driver(const DriverFacts& facts, const Environment& environment) {
  using Trouble = DriverFacts::Trouble;
  constexpr const char* kNeedsIt = "amemd and every rank require it";
  switch (facts.trouble) {
    case Trouble::kMissing:
      return {
          {true, "driver", facts.error, kNeedsIt,
           "install NVIDIA's driver (525 or newer), or start the container with NVIDIA's runtime"}};
    case Trouble::kInit:
      return {{true, "driver", "the CUDA driver does not start: " + facts.error, kNeedsIt,
               remedy_of_init(facts.result)}};
    case Trouble::kHangs:
      return {{true, "driver-hangs", "the CUDA driver does not answer: " + facts.error, kNeedsIt,
               "a GPU may have fallen off the bus: the kernel's log (`dmesg | grep -i xid`) says "
               "which; "
               "reset it, or restart the node"}};
    case Trouble::kNone:
      break;
  }
  Findings findings;
  check_requirements(facts, &findings);
  std::size_t without_host_memory = 0;
  for (const DriverFacts::Gpu& gpu : facts.gpus) {
    without_host_memory += gpu.host_memory ? 0 : 1;
    if (!gpu.cumem)
      findings.push_back(
          {true, "cumem",
           gpu.name + " " + gpu.uuid + " does not support cuMemCreate with file descriptors",
           "amem uses it to hold memory that other processes have mapped",
           "amem cannot broker memory on this GPU. Check whether it is a virtual GPU (vGPU, WSL), "
           "and ask its vendor"});
  }
  if (without_host_memory > 0)
    findings.push_back({false, "host-memory",
                        std::to_string(without_host_memory) + " of " +
                            std::to_string(facts.gpus.size()) +
                            " GPUs do not support cuMemCreate on the host",
                        "the pool then consists of memfds, and each rank must register them itself",
                        "this works; a newer driver may support it"});
  for (const auto& [one, other] : facts.strangers)
    findings.push_back(
        {false, "peers", one + " and " + other + " have no peer access",
         "NCCL copies through the host between them, which is slow with and without amem",
         "`nvidia-smi topo -p2p r` says why; IOMMU and ACS settings are the usual "
         "reasons"});
  bool multicast = facts.gpus.size() > 1;
  for (const DriverFacts::Gpu& gpu : facts.gpus) multicast = multicast && gpu.multicast;
  if (multicast && value_in(environment, "AMEM_NVLS") == "1")
    findings.push_back({false, "multicast", "AMEM_NVLS=1 lets NCCL use multicast on these GPUs",
                        "brokered memory in multicast objects has not run on hardware yet",
                        "unset it, unless you want to try that"});
  return findings;
}

}  // namespace amem::ctl
