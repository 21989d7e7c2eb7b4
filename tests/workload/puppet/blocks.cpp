// Memory, its bytes, and how it passes to other puppets.
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "tests/workload/base/bytes.h"
#include "tests/workload/base/unix_socket.h"
#include "tests/workload/puppet/puppet.h"

namespace amem::workload {
namespace {

constexpr const char* kSocket = "puppet.sock";
constexpr std::chrono::seconds kPatience{20};

}  // namespace

// ---- handles ----

Offering::~Offering() {
  if (thread_.joinable()) thread_.join();
}

void Offering::Offer(Handle handle, const std::string& directory) {
  if (thread_.joinable()) thread_.join();
  Fd exported(NcclCalls::ExportDescriptor(handle));
  ::unlink((directory + "/" + kSocket).c_str());  // of an offer before
  thread_ = std::thread([object = std::move(exported), listener = ListenAt(directory, kSocket)] {
    const Fd peer(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const char byte = 0;
    if (peer) SendPacket(peer.get(), &byte, 1, object.get());
  });
}

Handle Offering::Take(const std::string& directory) {
  const auto deadline = Clock::now() + kPatience;
  const Fd socket = ConnectTo(directory, kSocket, deadline);
  char byte = 0;
  Fd object;
  if (!ReceivePacket(socket.get(), &byte, 1, &object, &deadline) || !object)
    throw Failure("nobody offers anything");
  Handle handle = 0;
  Check(NcclCalls::ImportDescriptor(object.get(), &handle), "cuMemImportFromShareableHandle");
  return handle;
}

// ---- blocks ----

std::uint64_t Blocks::Add(const Block& block) {
  blocks_.emplace(next_id_, block);
  return next_id_++;
}

const Blocks::Block& Blocks::At(std::uint64_t id) const {
  const auto found = blocks_.find(id);
  if (found == blocks_.end()) throw Failure("no block " + std::to_string(id));
  return found->second;
}

std::uint64_t Blocks::Map(std::size_t bytes, bool whole, CUdevice device) {
  const NcclCalls calls(device);
  Block block;
  block.bytes = RoundedUp(bytes, calls.Granularity(whole));
  block.handle = calls.CreateHere(block.bytes);
  block.address = calls.Place(block.bytes, 0, block.handle);
  return Add(block);
}

std::uint64_t Blocks::Import(Handle handle, std::size_t bytes) {
  Block block;
  block.handle = handle;
  block.bytes = bytes;
  block.address = NcclCalls(device_).Place(bytes, 0, handle);
  return Add(block);
}

std::uint64_t Blocks::Allocate(std::size_t bytes, bool managed) {
  Block block;
  block.kind = Kind::kPlain;
  block.bytes = bytes;
  if (managed)
    Check(cuMemAllocManaged(&block.address, bytes, CU_MEM_ATTACH_GLOBAL), "cuMemAllocManaged");
  else
    Check(cuMemAlloc(&block.address, bytes), "cuMemAlloc");
  return Add(block);
}

std::uint64_t Blocks::Open(const std::string& handle, unsigned flags) {
  CUipcMemHandle binary{};
  if (handle.size() != 2 * sizeof binary.reserved) throw Failure("not a handle");
  for (std::size_t i = 0; i < sizeof binary.reserved; ++i)
    binary.reserved[i] = static_cast<char>(std::stoi(handle.substr(2 * i, 2), nullptr, 16));
  Block block;
  block.kind = Kind::kShared;
  Check(cuIpcOpenMemHandle(&block.address, binary, flags), "cuIpcOpenMemHandle");
  block.bytes = NcclCalls::RangeBytes(block.address);
  return Add(block);
}

std::uint64_t Blocks::AddPooled(CUdeviceptr address, std::size_t bytes) {
  Block block;
  block.kind = Kind::kPooled;
  block.address = address;
  block.bytes = bytes;
  return Add(block);
}

void Blocks::Free(std::uint64_t id) {
  if (At(id).handle != 0) Unmap(id);
  const Block block = At(id);
  if (block.kind == Kind::kMapped) return FreeAddress(id);
  blocks_.erase(id);
  if (block.kind == Kind::kPlain || block.kind == Kind::kPooled)
    return Check(cuMemFree(block.address), "cuMemFree");
  Check(cuIpcCloseMemHandle(block.address), "cuIpcCloseMemHandle");
}

void Blocks::Unmap(std::uint64_t id) {
  NcclCalls::Unmap(At(id).address, At(id).bytes);
  NcclCalls::Release(At(id).handle);
  blocks_.at(id).handle = 0;
}

void Blocks::FreeAddress(std::uint64_t id) {
  NcclCalls::FreeAddress(At(id).address, At(id).bytes);
  blocks_.erase(id);
}

// ---- commands ----

namespace {

const Blocks::Block& BlockAt(const Puppet& puppet, const Words& words) {
  return puppet.blocks.At(Number(words, 1));
}

template <class Content>
void Expect(const Puppet& puppet, const Words& words, const Content& content) {
  const Blocks::Block& block = BlockAt(puppet, words);
  if (const auto wrong = FirstWrongByte(block.address, block.bytes, content))
    throw Failure("block " + words[1] + " is wrong from byte " +
                  std::to_string(*wrong / kWord * kWord));
}

void Share(Puppet& puppet, const Words& words, Answer* answer) {
  CUipcMemHandle handle{};
  Check(cuIpcGetMemHandle(&handle, BlockAt(puppet, words).address + NumberAt(words, 2, 0)),
        "cuIpcGetMemHandle");
  std::string text;
  for (const char byte : handle.reserved) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
    text += digits;
  }
  answer->Text("handle", text);
}

void Flip(Puppet& puppet, const Words& words, Answer*) {
  const Blocks::Block& block = BlockAt(puppet, words);
  for (std::size_t i = 2; i < words.size(); ++i) {
    if (Number(words, i) >= block.bytes) throw Failure("no byte " + words[i]);
    FlipBits(block.address + Number(words, i), 0xff);
  }
}

void Grant(Puppet& puppet, const Words& words, Answer*) {
  const Blocks::Block& block = BlockAt(puppet, words);
  const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, {static_cast<int>(Number(words, 2))}};
  NcclCalls::SetAccess(block.address, block.bytes, location,
                       static_cast<CUmemAccess_flags>(Number(words, 3)));
}

void AccessFlags(Puppet& puppet, const Words& words, Answer* answer) {
  const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, {static_cast<int>(Number(words, 2))}};
  unsigned long long flags = 0;
  Check(cuMemGetAccess(&flags, &location, BlockAt(puppet, words).address), "cuMemGetAccess");
  answer->Number("flags", flags);
}

void PointerAttribute(Puppet& puppet, const Words& words, Answer* answer) {
  std::uint64_t value = 0;  // as large as any of them
  Check(cuPointerGetAttribute(&value, static_cast<CUpointer_attribute>(Number(words, 2)),
                              BlockAt(puppet, words).address),
        "cuPointerGetAttribute");
  answer->Number("value", value);
}

}  // namespace

const Commands<Puppet> kBlockCommands = {
    {"alloc",
     [](Puppet& p, const Words& w, Answer* a) {
       a->Number("id", p.blocks.Map(Number(w, 1), WordAt(w, 2) == "whole", p.device));
     }},
    {"alloc-on",
     [](Puppet& p, const Words& w, Answer* a) {
       a->Number("id", p.blocks.Map(Number(w, 2), true, static_cast<CUdevice>(Number(w, 1))));
     }},
    {"plain", [](Puppet& p, const Words& w,
                 Answer* a) { a->Number("id", p.blocks.Allocate(Number(w, 1), false)); }},
    {"managed", [](Puppet& p, const Words& w,
                   Answer* a) { a->Number("id", p.blocks.Allocate(Number(w, 1), true)); }},
    {"free", [](Puppet& p, const Words& w, Answer*) { p.blocks.Free(Number(w, 1)); }},
    {"unmap", [](Puppet& p, const Words& w, Answer*) { p.blocks.Unmap(Number(w, 1)); }},
    {"free-address",
     [](Puppet& p, const Words& w, Answer*) { p.blocks.FreeAddress(Number(w, 1)); }},
    {"fill",
     [](Puppet& p, const Words& w, Answer*) {
       const Blocks::Block& block = BlockAt(p, w);
       WriteBytes(block.address, block.bytes, Body{Number(w, 2)});
     }},
    {"verify", [](Puppet& p, const Words& w, Answer*) { Expect(p, w, Body{Number(w, 2)}); }},
    {"zero", [](Puppet& p, const Words& w,
                Answer*) { Expect(p, w, [](std::size_t) { return std::uint64_t{0}; }); }},
    {"clear",
     [](Puppet& p, const Words& w, Answer*) {
       const Blocks::Block& block = BlockAt(p, w);
       Check(cuMemsetD8(block.address, 0, block.bytes), "cuMemsetD8");
     }},
    {"flip", Flip},
    {"share", Share},
    {"open",
     [](Puppet& p, const Words& w, Answer* a) {
       a->Number("id", p.blocks.Open(Word(w, 1), static_cast<unsigned>(Number(w, 2))));
     }},
    {"offer", [](Puppet& p, const Words& w,
                 Answer*) { p.offering.Offer(BlockAt(p, w).handle, Word(w, 2)); }},
    {"take",
     [](Puppet& p, const Words& w, Answer* a) {
       a->Number("id", p.blocks.Import(Offering::Take(Word(w, 1)), Number(w, 2)));
     }},
    {"address",
     [](Puppet& p, const Words& w, Answer* a) { a->Number("address", BlockAt(p, w).address); }},
    {"pointer", PointerAttribute},
    {"access", AccessFlags},
    {"grant", Grant},
};

}  // namespace amem::workload
