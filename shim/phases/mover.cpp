#include "shim/phases/mover.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "shim/session/session.h"

namespace amem::shim {
namespace {

bool contains(const std::vector<int>& list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

Status Mover::add_segment(const amem_v1_PoolSegment& message, Fd fd) {
  if (segments_.contains(message.index)) return {};
  Result<MappedSegment> mapped = map_segment(message, fd);
  if (!mapped.ok()) {
    missing_[message.index] = mapped.status();
    return mapped.status();
  }
  missing_.erase(message.index);
  MappedSegment& added = segments_[message.index] = std::move(mapped).value();
  for (int device : prepared_)
    if (Status s = grant(added, device); !s.ok()) return s;
  return {};
}

Result<Mover::MappedSegment> Mover::map_segment(const amem_v1_PoolSegment& message, const Fd& fd) {
  MappedSegment segment;
  segment.size = message.size;
  segment.memfd = message.memfd;
  const std::string what = "pool segment " + std::to_string(message.index);
  if (!fd)
    return Status(Code::kResourceExhausted,
                  what + " came without its descriptor" + kNoRoomForDescriptors);
  if (segment.memfd) {
    void* address = ::mmap(nullptr, segment.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (address == MAP_FAILED) return errno_status(Code::kInternal, "mapping " + what, errno);
    segment.address = reinterpret_cast<CUdeviceptr>(address);
  } else {
    CUmemGenericAllocationHandle handle = 0;
    if (CUresult r = driver_.cuMemImportFromShareableHandle_(
            &handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd.get())),
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        r != CUDA_SUCCESS)
      return driver_.error(r, "importing " + what);
    CUresult r = driver_.cuMemAddressReserve_(&segment.address, segment.size, 0, 0, 0);
    if (r == CUDA_SUCCESS) {
      r = driver_.cuMemMap_(segment.address, segment.size, 0, handle, 0);
      if (r != CUDA_SUCCESS) driver_.cuMemAddressFree_(segment.address, segment.size);
    }
    driver_.cuMemRelease_(handle);
    if (r != CUDA_SUCCESS) return driver_.error(r, "mapping " + what);
  }
  return segment;
}

Status Mover::prepare(int device) {
  if (contains(prepared_, device)) return {};
  prepared_.push_back(device);
  if (Result<CUstream> s = stream(device); !s.ok()) return s.status();
  sparse_.prepare(device);
  for (auto& [index, segment] : segments_)
    if (Status s = grant(segment, device); !s.ok()) return s;
  return {};
}

void Mover::forget(int device) {
  streams_.erase(device);
  sparse_.forget(device);
  std::erase(prepared_, device);
}

Status Mover::grant(MappedSegment& segment, int device) {
  if (contains(segment.reachable_from, device)) return {};
  LocalDevices::Use use(devices_, device);
  if (use.result() != CUDA_SUCCESS)
    return driver_.error(use.result(), "the context of device " + std::to_string(device));
  CUresult r = CUDA_SUCCESS;
  if (segment.memfd) {
    // Portable registration reaches every context of the process, so once is enough.
    if (segment.reachable_from.empty())
      r = driver_.cuMemHostRegister_(reinterpret_cast<void*>(segment.address), segment.size,
                                     CU_MEMHOSTREGISTER_PORTABLE);
  } else {
    CUmemAccessDesc desc{};
    desc.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    desc.location.id = device;
    desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    r = driver_.cuMemSetAccess_(segment.address, segment.size, &desc, 1);
  }
  if (r != CUDA_SUCCESS)
    return driver_.error(r, "letting device " + std::to_string(device) + " reach the host pool");
  segment.reachable_from.push_back(device);
  return {};
}

Result<CUstream> Mover::stream(int device) {
  if (const auto it = streams_.find(device); it != streams_.end()) return it->second;
  LocalDevices::Use use(devices_, device);
  CUstream stream = nullptr;
  CUresult r = use.result();
  if (r == CUDA_SUCCESS) r = driver_.cuStreamCreate_(&stream, CU_STREAM_NON_BLOCKING);
  if (r != CUDA_SUCCESS)
    return driver_.error(r, "a stream for copies on device " + std::to_string(device));
  streams_[device] = stream;
  return stream;
}

Result<CUdeviceptr> Mover::pool_address(const amem_v1_Copy& copy, int device) {
  const auto it = segments_.find(copy.segment);
  if (it == segments_.end()) {
    const auto why = missing_.find(copy.segment);
    return why != missing_.end()
               ? Status(why->second.code(),
                        why->second.text() + "; the next attempt is given it again")
               : Status(Code::kInternal, "no pool segment " + std::to_string(copy.segment));
  }
  MappedSegment& segment = it->second;
  if (copy.segment_offset > segment.size || copy.length > segment.size - copy.segment_offset)
    return Status(Code::kInternal,
                  "a copy reaches beyond pool segment " + std::to_string(copy.segment));
  if (Status s = grant(segment, device); !s.ok()) return s;
  return segment.address + copy.segment_offset;
}

Result<Piece> Mover::place(const amem_v1_Copy& copy) {
  Result<Residency::Site> site = memory_.residency.site(copy.id);
  if (!site.ok()) return site.status();
  Piece piece;
  piece.id = copy.id;
  piece.offset = copy.offset;
  piece.length = copy.length;
  piece.device = site.value().device;
  piece.address = site.value().address + copy.offset;
  piece.stored = copy.length;
  sparse_.prepare(piece.device);  // a rank that had only imported until now has not yet
  if (copy.segment == kZeroSegment) return piece;
  Result<CUdeviceptr> pool = pool_address(copy, piece.device);
  if (!pool.ok()) return pool.status();
  piece.pool = pool.value();
  return piece;
}

Status Mover::copy(const Piece& piece, Way way) {
  Result<CUstream> stream = this->stream(piece.device);
  if (!stream.ok()) return stream.status();
  void* pool = reinterpret_cast<void*>(piece.pool);
  LocalDevices::Use use(devices_, piece.device);
  CUresult r = use.result();
  if (r == CUDA_SUCCESS && way == Way::kClear)
    r = driver_.cuMemsetD8Async_(piece.address, 0, piece.length, stream.value());
  else if (r == CUDA_SUCCESS && way == Way::kSave)
    r = driver_.cuMemcpyDtoHAsync_(pool, piece.address, piece.length, stream.value());
  else if (r == CUDA_SUCCESS)
    r = driver_.cuMemcpyHtoDAsync_(piece.address, pool, piece.length, stream.value());
  if (r != CUDA_SUCCESS)
    return driver_.error(r, std::string(way == Way::kSave ? "saving" : "loading") + " " +
                                std::to_string(piece.length) + " bytes of allocation " +
                                std::to_string(piece.id) + " on device " +
                                std::to_string(piece.device));
  bytes_ += piece.length;
  return {};
}

Status Mover::save(const amem_v1_Copies& copies) {
  if (!copies_began_) copies_began_ = SteadyClock::now();
  for (pb_size_t i = 0; i < copies.copies_count; ++i) {
    const amem_v1_Copy& copy = copies.copies[i];
    Result<Piece> placed = place(copy);
    if (!placed.ok()) return placed.status();
    Piece& piece = placed.value();
    piece.sparse = copy.form == amem_v1_Form_FORM_SPARSE;
    if (copy.form != amem_v1_Form_FORM_DENSE && sparse_.offer(piece)) continue;
    piece.sparse = false;
    if (Status s = this->copy(piece, Way::kSave); !s.ok()) return s;
    if (options_.verify) pieces_.push_back(piece);
  }
  return sparse_.scan();
}

Status Mover::load(const amem_v1_Copies& copies) {
  if (!copies_began_ && copies.copies_count > 0) copies_began_ = SteadyClock::now();
  std::vector<Piece> sparse_ones;
  for (pb_size_t i = 0; i < copies.copies_count; ++i) {
    const amem_v1_Copy& copy = copies.copies[i];
    // A program that runs while its memory comes back may have freed this meanwhile.
    if (!memory_.holdings.holds(copy.id)) continue;
    Result<Piece> placed = place(copy);
    if (!placed.ok()) return placed.status();
    Piece& piece = placed.value();
    piece.sparse = copy.form == amem_v1_Form_FORM_SPARSE;
    piece.checksum = copy.checksum;
    const bool cleared = copy.segment == kZeroSegment;
    if (options_.verify && !cleared && piece.checksum != 0) pieces_.push_back(piece);
    if (piece.sparse && !cleared) {
      bytes_ += copy.stored;
      sparse_ones.push_back(piece);
    } else if (Status s = this->copy(piece, cleared ? Way::kClear : Way::kLoad); !s.ok()) {
      return s;
    }
  }
  return sparse_.scatter(sparse_ones);
}

Status Mover::wait() {
  Status result = sparse_.finish();
  for (const auto& [device, stream] : streams_) {
    LocalDevices::Use use(devices_, device);
    CUresult r = use.result();
    if (r == CUDA_SUCCESS) r = driver_.cuStreamSynchronize_(stream);
    if (r != CUDA_SUCCESS && result.ok())
      result = driver_.error(r, "copies on device " + std::to_string(device));
  }
  copy_time_ = copies_began_ ? SteadyClock::now() - *copies_began_ : SteadyClock::duration();
  copies_began_.reset();
  return result;
}

Status Mover::finish_save(std::uint64_t& bytes, std::vector<Piece>& stored) {
  std::vector<Piece> decided;
  Status result = sparse_.gather(decided);
  for (const Piece& piece : decided) {
    if (piece.sparse)
      bytes_ += piece.stored;
    else if (result.ok())
      result = copy(piece, Way::kSave);
  }
  if (Status s = wait(); result.ok()) result = s;
  pieces_.insert(pieces_.end(), decided.begin(), decided.end());
  if (result.ok() && options_.verify) result = sparse_.checksums(pieces_);
  stored = std::exchange(pieces_, {});
  std::erase_if(stored, [](const Piece& p) { return !p.sparse && p.checksum == 0; });
  memory_.residency.drop_scratch();
  bytes = std::exchange(bytes_, 0);
  return result;
}

Status Mover::finish_load(std::uint64_t& bytes) {
  Status result = wait();
  if (result.ok()) result = verify();
  pieces_.clear();
  memory_.residency.drop_scratch();
  bytes = std::exchange(bytes_, 0);
  return result;
}

Status Mover::give_up() {
  const Status result = wait();
  pieces_.clear();
  memory_.residency.drop_scratch();
  bytes_ = 0;
  return result;
}

Status Mover::verify() {
  std::vector<Piece> loaded = pieces_;
  if (Status s = sparse_.checksums(loaded); !s.ok()) return s;
  for (std::size_t i = 0; i < loaded.size(); ++i) {
    if (loaded[i].checksum == 0 || loaded[i].checksum == pieces_[i].checksum) continue;
    return {Code::kDataLoss, "AMEM_VERIFY: " + memory_.holdings.name(loaded[i].id) + ", bytes " +
                                 std::to_string(loaded[i].offset) + " to " +
                                 std::to_string(loaded[i].offset + loaded[i].length) +
                                 ", did not come back as they were saved" +
                                 (loaded[i].sparse ? " (sparse)" : " (dense)")};
  }
  return {};
}

}  // namespace amem::shim
