#include "shim/phases/mover.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "shim/base/log.h"
#include "shim/session/session.h"

namespace amem::shim {
namespace {

/// Of the piece's place: a sparse copy may lie in one that is shorter than the piece.
std::uint64_t pool_bytes(const amem_v1_Copy& copy) {
  return copy.stored != 0 ? copy.stored : copy.length;
}

Status unknown_form(const amem_v1_Copy& copy) {
  return {Code::kInternal, "allocation " + std::to_string(copy.id) + " is to be copied in form " +
                               std::to_string(copy.form) + ", which this shim does not know"};
}

bool contains(const std::vector<int>& list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

Status Mover::add_segment(const amem_v1_PoolSegment& message, Fd fd) {
  if (const auto known = segments_.find(message.index); known != segments_.end()) {
    if (known->second.size == message.size) return {};
    return {Code::kInternal, "pool segment " + std::to_string(message.index) + " is said to have " +
                                 std::to_string(message.size) + " bytes, and had " +
                                 std::to_string(known->second.size) +
                                 " before: this rank goes on with what it had"};
  }
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
                  what + " came without its descriptor" + kNoSpaceForDescriptors);
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
    CUmemAllocationProp properties{};
    if (driver_.cuMemGetAllocationPropertiesFromHandle_(&properties, handle) == CUDA_SUCCESS)
      segment.host = properties.location;
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
  marks_.forget(device);
  std::erase(prepared_, device);
  for (auto& [index, segment] : segments_) {
    std::erase(segment.reachable_from, device);
    // A registration reaches every context, and goes with the one that has made it.
    if (segment.registered_by == device) segment.reachable_from.clear();
    for (const int other : prepared_)
      if (Status s = grant(segment, other); !s.ok()) log_error(s.text());
  }
}

Status Mover::grant(MappedSegment& segment, int device) {
  if (contains(segment.reachable_from, device)) return {};
  LocalDevices::Use use(devices_, device);
  if (use.result() != CUDA_SUCCESS)
    return driver_.error(use.result(), "the context of device " + std::to_string(device));
  CUresult r = CUDA_SUCCESS;
  if (segment.memfd) {
    // Portable registration reaches every context of the process, so once is enough.
    if (segment.reachable_from.empty()) {
      r = driver_.cuMemHostRegister_(reinterpret_cast<void*>(segment.address), segment.size,
                                     CU_MEMHOSTREGISTER_PORTABLE);
      if (r == CUDA_SUCCESS) segment.registered_by = device;
    }
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
  marks_.prepare(device);
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
  if (copy.segment_offset > segment.size || pool_bytes(copy) > segment.size - copy.segment_offset)
    return Status(Code::kInternal,
                  "a copy reaches beyond pool segment " + std::to_string(copy.segment));
  if (Status s = grant(segment, device); !s.ok()) return s;
  return segment.address + copy.segment_offset;
}

Result<Piece> Mover::piece_of(std::uint64_t id, std::uint64_t offset, std::uint64_t length) {
  Result<Residency::Site> site = memory_.residency.site(id);
  if (!site.ok()) return site.status();
  Piece piece;
  piece.id = id;
  piece.offset = offset;
  piece.length = length;
  piece.device = site.value().device;
  piece.address = site.value().address + offset;
  piece.stored = length;
  sparse_.prepare(piece.device);  // a rank that had only imported until now has not yet
  return piece;
}

Result<Piece> Mover::place(const amem_v1_Copy& copy) {
  Result<Piece> piece = piece_of(copy.id, copy.offset, copy.length);
  if (!piece.ok() || copy.segment == kZeroSegment) return piece;
  Result<CUdeviceptr> pool = pool_address(copy, piece.value().device);
  if (!pool.ok()) return pool.status();
  piece.value().pool = pool.value();
  piece.value().space = pool_bytes(copy);
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
  if (way == Way::kClear) return {};
  bytes_ += piece.length;
  marks_.queued(piece.device, stream.value(), piece.length);
  return {};
}

const std::vector<Gap>* Mover::left_out(std::uint64_t id) {
  return scratch_.left_out(id, [this](int device, std::span<const Address> at, auto& words) {
    return sparse_.read(device, at, words);
  });
}

Status Mover::measure(const amem_v1_Measure& measure) {
  for (pb_size_t i = 0; i < measure.ranges_count; ++i) {
    const amem_v1_Measure_Range& range = measure.ranges[i];
    Result<Piece> piece = piece_of(range.id, 0, range.length);
    if (!piece.ok()) return piece.status();
    piece.value().left_out = left_out(range.id);
    if (sparse_.offer(piece.value())) bytes_ += range.length;
  }
  return sparse_.scan();
}

Status Mover::finish_measure(std::uint64_t& bytes, std::vector<Look>& looks) {
  Status result = sparse_.look(looks);
  if (Status s = wait(); result.ok()) result = s;
  memory_.residency.drop_temporary_mappings();
  bytes = std::exchange(bytes_, 0);
  return result;
}

Result<Mover::MappedSegment*> Mover::segment_at(CUdeviceptr pool) {
  const auto it = std::find_if(segments_.begin(), segments_.end(), [&](const auto& entry) {
    const MappedSegment& s = entry.second;
    return pool >= s.address && pool - s.address < s.size;
  });
  if (it == segments_.end())
    return Status(Code::kInternal, "saved bytes in no segment of the pool");
  return &it->second;
}

Status Mover::make_readable(CUdeviceptr pool) {
  const Result<MappedSegment*> found = segment_at(pool);
  if (!found.ok()) return found.status();
  MappedSegment& segment = *found.value();
  if (segment.memfd || segment.readable) return {};
  CUmemAccessDesc desc{};
  desc.location = segment.host;
  desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
  if (CUresult r = driver_.cuMemSetAccess_(segment.address, segment.size, &desc, 1);
      r != CUDA_SUCCESS)
    return driver_.error(r, "reading saved bytes: letting this process read the host pool");
  segment.readable = true;
  return {};
}

Result<std::vector<Mover::SavedRange>> Mover::saved_ranges(CUdeviceptr address,
                                                           std::uint64_t size) {
  const Result<std::vector<Mappings::AbsentRange>> paused = memory_.mappings.paused(address, size);
  if (!paused.ok()) return paused.status();
  std::vector<SavedRange> ranges;
  for (const Mappings::AbsentRange& range : paused.value()) {
    const std::vector<Piece> pieces = backups_.find(range.id, range.offset, range.size);
    if (pieces.empty())
      return Status(Code::kFailedPrecondition,
                    "the bytes of " + memory_.holdings.name(range.id) +
                        " are not there: a pause has dropped them (its region or tag says "
                        "discard), or another rank of the group has saved them");
    for (const Piece& piece : pieces) {
      if (Status s = make_readable(piece.pool); !s.ok()) return s;
      const std::uint64_t begin = std::max(range.offset, piece.offset);
      const std::uint64_t end = std::min(range.offset + range.size, piece.offset + piece.length);
      ranges.push_back({piece, begin - piece.offset, end - begin});
    }
  }
  return ranges;
}

Status Mover::read(CUdeviceptr address, std::uint64_t size, std::byte* out) {
  const Result<std::vector<SavedRange>> ranges = saved_ranges(address, size);
  if (!ranges.ok()) return ranges.status();
  for (const SavedRange& range : ranges.value()) {
    read_copy(range.piece, reinterpret_cast<const std::byte*>(range.piece.pool), range.offset,
              range.size, out);
    out += range.size;
  }
  return {};
}

Result<const void*> Mover::view(CUdeviceptr address, std::uint64_t size) {
  const Result<std::vector<SavedRange>> ranges = saved_ranges(address, size);
  if (!ranges.ok()) return ranges.status();
  CUdeviceptr next = 0;
  for (const SavedRange& range : ranges.value()) {
    const CUdeviceptr at = range.piece.pool + range.offset;
    if (range.piece.form != Form::kDense || (next != 0 && at != next)) return nullptr;
    next = at + range.size;
  }
  return reinterpret_cast<const void*>(next - size);
}

Status Mover::save(const amem_v1_Copies& copies) {
  if (!copies_began_) copies_began_ = SteadyClock::now();
  for (pb_size_t i = 0; i < copies.copies_count; ++i) {
    const amem_v1_Copy& copy = copies.copies[i];
    Result<Piece> placed = place(copy);
    if (!placed.ok()) return placed.status();
    Piece& piece = placed.value();
    const std::optional<Form> form = form_of(copy.form);
    if (!form) return unknown_form(copy);
    piece.form = *form;
    piece.left_out = left_out(piece.id);
    if (piece.form != Form::kDense && sparse_.offer(piece)) continue;
    if (piece.space < piece.length)
      return {Code::kInternal, memory_.holdings.name(piece.id) + " is to be saved in " +
                                   std::to_string(piece.space) + " bytes of the pool instead of " +
                                   std::to_string(piece.length) +
                                   ", and its zeros can no longer be looked for"};
    piece.form = Form::kDense;
    if (Status s = this->copy(piece, Way::kSave); !s.ok()) return s;
    backups_.add(piece);
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
    const bool cleared = copy.segment == kZeroSegment;
    const std::optional<Form> form = stored_form_of(copy.form);
    if (!form && !cleared) return unknown_form(copy);
    piece.form = form.value_or(Form::kDense);
    piece.checksum = copy.checksum;
    if (options_.verify && !cleared && piece.checksum != 0) pieces_.push_back(piece);
    if (piece.form == Form::kSparse && !cleared) {
      bytes_ += copy.stored;
      sparse_ones.push_back(piece);
    } else if (Status s = this->copy(piece, cleared ? Way::kClear : Way::kLoad); !s.ok()) {
      return s;
    }
  }
  return sparse_.scatter(sparse_ones);
}

Status Mover::restore(std::uint64_t id, std::uint64_t size) {
  const std::vector<Piece> saved = backups_.find(id, 0, size);
  if (saved.empty()) {
    Result<Piece> whole = piece_of(id, 0, size);
    return whole.ok() ? copy(whole.value(), Way::kClear) : whole.status();
  }
  std::vector<Piece> sparse_ones;
  for (const Piece& from : saved) {
    Result<Piece> placed = piece_of(id, from.offset, from.length);
    if (!placed.ok()) return placed.status();
    Piece& piece = placed.value();
    piece.pool = from.pool;
    piece.space = from.space;
    piece.stored = from.stored;
    piece.form = from.form;
    const Result<MappedSegment*> segment = segment_at(piece.pool);
    if (!segment.ok()) return segment.status();
    if (Status s = grant(*segment.value(), piece.device); !s.ok()) return s;
    if (piece.form == Form::kSparse)
      sparse_ones.push_back(piece);
    else if (Status s = copy(piece, Way::kLoad); !s.ok())
      return s;
  }
  return sparse_.scatter(sparse_ones);
}

Status Mover::wait(const CopyMarks::Follow& follow) {
  marks_.follow(follow);
  marks_.clear();
  Status result = sparse_.finish();
  for (const auto& [device, stream] : streams_) {
    const CUresult r = devices_.wait(device, stream);
    if (r != CUDA_SUCCESS && result.ok())
      result = driver_.error(r, "copies on device " + std::to_string(device));
  }
  copies_ = {};
  if (copies_began_) copies_.add(*copies_began_, SteadyClock::now());
  copies_began_.reset();
  return result;
}

Status Mover::finish_save(std::uint64_t& bytes, std::vector<Piece>& stored,
                          const CopyMarks::Follow& follow) {
  std::vector<Piece> decided;
  Status result = sparse_.gather(decided);
  for (const Piece& piece : decided) {
    if (piece.form == Form::kSparse)
      bytes_ += piece.stored;
    else if (result.ok())
      result = copy(piece, Way::kSave);
    backups_.add(piece);
  }
  if (Status s = wait(follow); result.ok()) result = s;
  pieces_.insert(pieces_.end(), decided.begin(), decided.end());
  if (result.ok() && options_.verify) result = sparse_.checksums(pieces_);
  stored = std::exchange(pieces_, {});
  std::erase_if(stored, [](const Piece& p) { return p.form == Form::kDense && p.checksum == 0; });
  memory_.residency.drop_temporary_mappings();
  bytes = std::exchange(bytes_, 0);
  return result;
}

Status Mover::finish_load(std::uint64_t& bytes, const CopyMarks::Follow& follow) {
  Status result = wait(follow);
  if (result.ok()) result = verify();
  pieces_.clear();
  memory_.residency.drop_temporary_mappings();
  bytes = std::exchange(bytes_, 0);
  return result;
}

Status Mover::give_up() {
  const Status result = wait();
  pieces_.clear();
  memory_.residency.drop_temporary_mappings();
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
                                 ", did not come back as they were saved" + " (" +
                                 std::string(to_string(loaded[i].form)) + ")"};
  }
  return {};
}

}  // namespace amem::shim
