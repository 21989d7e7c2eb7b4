#include "tests/puppet/newer.h"

#include <dlfcn.h>

#include "tests/puppet/check.h"
#include "tests/workload/base/failure.h"

namespace amem::puppet {
namespace {

using GetProcAddress = CUresult (*)(const char*, void**, int, cuuint64_t,
                                    CUdriverProcAddressQueryResult*);

void* Driver() {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) throw workload::Failure(dlerror());
  return driver;
}

void* AskProcAddress(GetProcAddress get, const std::string& name, int version,
                     workload::Answer* answer) {
  void* found = nullptr;
  CUdriverProcAddressQueryResult status{};
  const CUresult result = get(name.c_str(), &found, version, CU_GET_PROC_ADDRESS_DEFAULT, &status);
  answer->Number("result", static_cast<std::uint64_t>(result));
  answer->Number("status", static_cast<std::uint64_t>(status));
  return found;
}

void* Find(const std::string& name, const std::string& way, int version, workload::Answer* answer) {
  dlerror();
  if (way == "dlsym") {
    void* const found = dlsym(Driver(), name.c_str());
    const char* const error = dlerror();
    answer->Text("error", error != nullptr ? error : "");
    return found;
  }
  if (way == "v1") {
    using Older = CUresult (*)(const char*, void**, int, cuuint64_t);
    const auto get = reinterpret_cast<Older>(dlsym(Driver(), "cuGetProcAddress"));
    void* found = nullptr;
    answer->Number("result", static_cast<std::uint64_t>(
                                 get(name.c_str(), &found, version, CU_GET_PROC_ADDRESS_DEFAULT)));
    return found;
  }
  if (way == "v2") return AskProcAddress(&cuGetProcAddress_v2, name, version, answer);
  if (way == "v2-by-dlsym") {
    void* const get = dlsym(Driver(), "cuGetProcAddress_v2");
    return AskProcAddress(reinterpret_cast<GetProcAddress>(get), name, version, answer);
  }
  void* const library = dlopen(way.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) throw workload::Failure("not loaded: " + way);
  void* const found = dlsym(library, "puppet_copies");
  dlclose(library);
  return found;
}

}  // namespace

void* FindCall(const std::string& name, const std::string& way, int version,
               workload::Answer* answer) {
  void* const found = Find(name, way, version, answer);
  answer->Number("found", found != nullptr ? 1 : 0);
  return found;
}

void CopyNothing(const std::string& way) {
  void* copy = nullptr;
  const auto find = [&copy](const char* name, int version) {
    Check(cuGetProcAddress(name, &copy, version, CU_GET_PROC_ADDRESS_DEFAULT, nullptr), name);
    if (copy == nullptr) throw workload::Failure(std::string("there is no ") + name);
  };
  if (way == "attributes") {
    find("cuMemcpyWithAttributesAsync", 13020);
    using Copy = CUresult (*)(CUdeviceptr, CUdeviceptr, std::size_t, CUmemcpyAttributes*, CUstream);
    Check(reinterpret_cast<Copy>(copy)(0, 0, 0, nullptr, nullptr), "cuMemcpyWithAttributesAsync");
  } else if (way == "fabric") {
    find("cuFabricCpyBatchAsync", 13050);
    using Copy = CUresult (*)(std::size_t, void*, unsigned long long, CUstream);
    Check(reinterpret_cast<Copy>(copy)(0, nullptr, 0, nullptr), "cuFabricCpyBatchAsync");
  } else {
    throw workload::Failure("no such way to copy: " + way);
  }
}

void Copier::Start(void* call, CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  Stop();
  const Copy copy = call != nullptr
                        ? reinterpret_cast<Copy>(call)
                        : +[](CUdeviceptr there, CUdeviceptr here, std::size_t n, CUstream s) {
                            return cuMemcpyDtoDAsync(there, here, n, s);
                          };
  stop_ = false;
  error_.clear();
  thread_ = std::thread([=, this] { Run(copy, to, from, bytes); });
}

void Copier::Stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

std::uint64_t Copier::Count() {
  const std::lock_guard lock(mutex_);
  if (!error_.empty()) throw workload::Failure("the loop ended: " + error_);
  return count_;
}

void Copier::Run(Copy copy, CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  try {
    Check(cuCtxSetCurrent(context_), "cuCtxSetCurrent");
    while (!stop_) {
      Check(copy(to, from, bytes, nullptr), "copy");
      Check(cuCtxSynchronize(), "cuCtxSynchronize");
      ++count_;
    }
  } catch (const workload::Failure& failure) {
    const std::lock_guard lock(mutex_);
    error_ = failure.what();
  }
}

}  // namespace amem::puppet
