#include "shim/copies/dense_copier.h"

#include <cstring>
#include <string>
#include <utility>

#include "shim/base/log.h"

namespace amem::shim {

Result<CUstream> DenseCopier::stream(int device) {
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

void DenseCopier::prepare(int device) {
  if (const Result<CUstream> s = stream(device); !s.ok()) log_error(s.status().text());
}

void DenseCopier::forget(int device) {
  streams_.erase(device);
  marks_.forget(device);
}

bool DenseCopier::offer(const Piece& piece) {
  if (piece.space < piece.length) return false;
  // At once: the copy engine works while the next pieces are found.
  if (Status s = copy(piece, Way::kSave); error_.ok()) error_ = s;
  offered_.push_back(piece);
  offered_.back().form = Form::kDense;
  offered_.back().stored = piece.length;
  offered_.back().left_out = nullptr;
  return true;
}

Status DenseCopier::start() { return std::exchange(error_, {}); }

Status DenseCopier::store(std::vector<Piece>& saved) {
  saved.insert(saved.end(), offered_.begin(), offered_.end());
  return std::exchange(error_, {});
}

Status DenseCopier::load(std::span<const Piece> pieces) {
  for (const Piece& piece : pieces)
    if (Status s = copy(piece, Way::kLoad); !s.ok()) return s;
  return {};
}

Status DenseCopier::save_parts(const Piece& piece, std::span<const ByteRun> parts) {
  for (const ByteRun& part : parts) {
    Piece copied = piece;
    copied.address += part.offset;
    copied.pool += part.offset;
    copied.length = part.length;
    if (Status s = copy(copied, Way::kSave); !s.ok()) return s;
  }
  return {};
}

Status DenseCopier::clear(const Piece& piece) { return copy(piece, Way::kClear); }

Status DenseCopier::copy(const Piece& piece, Way way) {
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
  const std::uint64_t queued = marks_.queued(piece.device, stream.value(), piece.length);
  if (way == Way::kSave) queued_[piece.id] = queued;
  return {};
}

std::uint64_t DenseCopier::queued(std::uint64_t id) const {
  const auto it = queued_.find(id);
  return it == queued_.end() ? 0 : it->second;
}

Status DenseCopier::finish() {
  marks_.follow(std::exchange(follow_, {}));
  marks_.clear();
  offered_.clear();
  queued_.clear();
  error_ = {};
  Status result;
  for (const auto& [device, stream] : streams_) {
    const CUresult r = devices_.wait(device, stream);
    if (r != CUDA_SUCCESS && result.ok())
      result = driver_.error(r, "copies on device " + std::to_string(device));
  }
  return result;
}

void DenseCopier::read(const Piece& /*piece*/, const std::byte* pool, std::uint64_t offset,
                       std::uint64_t length, std::byte* out) const {
  std::memcpy(out, pool + offset, length);
}

}  // namespace amem::shim
