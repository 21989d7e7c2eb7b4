#include "tests/puppet/blocks.h"

#include <cstdio>
#include <string>

#include "tests/puppet/check.h"
#include "tests/puppet/passing.h"
#include "tests/workload/base/failure.h"
#include "tests/workload/base/pattern.h"

namespace amem::puppet {

std::vector<std::uint64_t> Pattern(std::size_t bytes, std::uint64_t seed) {
  std::vector<std::uint64_t> words(bytes / sizeof(std::uint64_t));
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = workload::BodyWord(seed, i);
  return words;
}

std::uint64_t Blocks::Add(const Block& block) {
  blocks_.emplace(next_id_, block);
  return next_id_++;
}

const Blocks::Block& Blocks::At(std::uint64_t id) const {
  const auto found = blocks_.find(id);
  if (found == blocks_.end()) throw workload::Failure("no block " + std::to_string(id));
  return found->second;
}

std::uint64_t Blocks::Map(std::size_t bytes, bool whole, CUdevice device) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  std::size_t granularity = 0;
  Check(cuMemGetAllocationGranularity(
            &granularity, &prop,
            whole ? CU_MEM_ALLOC_GRANULARITY_RECOMMENDED : CU_MEM_ALLOC_GRANULARITY_MINIMUM),
        "cuMemGetAllocationGranularity");
  Block block;
  block.bytes = (bytes + granularity - 1) / granularity * granularity;
  Check(cuMemCreate(&block.handle, block.bytes, &prop, 0), "cuMemCreate");
  MapAt(block, device);
  return Add(block);
}

void Blocks::MapAt(Block& block, CUdevice device) {
  Check(cuMemAddressReserve(&block.address, block.bytes, 0, 0, 0), "cuMemAddressReserve");
  Check(cuMemMap(block.address, block.bytes, 0, block.handle, 0), "cuMemMap");
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, {device}},
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  Check(cuMemSetAccess(block.address, block.bytes, &access, 1), "cuMemSetAccess");
}

void Blocks::Offer(std::uint64_t id, const std::string& directory) {
  if (offer_.joinable()) offer_.join();
  offer_ = puppet::Offer(At(id).handle, directory);
}

std::uint64_t Blocks::Take(const std::string& directory, std::size_t bytes) {
  Block block;
  block.handle = puppet::Take(directory);
  block.bytes = bytes;
  MapAt(block, device_);
  return Add(block);
}

Blocks::~Blocks() {
  if (offer_.joinable()) offer_.join();
}

std::uint64_t Blocks::Allocate(std::size_t bytes) {
  Block block;
  block.kind = Kind::kPlain;
  block.bytes = bytes;
  Check(cuMemAlloc(&block.address, bytes), "cuMemAlloc");
  return Add(block);
}

std::uint64_t Blocks::AllocateManaged(std::size_t bytes) {
  Block block;
  block.kind = Kind::kPlain;
  block.bytes = bytes;
  Check(cuMemAllocManaged(&block.address, bytes, CU_MEM_ATTACH_GLOBAL), "cuMemAllocManaged");
  return Add(block);
}

std::string Blocks::Share(std::uint64_t id, std::size_t offset) const {
  CUipcMemHandle handle{};
  Check(cuIpcGetMemHandle(&handle, At(id).address + offset), "cuIpcGetMemHandle");
  std::string text;
  for (const char byte : handle.reserved) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
    text += digits;
  }
  return text;
}

std::uint64_t Blocks::Open(const std::string& handle, unsigned flags) {
  CUipcMemHandle binary{};
  if (handle.size() != 2 * sizeof binary.reserved) throw workload::Failure("not a handle");
  for (std::size_t i = 0; i < sizeof binary.reserved; ++i) {
    binary.reserved[i] = static_cast<char>(std::stoi(handle.substr(2 * i, 2), nullptr, 16));
  }
  Block block;
  block.kind = Kind::kShared;
  Check(cuIpcOpenMemHandle(&block.address, binary, flags), "cuIpcOpenMemHandle");
  Check(cuMemGetAddressRange(nullptr, &block.bytes, block.address), "cuMemGetAddressRange");
  return Add(block);
}

void Blocks::Free(std::uint64_t id) {
  if (At(id).handle != 0) Unmap(id);
  const Block block = At(id);
  blocks_.erase(id);
  if (block.kind == Kind::kPlain) return Check(cuMemFree(block.address), "cuMemFree");
  if (block.kind == Kind::kShared) {
    return Check(cuIpcCloseMemHandle(block.address), "cuIpcCloseMemHandle");
  }
  Check(cuMemAddressFree(block.address, block.bytes), "cuMemAddressFree");
}

void Blocks::Unmap(std::uint64_t id) {
  Block& block = blocks_.at(id);
  Check(cuMemUnmap(block.address, block.bytes), "cuMemUnmap");
  Check(cuMemRelease(block.handle), "cuMemRelease");
  block.handle = 0;
}

void Blocks::FreeAddress(std::uint64_t id) {
  Check(cuMemAddressFree(At(id).address, At(id).bytes), "cuMemAddressFree");
  blocks_.erase(id);
}

void Blocks::Fill(std::uint64_t id, std::uint64_t seed) const {
  const Block& block = At(id);
  const auto words = Pattern(block.bytes, seed);
  Check(cuMemcpyHtoD(block.address, words.data(), block.bytes), "cuMemcpyHtoD");
}

void Blocks::Clear(std::uint64_t id) const {
  const Block& block = At(id);
  Check(cuMemsetD8(block.address, 0, block.bytes), "cuMemsetD8");
}

void Blocks::Flip(std::uint64_t id, std::size_t offset) const {
  const Block& block = At(id);
  if (offset >= block.bytes) throw workload::Failure("no byte " + std::to_string(offset));
  unsigned char byte = 0;
  Check(cuMemcpyDtoH(&byte, block.address + offset, 1), "cuMemcpyDtoH");
  byte = static_cast<unsigned char>(~byte);
  Check(cuMemcpyHtoD(block.address + offset, &byte, 1), "cuMemcpyHtoD");
}

void Blocks::Verify(std::uint64_t id, std::uint64_t seed) const {
  Expect(id, Pattern(At(id).bytes, seed));
}

void Blocks::ExpectZero(std::uint64_t id) const {
  Expect(id, std::vector<std::uint64_t>(At(id).bytes / sizeof(std::uint64_t)));
}

void Blocks::Expect(std::uint64_t id, const std::vector<std::uint64_t>& expected) const {
  const Block& block = At(id);
  std::vector<std::uint64_t> words(expected.size());
  Check(cuMemcpyDtoH(words.data(), block.address, block.bytes), "cuMemcpyDtoH");
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == expected[i]) continue;
    throw workload::Failure("block " + std::to_string(id) + " is wrong from byte " +
                            std::to_string(i * sizeof words[i]));
  }
}

}  // namespace amem::puppet
