#include "shim/scratch/scratch.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "shim/base/log.h"
#include "shim/process/symbols.h"

namespace amem::shim {
namespace {

/// NCCL's versions, as ncclGetVersion numbers them, for which tests/gpu's case nccl_scratch has
/// passed on GPUs that reach each other; docs/compatibility.md has the runs.
constexpr std::array<int, 0> kProven{};

constexpr unsigned char kPattern = 0xff;
constexpr std::uint64_t kWord = 8;

std::string name_of(int version) {
  if (version == 0) return "this NCCL, which does not say its version,";
  return "NCCL " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) +
         "." + std::to_string(version % 100);
}

int version_of(const void* code) {
  const auto ask = reinterpret_cast<int (*)(int*)>(symbol_for(code, "ncclGetVersion", nullptr));
  int version = 0;
  return ask != nullptr && ask(&version) == 0 ? version : 0;
}

}  // namespace

ScratchRule scratch_rule(NcclScratch asked, int version) {
  if (asked == NcclScratch::kKeep) return {};
  if (asked == NcclScratch::kProve) return {true, true, {}};
  if (std::find(kProven.begin(), kProven.end(), version) != kProven.end()) return {true, false, {}};
  return {false, false,
          "AMEM_NCCL_SCRATCH=drop: that " + name_of(version) +
              " reads nothing of what would be dropped is not proven, so all of its buffers are "
              "saved; docs/compatibility.md has the versions, and how to prove one"};
}

void Scratch::of_nccl(const void* code) {
  if (options_.nccl_scratch == NcclScratch::kKeep || seen_.exchange(true)) return;
  const ScratchRule rule = scratch_rule(options_.nccl_scratch, version_of(code));
  if (!rule.refusal.empty()) log_warn(rule.refusal);
  if (rule.prove)
    log_warn(
        "AMEM_NCCL_SCRATCH=prove: bytes of NCCL's buffers come back spoilt; for proof runs only");
  prove_ = rule.prove;
  drop_ = rule.drop;
}

void Scratch::begin() {
  found_.reset();
  cleared_.clear();
}

void Scratch::forget(int device) { streams_.erase(device); }

Result<CUstream> Scratch::stream(int device) {
  if (const auto it = streams_.find(device); it != streams_.end()) return it->second;
  CUstream stream = nullptr;
  const LocalDevices::Use use(devices_, device);
  CUresult r = use.result();
  if (r == CUDA_SUCCESS) r = driver_.cuStreamCreate_(&stream, CU_STREAM_NON_BLOCKING);
  if (r != CUDA_SUCCESS)
    return driver_.error(r, "a stream for NCCL's buffers on device " + std::to_string(device));
  return streams_[device] = stream;
}

Status Scratch::wait() {
  Status result;
  for (const auto& [device, stream] : streams_) {
    const LocalDevices::Use use(devices_, device);
    CUresult r = use.result();
    if (r == CUDA_SUCCESS) r = devices_.wait(stream);
    if (r != CUDA_SUCCESS && result.ok())
      result = driver_.error(r, "looking at NCCL's buffers on device " + std::to_string(device));
  }
  return result;
}

Result<std::span<const std::byte>> Scratch::fetch(const std::vector<Part>& parts) {
  std::uint64_t size = 0;
  for (const Part& part : parts) size += part.size;
  if (parts.empty()) return std::span<const std::byte>();
  if (size > room_) {
    const LocalDevices::Use use(devices_, parts.front().device);
    host_ = {};
    room_ = 0;
    CUresult r = use.result();
    if (r == CUDA_SUCCESS) r = host_.make(driver_, size);
    if (r != CUDA_SUCCESS)
      return driver_.error(
          r, "host memory to look at NCCL's tables of " + std::to_string(size) + " bytes");
    room_ = size;
  }
  auto* to = static_cast<std::byte*>(host_.get());
  Status result;
  for (const Part& part : parts) {
    Result<CUstream> stream = this->stream(part.device);
    if (!stream.ok()) result = stream.status();
    if (!result.ok()) break;
    const LocalDevices::Use use(devices_, part.device);
    CUresult r = use.result();
    if (r == CUDA_SUCCESS)
      r = driver_.cuMemcpyDtoHAsync_(to, part.address, part.size, stream.value());
    if (r != CUDA_SUCCESS)
      result = driver_.error(r, "reading NCCL's tables on device " + std::to_string(part.device));
    to += part.size;
  }
  if (Status s = wait(); result.ok()) result = s;
  if (!result.ok()) return result;
  return std::span<const std::byte>(static_cast<std::byte*>(host_.get()), size);
}

Result<std::vector<Fifo>> Scratch::fifos(const std::vector<OwnPiece>& pieces) {
  std::vector<Part> parts;
  for (const OwnPiece& piece : pieces) {
    if (piece.size > kMostTable) continue;
    // Tables lie side by side: one copy for neighbours.
    const bool next = !parts.empty() && parts.back().device == piece.device &&
                      parts.back().id == piece.id &&
                      parts.back().address + parts.back().size == piece.address;
    if (next)
      parts.back().size += piece.size;
    else
      parts.push_back({piece.address, piece.size, piece.device, piece.id});
  }
  Result<std::span<const std::byte>> bytes = fetch(parts);
  if (!bytes.ok()) return bytes.status();
  std::vector<Fifo> fifos;
  std::size_t at = 0;
  for (const OwnPiece& piece : pieces) {
    if (piece.size > kMostTable) continue;
    const std::vector<Fifo> some = find_fifos(pieces, bytes.value().subspan(at, piece.size));
    fifos.insert(fifos.end(), some.begin(), some.end());
    at += piece.size;
  }
  return fifos;
}

Status Scratch::find() {
  found_.emplace();
  std::vector<OwnPiece> pieces = slabs_.own();
  std::erase_if(pieces, [&](const OwnPiece& piece) {
    return !memory_.holdings.holds(piece.id) || memory_.holdings.is_away(piece.id);
  });
  const Result<std::vector<Fifo>> fifos = this->fifos(pieces);
  if (!fifos.ok()) return fifos.status();
  std::vector<Part> words;
  for (const Fifo& fifo : fifos.value())
    for (const Address word : {fifo.tail, fifo.flag})
      words.push_back({word, kWord, fifo.piece.device, fifo.piece.id});
  const Result<std::span<const std::byte>> bytes = fetch(words);
  if (!bytes.ok()) return bytes.status();
  std::map<Address, bool> empty;  // by buffer; all of its connections have to say so
  for (std::size_t i = 0; i < fifos.value().size(); ++i) {
    const Fifo& fifo = fifos.value()[i];
    std::uint64_t word[2] = {};
    std::memcpy(word, bytes.value().data() + i * sizeof word, sizeof word);
    bool& all = empty.try_emplace(fifo.piece.address, true).first->second;
    all = all && fifo.empty(word[0], word[1]);
  }
  std::uint64_t dropped = 0;
  std::uint64_t in_use = 0;
  for (const Fifo& fifo : fifos.value()) {
    const auto it = empty.find(fifo.piece.address);
    if (it == empty.end()) continue;  // named twice
    if (it->second) {
      const Range range{fifo.piece.offset + fifo.kept, fifo.piece.size - fifo.kept};
      (*found_)[fifo.piece.id].push_back(range);
      dropped += range.size;
    } else {
      ++in_use;
    }
    empty.erase(it);
  }
  log_info("AMEM_NCCL_SCRATCH: " + std::to_string(dropped >> 20) +
           " MiB of NCCL's receive buffers need not travel; " + std::to_string(in_use) +
           " buffers hold what nobody has received yet and are kept");
  return {};
}

Status Scratch::fill(std::uint64_t id, unsigned char byte) {
  const Result<Residency::Site> site = memory_.residency.site(id);
  if (!site.ok()) return site.status();
  const int device = site.value().device;
  const Result<CUstream> stream = this->stream(device);
  if (!stream.ok()) return stream.status();
  const LocalDevices::Use use(devices_, device);
  CUresult r = use.result();
  for (const Range& range : found_->at(id))
    if (r == CUDA_SUCCESS)
      r = driver_.cuMemsetD8Async_(site.value().address + range.offset, byte, range.size,
                                   stream.value());
  if (r == CUDA_SUCCESS) return {};
  return driver_.error(r, "clearing what need not travel of " + memory_.holdings.name(id) +
                              " on device " + std::to_string(device));
}

Status Scratch::clear(const std::set<std::uint64_t>& ids) {
  if (!drop_) return {};
  // What cannot be looked at is saved.
  if (!found_)
    if (Status s = find(); !s.ok()) {
      log_warn(s.text() + "; all of NCCL's buffers are saved");
      found_.emplace();
    }
  Status result;
  for (const std::uint64_t id : ids)
    if (result.ok() && found_->contains(id) && cleared_.insert(id).second) result = fill(id, 0);
  if (Status s = wait(); result.ok()) result = s;
  return result;
}

Status Scratch::spoil() {
  if (!prove_) return {};
  Status result;
  std::erase_if(cleared_, [&](std::uint64_t id) {
    if (!result.ok() || memory_.holdings.is_away(id)) return false;
    if (memory_.holdings.holds(id)) result = fill(id, kPattern);
    return true;
  });
  if (Status s = wait(); result.ok()) result = s;
  return result;
}

}  // namespace amem::shim
