// amem_handle_bench: what the driver takes for memory in handles of one size.
//
//   amem_handle_bench [MIB [RUNS [SIZE...]]]      4096 MiB, 5 runs, sizes of a handle in MiB
//   amem_handle_bench pool [MIB [RUNS [SIZE]]]    host memory: 16384 MiB, 5 runs, of 1024 MiB each
//   amem_handle_bench beside [MIB [RUNS [SIZE]]]  4096 MiB, 5 runs, handles of 20 MiB
//
// A line of JSON for each size, and for each again with the memory of another device, if there is
// one: milliseconds per GiB that one process spends on creating and exporting so much memory,
// importing and mapping it, granting a device access, unmapping it, and closing what keeps it, and
// on the last two together. `pool`: GiB/s of memory like the pool's, on the NUMA nodes of all
// devices, that one thread creates and exports, and several threads at the same time: one for each
// node, two where there is one node. `beside`: milliseconds of a copy of so much memory to the
// host, of unmapping and closing as much other memory in handles of this size, of both at the same
// time, and of the unmapping and closing while that copy runs; and where the process keeps the
// handles: of the unmapping while the copy runs, of then releasing them, and of closing. The first
// run is a warm-up. Exit status: 0, 1 on an error, 2 wrong arguments, 77 without a GPU.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/driver.h"
#include "tests/bench/samples.h"

namespace amem::bench {
namespace {

constexpr double kGiB = 1U << 30;
constexpr int kSkipped = 77;

struct Options {
  std::uint64_t bytes = 4ULL << 30;
  std::vector<std::uint64_t> sizes{8, 32, 128, 256, 384, 510, 512, 1024};  // MiB
  int runs = 5;
};

struct Costs {  // milliseconds per GiB
  Samples create, import_and_map, access, unmap, close, unmap_and_close;
};

struct PoolSpeeds {  // GiB/s
  Samples one_thread, threads;
};

struct Beside {  // milliseconds
  Samples copy, unmap_and_close, both, unmap_and_close_meanwhile;
  Samples unmap_meanwhile, release_after, close_after;  // with the handles kept
};

class Trial {
 public:
  explicit Trial(const Driver& driver) : driver_(driver) {}

  /// Memory of device `there` in handles of `size` bytes, which device 0 is given access to.
  Costs run(int there, std::uint64_t size, const Options& options) {
    const std::uint64_t count = options.bytes / size;
    const double gib = static_cast<double>(count * size) / kGiB;
    CUdeviceptr address = 0;
    must(driver_.cuMemAddressReserve_(&address, count * size, 0, 0, 0), "cuMemAddressReserve");
    Costs costs;
    for (int run = 0; run <= options.runs; ++run) {
      std::vector<int> descriptors(count, -1);
      const double times[] = {
          timed([&] {
            for (int& fd : descriptors) fd = create({CU_MEM_LOCATION_TYPE_DEVICE, {there}}, size);
          }),
          timed([&] {
            for (std::uint64_t i = 0; i < count; ++i)
              import(descriptors[i], address + i * size, size);
          }),
          timed([&] {
            for (std::uint64_t i = 0; i < count; ++i) grant(address + i * size, size);
          }),
          timed([&] { must(driver_.cuMemUnmap_(address, count * size), "cuMemUnmap"); }),
          timed([&] {
            for (int fd : descriptors) ::close(fd);
          })};
      if (run == 0) continue;
      Samples* const samples[] = {&costs.create, &costs.import_and_map, &costs.access, &costs.unmap,
                                  &costs.close};
      for (std::size_t i = 0; i < std::size(times); ++i) samples[i]->add(times[i] / gib);
      costs.unmap_and_close.add((times[3] + times[4]) / gib);
    }
    must(driver_.cuMemAddressFree_(address, count * size), "cuMemAddressFree");
    return costs;
  }

  /// Memory of these NUMA nodes in handles of `size` bytes.
  PoolSpeeds make_pool(const std::vector<int>& nodes, std::uint64_t size, const Options& options) {
    const std::uint64_t count = options.bytes / size;
    const double gib = static_cast<double>(count * size) / kGiB;
    std::vector<int> descriptors(count, -1);
    const auto make = [&](std::uint64_t first, std::uint64_t step) {
      for (std::uint64_t i = first; i < count; i += step)
        descriptors[i] = create({CU_MEM_LOCATION_TYPE_HOST_NUMA, {nodes[i % nodes.size()]}}, size);
    };
    const auto give_back = [&] {
      for (int fd : descriptors) ::close(fd);
    };
    PoolSpeeds speeds;
    for (int run = 0; run <= options.runs; ++run) {
      const double alone = timed([&] { make(0, 1); });
      give_back();
      if (run > 0) speeds.one_thread.add(1000 * gib / alone);
      const double together = timed([&] {
        const std::size_t count_of_threads = std::max<std::size_t>(2, nodes.size());
        std::vector<std::jthread> threads;
        for (std::size_t n = 0; n < count_of_threads; ++n)
          threads.emplace_back([&, n] { make(n, count_of_threads); });
      });
      give_back();
      if (run > 0) speeds.threads.add(1000 * gib / together);
    }
    return speeds;
  }

  /// Whether memory can be freed while a copy engine copies other memory of device 0.
  Beside free_beside_copy(std::uint64_t size, const Options& options) {
    const std::uint64_t count = options.bytes / size;
    const std::uint64_t bytes = count * size;
    CUdeviceptr address = 0;
    CUdeviceptr copied = 0;
    void* host = nullptr;
    CUstream stream = nullptr;
    must(driver_.cuMemAddressReserve_(&address, bytes, 0, 0, 0), "cuMemAddressReserve");
    must(driver_.cuMemAddressReserve_(&copied, bytes, 0, 0, 0), "cuMemAddressReserve");
    must(driver_.cuMemHostAlloc_(&host, bytes, 0), "cuMemHostAlloc");
    must(driver_.cuStreamCreate_(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    const int kept = create({CU_MEM_LOCATION_TYPE_DEVICE, {0}}, bytes);
    import(kept, copied, bytes);
    grant(copied, bytes);
    std::vector<int> descriptors(count, -1);
    const auto make = [&] {
      for (std::uint64_t i = 0; i < count; ++i) {
        descriptors[i] = create({CU_MEM_LOCATION_TYPE_DEVICE, {0}}, size);
        import(descriptors[i], address + i * size, size);
        grant(address + i * size, size);
      }
    };
    const auto free = [&] {
      for (std::uint64_t i = 0; i < count; ++i) {
        must(driver_.cuMemUnmap_(address + i * size, size), "cuMemUnmap");
        ::close(descriptors[i]);
      }
    };
    const auto begin_copy = [&] {
      must(driver_.cuMemcpyDtoHAsync_(host, copied, bytes, stream), "cuMemcpyDtoHAsync");
    };
    const auto end_copy = [&] {
      must(driver_.cuStreamSynchronize_(stream), "cuStreamSynchronize");
    };
    Beside beside;
    for (int run = 0; run <= options.runs; ++run) {
      const double copy = timed([&] {
        begin_copy();
        end_copy();
      });
      make();
      const double freed = timed(free);
      make();
      double meanwhile = 0;
      const double both = timed([&] {
        begin_copy();
        meanwhile = timed(free);
        end_copy();
      });
      make();
      std::vector<CUmemGenericAllocationHandle> handles(count);
      begin_copy();
      const double unmapped = timed([&] {
        for (std::uint64_t i = 0; i < count; ++i) {
          const CUdeviceptr at = address + i * size;
          must(driver_.cuMemRetainAllocationHandle_(&handles[i], reinterpret_cast<void*>(at)),
               "cuMemRetainAllocationHandle");
          must(driver_.cuMemUnmap_(at, size), "cuMemUnmap");
        }
      });
      end_copy();
      const double released = timed([&] {
        for (const auto handle : handles) must(driver_.cuMemRelease_(handle), "cuMemRelease");
      });
      const double closed = timed([&] {
        for (int fd : descriptors) ::close(fd);
      });
      if (run == 0) continue;
      beside.unmap_meanwhile.add(unmapped);
      beside.release_after.add(released);
      beside.close_after.add(closed);
      beside.copy.add(copy);
      beside.unmap_and_close.add(freed);
      beside.both.add(both);
      beside.unmap_and_close_meanwhile.add(meanwhile);
    }
    must(driver_.cuMemUnmap_(copied, bytes), "cuMemUnmap");
    ::close(kept);
    must(driver_.cuMemAddressFree_(copied, bytes), "cuMemAddressFree");
    must(driver_.cuMemAddressFree_(address, bytes), "cuMemAddressFree");
    must(driver_.cuStreamDestroy_(stream), "cuStreamDestroy");
    // The host memory is freed when the process ends.
    return beside;
  }

  void must(CUresult result, const char* call) const {
    if (result == CUDA_SUCCESS) return;
    std::fprintf(stderr, "%s: %s\n", call, driver_.name(result).c_str());
    std::exit(1);
  }

 private:
  template <class Work>
  static double timed(Work work) {
    const auto began = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began)
        .count();
  }

  int create(const CUmemLocation& location, std::uint64_t size) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location = location;
    properties.allocFlags.gpuDirectRDMACapable = location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemGenericAllocationHandle handle = 0;
    must(driver_.cuMemCreate_(&handle, size, &properties, 0), "cuMemCreate");
    int fd = -1;
    must(driver_.cuMemExportToShareableHandle_(&fd, handle,
                                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
         "cuMemExportToShareableHandle");
    must(driver_.cuMemRelease_(handle), "cuMemRelease");
    return fd;
  }

  void import(int fd, CUdeviceptr address, std::uint64_t size) {
    CUmemGenericAllocationHandle handle = 0;
    must(driver_.cuMemImportFromShareableHandle_(
             &handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
         "cuMemImportFromShareableHandle");
    must(driver_.cuMemMap_(address, size, 0, handle, 0), "cuMemMap");
    must(driver_.cuMemRelease_(handle), "cuMemRelease");
  }

  void grant(CUdeviceptr address, std::uint64_t size) {
    CUmemAccessDesc access{};
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    must(driver_.cuMemSetAccess_(address, size, &access, 1), "cuMemSetAccess");
  }

  const Driver& driver_;
};

void print(std::uint64_t size, int there, const Costs& costs) {
  std::printf(
      "{\"handle_bytes\":%llu,\"peer\":%s,\"ms_per_gib\":{\"create and export\":%s,"
      "\"import and map\":%s,\"access\":%s,\"unmap\":%s,\"close\":%s,"
      "\"unmap and close\":%s}}\n",
      static_cast<unsigned long long>(size), there != 0 ? "true" : "false",
      costs.create.json().c_str(), costs.import_and_map.json().c_str(), costs.access.json().c_str(),
      costs.unmap.json().c_str(), costs.close.json().c_str(), costs.unmap_and_close.json().c_str());
  std::fflush(stdout);
}

void print(std::size_t nodes, const PoolSpeeds& speeds) {
  std::printf("{\"numa_nodes\":%zu,\"gib_per_s\":{\"one thread\":%s,\"%s\":%s}}\n", nodes,
              speeds.one_thread.json().c_str(),
              nodes > 1 ? "a thread for each node" : "two threads", speeds.threads.json().c_str());
}

void print(std::uint64_t size, const Beside& beside) {
  std::printf(
      "{\"handle_bytes\":%llu,\"ms\":{\"a copy\":%s,\"unmap and close\":%s,\"both at once\":%s,"
      "\"unmap and close, beside the copy\":%s,\"unmap beside the copy, handles kept\":%s,"
      "\"release of kept handles\":%s,\"close, nothing else left\":%s}}\n",
      static_cast<unsigned long long>(size), beside.copy.json().c_str(),
      beside.unmap_and_close.json().c_str(), beside.both.json().c_str(),
      beside.unmap_and_close_meanwhile.json().c_str(), beside.unmap_meanwhile.json().c_str(),
      beside.release_after.json().c_str(), beside.close_after.json().c_str());
}

/// Of all devices, as the broker finds them for its pool.
std::vector<int> numa_nodes(const Driver& driver, int devices) {
  std::set<int> nodes;
  for (int i = 0; i < devices; ++i) {
    CUdevice device = 0;
    int node = -1;
    if (driver.cuDeviceGet_(&device, i) == CUDA_SUCCESS &&
        driver.cuDeviceGetAttribute_(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device) ==
            CUDA_SUCCESS &&
        node >= 0)
      nodes.insert(node);
  }
  if (nodes.empty()) nodes.insert(0);
  return {nodes.begin(), nodes.end()};
}

int run(int argc, char** argv) {
  Options options;
  std::vector<std::uint64_t> numbers;
  const bool pool = argc > 1 && std::strcmp(argv[1], "pool") == 0;
  const bool beside = argc > 1 && std::strcmp(argv[1], "beside") == 0;
  if (pool) {
    options.bytes = 16ULL << 30;
    options.sizes = {1024};
  }
  if (beside) options.sizes = {20};
  for (int i = pool || beside ? 2 : 1; i < argc; ++i) {
    char* end = nullptr;
    numbers.push_back(std::strtoull(argv[i], &end, 10));
    if (numbers.back() > 0 && numbers.back() <= 1U << 20U && *end == '\0') continue;
    std::fprintf(stderr, "usage: %s [pool|beside] [MIB [RUNS [SIZE...]]]\n", argv[0]);
    return 2;
  }
  if (!numbers.empty()) options.bytes = numbers[0] << 20U;
  if (numbers.size() > 1) options.runs = static_cast<int>(numbers[1]);
  if (numbers.size() > 2) options.sizes.assign(numbers.begin() + 2, numbers.end());
  Driver driver;
  int devices = 0;
  if (!driver.load().ok() || driver.cuInit_(0) != CUDA_SUCCESS ||
      driver.cuDeviceGetCount_(&devices) != CUDA_SUCCESS || devices == 0) {
    std::fprintf(stderr, "skipped: no GPU\n");
    return kSkipped;
  }
  Trial trial(driver);
  for (int i = std::min(devices, 2) - 1; i >= 0; --i) {  // device 0 stays current
    CUdevice device = 0;
    CUcontext context = nullptr;
    trial.must(driver.cuDeviceGet_(&device, i), "cuDeviceGet");
    trial.must(driver.cuDevicePrimaryCtxRetain_(&context, device), "cuDevicePrimaryCtxRetain");
    trial.must(driver.cuCtxSetCurrent_(context), "cuCtxSetCurrent");
  }
  if (pool) {
    const std::vector<int> nodes = numa_nodes(driver, devices);
    print(nodes.size(), trial.make_pool(nodes, options.sizes[0] << 20U, options));
    return 0;
  }
  if (beside) {
    const std::uint64_t size = options.sizes[0] << 20U;
    print(size, trial.free_beside_copy(size, options));
    return 0;
  }
  for (int there = 0; there < std::min(devices, 2); ++there)
    for (const std::uint64_t mib : options.sizes) {
      const std::uint64_t size = mib << 20U;
      if (size <= options.bytes) print(size, there, trial.run(there, size, options));
    }
  return 0;
}

}  // namespace
}  // namespace amem::bench

int main(int argc, char** argv) { return amem::bench::run(argc, argv); }
