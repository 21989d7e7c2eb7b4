#include <algorithm>
#include <utility>

#include "tests/workload/base/bytes.h"
#include "tests/workload/heap/heap.h"
#include "tests/workload/nccl/nccl_calls.h"

namespace amem::workload {
namespace {

std::string TagOf(const std::string& region) { return region.empty() ? "heap" : region; }

}  // namespace

HeapMemory::HeapMemory() {
  Check(Cuda().cuInit(0), "cuInit");
  int count = 0;
  Check(Cuda().cuDeviceGetCount(&count), "cuDeviceGetCount");
  for (int device = 0; device < count; ++device) {
    CUcontext context = nullptr;
    Check(Cuda().cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    contexts_.push_back(context);
  }
  Bind(0);
}

CUcontext HeapMemory::context(int device) const {
  if (device < 0 || device >= devices()) throw Failure("no such device");
  return contexts_[static_cast<std::size_t>(device)];
}

void HeapMemory::Bind(int device) const {
  Check(Cuda().cuCtxSetCurrent(context(device)), "cuCtxSetCurrent");
}

// ---- contents ----

std::uint64_t HeapMemory::Add(Piece piece) {
  const std::uint64_t id = next_id_++;
  piece.tag = tag_;
  Fill(id, piece);
  pieces_.emplace(id, std::move(piece));
  return id;
}

void HeapMemory::Fill(std::uint64_t id, Piece& piece) const {
  Bind(piece.device);
  ++piece.generation;
  piece.zero = false;
  WriteBytes(piece.address, piece.bytes, Body{Seed({piece.device, id}, piece.generation)});
}

std::optional<std::string> HeapMemory::Wrong(std::uint64_t id, const Piece& piece) const {
  Bind(piece.device);
  const Body body{Seed({piece.device, id}, piece.generation)};
  const auto at = FirstWrongByte(piece.address, piece.bytes,
                                 [&](std::size_t index) { return piece.zero ? 0 : body(index); });
  if (!at) return std::nullopt;
  return "byte " + std::to_string(*at) + " of " + std::to_string(piece.bytes) + " of memory " +
         std::to_string(id) + " (tag \"" + piece.tag + "\", device " +
         std::to_string(piece.device) + ") is wrong" + (piece.zero ? ", it must be 0" : "");
}

void HeapMemory::Verify(const std::set<std::string>& except, Answer* answer) const {
  answer->Number("wrong", 0);
  for (const auto& [id, piece] : pieces_) {
    if (except.contains(TagOf(piece.tag))) continue;
    answer->Number("checked", 1);
    answer->Number("bytes", piece.bytes);
    if (const auto wrong = Wrong(id, piece)) {
      answer->Number("wrong", 1);
      answer->Fail(*wrong);
    }
  }
}

void HeapMemory::Rewrite() {
  for (auto& [id, piece] : pieces_) Fill(id, piece);
}

void HeapMemory::ExpectZero(const std::string& tag) {
  for (auto& [id, piece] : pieces_)
    if (TagOf(piece.tag) == tag) piece.zero = true;
}

// ---- blocks ----

std::uint64_t HeapMemory::Allocate(int device, std::size_t bytes, std::uint64_t count,
                                   bool by_nccl) {
  Bind(device);
  std::uint64_t first = next_id_;
  for (std::uint64_t i = 0; i < count; ++i) {
    Piece piece;
    piece.device = device;
    piece.bytes = bytes;
    Check(by_nccl ? NcclCalls::AllocBlock(&piece.address, bytes)
                  : Cuda().cuMemAlloc(&piece.address, bytes),
          "cuMemAlloc");
    if (piece.address % 512 != 0) throw Failure("cuMemAlloc gave an address that is not aligned");
    Add(std::move(piece));
  }
  return first;
}

std::uint64_t HeapMemory::AllocatePitched(int device, std::size_t width, std::size_t height) {
  Bind(device);
  Piece piece;
  piece.device = device;
  std::size_t pitch = 0;
  Check(Cuda().cuMemAllocPitch(&piece.address, &pitch, width, height, 16), "cuMemAllocPitch");
  if (pitch < width || pitch % 512 != 0) throw Failure("a pitch of " + std::to_string(pitch));
  piece.bytes = pitch * height;
  return Add(std::move(piece));
}

void HeapMemory::Free(std::uint64_t id, const CUstream* behind) {
  const auto it = pieces_.find(id);
  if (it == pieces_.end() || !it->second.block) throw Failure("no block " + std::to_string(id));
  Bind(it->second.device);
  if (behind != nullptr)
    Check(Cuda().cuMemFreeAsync(it->second.address, *behind), "cuMemFreeAsync");
  else
    Check(Cuda().cuMemFree(it->second.address), "cuMemFree");
  pieces_.erase(it);
}

void HeapMemory::Churn(int device, std::uint64_t rounds) {
  std::vector<std::uint64_t> live;
  const auto drop = [&] {
    const std::size_t at = random_() % live.size();
    if (const auto wrong = Wrong(live[at], pieces_.at(live[at]))) throw Failure(*wrong);
    Free(live[at]);
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
  };
  for (std::uint64_t i = 0; i < rounds; ++i) {
    if (live.size() > 8) drop();
    const std::size_t bytes =
        i % 5 == 0 ? 1 + random_() % (3U << 20U) : 1 + random_() % (64U << 10U);
    live.push_back(Allocate(device, bytes, 1));
  }
  while (!live.empty()) drop();
}

void HeapMemory::Forget(int device) {
  std::erase_if(
      pieces_, [&](const auto& each) { return each.second.device == device && each.second.block; });
}

CUdeviceptr HeapMemory::AddressOf(std::uint64_t id) const {
  const auto it = pieces_.find(id);
  if (it == pieces_.end()) throw Failure("no memory " + std::to_string(id));
  return it->second.address;
}

void HeapMemory::List(Answer* answer) const {
  answer->List("memory");
  for (const auto& [id, piece] : pieces_)
    answer->Item("memory", "{\"id\":" + std::to_string(id) +
                               ",\"va\":" + std::to_string(piece.address) +
                               ",\"bytes\":" + std::to_string(piece.bytes) + ",\"device\":" +
                               std::to_string(piece.device) + ",\"tag\":" + Quote(piece.tag) + "}");
}

// ---- segments ----

void HeapMemory::MapSlot(Segment& segment, std::size_t slot) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = segment.device;
  CUmemGenericAllocationHandle handle = 0;
  Check(Cuda().cuMemCreate(&handle, segment.piece, &prop, 0), "cuMemCreate");
  Piece piece;
  piece.address = segment.base + slot * segment.piece;
  piece.bytes = segment.piece;
  piece.device = segment.device;
  piece.block = false;
  Check(Cuda().cuMemMap(piece.address, piece.bytes, 0, handle, 0), "cuMemMap");
  CUmemAccessDesc access{};
  access.location = prop.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  Check(Cuda().cuMemSetAccess(piece.address, piece.bytes, &access, 1), "cuMemSetAccess");
  segment.slots[slot] = Segment::Slot{handle, Add(std::move(piece))};
}

void HeapMemory::UnmapSlot(Segment& segment, std::size_t slot, bool unseen) {
  const Segment::Slot taken = *segment.slots[slot];
  if (!unseen)
    if (const auto wrong = Wrong(taken.id, pieces_.at(taken.id))) throw Failure(*wrong);
  Check(Cuda().cuMemUnmap(segment.base + slot * segment.piece, segment.piece), "cuMemUnmap");
  Check(Cuda().cuMemRelease(taken.handle), "cuMemRelease");
  pieces_.erase(taken.id);
  segment.slots[slot].reset();
}

void HeapMemory::Expand(int device, std::size_t piece, std::size_t count) {
  Bind(device);
  Segment segment;
  segment.device = device;
  segment.piece = piece;
  segment.slots.resize(4 * count);
  Check(Cuda().cuMemAddressReserve(&segment.base, 4 * count * piece, 0, 0, 0),
        "cuMemAddressReserve");
  segments_.push_back(std::move(segment));
  for (std::size_t i = 0; i < count; ++i) MapSlot(segments_.back(), i);
}

void HeapMemory::Shuffle() {
  for (Segment& segment : segments_) {
    Bind(segment.device);
    std::size_t dropped = 0;
    for (std::size_t i = 0; i < segment.slots.size(); ++i) {
      if (!segment.slots[i] || random_() % 2 == 0) continue;
      UnmapSlot(segment, i);
      ++dropped;
    }
    while (dropped > 0) {
      const std::size_t slot = random_() % segment.slots.size();
      if (segment.slots[slot]) continue;
      MapSlot(segment, slot);
      --dropped;
    }
  }
}

void HeapMemory::DropSegments(bool unseen) {
  for (Segment& segment : segments_) {
    Bind(segment.device);
    for (std::size_t i = 0; i < segment.slots.size(); ++i)
      if (segment.slots[i]) UnmapSlot(segment, i, unseen);
    Check(Cuda().cuMemAddressFree(segment.base, segment.slots.size() * segment.piece),
          "cuMemAddressFree");
  }
  segments_.clear();
}

}  // namespace amem::workload
