// A multicast object: one puppet creates it, the others import it, each adds its device, binds
// memory of its own, and maps the object.
#include "tests/workload/base/bytes.h"
#include "tests/workload/puppet/puppet.h"

namespace amem::workload {
namespace {

void Create(Puppet& puppet, const Words& words, Answer*) {
  CUmulticastObjectProp prop{};
  prop.numDevices = static_cast<unsigned>(Number(words, 3));
  prop.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.size = Number(words, 2);
  std::size_t granularity = 0;
  Check(cuMulticastGetGranularity(&granularity, &prop, CU_MULTICAST_GRANULARITY_RECOMMENDED),
        "cuMulticastGetGranularity");
  puppet.team.bytes = prop.size = RoundedUp(prop.size, granularity);
  Check(cuMulticastCreate(&puppet.team.object, &prop), "cuMulticastCreate");
}

const Blocks::Block& BlockAt(const Puppet& puppet, const Words& words) {
  return puppet.blocks.At(Number(words, 2));
}

/// A call as CUDA 13.1 has it, which names the device.
template <class Function>
Function Newer(const char* name) {
  void* found = nullptr;
  Check(cuGetProcAddress(name, &found, 13010, CU_GET_PROC_ADDRESS_DEFAULT, nullptr),
        "cuGetProcAddress");
  return reinterpret_cast<Function>(found);
}

void BindFor(Puppet& puppet, const Words& words, Answer*) {
  using Call = CUresult (*)(Handle, CUdevice, std::size_t, Handle, std::size_t, std::size_t,
                            unsigned long long);
  const Blocks::Block& block = BlockAt(puppet, words);
  Check(Newer<Call>("cuMulticastBindMem")(puppet.team.object, puppet.device, Number(words, 3),
                                          block.handle, 0, block.bytes, 0),
        "cuMulticastBindMem_v2");
}

void BindAddressFor(Puppet& puppet, const Words& words, Answer*) {
  using Call =
      CUresult (*)(Handle, CUdevice, std::size_t, CUdeviceptr, std::size_t, unsigned long long);
  const Blocks::Block& block = BlockAt(puppet, words);
  Check(Newer<Call>("cuMulticastBindAddr")(puppet.team.object, puppet.device, Number(words, 3),
                                           block.address, block.bytes, 0),
        "cuMulticastBindAddr_v2");
}

}  // namespace

const Commands<Puppet> kTeamCommands = {
    {"team create", Create},
    {"team offer",
     [](Puppet& p, const Words& w, Answer*) { p.offering.Offer(p.team.object, Word(w, 2)); }},
    {"team join",
     [](Puppet& p, const Words& w, Answer*) {
       p.team.object = Offering::Take(Word(w, 2));
       p.team.bytes = Number(w, 3);
     }},
    {"team add",
     [](Puppet& p, const Words&, Answer*) {
       Check(cuMulticastAddDevice(p.team.object, p.device), "cuMulticastAddDevice");
     }},
    {"team bind",
     [](Puppet& p, const Words& w, Answer*) {
       const Blocks::Block& block = BlockAt(p, w);
       Check(cuMulticastBindMem(p.team.object, Number(w, 3), block.handle, 0, block.bytes, 0),
             "cuMulticastBindMem");
     }},
    {"team bind-address",
     [](Puppet& p, const Words& w, Answer*) {
       const Blocks::Block& block = BlockAt(p, w);
       Check(cuMulticastBindAddr(p.team.object, Number(w, 3), block.address, block.bytes, 0),
             "cuMulticastBindAddr");
     }},
    {"team bind-for", BindFor},
    {"team bind-address-for", BindAddressFor},
    {"team unbind",
     [](Puppet& p, const Words& w, Answer*) {
       Check(cuMulticastUnbind(p.team.object, p.device, Number(w, 3), BlockAt(p, w).bytes),
             "cuMulticastUnbind");
     }},
    {"team map",
     [](Puppet& p, const Words&, Answer*) {
       p.team.address = NcclCalls(p.device).Place(p.team.bytes, 0, p.team.object);
     }},
    {"team unmap",
     [](Puppet& p, const Words&, Answer*) {
       NcclCalls::Unmap(p.team.address, p.team.bytes);
       NcclCalls::FreeAddress(p.team.address, p.team.bytes);
     }},
    {"team release", [](Puppet& p, const Words&, Answer*) { NcclCalls::Release(p.team.object); }},
    {"team write", [](Puppet& p, const Words& w,
                      Answer*) { WriteBytes(p.team.address, p.team.bytes, Body{Number(w, 2)}); }},
    {"team set",
     [](Puppet& p, const Words& w, Answer*) {
       Check(cuMemsetD8(p.team.address, static_cast<unsigned char>(Number(w, 2)), p.team.bytes),
             "cuMemsetD8");
       Check(cuCtxSynchronize(), "cuCtxSynchronize");
     }},
};

}  // namespace amem::workload
