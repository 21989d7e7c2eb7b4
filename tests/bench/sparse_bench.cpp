// What the kernels of sparse copies cost on this machine's driver: amem_sparse_bench [MIB] [RUNS].
//
// For several shares of zeros, over one piece of device memory and a pool of pinned memory: the
// look at it, the sparse copy out and in, the time of the copy engine for all of it. Medians; JSON
// lines.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "shim/copies/sparse_copier.h"

namespace {

using namespace amem;
using namespace amem::shim;

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s: error %d\n", what, static_cast<int>(result));
  std::exit(1);
}

void check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.text().c_str());
  std::exit(1);
}

double median_ms(int runs, const std::function<void()>& before, const std::function<void()>& work) {
  std::vector<double> times;
  for (int i = 0; i <= runs; ++i) {  // the first one warms up
    before();
    const auto began = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
    if (i > 0) times.push_back(took.count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t length = (argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 2048) << 20;
  const int runs = argc > 2 ? std::atoi(argv[2]) : 7;
  Driver driver;
  check(driver.load());
  check(driver.cuInit_(0), "cuInit");
  LocalDevices devices(driver);
  check(devices.load());
  LocalDevices::Use use(devices, 0);
  check(use.result(), "context");

  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr memory = 0;
  check(driver.cuMemCreate_(&handle, length, &properties, 0), "cuMemCreate");
  check(driver.cuMemAddressReserve_(&memory, length, 0, 0, 0), "cuMemAddressReserve");
  check(driver.cuMemMap_(memory, length, 0, handle, 0), "cuMemMap");
  CUmemAccessDesc access{};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  check(driver.cuMemSetAccess_(memory, length, &access, 1), "cuMemSetAccess");
  void* pool = nullptr;
  check(driver.cuMemHostAlloc_(&pool, length, 0), "cuMemHostAlloc");
  CUstream stream = nullptr;
  check(driver.cuStreamCreate_(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  const auto wait = [&] { check(driver.cuStreamSynchronize_(stream), "cuStreamSynchronize"); };

  SparseCopier copier(driver, devices);
  copier.prepare(0);
  Piece piece;
  piece.length = length;
  piece.device = 0;
  piece.address = memory;
  piece.pool = reinterpret_cast<CUdeviceptr>(pool);
  piece.form = Form::kSparse;
  for (const unsigned zeros : {100U, 81U, 40U, 3U, 0U}) {
    check(driver.cuMemsetD8Async_(memory, 0, length, stream), "cuMemsetD8Async");
    for (std::uint64_t block = 0; block < length / sparse::kBlock; ++block)
      if (block * 37 % 100 >= zeros)
        check(driver.cuMemsetD8Async_(memory + block * sparse::kBlock, 1, sparse::kBlock, stream),
              "cuMemsetD8Async");
    wait();
    std::vector<Piece> decided;
    const auto offer = [&] {
      if (!copier.offer(piece)) check(Status(Code::kUnavailable, "no kernels on this driver"));
    };
    const double scan = median_ms(runs, offer, [&] {
      check(copier.start());
      check(copier.finish());
    });
    const double save = median_ms(runs, offer, [&] {
      decided.clear();
      check(copier.start());
      check(copier.store(decided));
      check(copier.finish());
    });
    double load = 0;
    if (decided[0].form == Form::kSparse) {
      load = median_ms(
          runs, [] {},
          [&] {
            check(copier.load(decided));
            check(copier.finish());
          });
    }
    const double checksum = median_ms(
        runs, [] {}, [&] { check(copier.checksums(decided)); });
    const double dense = median_ms(
        runs, [] {},
        [&] {
          check(driver.cuMemcpyDtoHAsync_(pool, memory, length, stream), "cuMemcpyDtoHAsync");
          wait();
        });
    const double gigabytes = static_cast<double>(decided[0].stored) / 1e9;
    std::printf(
        "{\"bytes\":%zu,\"zeros_percent\":%u,\"sparse\":%s,\"stored_bytes\":%llu,\"scan_ms\":%.3f,"
        "\"save_ms\":%.3f,\"save_gb_s\":%.1f,\"load_ms\":%.3f,\"load_gb_s\":%.1f,"
        "\"checksum_ms\":%.3f,\"dense_copy_ms\":%.3f}\n",
        length, zeros, decided[0].form == Form::kSparse ? "true" : "false",
        static_cast<unsigned long long>(decided[0].stored), scan, save, gigabytes / save * 1e3,
        load, load > 0 ? gigabytes / load * 1e3 : 0, checksum, dense);
    std::fflush(stdout);
  }
  return 0;
}
