// amem-puppet [DEVICE]: a program that is linked to libcuda.so.1 and does what it is told on stdin.
#include <cuda.h>

#include <cstdlib>

#include "tests/workload/base/driver.h"
#include "tests/workload/puppet/puppet.h"

extern "C" CUresult cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device);

namespace amem::workload {
namespace {

void Attribute(Puppet& puppet, const Words& words, Answer* answer) {
  int value = 0;
  Check(cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(Number(words, 1)),
                             puppet.device),
        "cuDeviceGetAttribute");
  answer->Number("value", static_cast<std::uint64_t>(value));
}

/// A context that comes and goes. By the version of the call that every driver has; since CUDA 13
/// the header's name means another.
void UseContext(Puppet& puppet, const Words&, Answer*) {
  CUcontext context = nullptr;
  Check(cuCtxCreate_v2(&context, 0, puppet.device), "cuCtxCreate");
  Check(cuCtxDestroy(context), "cuCtxDestroy");
  Check(cuCtxSetCurrent(puppet.context), "cuCtxSetCurrent");
}

const Commands<Puppet> kDeviceCommands = {
    {"attribute", Attribute},
    {"context", UseContext},
    {"meminfo", [](Puppet&, const Words&, Answer* a) { ReportMemory(a); }},
};

void Run(int ordinal) {
  Check(cuInit(0), "cuInit");
  CUdevice device = 0;
  Check(cuDeviceGet(&device, ordinal), "cuDeviceGet");
  Puppet puppet(device);
  Check(cuDevicePrimaryCtxRetain(&puppet.context, device), "cuDevicePrimaryCtxRetain");
  Check(cuCtxSetCurrent(puppet.context), "cuCtxSetCurrent");
  Commands<Puppet> all;
  for (const auto* each :
       {&kBlockCommands, &kDeviceCommands, &kExitCommands, &kLookupCommands, &kNicCommands,
        &kOrderCommands, &kPoolCommands, &kTeamCommands, &kWorkCommands})
    all.insert(each->begin(), each->end());
  Print(Answer());
  if (Serve([&](const Words& words, Answer* answer) { Obey(all, puppet, words, answer); }))
    Print(Answer());
}

}  // namespace
}  // namespace amem::workload

int main(int argc, char** argv) {
  using namespace amem::workload;
  PrepareLast();
  Answer answer;
  FillIn(&answer, [&](Answer*) { Run(argc > 1 ? std::atoi(argv[1]) : 0); });
  if (!answer.ok()) Print(answer);
  return answer.ok() ? 0 : 1;
}
